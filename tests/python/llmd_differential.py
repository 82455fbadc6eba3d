"""Holds `vllm-sim --compat llm-d` against llm-d-inference-sim's own program, request by request.

    python3 tests/python/llmd_differential.py OURS PEER [--all] [RUN…]

Each run of `llmd_differential_cases.py` starts both programs with the same arguments, sends both the
same requests, one after the other, and compares status, headers, bodies, events and metrics. What is
random, an id or a time is compared by its form. A difference that is meant has a row in
`docs/differences.md`, which `llmd_differential_named.py` names; any other fails. `--all` prints the
named ones too.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent import futures

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from llmd_differential_cases import RUNS  # noqa: E402
from llmd_differential_named import NAMED, row_of  # noqa: E402

# Headers that say something about the answer, and not about the HTTP library.
HEADERS = ("content-type", "allow", "location", "x-request-id", "x-inference-pod", "x-inference-port", "x-inference-namespace", "retry-after")
# Members whose value is a time, or drawn; of a text only whether there is one.
TIMES = {"created", "created_at", "completed_at"}
DRAWN_TEXTS = {"text", "content", "delta", "arguments", "partial_json"}
DRAWN_COUNTS = {"completion_tokens", "total_tokens", "output_tokens"}
ID = re.compile(r"^[0-9a-f]{16}$|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|(?<=[-_])[0-9a-f]{16}\b")


def free_port():
    """A port with a free one behind it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


class NotListening(Exception):
    """A program ended, or did not listen in time."""


class Server:
    """One of the two programs."""

    def __init__(self, command, env):
        self.port = free_port()
        log = open(f"/tmp/llmd_differential.{os.getpid()}.{self.port}.log", "w+")
        self.log = log
        self.process = subprocess.Popen([*command, "--port", str(self.port)], env={"PATH": os.environ["PATH"], **env}, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.02)
        said = pathlib.Path(log.name).read_text()[-600:]
        self.stop()
        raise NotListening(f"{command} does not listen: {said}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        os.unlink(self.log.name)

    def send(self, method, path, body, headers):
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        given = {"Content-Type": "application/json", **headers} if body is not None else headers
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None or method == "POST":
                connection.putheader("Content-Length", str(len(body or b"")))
            connection.endheaders(body)
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, raw
        except (OSError, http.client.HTTPException) as error:
            return 0, {}, type(error).__name__.encode()
        finally:
            connection.close()


def form(text, port):
    """A text with what differs from run to run replaced by its form."""
    text = ID.sub("<id>", text)
    text = re.sub(r"\b(chatcmpl-tool-|toolu_|fc_|call_)\d{10}\b", r"\1<10 digits>", text)
    return text.replace(str(port), "<port>").replace(str(port + 1), "<port+1>")


def plain(value, port, drawn, key=""):
    """A value as it is compared."""
    if isinstance(value, dict):
        if key in ("arguments", "input") and drawn:
            return {k: type(v).__name__ for k, v in value.items()}
        return {form(k, port): plain(v, port, drawn, k) for k, v in value.items()}
    if isinstance(value, list):
        if drawn and key in ("token_ids", "content", "tokens", "token_logprobs", "top_logprobs", "text_offset"):
            if value and not isinstance(value[0], dict):
                return ["<drawn>"]
            if value and "logprob" in value[0]:
                return [plain(value[0], port, drawn, "logprob")]
        return [plain(v, port, drawn, key) for v in value]
    if key in TIMES:
        return "<time>" if isinstance(value, int) and value > 1e9 else value
    if key == "arguments" and isinstance(value, str):
        try:
            return {k: type(v).__name__ for k, v in json.loads(value).items()}
        except (ValueError, AttributeError):
            return "<part>"
    if key == "partial_json" or key in ("bytes", "token") and drawn:
        return "<drawn>"
    if key == "finish_reason" and drawn and value in ("stop", "length"):
        return "<stop or length>"
    if isinstance(value, str):
        return "<drawn>" if drawn and key in DRAWN_TEXTS and value else form(value, port)
    if drawn and key in DRAWN_COUNTS and isinstance(value, int):
        return "<count>"
    if key == "embedding":
        # The peer's are of 32 bits.
        return float(f"{value:.5g}")
    if key == "port":
        return value - port
    # Both draw the place of a streamed token from the clock.
    return "<log probability>" if key == "logprob" else value


def events(raw, port, drawn):
    """The frames of a stream; equal ones in a row once where lengths are drawn."""
    out = []
    for frame in raw.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.split("\n") if ": " in line)
        if not frame:
            continue
        data = lines.get("data", frame)
        try:
            data = plain(json.loads(data), port, drawn)
        except ValueError:
            pass
        event = {"event": lines["event"], "data": data} if "event" in lines else data
        name = lines.get("event", "")
        if "event" in lines and name.endswith("delta") and isinstance(data, dict) and (drawn or "text" not in name):
            # Arguments are drawn, and cut into pieces; so may a text be.
            data["delta"] = "<drawn>"
        if not (out and "event" in lines and out[-1] == event):
            out.append(event)
    return out


