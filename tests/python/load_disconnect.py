"""10,000 requests at concurrency 200, a third of which hang up at random; needs nothing but Python.

    vllm-sim serve FOLDER --served-model-name tiny-llama --port 8000 --inter-token-latency 1ms & PID=$!
    python3 tests/python/load_disconnect.py http://127.0.0.1:8000 $PID

Afterwards nothing runs or waits, every request that was read to its end is complete, and the
process holds no more descriptors than before and no more memory than after the first round.
"""

import asyncio
import json
import os
import random
import sys
import urllib.request
from urllib.parse import urlsplit

BASE = (sys.argv + ["http://127.0.0.1:8000"])[1]
PID = int(sys.argv[2]) if len(sys.argv) > 2 else None
REQUESTS = int(os.environ.get("REQUESTS", "10000"))
CONCURRENCY = int(os.environ.get("CONCURRENCY", "200"))
HOST, PORT = urlsplit(BASE).hostname, urlsplit(BASE).port


def gauge(name):
    text = urllib.request.urlopen(BASE + "/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


def usage():
    if PID is None:
        return 0, 0
    status = open(f"/proc/{PID}/status").read()
    return len(os.listdir(f"/proc/{PID}/fd")), int(status.split("VmRSS:")[1].split()[0]) // 1024


async def one(rng, counts):
    stream, chat, tokens = rng.random() < 0.7, rng.random() < 0.5, rng.randint(1, 60)
    body = {"max_tokens": tokens, "stream": stream, "ignore_eos": True, "n": rng.choice([1, 1, 1, 2])}
    body |= {"messages": [{"role": "user", "content": "Hi " * rng.randint(1, 50)}]} if chat else {"prompt": "Hi"}
    data = json.dumps(body).encode()
    path = "/v1/chat/completions" if chat else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(HOST, PORT)
    try:
        leave = rng.random()
        if leave < 0.05:  # in the middle of the request
            writer.write((head.encode() + data)[: rng.randint(1, len(head) + len(data) - 1)])
            await writer.drain()
            counts["left"] += 1
            return
        writer.write(head.encode() + data)
        await writer.drain()
        if leave < 0.33:  # at some time of the answer
            try:
                await asyncio.wait_for(reader.read(rng.randint(1, 4000)), rng.random() * 0.05)
            except asyncio.TimeoutError:
                pass
            counts["left"] += 1
            return
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
        if stream:
            assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), answer[-200:]
            assert answer.count(b'"finish_reason":"length"') == body["n"], answer[-400:]
        else:
            parsed = json.loads(answer.split(b"\r\n\r\n", 1)[1])
            assert parsed["usage"]["completion_tokens"] == tokens * body["n"], parsed["usage"]
        counts["whole"] += 1
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()  # a reset instead of an end
        writer.close()


async def load(requests, seed):
    rng, counts = random.Random(seed), {"whole": 0, "left": 0, "wrong": 0}
    numbers = iter(range(requests))

    async def client():
        for _ in numbers:
            try:
                await one(rng, counts)
            except Exception as error:  # counted, the first few shown
                counts["wrong"] += 1
                if counts["wrong"] < 5:
                    print("wrong:", type(error).__name__, str(error)[:300])

    await asyncio.gather(*(client() for _ in range(CONCURRENCY)))
    return counts


async def settled():
    for _ in range(200):
        if gauge("vllm:num_requests_running") + gauge("vllm:num_requests_waiting") == 0:
            return True
        await asyncio.sleep(0.05)
    return False


async def main():
    idle = usage()
    await load(REQUESTS // 5, 1)
    assert await settled()
    await asyncio.sleep(1)
    before = usage()
    counts = await load(REQUESTS, 2)
    still = not await settled()
    await asyncio.sleep(1)
    after = usage()
    print(f"{counts}; descriptors and MiB: idle {idle}, warm {before}, after {after}")
    growth = after[1] - before[1]
    bad = still or counts["wrong"] or after[0] > before[0] + 5 or growth > 0.2 * before[1] + 8
    print("FAIL" if bad else "ok", "- stuck:", gauge("vllm:num_requests_running"), gauge("vllm:num_requests_waiting"))
    sys.exit(1 if bad else 0)


asyncio.run(main())
