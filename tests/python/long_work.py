"""How fast `/health` and `/metrics` answer while the server does long work.

    python3 tests/python/long_work.py target/release/vllm-sim [SECONDS]

Starts the server on a free port of 127.0.0.1. For each kind of work four clients (a process of low
priority) repeat it for SECONDS (5) while this process asks for `/health` and `/metrics` in turn.
Prints percentiles in milliseconds; fails when a 99th percentile is above 20 ms.
"""

import http.client
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(content, **more):
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


def works():
    """Name, path and body of each kind of work."""
    words = "word " * 800_000
    wide = {"type": "object", "properties": {}, "additionalProperties": False}
    for index in range(1_000):
        wide["properties"][f"p{index}"] = {"type": "array", "items": {"enum": ["a", "b", index]}}
    wide["required"] = list(wide["properties"])
    long = {"max_tokens": 2_000, "ignore_eos": True}
    schema = {"type": "json_schema", "json_schema": {"name": "wide", "schema": wide}}
    regex = {"structured_outputs": {"regex": "(([a-z]{1,40}|[0-9]{1,40}){1,40}x){1,40}"}}
    parts = [{"type": "text", "text": "a"}] * 300_000
    yield "log probabilities, 16 x 2000 x 20", CHAT, chat(
        "hi", n=16, logprobs=True, top_logprobs=20, **long)
    yield "log probabilities, 64 x 2000", COMPLETIONS, {
        "model": "m", "prompt": "hi", "n": 64, "logprobs": 1, **long}
    yield "text of 128 x 2000 tokens", CHAT, chat("hi", n=128, **long)
    yield "4 MB to tokenize", "/tokenize", {"model": "m", "prompt": words}
    yield "4 MB prompt", CHAT, chat(words, max_tokens=1)
    yield "2,000,000 token ids", COMPLETIONS, {
        "model": "m", "prompt": [7] * 2_000_000, "max_tokens": 1}
    yield "300,000 parts", CHAT, chat(parts, max_tokens=1)
    yield "schema of 1,000 members", CHAT, chat("hi", max_tokens=8_000, response_format=schema)
    yield "nested regex", CHAT, chat("hi", max_tokens=4_000, **regex)
    yield "2,048 embeddings", "/v1/embeddings", {"model": "m", "input": ["some words"] * 2_048}


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    kind = {"Content-Type": "application/json"} if body else {}
    connection.request(method, path, body, kind)
    response = connection.getresponse()
    size = len(response.read())
    connection.close()
    return response.status, size


def load(port, path, body, seconds, done):
    """Four clients; the status, size and number of their answers."""
    os.nice(19)
    until, answers = time.time() + seconds, []

    def repeat():
        while time.time() < until:
            answers.append(ask(port, "POST", path, body))

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.put((len(answers), sorted(set(answers))[:3]))


def main():
    binary, seconds = sys.argv[1], float((sys.argv + ["5"])[2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [binary, "--model", "m", "--port", str(port), "--max-model-len", "4000000"]
    command += ["--max-num-seqs", "10000", "--max-request-body-size-mb", "64"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    slow = []
    try:
        for _ in range(200):
            try:
                ask(port, "GET", "/health")
                break
            except OSError:
                time.sleep(0.05)
        for name, path, body in [("nothing", None, None), *works()]:
            done = multiprocessing.Queue()
            arguments = (port, path, json.dumps(body).encode(), seconds, done)
            worker = multiprocessing.Process(target=load, args=arguments)
            times = {"/health": [], "/metrics": []}
            if path:
                worker.start()
            until = time.time() + seconds
            while time.time() < until:
                for asked, taken in times.items():
                    begin = time.perf_counter()
                    ask(port, "GET", asked)
                    taken.append((time.perf_counter() - begin) * 1e3)
                    time.sleep(0.002)
            count, answers = done.get() if path else (0, "")
            if path:
                worker.join()
            shown = []
            for asked, taken in times.items():
                taken.sort()
                p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
                shown.append(f"{asked} p50 {p50:5.1f} p99 {p99:6.1f} max {taken[-1]:6.1f}")
                if p99 > 20:
                    slow.append(f"{name} ({asked})")
            print(f"{name:34} {'; '.join(shown)}; {count} answers {answers}", flush=True)
    finally:
        server.kill()
    if slow:
        raise SystemExit("above 20 ms: " + ", ".join(slow))


if __name__ == "__main__":
    main()
