"""Hostile requests over all routes; needs nothing but Python.

    python3 tests/python/hostile.py target/release/vllm-sim [requests] [seed]

Three servers in turn, one of each command-line mode and one for speech, take them on 127.0.0.1, within
1 GiB of address space: the golden requests of the tests with bodies, paths, methods and headers changed at
random, lengths that are wrong, bodies that trickle or are cut, clients that leave at any moment. Afterwards
the process lives and answers, nothing runs or waits, no reply and no line of the log tells of a panic.
"""

import asyncio
import json
import os
import random
import re
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

BINARY = sys.argv[1]
REQUESTS = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 24
MEMORY = 1 << 30  # address space of the server, bytes
PATIENCE = 2  # longest wait of a client, seconds
LONGEST = 200_000  # of a body, bytes
CALM = {"time-to-first-token": 0, "inter-token-latency": 0, "failure-injection-rate": 0, "health-status": 200}
TOKENS = [
    "null", "true", "{}", "[]", '""', "NaN", "-1", "1e400", "99999999999999999999", '"\\ud800"', "\\u0000", "\0",
    '"n":50', '"stop":["a","b"]', '"stop_token_ids":[1,2,3]', '"logit_bias":{"5":-100}', '"logprobs":5', '"echo":true',
    '"stream":true', '"max_tokens":500', '"min_tokens":9', '"ignore_eos":true', '"prompt":["a","b"]', '"best_of":2',
    '"response_format":{"type":"json_object"}', '"structured_outputs":{"regex":"(a|b){1,900}\\\\b"}',
    '"structured_outputs":{"grammar":"root ::= \\"a\\"{99999}"}', '"structured_outputs":{"json":{"$ref":"#"}}',
    '"chat_template":"{% for i in range(9999999) %}{{ i }}{% endfor %}"', '"chat_template":"{{ \'%99999d\' % 1 }}"',
    '"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]',
    '"tool_choice":"required"', '"allowed_token_ids":[7]', '"bad_words":["a"]', '"truncate_prompt_tokens":3',
    '"kv_transfer_params":{"do_remote_decode":true}', '"cache_salt":"x"', '"model":"tiny-llama"', "{", "}", "[", "]", ",",
    '{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}', "e\u0301", "\u0301" * 50, "😀",
]
HEADERS = [
    "x-sim-fault: stall=1:10ms", "x-sim-fault: cut_after=2", "x-sim-fault: reset_after=1", "x-sim-fault: x=y;",
    "x-return-error: 503", "x-return-error: 99999", "x-request-id: " + "a" * 5000, "x-data-parallel-rank: -1",
    "content-type: text/plain", "content-type: application/json; charset=utf-16", "content-encoding: gzip",
    "content-type: multipart/form-data; boundary=xyz", "authorization: Bearer \t", "expect: 100-continue",
    "traceparent: 00-zz", "origin: http://elsewhere", "upgrade: websocket\r\nconnection: upgrade", "te: trailers",
    "connection: close", "transfer-encoding: chunked", "content-length: 5", "range: bytes=0-1", "\0: x", "host: ",
]


def goldens(speech):
    """Path and body of every golden request, and every path alone; those about speech, or the others."""
    found = []
    for file in sorted((ROOT / "tests/golden/http").glob("*.txt")):
        first, second = file.read_bytes().split(b"\n", 2)[:2]
        if match := re.fullmatch(rb"POST (/\S*)", first):
            found.append((match[1].decode(), second))
    routes = (ROOT / "crates/http/src/routes.rs").read_text()
    found *= 2
    found += [(path, b"{}") for path in re.findall(r'"(/[^"\s]*)"', routes)]
    form = b'--xyz\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--xyz--\r\n'
    if speech:
        return [(f"/v1/audio/{task}", form) for task in ("transcriptions", "translations")]
    return found


def start(flags, log):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    command = [BINARY, *flags, "--host", "127.0.0.1", "--port", str(port), "--seed", "1"]
    command += ["--served-model-name", "tiny-llama", "--trust-request-chat-template", "--enable-sleep-mode"]
    env = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=limit, env=env, cwd=ROOT)
    for _ in range(600):
        assert process.poll() is None, f"it does not start: {command}"
        try:
            if fetch(port, "/health")[0] == 200:
                return process, port
        except OSError:
            time.sleep(0.1)
    raise SystemExit("it does not come up")


def fetch(port, path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, kind, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def change(rng, body, bodies):
    """A body changed at a random place."""
    at = rng.randrange(len(body) + 1)
    end = min(len(body), at + rng.choice([0, 1, 2, 8, 40, 400]))
    part, kind = body[at:end], rng.randrange(9)
    if kind == 0 and part:
        part = bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:]
    elif kind == 1:
        part = b""
    elif kind == 2:
        part = part * rng.choice([2, 3, 50, 5000])
    elif kind == 3:
        other = rng.choice(bodies)[1]
        cut = rng.randrange(len(other) + 1)
        part = other[cut : cut + 60]
    elif kind == 4:
        opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"(", b")*")])
        levels = rng.choice([1, 5, 200, 2000])
        part = opening * levels + part + closing * levels
    elif kind == 5:
        numbers = list(re.finditer(rb"-?\d+", body))
        if numbers:
            at, end = rng.choice(numbers).span()
        part = rng.choice([b"0", b"-1", b"65536", b"4294967296", b"1e99", b"9" * 400])
    elif kind == 6 and body.startswith(b"{"):
        # A member more, at the front.
        at, end, part = 1, 1, rng.choice(TOKENS).encode() + b","
    else:
        part = rng.choice(TOKENS).encode()
    return (body[:at] + part + body[end:])[:LONGEST]


