"""Whether a scenario that is played twice faults the same requests, with 50 SDK clients at once.

    vllm-sim --model demo --max-num-seqs 64 --seed 3 --port 8000
    pip install openai
    python3 tests/python/scenario_repeat.py http://127.0.0.1:8000

Three phases, 900 requests, each with an X-Request-Id; once with `by: request-id`, once with
`by: ordinal`. Prints a Markdown table, and ends with an error when a request that is known by its
id meets another fate.
"""

import asyncio
import sys
import urllib.request
from collections import Counter

import openai

try:  # what the SDK stands on, by its version
    import httpx2 as httpx
except ImportError:
    import httpx

BASE = (sys.argv + ["http://127.0.0.1:8000"])[1]
CLIENTS = 50
PHASES = ((0, 100), (100, 500), (500, 900))
SCENARIO = """
name: storm
seed: 5
by: BY
phases:
  - {name: calm, requests: 100}
  - name: burst
    requests: 400
    set: {failure-injection-rate: 40, failure-types: [rate_limit, server_error]}
  - name: cuts
    requests: 400
    set: {stream-fault-rate: 50, stream-faults: [missing_done, cut_after=3]}
"""


async def fate(client, number):
    said = [{"role": "user", "content": f"hi {number}"}]
    try:
        stream = await client.chat.completions.create(
            model="demo",
            messages=said,
            stream=True,
            max_tokens=8,
            extra_headers={"X-Request-Id": f"r{number}"},
        )
        async for _ in stream:
            pass
    # A cut stream: which of the two depends on the SDK's version.
    except (openai.APIError, httpx.HTTPError) as error:
        return type(error).__name__
    return "none"


async def play(by):
    scenario = SCENARIO.replace("BY", by).encode()
    urllib.request.urlopen(urllib.request.Request(BASE + "/admin/scenario", scenario)).read()
    fates = {}
    async with openai.AsyncOpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0) as client:
        # A phase begins when the one before it is over; within it the clients race.
        for first, last in PHASES:
            numbers = iter(range(first, last))

            async def work():
                for number in numbers:
                    fates[number] = await fate(client, number)

            await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return fates


async def main():
    print("| `by` | Requests with the same fate | Exceptions |")
    print("|---|---|---|")
    for by in ("request-id", "ordinal"):
        one, two = await play(by), await play(by)
        same = sum(one[number] == two[number] for number in one)
        counts = ", ".join(f"{name} {n}" for name, n in sorted(Counter(one.values()).items()))
        print(f"| `{by}` | {same} of {len(one)} | {counts} |")
        assert by == "ordinal" or same == len(one)


asyncio.run(main())
