#!/usr/bin/env python3
"""Records what a server answers, and holds another build against it, byte for byte.

    compare_answers.py record BINARY OUT.jsonl.gz [--count N] [--seed S]
    compare_answers.py compare OUT.jsonl.gz BINARY
    compare_answers.py check BINARY

`record` starts BINARY with each command line of `compare_answers_cases.py` and sends it its share of N
requests, one after the other: valid ones, wrong ones, and a third with two faults in one body, which show
the order of refusals. It keeps status, headers in order, body (of a stream its text, however it is cut into
chunks) and how the answer ended; four times per server its metrics and cached blocks, at the end its KV
events. Ids, times, ports and the hash of the fingerprint are masked: an id becomes its number within the
answer. `compare` sends what was recorded, groups the differences by their cause and fails if there is one. `check` records and compares one
binary: answers must repeat, and an answer that was changed must be found. `--servers` names some of them.
"""
import argparse, collections, concurrent.futures, gzip, itertools, json, os, pathlib, re, socket, struct, subprocess, sys, tempfile, threading, time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from compare_answers_cases import PUBLISHING, SERVERS, Sender  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
ID = re.compile(r"(?<![0-9a-zA-Z.])(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{16}|(?<=call_)\d{10}|(?<=tool-)\d{10}|(?<=toolu_)\d{10}|(?<=fc_)\d{10})(?![0-9a-zA-Z])")
FINGERPRINT = re.compile(r"(?<=vllm-0\.33\.0)((?:-[a-z]+\d*)*)-[0-9a-f]{8}(?![0-9a-f])")
TIME = re.compile(r"(?<![\w.-])1[789]\d{8}(?:\.\d+)?(?![\w.])")
TIMED = re.compile(r"^(process_\w+|\w+:\w*_created|\w*_created|[\w:]+_(?:seconds|latency|time)\w*_(?:bucket|sum)|[\w:]*lora_requests_info)(?=[{ ])")
REMOTE = re.compile(r'(?<="remote_request_id":")([^"]*-)[0-9a-f]{8}(?=")')
PATIENCE = 10  # seconds for an answer
TIMES = 4  # a server's state is looked at so often


class Ended(Exception):
    """An answer ended early; says how."""


