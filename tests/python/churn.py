"""300,000 requests with leaving clients while settings, adapters and sleep change; needs nothing but
Python.

    python3 tests/python/churn.py target/release/vllm-sim [requests]

Each scheduler in turn serves a third of them on 127.0.0.1. A third of the clients leave: within the
request, while they wait or in the answer. Meanwhile an operator changes delays (up to an hour), bounds
and failures, loads and unloads adapters, pauses, puts the server to sleep, aborts and resets. Afterwards
nothing runs or waits, no block is in use and no adapter has a request; every count agrees with every
other and with what clients read; a quiet round is counted to the token; the memory is that of a server
that has had only the quiet round, give or take a fifth.
"""

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import time
import urllib.request
from collections import Counter

BINARY = sys.argv[1]
REQUESTS = int(sys.argv[2]) if len(sys.argv) > 2 else 300_000
CLIENTS = 48
QUIET = 2_000
PORT = int(os.environ.get("PORT", "18473"))
MEMORY = 2 << 30  # address space of the server, bytes
PATIENCE = 2  # longest wait of a client, seconds
OPERATION = 60  # longest wait of the operator, who may wait for what runs
TOKENS = 12  # of each request of the quiet round
CALM = {
    "time-to-first-token": 0,
    "inter-token-latency": 0,
    "failure-injection-rate": 0,
    "max-num-seqs": 64,
    "max-waiting-queue-length": 1000,
    "latency-factor": 1,
}


def start(scheduler):
    flags = ["--model", "demo", "--force-dummy-tokenizer", "--scheduler", scheduler]
    flags += ["--port", str(PORT), "--host", "127.0.0.1", "--max-num-seqs", "64", "--seed", "1"]
    flags += ["--enable-kvcache", "--kv-cache-size", "512", "--block-size", "8", "--max-loras", "3"]
    flags += ["--enable-sleep-mode", "--zmq-endpoint", "tcp://127.0.0.1:1", "--latency-model", "delays"]
    flags += ["--max-model-len", "2048", "--lora-modules", '{"name":"always","path":"p"}']
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    log = open(f"/tmp/churn-{scheduler}.log", "wb")
    env = os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
    return subprocess.Popen([BINARY, *flags], stdout=log, stderr=log, preexec_fn=limit, env=env)


def rss(process):
    status = open(f"/proc/{process.pid}/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def fetch(path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{PORT}{path}"
    request = urllib.request.Request(url, data, kind, method=method or ("POST" if data else "GET"))
    try:
        with urllib.request.urlopen(request, timeout=OPERATION) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Page:
    """One look at /metrics."""

    def __init__(self):
        self.lines = fetch("/metrics")[1].splitlines()

    def total(self, name, *labels):
        own = [line for line in self.lines if line.split("{")[0].split(" ")[0] == "vllm:" + name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in own if all(label in line for label in labels))

    def newest_adapters(self):
        own = [line for line in self.lines if line.startswith("vllm:lora_requests_info{")]
        return max(own, key=lambda line: float(line.rsplit(" ", 1)[1]), default="")


class Connection:
    """HTTP/1.1, as far as this needs it."""

    def __init__(self):
        self.reader = self.writer = None

    async def send(self, path, body, cut=None):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", PORT)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        whole = head.encode() + data
        self.writer.write(whole if cut is None else whole[: int(len(whole) * cut)])
        await self.writer.drain()

    async def answer(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "transfer-encoding: chunked" in head:
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        else:
            length = int(head.split("content-length:")[1].split("\r\n")[0])
            body = await self.reader.readexactly(length)
        if "connection: close" in head:
            self.leave()
        return int(head.split(" ", 2)[1]), body

    def leave(self, reset=False):
        if self.writer is not None:
            if reset:
                self.writer.transport.abort()
            self.writer.close()
        self.reader = self.writer = None


def request(rng):
    model = rng.choice(["demo", "demo", "always", *(f"a{i}" for i in range(5))])
    text = " ".join(rng.choice(["one", "two", "three", "four"]) for _ in range(rng.choice([3, 20, 90])))
    body = {"model": model, "max_tokens": rng.randint(1, 24), "stream": rng.random() < 0.5}
    body |= {"ignore_eos": rng.random() < 0.7, "n": rng.choice([1, 1, 1, 2])}
    if rng.random() < 0.2:
        body["cache_salt"] = rng.choice(["x", "y"])
    if rng.random() < 0.5:
        return "/v1/completions", body | {"prompt": text}
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}


def reasons(body, stream):
    """Finish reasons of an answer that was read to its end."""
    if not stream:
        return [choice["finish_reason"] for choice in json.loads(body)["choices"]]
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event).get("choices", [])]
    return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]