def folded(frames):
    """What a client gets out of the chunks of a chat or a completion, whatever they are cut into."""
    choices, rest, order = {}, [], []
    for frame in frames:
        listed = frame.get("choices") if isinstance(frame, dict) else None
        if not listed:
            rest.append(frame)
            continue
        for piece in listed:
            choice = choices.setdefault(piece["index"], {"texts": [], "calls": {}, "finish": None, "logprobs": 0})
            delta = piece.get("delta", piece)
            said = delta.get("content") or delta.get("text") or delta.get("token_ids")
            if said:
                choice["texts"].append(said)
                order.append("image" if "image_url" in json.dumps(said) else "text")
            choice["role"] = delta.get("role") or choice.get("role")
            for call in delta.get("tool_calls") or []:
                whole = choice["calls"].setdefault(call["index"], {})
                whole.update({k: call[k] for k in ("id", "type") if call.get(k)})
                name = call["function"].get("name")
                whole.update({"name": name} if name else {})
                order.append("call")
            choice["finish"] = piece.get("finish_reason") or choice["finish"]
            choice["logprobs"] += bool(piece.get("logprobs"))
            choice["first logprobs"] = choice.get("first logprobs") or piece.get("logprobs")
    heads = [{k: frame.get(k) for k in ("id", "object", "model", "request_id")} for frame in frames if isinstance(frame, dict)][:1]
    runs = [kind for index, kind in enumerate(order) if index == 0 or order[index - 1] != kind]
    return {"head": heads, "choices": choices, "order": runs, "rest": rest}


TIMED = re.compile(r"_(seconds|latency)_(bucket|sum)|_created|lora_requests_info|_time_")


def families(raw, port, drawn):
    """A scrape: by family its type and samples, and the labels that all of them have."""
    out, common, family = {}, set(), ""
    for line in raw.decode().splitlines():
        if line.startswith("# TYPE"):
            _, _, family, kind = line.split()
            out[family] = {"type": kind, "samples": {}}
        elif line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            head, _, rest = name.partition("{")
            # Go sorts labels by name; their order says nothing.
            labels = sorted(re.findall(r'\w+="[^"]*"', rest))
            common |= {label for label in labels if label.startswith("engine=")}
            # Adapters come in any order.
            labels = [re.sub(r'"(.+,.+)"', lambda m: '"' + ",".join(sorted(m[1].split(","))) + '"', label) for label in labels]
            labels = [form(label, port) for label in labels if not label.startswith(("engine=", "finished_reason="))]
            timed = TIMED.search(name) or drawn and not name.startswith("vllm:prompt")
            out[family]["samples"][head + "{" + ",".join(labels) + "}"] = "<value>" if timed else float(value)
    return {"common": sorted(common), "families": out}


def busy(server, requests, drawn):
    """The scrape of a server while it is at these requests, and what they get."""
    with futures.ThreadPoolExecutor(len(requests)) as pool:
        sent = []
        for request in requests:
            sent.append(pool.submit(answer, server, request, drawn))
            time.sleep(0.05)
        time.sleep(0.15)
        scrape = families(server.send("GET", "/metrics", None, {})[2], server.port, drawn)
    return {**scrape, "answers": [verdict(one.result()) for one in sent]}


def answer(server, request, drawn):
    """What a server says to a request, as it is compared."""
    name, method, path, body, headers = request
    if method == "BUSY":
        return busy(server, body, drawn)
    status, heads, raw = server.send(method, path, body, headers)
    shown = {"status": status, **{h: form(heads[h], server.port) for h in HEADERS if h in heads}}
    kind = heads.get("content-type", "")
    if path == "/metrics":
        return families(raw, server.port, drawn)
    if kind.startswith("text/event-stream"):
        frames = events(raw, server.port, drawn)
        chunks = any(isinstance(frame, dict) and "choices" in frame for frame in frames)
        shown["events"] = folded(frames) if chunks else frames
    else:
        try:
            shown["body"] = plain(json.loads(raw), server.port, drawn)
        except ValueError:
            shown["body"] = form(raw.decode(errors="replace"), server.port)
    return shown