class Subscriber(threading.Thread):
    """The KV events of a server, by ZMTP 3."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.events, self.quiet_since = [], time.monotonic()
        self.wire = socket.create_connection(("127.0.0.1", port), 5)
        self.wire.sendall(b"\xff" + bytes(8) + b"\x7f\x03\0NULL" + bytes(16 + 1 + 31))
        self.file = self.wire.makefile("rb")
        self.file.read(64)
        ready = b"\x05READY\x0bSocket-Type" + (3).to_bytes(4, "big") + b"SUB"
        self.wire.sendall(b"\x04" + bytes([len(ready)]) + ready + b"\0\x01\x01")
        self.wire.settimeout(None)
        self.start()

    def run(self):
        parts = []
        while flags := self.file.read(1):
            size = int.from_bytes(self.file.read(8 if flags[0] & 2 else 1), "big")
            said = self.file.read(size)
            if flags[0] & 4:
                continue
            parts.append(said)
            if not flags[0] & 1:
                _, events, rank = unpacked(parts[-1], 0)[0]
                self.events += [[parts[0].decode(errors="replace"), rank, event] for event in events]
                self.quiet_since, parts = time.monotonic(), []

    def heard(self):
        while time.monotonic() - self.quiet_since < 0.5:
            time.sleep(0.05)
        self.wire.close()
        return self.events


def unpacked(raw, at):
    """The MessagePack value at a place, and where it ends."""
    kind, at = raw[at], at + 1
    number = lambda form: (struct.unpack_from(">" + form, raw, at)[0], at + struct.calcsize(form))
    if kind < 0x80 or kind >= 0xE0:
        return (kind if kind < 0x80 else kind - 256), at
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if 0xCA <= kind <= 0xD3:
        return number("fdBHIQbhiq"[kind - 0xCA])
    if kind < 0xC0:
        size = kind & (0x1F if kind >= 0xA0 else 0x0F)
        kind = "map" if kind < 0x90 else "array" if kind < 0xA0 else "text"
    else:
        kind, form = {0xC4: ("bin", "B"), 0xC5: ("bin", "H"), 0xC6: ("bin", "I"), 0xD9: ("text", "B"), 0xDA: ("text", "H"),
                      0xDB: ("text", "I"), 0xDC: ("array", "H"), 0xDD: ("array", "I"), 0xDE: ("map", "H"), 0xDF: ("map", "I")}[kind]
        size, at = number(form)
    if kind in ("bin", "text"):
        said = raw[at : at + size]
        return (said.hex() if kind == "bin" else said.decode(errors="replace")), at + size
    found = []
    for _ in range(size * 2 if kind == "map" else size):
        value, at = unpacked(raw, at)
        found.append(value)
    return (found if kind == "array" else [list(pair) for pair in zip(found[::2], found[1::2])]), at


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server and one connection to it."""

    def __init__(self, binary, name):
        flags, self.name, self.wire, self.last = list(SERVERS[name]), name, None, "resp_none"
        self.folder = tempfile.TemporaryDirectory()
        ready = pathlib.Path(self.folder.name) / "ready"
        events = free_port() if name in PUBLISHING else None
        if events:
            config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{events}"}
            flags += ["--kv-events-config", json.dumps(config)]
        command = [binary, *flags, "--seed", "1", "--host", "127.0.0.1", "--port", "0", "--ready-file", str(ready)]
        self.log = open(f"{self.folder.name}/log", "w+")
        env = {"PATH": os.environ["PATH"], "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd=ROOT, env=env)
        end = time.monotonic() + 60
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                raise RuntimeError(f"{name} does not start: {command}\n{self.log.read()[-2000:]}")
            time.sleep(0.02)
        self.port = int(re.search(r"http://[^:]*:(\d+)", ready.read_text())[1])
        self.own = re.compile(rf"(?<![\w.])(?:{self.port}|{events})(?![\w.])")
        self.subscriber = None
        if events:
            try:
                self.subscriber = Subscriber(events)
            except OSError as error:
                self.stop()
                raise RuntimeError(f"{name} does not publish: {error}")

    def stop(self):
        self.hang_up()
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        self.folder.cleanup()

    def hang_up(self):
        if self.wire:
            self.file.close()
            self.wire.close()
            self.wire = None

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise Ended("cut")
        return line[:-2]

    def read(self, size):
        said = self.file.read(size)
        self.body += said
        if len(said) < size:
            raise Ended("cut")

    def read_answer(self, method):
        first = self.file.readline()
        if not first:
            raise Ended("no answer")
        self.status = int(first.split()[1])
        while line := self.line():
            key, _, value = line.decode("latin-1").partition(": ")
            self.headers.append((key, value))
        heads = {key.lower(): value for key, value in self.headers}
        if self.status == 100:
            return self.read_answer(method)
        if method == "HEAD" or self.status in (204, 304):
            pass
        elif heads.get("transfer-encoding") == "chunked":
            while size := int(self.line(), 16):
                self.read(size)
                self.line()
            while self.line():
                pass
        elif "content-length" in heads:
            self.read(int(heads["content-length"]))
        else:
            self.body += self.file.read()
        if heads.get("connection", "").lower() == "close":
            raise Ended("closed")

    def ask(self, request):
        """What a request gets, masked."""
        path = request["path"].replace("@last", self.last)
        body = request["body"].replace("@last", self.last).encode("latin-1")
        lines = [f"{request['method']} {path} HTTP/1.1", "Host: sim", *(f"{k}: {v}" for k, v in request["headers"])]
        said = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
        self.status, self.headers, self.body, end = 0, [], bytearray(), "whole"
        try:
            if not self.wire:
                self.wire = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
                self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.file = self.wire.makefile("rb")
            self.wire.sendall(said)
            self.read_answer(request["method"])
        except (Ended, OSError) as error:
            end = str(error) if isinstance(error, Ended) else type(error).__name__
        if end != "whole" or any(key == "X-Sim-Fault" for key, _ in request["headers"]):
            self.hang_up()
        text = self.body.decode(errors="backslashreplace")
        if found := re.search(r"resp_[0-9a-f]{16,}", text):
            self.last = found[0]
        return self.masked(text, end)

    def masked(self, text, end):
        seen = {}
        number = lambda found: f"<id {seen.setdefault(found[0], len(seen))}>"
        known = lambda text: FINGERPRINT.sub(r"\1-<hash>", TIME.sub("<time>", ID.sub(number, text)))
        mask = lambda text: self.own.sub("<port>", REMOTE.sub(r"\1<id>", known(text)))
        headers = [[key, "<date>" if key.lower() == "date" else mask(value)] for key, value in self.headers]
        return {"status": self.status, "headers": headers, "body": mask(text), "end": end}

    def state(self):
        """Metrics, load and cached blocks, with what depends on time masked."""
        found, key = {}, [("Authorization", "Bearer k1")]
        for path in ("/metrics", "/load", "/debug/kv_cache", "/is_sleeping"):
            self.ask({"method": "GET", "path": path, "headers": key, "body": ""})
            text = self.own.sub("<port>", self.body.decode())
            if path == "/metrics":
                lines = text.splitlines()
                text = "\n".join(line.rpartition(" ")[0] + " <value>" if TIMED.match(line) else line for line in lines)
            found[path] = text
        return found


def play(binary, name, requests):
    """A server's answers, as lines of a recording, to requests in turn; every so often its state."""
    server = Server(binary, name)
    try:
        marks = {len(requests) * (part + 1) // TIMES for part in range(TIMES)}
        for number, request in enumerate(requests, 1):
            yield {"server": name, "request": request, "answer": server.ask(request)}
            if number in marks:
                for what, text in server.state().items():
                    yield {"server": name, "state": f"{what} after {number} requests", "text": text}
        if server.subscriber:
            for event in server.subscriber.heard():
                yield {"server": name, "event": event}
        if server.process.poll() is not None:
            raise RuntimeError(f"{name} has ended: {server.process.returncode}")
    finally:
        server.stop()


def recorded(binary, name, count, seed):
    sender = Sender(seed, name)
    return [json.dumps(line) for line in play(binary, name, [sender.one() for _ in range(count)])]


def record(binary, out, count, seed, names):
    with workers() as pool, gzip.open(out, "wt", 6) as file:
        for lines in pool.map(recorded, *zip(*((binary, name, count // len(names), seed) for name in names))):
            file.write("\n".join(lines) + "\n")


def workers():
    return concurrent.futures.ProcessPoolExecutor(os.cpu_count())


def places(old, new, where=""):
    """Where two JSON values differ first."""
    if isinstance(old, dict) and isinstance(new, dict):
        if list(old) != list(new):
            changed = [key for key in [*old, *new] if (key in old) != (key in new)]
            return f"{where}.{changed[0] if changed else '(order)'}"
        pairs = [(old[key], new[key], f"{where}.{key}") for key in old]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(a, b, f"{where}[]") for a, b in zip(old, new)]
    else:
        return where or "(whole)"
    return next((places(*pair) for pair in pairs if pair[0] != pair[1] or type(pair[0]) is not type(pair[1])), where)


def field(old, new):
    """The first part of an answer that differs, and its two values."""
    if old["status"] != new["status"]:
        return f"status {old['status']} -> {new['status']}", old["body"], new["body"]
    if old["headers"] != new["headers"]:
        before, after = [[tuple(pair) for pair in answer["headers"]] for answer in (old, new)]
        names = sorted({key for key, _ in set(before) ^ set(after)}) or ["(order)"]
        # A body of another length shows in itself.
        if names != ["content-length"] or old["body"] == new["body"]:
            return f"headers {', '.join(names)}", str(before), str(after)
    if old["end"] != new["end"]:
        return f"end: {old['end']} -> {new['end']}", old["body"][-200:], new["body"][-200:]
    pieces = [re.split(r"(?<=\n\n)", answer["body"]) for answer in (old, new)]
    a, b = next(((a, b) for a, b in zip(*pieces) if a != b), (f"{len(pieces[0])} events", f"{len(pieces[1])} events"))
    try:
        place = places(*(json.loads(piece[piece.index("data: ") + 6 :] if "data: " in piece else piece) for piece in (a, b)))
    except ValueError:
        place = "(text)"
    return f"body{' of a stream' if len(pieces[0]) > 1 else ''} {place}", a, b


def around(old, new):
    """Two texts near where they differ."""
    at = next((n for n, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    return [("..." if at > 90 else "") + text[max(0, at - 90) : at + 160] for text in (old, new)]


def differences(binary, name, lines):
    """Differences of a server: (cause, request, before, after)."""
    lines = [json.loads(line) for line in lines]
    answers = play(binary, name, [line["request"] for line in lines if "request" in line])
    events, found = ([line["event"] for line in lines if "event" in line], []), []
    lines = iter([line for line in lines if "event" not in line])
    for new in answers:
        if "event" in new:
            events[1].append(new["event"])
            continue
        old = next(lines)
        if "state" in old:
            for a, b in itertools.zip_longest(old["text"].splitlines(), new["text"].splitlines(), fillvalue=""):
                if a != b:
                    found.append(((name, old["state"].split()[0], a.partition("{")[0][:80].rpartition(" ")[0]), old["state"], a, b))
        elif old["answer"] != new["answer"]:
            what, a, b = field(old["answer"], new["answer"])
            request = new["request"]
            found.append(((name, request["path"], what), request, *around(a, b)))
    old, new = events
    if old != new:
        at = next((n for n, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
        shown = [json.dumps(side[at : at + 1])[:400] for side in (old, new)]
        found.append(((name, "KV events", "event"), f"number {at} of {len(old)} and {len(new)}", *shown))
    return found


def compare(recording, binary, names):
    by_server, counts = collections.defaultdict(list), collections.Counter()
    with gzip.open(recording, "rt") as file:
        for line in file:
            by_server[line[12 : line.index('"', 12)]].append(line)
    names = [name for name in names if name in by_server]
    sent = sum('"request": {' in line[:80] for name in names for line in by_server[name])
    causes = collections.defaultdict(list)
    with workers() as pool:
        for found in pool.map(differences, *zip(*((binary, name, by_server[name]) for name in names))):
            for cause, *example in found:
                causes[cause].append(example)
    # One cause at many servers is one group.
    groups = collections.defaultdict(list)
    for (name, path, what), examples in causes.items():
        groups[path, what] += [(name, *example) for example in examples]
    for (path, what), examples in sorted(groups.items(), key=lambda group: -len(group[1])):
        counts = collections.Counter(name for name, *_ in examples)
        print(f"\n{len(examples)} x {path}: {what}   ({', '.join(f'{name} {count}' for name, count in counts.items())})")
        for name, request, old, new in examples[:3]:
            print(f"  {name}: {json.dumps(request)[:700] if isinstance(request, dict) else request}\n    old {old}\n    new {new}")
    total = sum(map(len, groups.values()))
    print(f"{sent} requests to {len(names)} servers: {total} differences in {len(groups)} groups")
    return total


def check(binary, count, seed, names):
    """Whether answers repeat, and whether a refusal that has moved is found."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/answers.jsonl.gz"
        record(binary, out, count, seed, names)
        if compare(out, binary, names):
            return 1
        with gzip.open(out, "rt") as file:
            lines = [json.loads(line) for line in file]
        refused = [line["answer"] for line in lines if line.get("answer", {}).get("status") == 400]
        first = refused[0]
        other = next(answer for answer in refused if answer["body"] != first["body"])
        first.update(other)
        with gzip.open(out, "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return compare(out, binary, names) != 1


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, places in (("record", ("binary", "out")), ("compare", ("out", "binary")), ("check", ("binary",))):
        one = verbs.add_parser(verb)
        for place in places:
            one.add_argument(place)
        one.add_argument("--servers", default=",".join(SERVERS))
        if verb != "compare":
            one.add_argument("--count", type=int, default=6000, help="requests to all servers together")
            one.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    names, binary = args.servers.split(","), str(pathlib.Path(args.binary).resolve())
    if args.verb == "record":
        return record(binary, args.out, args.count, args.seed, names)
    if args.verb == "compare":
        return compare(args.out, binary, names) > 0
    return check(binary, args.count, args.seed, names)


if __name__ == "__main__":
    sys.exit(main())