async def client(numbers, rng, seen, ended):
    connection = Connection()
    for _ in numbers:
        path, body = request(rng)
        leaves = rng.random()
        try:
            if leaves < 0.04:
                await connection.send(path, body, cut=rng.random())
                seen["left in request"] += 1
                connection.leave(rng.random() < 0.5)
                continue
            await connection.send(path, body)
            if leaves < 0.33:
                await asyncio.sleep(rng.random() ** 2 * 0.05)
                seen["left later"] += 1
                connection.leave(rng.random() < 0.5)
                continue
            status, answer = await asyncio.wait_for(connection.answer(), PATIENCE)
            seen[status] += 1
            if status == 200 and answer.startswith(b'data: {"error"'):
                seen["refused in stream"] += 1
            elif status == 200:
                found = reasons(answer, body["stream"])
                # One that the operator ends says so of each choice.
                assert len(found) == body["n"], (found, body, answer[-300:])
                ended.update(found)
        except (asyncio.TimeoutError, TimeoutError):
            seen["lost patience"] += 1
            connection.leave()
        except (OSError, asyncio.IncompleteReadError):
            seen["closed"] += 1
            connection.leave()
    connection.leave()


async def operator(rng, over, seen):
    post = lambda *args: asyncio.to_thread(fetch, *args)
    while not over.is_set():
        turn = rng.random()
        if turn < 0.5:
            change = rng.choice([
                {"time-to-first-token": rng.choice([0, "1ms", "5ms", "20ms", "1h"])},
                {"inter-token-latency": rng.choice([0, "1ms", "3ms"])},
                {"max-num-seqs": rng.choice([1, 2, 16, 64]), "max-waiting-queue-length": rng.choice([0, 5, 1000])},
                {"failure-injection-rate": rng.choice([0, 0, 5, 30])},
                {"latency-factor": rng.choice([0.5, 1, 2])},
                CALM,
            ])
            done = await post("/admin/config", change)
            assert done[0] == 200, done
            if change.get("time-to-first-token") == "1h":
                await asyncio.sleep(0.05)
                await post("/admin/config", {"time-to-first-token": 0})
        elif turn < 0.75:
            name = f"a{rng.randrange(5)}"
            if rng.random() < 0.6:
                await post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": "p"})
            else:
                await post("/v1/unload_lora_adapter", {"lora_name": name})
        elif turn < 0.80:
            mode = rng.choice(["abort", "wait", "keep"])
            await post(f"/pause?mode={mode}", {})
            await asyncio.sleep(rng.random() * 0.05)
            await post("/resume", {})
        elif turn < 0.84:
            await post(f"/sleep?level={rng.choice([1, 2])}", {})
            await asyncio.sleep(rng.random() * 0.05)
            await post("/wake_up", {})
        elif turn < 0.88:
            await post("/abort_requests", {})
        elif turn < 0.92:
            await post("/reset_prefix_cache", {})
        else:
            page = await asyncio.to_thread(Page)
            assert page.total("num_requests_running") >= 0
        seen["operations"] += 1
        await asyncio.sleep(0.02)


async def settle():
    """Everything as it was at the start; whether nothing runs or waits."""
    for path in ("/resume", "/wake_up"):
        fetch(path, {})
    assert fetch("/admin/config", CALM)[0] == 200
    for i in range(5):
        fetch("/v1/unload_lora_adapter", {"lora_name": f"a{i}"})
    for _ in range(200):
        page = Page()
        if page.total("num_requests_running") + page.total("num_requests_waiting") == 0:
            return True
        await asyncio.sleep(0.05)
    return False


