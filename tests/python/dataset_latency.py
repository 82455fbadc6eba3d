"""What a hit in a large dataset adds to a request.

    python3 tests/python/dataset_latency.py make conversations.jsonl 50000
    vllm-sim dataset build --local-path conversations.jsonl --output-path . --output-file big \\
      --model demo --force-dummy-tokenizer --max-records 50000
    vllm-sim --model demo --force-dummy-tokenizer --port 8000
    vllm-sim --model demo --force-dummy-tokenizer --dataset-path big.sqlite3 --port 8001
    vllm-sim --model demo --force-dummy-tokenizer --dataset-path big.sqlite3 --port 8002
    python3 tests/python/dataset_latency.py ask 50000 8000 8001 8002

Prints for each port the median and the 99th percentile of 3000 completions over one connection, and
how many of the replies are the recorded ones.
"""

import http.client
import json
import random
import statistics
import sys
import time


def question(number):
    return f"question number {number}: what is {number} plus one?"


def make(path, count):
    with open(path, "w") as out:
        for number in range(count):
            answer = f"The answer to number {number} is {number + 1}, of course."
            turns = [{"from": "human", "value": question(number)}, {"from": "gpt", "value": answer}]
            out.write(json.dumps({"conversations": turns}) + "\n")


def ask(port, count, requests=3000):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    rng, times, right = random.Random(1), [], 0
    for _ in range(requests):
        number = rng.randrange(count)
        body = json.dumps({"model": "demo", "prompt": question(number), "max_tokens": 16})
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse().read()
        times.append((time.perf_counter() - begin) * 1e3)
        right += f" {number + 1}," in json.loads(reply)["choices"][0]["text"]
    late = sorted(times)[requests * 99 // 100]
    print(f"{port}: {statistics.median(times):.3f} ms, p99 {late:.2f} ms, {right} of {requests}")


if sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]))
else:
    for port in sys.argv[3:]:
        ask(int(port), int(sys.argv[2]))
