#!/usr/bin/env python3
"""Every number of the HTTP API and of the flags at the edges of its type; needs nothing but Python.

    extremes.py BINARY [api] [flags] [--seconds 2]

The numbers of the API are those of the server's own OpenAPI document, at any depth, and query parameters;
those of the flags are the rows of docs/flags.md that take a number or a duration. Servers run within 8 GiB of
address space. Reported are: an end of the process, an answer of 500 and more, an answer that takes longer
than the bound, a panic, and a flag that is neither taken nor refused in time. A flag is also tried with its
smallest and its largest accepted value in a server that starts and answers.

The numbers in messages of an engine core are those of `cargo test --test program numbers_of_messages`.
"""

import copy
import http.client
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 8 << 30  # address space of a server, bytes
START = 30  # longest start of a server, seconds
NUMBERS = [
    "0", "1", "-1", "2147483647", "2147483648", "-2147483649", "4294967295", "4294967296", "9007199254740993",
    "4611686018427387904", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "18446744073709551616", "0.5", "5e-324", "-5e-324",
    "1.7976931348623157e308", "-1.7976931348623157e308", "1e400", "-1e400", "NaN", "Infinity", "-Infinity",
]
DURATIONS = ["9223372036854775807ns", "18446744073709551615s", "1e308s", "5124095h", "0.0000001ns"]
CHAT = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2}
# Bodies that are accepted as they are; the number is put into each of them.
BODIES = {
    "/v1/chat/completions": [CHAT, {**CHAT, "logprobs": True, "stream": True, "stream_options": {}}],
    "/v1/chat/completions/batch": [{"messages": [CHAT["messages"]], "max_tokens": 2}],
    "/v1/chat/completions/render": [CHAT],
    "/v1/completions": [{"prompt": "a b", "max_tokens": 2}, {"prompt": "a b", "max_tokens": 2, "stream": True}],
    "/v1/completions/render": [{"prompt": "a b", "max_tokens": 2}],
    "/v1/responses": [{"input": "a b", "max_output_tokens": 2}, {"input": "a b", "max_output_tokens": 2, "stream": True,
                      "include": ["message.output_text.logprobs"]}],
    "/v1/responses/render": [{"input": "a b", "max_output_tokens": 2}],
    "/v1/messages": [CHAT],
    "/v1/messages/count_tokens": [CHAT],
    "/v1/messages/render": [CHAT],
    "/inference/v1/generate": [{"token_ids": [1, 2], "sampling_params": {"max_tokens": 2}}],
    "/generative_scoring": [{"query": "a", "items": ["b"], "label_token_ids": [1, 2]}],
    "/tokenize": [{"prompt": "a b"}, {"messages": CHAT["messages"]}],
    "/detokenize": [{"tokens": [1]}],
    "/v1/embeddings": [{"input": "a b"}],
    "/pooling": [{"input": "a b"}],
    "/classify": [{"input": "a b"}],
    "/score": [{"text_1": "a", "text_2": "b"}],
    "/rerank": [{"query": "a", "documents": ["b"]}],
}
SERVERS = [
    ["serve", "demo", "--dev-mode", "--enable-scale-out", "--max-logprobs", "-1"],
    ["serve", "demo", "--dev-mode", "--runner", "pooling", "--convert", "embed"],
    ["--model", "demo", "--compat", "llm-d", "--time-to-first-token", "0", "--inter-token-latency", "0"],
]
# What ends, pauses or halts the server is not asked for.
LEFT_OUT = re.compile("sleep|pause|resume|wake|shutdown|collective|profile|abort|restart")
# A number of these is a wait that was asked for.
WAITS = re.compile("latency|time|delay|overhead|factor|timeout|interval|duration|speedup|seed|stagger|wait")
problems = []


def problem(text):
    problems.append(text)
    print("!!", text, flush=True)


def within_limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