async def quiet_round():
    """Requests that all end; what they add to the counts."""
    rng, before, connection = random.Random(3), Page(), Connection()
    for _ in range(QUIET):
        path, body = request(rng)
        body |= {"model": "demo", "max_tokens": TOKENS, "ignore_eos": True, "n": 1}
        await connection.send(path, body)
        status, answer = await asyncio.wait_for(connection.answer(), OPERATION)
        assert status == 200, answer
    connection.leave()
    after = Page()
    added = lambda name, *labels: after.total(name, *labels) - before.total(name, *labels)
    assert added("request_success_total", 'finished_reason="length"') == QUIET
    assert added("generation_tokens_total") == QUIET * TOKENS
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_params_n"):
        assert added(name + "_count") == QUIET, (name, added(name + "_count"))


def reconcile(page, ended, seen):
    """Counts against each other and against what clients read."""
    wrong = []
    success = page.total("request_success_total")
    for name in (
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_inference_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_max_tokens",
    ):
        if page.total(name + "_count") != success:
            wrong.append(f"{name}: {page.total(name + '_count')} of {success}")
    if page.total("request_generation_tokens_sum") > page.total("generation_tokens_total"):
        wrong.append("more tokens at the end than on the way")
    if page.total("time_to_first_token_seconds_count") > success + 2 * seen_left(seen) + ended["abort"]:
        wrong.append("more first tokens than requests")
    for reason in ("stop", "length", "abort"):
        counted = page.total("request_success_total", f'finished_reason="{reason}"')
        # Those who left may have had an end that they did not see.
        if not ended[reason] <= counted <= ended[reason] + 2 * seen_left(seen):
            wrong.append(f"{reason}: read {ended[reason]}, counted {counted}")
    return wrong


def seen_left(seen):
    return seen["left later"] + seen["lost patience"] + seen["closed"]


async def play(scheduler, requests):
    process = start(scheduler)
    try:
        for _ in range(200):
            try:
                if fetch("/health")[0] == 200:
                    break
            except OSError:
                await asyncio.sleep(0.1)
        idle = rss(process)
        await quiet_round()
        await asyncio.sleep(1)
        fresh = rss(process)
        begin, seen, ended = time.monotonic(), Counter(), Counter()
        before = Page()
        rng, over, numbers = random.Random(7), asyncio.Event(), iter(range(requests))
        churn = asyncio.create_task(operator(rng, over, seen))
        await asyncio.gather(*(client(numbers, random.Random(i), seen, ended) for i in range(CLIENTS)))
        took = time.monotonic() - begin
        over.set()
        await churn
        settled = await settle()
        page = Page()
        ended.update({"length": int(before.total("request_success_total"))})
        wrong = reconcile(page, ended, seen)
        if not settled:
            running, waiting = page.total("num_requests_running"), page.total("num_requests_waiting")
            wrong.append(f"stuck: {running} run, {waiting} wait")
        if page.total("kv_cache_usage_perc") != 0:
            wrong.append(f"blocks in use: {page.total('kv_cache_usage_perc')}")
        adapters = page.newest_adapters()
        if 'running_lora_adapters=""' not in adapters or 'waiting_lora_adapters=""' not in adapters:
            wrong.append(f"adapters: {adapters}")
        await quiet_round()
        await asyncio.sleep(2)
        after = rss(process)
        if after > 1.2 * fresh:
            wrong.append("memory")
        print(f"{scheduler}: {requests} requests in {took:.0f} s; {dict(seen)}; ended {dict(ended)}")
        print(f"  MiB: idle {idle:.0f}, fresh {fresh:.0f}, after {after:.0f}; {'; '.join(wrong) or 'ok'}", flush=True)
        return wrong
    finally:
        process.terminate()
        process.wait(60)


def main():
    schedulers = os.environ.get("SCHEDULERS", "pool,vllm,sglang").split(",")
    wrong = []
    for scheduler in schedulers:
        wrong += asyncio.run(play(scheduler, REQUESTS // len(schedulers)))
    sys.exit(1 if wrong else 0)


main()