def request(rng, bodies):
    """The bytes of a request, and whether its end is what it says."""
    path, body = rng.choice(bodies)
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        body = change(rng, body, bodies)
    method = rng.choice(["POST"] * 30 + ["GET"] * 3 + ["DELETE", "OPTIONS", "HEAD", "BREW"])
    if rng.random() < 0.05:
        path += rng.choice(["?", "?level=9", "?a=%ff", "/", "//", "/..", "%00", "?tags=" + "x" * 3000])
    kind = "multipart/form-data; boundary=xyz" if "/audio/" in path else "application/json"
    lines = [f"{method} {path} HTTP/1.1", "host: sim", f"content-type: {kind}"]
    lines += rng.sample(HEADERS, rng.choice([0, 0, 0, 1, 2]))
    length = len(body) if rng.random() < 0.96 else rng.choice([0, 3, len(body) + 9, -1])
    lines.append(f"content-length: {length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def client(numbers, rng, port, bodies, seen, panics):
    for _ in numbers:
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            whole, way = request(rng, bodies), rng.random()
            if way < 0.05:
                writer.write(whole[: rng.randrange(len(whole))])
                await writer.drain()
                seen["cut"] += 1
            elif way < 0.06:
                for at in range(0, min(len(whole), 400), 40):
                    writer.write(whole[at : at + 40])
                    await asyncio.sleep(0.005)
                seen["trickled"] += 1
            else:
                writer.write(whole)
                await writer.drain()
            if way > 0.9:
                seen["left"] += 1
                if way > 0.95:
                    writer.transport.abort()
                continue
            answer = await asyncio.wait_for(reader.read(1 << 16), PATIENCE)
            seen[answer[9:12].decode("latin1") or "closed"] += 1
            if b"panicked" in answer:
                panics.append((whole[:2000], answer[:2000]))
        except (asyncio.TimeoutError, TimeoutError):
            seen["lost patience"] += 1
        except OSError:
            seen["reset"] += 1
        finally:
            if writer is not None:
                writer.close()


async def calm(port):
    """Takes back what a request may have set."""
    for path in ("/resume", "/wake_up", "/admin/config"):
        await asyncio.to_thread(fetch, port, path, CALM if "admin" in path else {})
    await asyncio.to_thread(fetch, port, "/admin/scenario", None, "DELETE")


async def nurse(port, over):
    while not over.is_set():
        await calm(port)
        await asyncio.sleep(0.3)


async def play(port, requests, speech, seen, panics):
    bodies, over = goldens(speech), asyncio.Event()
    nursing = asyncio.create_task(nurse(port, over))
    share = lambda n: range(n, requests, CLIENTS)
    rngs = [random.Random(f"{SEED} {n}") for n in range(CLIENTS)]
    clients = [client(share(n), rngs[n], port, bodies, seen, panics) for n in range(CLIENTS)]
    await asyncio.gather(*clients)
    over.set()
    await nursing
    await calm(port)


def at_work(port):
    lines = fetch(port, "/metrics")[1].splitlines()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting{", "vllm:num_requests_waiting ")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))


def main():
    model = str(ROOT / "tests/fixtures/tiny-llama")
    serve = ["serve", model, "--dev-mode"]
    servers = [
        (["--model", model], 45),
        ([*serve, "--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"], 45),
        ([*serve, "--task", "transcription"], 10),
    ]
    for number, (flags, share) in enumerate(servers):
        name = f"/tmp/hostile-{number}.log"
        with open(name, "wb") as log:
            process, port = start(flags, log)
        seen, panics, began = Counter(), [], time.time()
        try:
            asyncio.run(play(port, REQUESTS * share // 100, share == 10, seen, panics))
            assert process.poll() is None, f"it has ended: {process.returncode}, {name}"
            deadline = time.time() + 60
            while (left := at_work(port)) and time.time() < deadline:
                time.sleep(0.2)
            health = fetch(port, "/health")[0]
            log = open(name, errors="replace").read()
            memory = open(f"/proc/{process.pid}/status").read().split("VmHWM:")[1].split()[0]
            took = time.time() - began
            print(f"{' '.join(flags)}: {sum(seen.values())} requests in {took:.0f} s, at most {int(memory) >> 10} MiB")
            print("  " + ", ".join(f"{count} {what}" for what, count in sorted(seen.items())))
            assert not panics, f"{len(panics)} replies tell of a panic: {panics[:3]}"
            assert "panicked" not in log, f"a panic: {name}"
            assert left == 0, f"{left} requests run or wait"
            assert health == 200, f"/health says {health}"
        finally:
            process.terminate()
            process.wait()


main()
