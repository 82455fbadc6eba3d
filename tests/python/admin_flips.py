"""50 clients while settings flip 100 times: no reply mixes two sets of them.

    vllm-sim --model demo --max-num-seqs 64 --port 8000
    python3 tests/python/admin_flips.py 8000

The sets: slow tokens, a slow first token, two failures. A reply with the slow first token of one and
the slow gaps of another, or with neither, is a mix; ends with an error when there is one.
"""

import asyncio
import json
import random
import statistics
import sys
import time
import urllib.request
from collections import Counter

PORT = int((sys.argv + ["8000"])[1])
GAP, FIRST, TOKENS = 0.05, 0.6, 8
OFF = {"time-to-first-token": "0s", "inter-token-latency": "0s", "failure-injection-rate": 0}
FAILS = {**OFF, "failure-injection-rate": 100}
SETS = [
    {**OFF, "inter-token-latency": f"{GAP}s"},
    {**FAILS, "failure-types": ["rate_limit"]},
    {**OFF, "time-to-first-token": f"{FIRST}s"},
    {**FAILS, "failure-types": ["server_error"]},
]
BODY = json.dumps(
    {"model": "demo", "prompt": "hi", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
HEAD += b"content-length: %d\r\nconnection: close\r\n\r\n" % len(BODY)
rng, seen, over = random.Random(1), Counter(), False


def flip(settings):
    url = f"http://127.0.0.1:{PORT}/admin/config"
    kind = {"Content-Type": "application/json"}
    begin = time.perf_counter()
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(settings).encode(), kind)).read()
    return time.perf_counter() - begin


async def ask():
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    begin = time.perf_counter()
    writer.write(HEAD + BODY)
    text, times = b"", []
    while piece := await reader.read(65536):
        text += piece
        times += [time.perf_counter() - begin] * piece.count(b'"text":')
    writer.close()
    status = int(text.split(b" ", 2)[1])
    if status != 200:
        return {429: "rate_limit", 503: "server_error"}[status]
    # Nothing comes early; a busy machine makes it later.
    slow_first, slow_gaps = times[0] >= FIRST, times[-1] - times[0] >= GAP * (TOKENS - 1) * 0.98
    kinds = {(True, False): "first token", (False, True): "gaps"}
    return kinds.get((slow_first, slow_gaps), f"mix {times[0]:.3f} {times[-1] - times[0]:.3f}")


async def client():
    while not over:
        seen[await ask()] += 1
        await asyncio.sleep(0.01)


async def main():
    global over
    flip(SETS[0])
    clients = [asyncio.create_task(client()) for _ in range(50)]
    took = []
    for turn in range(1, 101):
        # Not in step with the replies.
        await asyncio.sleep(rng.uniform(0.02, 0.3))
        took.append(await asyncio.to_thread(flip, SETS[turn % 4]))
    over = True
    await asyncio.gather(*clients)
    print(dict(sorted(seen.items())), f"flip {statistics.median(took) * 1e3:.1f} ms")
    assert len(seen) == 4 and not any(kind.startswith("mix") for kind in seen)


asyncio.run(main())