def scrapes(ours, peer, request, drawn):
    """Two scrapes once they agree: the peer counts a while after it has answered."""
    end = time.monotonic() + 2
    while True:
        pair = answer(ours, request, drawn), answer(peer, request, drawn)
        found = [d for d in differences(*pair) if not row_of("", request[0], *d)]
        if not found or time.monotonic() > end:
            return pair
        time.sleep(0.1)


def verdict(shown):
    """What became of a request: whether it was refused, its status then, and why."""
    status = shown.get("status", 200)
    body = shown.get("body")
    error = body.get("error") if isinstance(body, dict) else None
    return "taken" if status < 400 else "refused", status if status >= 400 else 200, error["message"] if isinstance(error, dict) else ""


def brief(value):
    """A value as it is shown where the other side has none."""
    return "<family>" if isinstance(value, dict) and "samples" in value else value


def differences(ours, peer, where=""):
    """Where two values differ: place, ours, the peer's."""
    if isinstance(ours, dict) and isinstance(peer, dict):
        for key in [*peer, *(k for k in ours if k not in peer)]:
            place = f"{where}.{key}" if where else key
            if key not in ours:
                yield place, "absent", brief(peer[key])
            elif key not in peer:
                yield place, brief(ours[key]), "absent"
            else:
                yield from differences(ours[key], peer[key], place)
    elif isinstance(ours, list) and isinstance(peer, list) and len(ours) == len(peer):
        for index, pair in enumerate(zip(ours, peer)):
            yield from differences(*pair, f"{where}[{index}]")
    elif ours != peer or isinstance(ours, bool) != isinstance(peer, bool):
        yield where, ours, peer


def play(name, binaries):
    """The differences of a run: request, place, ours, the peer's."""
    args, env, requests = RUNS[name]
    base = ["--model", "m", "--force-dummy-tokenizer"]
    if name == "names":
        base[1] = "org/full"
    own = [binaries.ours, "--compat", "llm-d", "--host", "127.0.0.1"]
    drawn = "echo" not in args
    servers = []
    try:
        servers.append(Server([*own, *base, *args], env))
        servers.append(Server([binaries.peer, *base, *args], env))
        for request in requests:
            pair = scrapes(*servers, request, drawn) if request[2] == "/metrics" else [answer(s, request, drawn) for s in servers]
            told = [verdict(shown) for shown in pair]
            found = differences(*pair) if told[0][:2] == told[1][:2] else [("verdict", *told)]
            for difference in found:
                yield request[0], *difference
    finally:
        for server in servers:
            server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ours")
    parser.add_argument("peer")
    parser.add_argument("runs", nargs="*", default=[])
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    rows = (pathlib.Path(__file__).parents[2] / "docs/differences.md").read_text()
    missing = sorted(row for row in {row for row, *_ in NAMED} if f"| {row}" not in rows)
    if missing:
        raise SystemExit(f"docs/differences.md has no row that begins so: {missing}")
    counts, unnamed, sent, refused = Counter(), 0, 0, []
    for name in options.runs or RUNS:
        try:
            found = list(play(name, options))
        except NotListening as error:
            # A peer of another version does not know all arguments.
            print(f"NOT PLAYED {name}: {error}")
            refused.append(name)
            continue
        sent += len(RUNS[name][2])
        for request, where, ours, peer in found:
            row = row_of(name, request, where, ours, peer)
            counts[row] += 1
            unnamed += row is None
            if row is None or options.all:
                print(f"{row or 'UNNAMED'} | {name} | {request} | {where}\n    ours {json.dumps(ours)[:300]}\n    peer {json.dumps(peer)[:300]}", flush=True)
    for row, count in counts.most_common():
        print(f"{count:6} {row or 'UNNAMED'}")
    print(f"{sent} requests and bursts to each under {len(options.runs or RUNS) - len(refused)} argument lists, {len(refused)} not played: {sum(counts.values())} differences, {unnamed} without a row")
    sys.exit(unnamed > 0 or bool(refused))


if __name__ == "__main__":
    main()
