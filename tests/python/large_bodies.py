"""Memory that a large body takes at its peak, in times of the body; needs nothing but Python and Linux.

    python3 tests/python/large_bodies.py target/release/vllm-sim
"""

import json
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request

BINARY = sys.argv[1]
CHAT = "/v1/chat/completions"


def chat(messages):
    return json.dumps({"model": "demo", "max_tokens": 1, "messages": messages})


random.seed(1)
IDS = ",".join(str(random.randrange(32_000)) for _ in range(2_000_000))
PART = {"type": "text", "text": "ab"}
PLAIN = ["--model", "demo"]
LLMD = [*PLAIN, "--compat", "llm-d"]
COMPLETION = ("/v1/completions", f'{{"model":"demo","max_tokens":1,"prompt":[{IDS}]}}')
TEXT = (CHAT, chat([{"role": "user", "content": "word " * 800_000}]))
MESSAGES = (CHAT, chat([{"role": "user", "content": "ab"}] * 300_000))
PARTS = (CHAT, chat([{"role": "user", "content": [PART] * 300_000}]))
SMALL = {
    CHAT: chat([{"role": "user", "content": "ab"}]),
    "/v1/completions": '{"model":"demo","max_tokens":1,"prompt":[1]}',
    "/inference/v1/generate": '{"model":"demo","token_ids":[1],"sampling_params":{"max_tokens":1}}',
    "/v1/embeddings": '{"model":"demo","input":["ab"]}',
}
BODIES = [
    ("2,000,000 token ids", PLAIN, *COMPLETION),
    ("4 MB of text", PLAIN, *TEXT),
    ("300,000 messages", PLAIN, *MESSAGES),
    ("300,000 parts", PLAIN, *PARTS),
    ("2,000,000 token ids to generate", [*PLAIN, "--enable-scale-out"], "/inference/v1/generate", f'{{"model":"demo","token_ids":[{IDS}],"sampling_params":{{"max_tokens":1}}}}'),
    ("2,000,000 token ids to embed", PLAIN, "/v1/embeddings", f'{{"model":"demo","input":[{IDS}]}}'),
    ("60,000 texts to embed", PLAIN, "/v1/embeddings", json.dumps({"model": "demo", "dimensions": 1, "input": ["ab"] * 60_000})),
    ("2,000,000 token ids, llm-d", LLMD, *COMPLETION),
    ("4 MB of text, llm-d", LLMD, *TEXT),
    ("300,000 messages, llm-d", LLMD, *MESSAGES),
    ("300,000 parts, llm-d", LLMD, *PARTS),
]


def memory(process, key):
    """MiB of a process."""
    with open(f"/proc/{process.pid}/status") as status:
        return int(re.search(rf"{key}:\s+(\d+)", status.read()).group(1)) / 1024


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


for name, mode, path, text in BODIES:
    port = free_port()
    flags = [*mode, "--port", str(port), "--max-model-len", "8000000", "--max-request-body-size-mb", "64"]
    server = subprocess.Popen([BINARY, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 20
    while True:
        try:
            urllib.request.urlopen(f"{base}/health").read()
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)

    def ask(body):
        asked = urllib.request.Request(base + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            answer.read()

    # A server that has answered such a request has the code for it in memory.
    ask(SMALL[path].encode())
    before, body = memory(server, "VmHWM"), text.encode()
    started = time.monotonic()
    ask(body)
    took = time.monotonic() - started
    grown, size = memory(server, "VmHWM") - before, len(body) / 2**20
    print(f"{name}: {size:.1f} MiB, peak +{grown:.0f} MiB, {grown / size:.1f} x, {took:.2f} s", flush=True)
    server.kill()
    server.wait()
