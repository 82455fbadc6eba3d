"""The prefix cache rebuilt from KV events alone equals the engine's own listing.

    pip install pyzmq msgspec
    python tests/python/kv_reconcile.py --sim target/debug/vllm-sim [--requests 10000]

Random requests with shared prefixes, adapters, salts, evictions, hang-ups and resets. One subscriber
listens from the start, one joins in the middle and replays what it missed, one stops reading: it
must delay neither the engine nor the others. Exit code 1 with the reason when a set differs.
"""
import argparse, json, os, random, subprocess, sys, tempfile, threading, time

import zmq

sys.path.insert(0, os.path.dirname(__file__))
from keep_alive import HOST, KeepAlive, free_port
from kv_subscriber import Cache, replay


class Client(KeepAlive):
    def call(self, method, path, body=None):
        status, raw = self.ask(method, path, body)
        return status, json.loads(raw) if raw else None


class Listener(threading.Thread):
    """Hears events, from the live stream and, where it missed some, from the replay socket."""

    def __init__(self, live, again):
        super().__init__(daemon=True)
        self.live, self.again = live, again
        self.cache, self.replayed, self.until = Cache(False), 0, None
        self.start()

    def run(self):
        context = zmq.Context()
        sub = context.socket(zmq.SUB)
        sub.setsockopt_string(zmq.SUBSCRIBE, "")
        sub.rcvtimeo = 200
        sub.connect(self.live)
        while True:
            try:
                _, sequence, payload = sub.recv_multipart()
            except zmq.Again:
                if self.until is not None and (self.cache.next or 0) >= self.until:
                    return
                continue
            sequence = int.from_bytes(sequence, "big")
            if sequence > (self.cache.next or 0):
                for missed, old in replay(context, self.again, self.cache.next or 0, 5000):
                    if missed < sequence:
                        self.cache.batch(missed, old)
                        self.replayed += 1
            if self.cache.next is None or sequence >= self.cache.next:
                self.cache.batch(sequence, payload)


def request(rng, prefixes):
    """Token ids that begin like others, sometimes for an adapter or a tenant."""
    prefix = rng.choice(prefixes)
    ids = prefix[:rng.randrange(len(prefix))] + [rng.randrange(4000) for _ in range(rng.randrange(1, 80))]
    body = {"model": "demo", "prompt": ids, "max_tokens": rng.randrange(1, 40), "ignore_eos": True}
    if rng.random() < 0.2:
        body["model"] = rng.choice(["adapter-a", "adapter-b"])
    if rng.random() < 0.2:
        body["cache_salt"] = rng.choice(["tenant1", "tenant2"])
    return body


def work(port, seed, count, prefixes, resets):
    rng, client = random.Random(seed), Client(port)
    for _ in range(count):
        body = request(rng, prefixes)
        if rng.random() < 0.02:
            client.hang_up(body)
            continue
        status, answer = client.call("POST", "/v1/completions", body)
        assert status == 200, (status, answer)
        if rng.random() < 0.002:
            running = "true" if rng.random() < 0.5 else "false"
            path = f"/reset_prefix_cache?reset_running_requests={running}"
            status, answer = client.call("POST", path)
            assert status == 200, (status, answer)
            resets.append(answer["success"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sim", required=True)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stall", type=float, default=30.0, help="seconds without reading")
    parser.add_argument("--flags", default="", help="more flags for the server")
    args = parser.parse_args()
    port, live, again = free_port(), free_port(), free_port()
    events = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{live}",
                         "replay_endpoint": f"tcp://*:{again}", "buffer_steps": 1_000_000})
    log = tempfile.NamedTemporaryFile(prefix="vllm-sim-", suffix=".log", delete=False)
    sim = subprocess.Popen([
        args.sim, "serve", "demo", "--host", HOST, "--port", str(port), "--kv-events-config", events,
        "--num-gpu-blocks-override", "120", "--block-size", "16", "--max-model-len", "1024",
        "--enable-lora", "--lora-modules", "adapter-a=/a", "adapter-b=/b", *args.flags.split()],
        env={**os.environ, "VLLM_SERVER_DEV_MODE": "1", "PYTHONHASHSEED": "0"},
        stdout=log, stderr=subprocess.STDOUT)
    try:
        client = Client(port)
        for _ in range(100):
            try:
                if client.call("GET", "/health")[0] == 200:
                    break
            except OSError:
                client.conn = None
                time.sleep(0.05)
        return run(args, client, port, f"tcp://{HOST}:{live}", f"tcp://{HOST}:{again}")
    finally:
        sim.kill()
        sim.wait()


def run(args, client, port, live, again):
    rng = random.Random(args.seed)
    prefixes = [[rng.randrange(4000) for _ in range(300)] for _ in range(12)]
    first = Listener(live, again)
    # One that subscribes and does not read: its buffers fill, and nobody else notices.
    context = zmq.Context()
    stalled = context.socket(zmq.SUB)
    stalled.setsockopt_string(zmq.SUBSCRIBE, "")
    stalled.rcvhwm = 1
    stalled.connect(live)
    time.sleep(0.5)
    started, resets, workers = time.monotonic(), [], 8
    late = None
    for half in range(2):
        threads = [threading.Thread(target=work, args=(port, args.seed * 100 + half * 10 + n,
                                                       args.requests // workers // 2, prefixes, resets))
                   for n in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        late = late or Listener(live, again)
    busy = time.monotonic() - started
    while time.monotonic() - started < args.stall:
        client.call("POST", "/v1/completions", request(rng, prefixes))
        time.sleep(0.05)
    # What a reset has to say leaves with the next step.
    client.call("POST", "/v1/completions", {"model": "demo", "prompt": [1] * 40, "max_tokens": 2})
    time.sleep(0.5)
    numbers = [n for n, _ in replay(zmq.Context(), again, 0, 20_000)]
    end = numbers[-1] + 1
    for listener in (first, late):
        listener.until = end
        listener.join(30)
        assert not listener.is_alive(), f"{listener.cache.next} of {end} batches heard"
    status, listing = client.call("GET", "/debug/kv_cache")
    assert status == 200
    engine = {}
    for block in listing["0"]["cached"]:
        engine[block["hash"]] = engine.get(block["hash"], 0) + 1
    report = {"requests": args.requests, "seconds": round(busy, 1), "batches": end,
              "cached_blocks": len(listing["0"]["cached"]), "used_blocks": listing["0"]["used_blocks"],
              "resets": len(resets), "refused_resets": resets.count(False),
              "heard": dict(first.cache.heard), "replayed_by_the_late_one": late.replayed}
    print(json.dumps(report))
    wrong = []
    for name, listener in (("first", first), ("late", late)):
        if dict(listener.cache.copies) != engine:
            wrong.append(f"the {name} subscriber's cache differs from the engine's: "
                         f"{len(listener.cache.copies)} hashes, {len(engine)} there")
        wrong += listener.cache.faults[:5]
    if first.replayed:
        wrong.append(f"the first subscriber missed {first.replayed} batches")
    if numbers != list(range(end)):
        wrong.append("the replay has holes")
    for line in wrong:
        print("FAIL", line)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