class Server:
    def __init__(self, binary, words, seconds):
        self.folder = tempfile.TemporaryDirectory()
        self.seconds, self.words = seconds, words
        ready, self.log = Path(self.folder.name, "ready"), Path(self.folder.name, "log")
        flags = ["--host", "127.0.0.1", "--port", "0", "--ready-file", str(ready), "--log-level", "error"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([binary, *words, *flags], stderr=log, preexec_fn=within_limit)
        until, self.port = time.monotonic() + START, None
        while time.monotonic() < until and self.process.poll() is None:
            if ready.exists() and ready.read_text().strip():
                self.port = urlsplit(json.loads(ready.read_text())["servers"][0]["url"]).port
                break
            time.sleep(0.01)

    def ask(self, method, path, body=None, limit=None):
        """Status, bytes and seconds of an answer; the status is None if none came."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit or self.seconds * 10)
        began = time.monotonic()
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read(), time.monotonic() - began
        except (OSError, http.client.HTTPException) as error:
            return None, repr(error).encode(), time.monotonic() - began
        finally:
            connection.close()

    def peak(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) // 1024

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        said = self.log.read_text(errors="replace")
        self.folder.cleanup()
        return said


def leaves(document, schema, path=(), seen=()):
    """Paths of all numbers of a schema; a list is the path of its first item, a free key is "5"."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        if name not in seen and len(path) < 6:
            yield from leaves(document, document["components"]["schemas"][name], path, (*seen, name))
        return
    for part in ("anyOf", "allOf", "oneOf"):
        for one in schema.get(part, []):
            yield from leaves(document, one, path, seen)
    if schema.get("type") in ("integer", "number"):
        yield path
    for name, one in schema.get("properties", {}).items():
        yield from leaves(document, one, (*path, name), seen)
    if isinstance(schema.get("items"), dict):
        yield from leaves(document, schema["items"], (*path, 0), seen)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from leaves(document, schema["additionalProperties"], (*path, "5"), seen)


def put(value, path, number):
    if not path:
        return number
    first, rest = path[0], path[1:]
    if first == 0:
        items = value if isinstance(value, list) and value else [None]
        return [put(items[0], rest, number), *items[1:]]
    fields = dict(value) if isinstance(value, dict) else {}
    fields[first] = put(fields.get(first), rest, number)
    return fields


def requests(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if LEFT_OUT.search(path) or "{" in path:
                continue
            for parameter in operation.get("parameters", []):
                if any(True for _ in leaves(document, parameter.get("schema", {}))):
                    for number in NUMBERS:
                        yield method.upper(), f"{path}?{parameter['name']}={number}", None, parameter["name"]
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            for leaf in sorted(set(leaves(document, schema)), key=str):
                for base in BODIES.get(path, [{}]):
                    for number in NUMBERS:
                        body = put(copy.deepcopy(base), leaf, "@number@")
                        yield method.upper(), path, json.dumps(body).replace('"@number@"', number), leaf


def try_api(binary, seconds):
    document = None
    for words in SERVERS:
        server = Server(binary, words, seconds)
        if server.port is None:
            return problem(f"{' '.join(words)} does not start: {server.end()}")
        status, text, _ = server.ask("GET", "/openapi.json")
        document = json.loads(text) if status == 200 else document
        sent, slowest, statuses = 0, 0.0, {}
        for method, path, body, leaf in requests(document):
            status, text, took = server.ask(method, path, body)
            sent, slowest = sent + 1, max(slowest, took)
            statuses[status] = statuses.get(status, 0) + 1
            shown = f"{' '.join(words)}: {method} {path} {leaf} {body}"
            # vLLM says 501 to what the model cannot do.
            # A stream of Responses that fails breaks off, as in vLLM.
            breaks_off = path == "/v1/responses" and text.startswith(b"IncompleteRead")
            if status is None and not breaks_off or (status or 0) >= 500 and status != 501:
                problem(f"{shown}: {status} {text[:200]!r}")
            elif took > seconds:
                problem(f"{shown}: {took:.1f} s")
            if server.process.poll() is not None:
                problem(f"{shown}: the process ended with {server.process.returncode}: {server.end()[-500:]}")
                return None
        peak, said = server.peak(), server.end()
        if "panicked" in said:
            problem(f"{' '.join(words)}: {said[-1000:]}")
        print(f"{' '.join(words)}: {sent} requests, {statuses}, slowest {slowest:.2f} s, peak {peak} MB", flush=True)
    return None


def flags():
    """Names of the flags that take a number or a duration."""
    for line in (ROOT / "docs/flags.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if len(cells) >= 3 and (found := re.match(r"\| `--([a-z0-9-]+)`", line)):
            if re.search("number|duration|seconds", cells[1]):
                yield found.group(1)


def taken(binary, words, seconds):
    """Returns whether a command line is accepted; None if it is neither accepted nor refused."""
    began = time.monotonic()
    try:
        done = subprocess.run([binary, "config", *words], capture_output=True, timeout=seconds * 5, preexec_fn=within_limit)
    except subprocess.TimeoutExpired:
        problem(f"config {' '.join(words)}: no end")
        return None
    if done.returncode not in (0, 2) or b"panicked" in done.stderr:
        problem(f"config {' '.join(words)}: exit code {done.returncode} {done.stderr[-300:]!r}")
        return None
    if time.monotonic() - began > seconds:
        problem(f"config {' '.join(words)}: {time.monotonic() - began:.1f} s")
    return done.returncode == 0


def size(value):
    number = re.match(r"-?[0-9.]+(e-?[0-9]+)?", value)
    return float(number.group(0)) if number else 0.0


def try_flags(binary, seconds):
    tried, started = 0, 0
    for mode in (["serve", "demo"], ["--model", "demo"]):
        for flag in flags():
            accepted = []
            for value in NUMBERS + DURATIONS:
                tried += 1
                if taken(binary, [*mode, f"--{flag}={value}"], seconds):
                    accepted.append(value)
            accepted.sort(key=size)
            for value in {*accepted[:1], *accepted[-1:]}:
                started += 1
                run(binary, [*mode, f"--{flag}={value}"], flag, seconds)
    print(f"{tried} values of flags, {started} servers", flush=True)


def run(binary, words, flag, seconds):
    """Starts a server, which may also refuse to start, and asks it once."""
    if flag in ("port", "metrics-port", "replicas", "startup-duration", "api-server-count"):
        return
    server = Server(binary, words, seconds)
    if server.port is None:
        code, said = server.process.poll(), server.end()
        if (code is None and not WAITS.search(flag)) or (code is not None and code not in (1, 2)) or "panicked" in said:
            problem(f"{' '.join(words)}: does not start, exit code {code}: {said[-300:]}")
        return
    body = json.dumps({"prompt": "a b", "max_tokens": 2})
    status, _, took = server.ask("POST", "/v1/completions", body, limit=seconds)
    if status is None and not WAITS.search(flag):
        problem(f"{' '.join(words)}: no answer in {took:.1f} s")
    status, _, took = server.ask("GET", "/health", limit=seconds)
    if status is None and server.process.poll() is None:
        problem(f"{' '.join(words)}: /health does not answer")
    if server.process.poll() is not None:
        problem(f"{' '.join(words)}: the process ended with {server.process.returncode}")
    if "panicked" in (said := server.end()):
        problem(f"{' '.join(words)}: {said[-500:]}")


def main():
    words = sys.argv[1:]
    seconds = float(words[words.index("--seconds") + 1]) if "--seconds" in words else 2.0
    binary = os.path.abspath(words[0])
    chosen = [word for word in words if word in ("api", "flags")] or ["api", "flags"]
    if "api" in chosen:
        try_api(binary, seconds)
    if "flags" in chosen:
        try_flags(binary, seconds)
    print(f"{len(problems)} problems")
    sys.exit(bool(problems))


main()
