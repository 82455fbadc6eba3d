"""Reads KV events of groups of layers and of the host's memory with a decoder of its own.

    pip install pyzmq
    python tests/python/kv_tiers.py --sim target/debug/vllm-sim [--requests 400]

A model whose layers see 64 tokens or everything (as Gemma 3 has them), a small GPU and a host of
90 blocks, conversations that go on, aborts and resets. No decoder of this repository is used: MessagePack is
read here, block hashes are computed anew with pickle and hashlib, and a book is kept of what each
group of each medium holds. Exit code 1 names what a publisher must never do: a hole in the sequence
numbers, a hash that is not the chain's, a parent that nobody announced, a removal of what is not
stored, a block in the memory of the host that no GPU had, other fields than vLLM's, or a book that
differs from the server's own listing in the end.
"""
import argparse, collections, hashlib, json, os, pathlib, pickle, random, shutil
import struct, subprocess, sys, tempfile, time

import zmq

from keep_alive import HOST, KeepAlive, free_port

BLOCK, WINDOW = 16, 64
TINY = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "tiny-llama"
STORED = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
          "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
          "locality", "lookahead_token_ids"]
REMOVED = ["type", "block_hashes", "medium", "group_idx", "locality"]
RUNS = {
    "groups": (["GPU"], []),
    "flat": (["GPU"], ["--disable-hybrid-kv-cache-manager"]),
    "groups and host": (["GPU", "CPU"], ["--kv-offloading-size", "HOST"]),
    "flat and host": (["GPU", "CPU"], ["--kv-offloading-size", "HOST",
                                       "--disable-hybrid-kv-cache-manager"]),
    "flat, self-describing": (["GPU", "CPU"], [
        "--disable-hybrid-kv-cache-manager", "--kv-transfer-config", json.dumps({
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
                "cpu_bytes_to_use": 90 * BLOCK * 3072, "self_describing_kv_events": True}})]),
    "flat, simple": (["GPU", "CPU"], [
        "--disable-hybrid-kv-cache-manager", "--kv-transfer-config", json.dumps({
            "kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"num_cpu_blocks": 90}})]),
    "look-ahead": (["GPU"], ["--disable-hybrid-kv-cache-manager", "--speculative-config", json.dumps({
        "method": "eagle3", "model": "d", "num_speculative_tokens": 3})]),
}


class MessagePack:
    """The subset that has no extensions."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        assert self.at <= len(self.data), "cut off"
        return self.data[self.at - count:self.at]

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def items(self, count):
        return [self.value() for _ in range(count)]

    def pairs(self, count):
        return {self.value(): self.value() for _ in range(count)}

    def value(self):
        head = self.take(1)[0]
        if head < 0x80:
            return head
        if head < 0x90:
            return self.pairs(head & 15)
        if head < 0xA0:
            return self.items(head & 15)
        if head < 0xC0:
            return self.take(head & 31).decode()
        if head >= 0xE0:
            return head - 256
        if head in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[head]
        if 0xC4 <= head <= 0xC6:
            return bytes(self.take(self.number("BHI"[head - 0xC4])))
        if 0xCA <= head <= 0xD3:
            return self.number("fdBHIQbhiq"[head - 0xCA])
        if 0xD9 <= head <= 0xDB:
            return self.take(self.number("BHI"[head - 0xD9])).decode()
        if head in (0xDC, 0xDD):
            return self.items(self.number("HI"[head - 0xDC]))
        if head in (0xDE, 0xDF):
            return self.pairs(self.number("HI"[head - 0xDE]))
        raise AssertionError(f"no MessagePack: {head:#x}")


class Book:
    """What each (medium, group) holds, and every block that was ever announced."""

    def __init__(self):
        self.held = collections.defaultdict(collections.Counter)
        self.digests = {None: hashlib.sha256(pickle.dumps("0", protocol=5)).digest()}
        self.heard, self.faults, self.next, self.kinds = collections.Counter(), [], 0, {}
        self.ahead = 0

    def fault(self, words):
        if len(self.faults) < 20:
            self.faults.append(words)

    def message(self, frames):
        topic, number, payload = frames
        number = int.from_bytes(number, "big")
        if number != self.next:
            self.fault(f"sequence {number} where {self.next} was due")
        self.next = number + 1
        reader = MessagePack(payload)
        time_of_day, events, rank = reader.value()
        if reader.at != len(payload) or not isinstance(time_of_day, float) or rank != 0:
            self.fault(f"batch {number}: {time_of_day!r}, rank {rank!r}")
        seen_host = False
        for event in events:
            is_host = event.get("medium") == "CPU"
            if seen_host and not is_host:
                self.fault(f"batch {number}: {event['type']} of the GPU behind those of the host")
            seen_host |= is_host
            self.event(event)

    def event(self, event):
        kind = event["type"]
        order = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": ["type"]}[kind]
        if [name for name in order if name in event] != list(event):
            self.fault(f"{kind} with the members {list(event)}")
        if kind == "AllBlocksCleared":
            for (medium, _), held in self.held.items():
                if medium == "GPU":
                    held.clear()
            self.heard[kind] += 1
            return
        where = (event["medium"], event["group_idx"])
        self.heard[f"{kind} {where[0]} {where[1]}"] += 1
        if kind == "BlockRemoved":
            for block in event["block_hashes"]:
                if self.held[where][block] < 1:
                    self.fault(f"removed {block} of {where}, which is not stored")
                    continue
                self.held[where][block] -= 1
                if not self.held[where][block]:
                    del self.held[where][block]
        else:
            self.stored(event, where)

    def stored(self, event, where):
        hashes, parent = event["block_hashes"], event["parent_block_hash"]
        if not hashes:
            self.fault(f"nothing stored in {where}")
        if where[0] == "CPU" and not event["token_ids"]:
            if (len(hashes), parent, event["block_size"]) != (1, None, 0):
                self.fault(f"no placeholder: {event}")
            unknown = [block for block in hashes if block not in self.digests]
            if unknown:
                self.fault(f"the host has {unknown}, which no GPU had")
        else:
            self.chain(event, where)
        self.held[where].update(hashes)

    def chain(self, event, where):
        hashes, parent, tokens = event["block_hashes"], event["parent_block_hash"], event["token_ids"]
        kind = (event["kv_cache_spec_kind"], event.get("kv_cache_spec_sliding_window"))
        if self.kinds.setdefault(where, kind) != kind:
            self.fault(f"{where} was {self.kinds[where]} and is {kind}")
        sparse = kind[0] == "sliding_window"
        if event["block_size"] != BLOCK or len(tokens) % BLOCK:
            self.fault(f"{len(tokens)} tokens in blocks of {event['block_size']}")
        digest = self.digests.get(parent)
        if digest is None:
            return self.fault(f"{where}: the parent {parent} was never announced")
        # What was too large for the host was passed over there.
        if parent is not None and not sparse and where[0] == "GPU" and not self.held[where][parent]:
            self.fault(f"{where}: the parent {parent} is not stored")
        ahead = event.get("lookahead_token_ids")
        self.ahead += len(ahead or [])
        if ahead is not None and len(ahead) != len(hashes):
            self.fault(f"{len(ahead)} look-ahead lists for {len(hashes)} blocks")
        computed = []
        for at in range(0, len(tokens), BLOCK):
            extra = None
            if ahead is not None:
                extra = (None, *ahead[at // BLOCK])
            block = (digest, tuple(tokens[at:at + BLOCK]), extra)
            digest = hashlib.sha256(pickle.dumps(block, protocol=5)).digest()
            computed.append(int.from_bytes(digest[-8:], "big"))
            self.digests[computed[-1]] = digest
        if not sparse and computed != hashes:
            self.fault(f"{where}: hashes {hashes} where {computed} follow from the tokens")
        rest = iter(computed)
        if sparse and not all(block in rest for block in hashes):
            self.fault(f"{where}: {hashes} are no part of {computed}")


class Client(KeepAlive):
    def call(self, method, path, body=None):
        status, raw = self.ask(method, path, body)
        assert status == 200, (path, status, raw)
        return json.loads(raw) if raw and path != "/metrics" else raw.decode()


def gemma_like(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    config = json.loads((TINY / "config.json").read_text())
    config.update(num_hidden_layers=12, sliding_window=WINDOW, layer_types=[
        "sliding_attention" if layer % 6 else "full_attention" for layer in range(1, 13)])
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))


def work(client, rng, count):
    """Conversations that take turns; some hang up, some begin as others did."""
    opening = [[rng.randrange(10, 4000) for _ in range(100)] for _ in range(4)]
    talks = [list(rng.choice(opening)) for _ in range(8)]
    for number in range(count):
        talk = rng.choice(talks)
        talk += [rng.randrange(10, 4000) for _ in range(rng.randrange(1, 60))]
        if len(talk) > 700:
            talk[:] = rng.choice(opening)
        body = {"model": "tiny", "prompt": talk, "max_tokens": rng.randrange(1, 40), "ignore_eos": True,
                "return_token_ids": True}
        if rng.random() < 0.03:
            client.hang_up(body)
            continue
        talk += client.call("POST", "/v1/completions", body)["choices"][0]["token_ids"]
        if number % 97 == 96:
            client.call("POST", "/reset_prefix_cache")


def settle(client, sub, book):
    """Hears what is left, then the server's own listing."""
    quiet = time.monotonic() + 1.0
    while time.monotonic() < quiet:
        try:
            book.message(sub.recv_multipart())
            quiet = time.monotonic() + 1.0
        except zmq.Again:
            pass
    listing = client.call("GET", "/debug/kv_cache")["0"]["cached"]
    return collections.Counter(block["hash"] for block in listing)


def run(args, name, folder):
    media, flags = RUNS[name]
    flags = [str(90 * BLOCK * args.bytes / 2**30) if flag == "HOST" else flag for flag in flags]
    # What is not flat takes a block for each of six groups.
    blocks = "121" if "--disable-hybrid-kv-cache-manager" in flags else "400"
    port, live = free_port(), free_port()
    events = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq",
                         "endpoint": f"tcp://*:{live}"})
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.setsockopt_string(zmq.SUBSCRIBE, "")
    sub.rcvtimeo, sub.rcvhwm = 50, 0
    sub.connect(f"tcp://{HOST}:{live}")
    log = tempfile.NamedTemporaryFile(prefix="vllm-sim-", suffix=".log")
    sim = subprocess.Popen([
        args.sim, "serve", folder, "--served-model-name", "tiny", "--host", HOST, "--port", str(port),
        "--kv-events-config", events, "--num-gpu-blocks-override", blocks, "--block-size", str(BLOCK),
        "--max-model-len", "1024", "--max-num-batched-tokens", "1024", *flags],
        env={**os.environ, "VLLM_SERVER_DEV_MODE": "1", "PYTHONHASHSEED": "0"},
        stdout=log, stderr=subprocess.STDOUT)
    client, book = Client(port), Book()
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                client.call("GET", "/health")
                break
            except OSError:
                client.conn = None
                assert sim.poll() is None, pathlib.Path(log.name).read_text()
                time.sleep(0.05)
        # Until the subscription has arrived, messages are lost.
        time.sleep(0.5)
        work(client, random.Random(args.seed), args.requests)
        listed = settle(client, sub, book)
        page = client.call("GET", "/metrics")
    finally:
        sim.kill()
        sim.wait()
    held = collections.Counter()
    for (medium, _), blocks in book.held.items():
        if medium == "GPU":
            held.update(blocks)
    if held != listed:
        book.fault(f"{held.total()} blocks by the events, {listed.total()} by the server")
    heard = {medium for medium, _ in book.held}
    if heard != set(media):
        book.fault(f"events of {sorted(heard)} where {media} were due")
    external = [line for line in page.splitlines()
                if line.startswith("vllm:external_prefix_cache_hits_total")]
    if "CPU" in media and not float(external[0].split()[-1]):
        book.fault("nothing came back from the host")
    on_host = sum(blocks.total() for (medium, _), blocks in book.held.items() if medium == "CPU")
    # Layers in six groups have a sixth of the bytes in a chunk.
    room = 90 if "--disable-hybrid-kv-cache-manager" in flags else 540
    if on_host > room:
        book.fault(f"{on_host} chunks where {room} have room")
    if (name == "look-ahead") != bool(book.ahead):
        book.fault(f"{book.ahead} blocks with tokens behind them")
    print(json.dumps({"run": name, "batches": book.next, "heard": dict(sorted(book.heard.items())),
                      "cached": held.total(), "host": on_host, "faults": len(book.faults)}))
    for words in book.faults:
        print("FAIL", words)
    return bool(book.faults)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sim", required=True)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=3072, help="of a token")
    parser.add_argument("--only", choices=RUNS, help="this run alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gemma_like(folder)
        names = [args.only] if args.only else RUNS
        return any([run(args, name, folder) for name in names])


if __name__ == "__main__":
    sys.exit(main())
