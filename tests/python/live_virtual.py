"""One trace over HTTP in real time, and offline in virtual time: how far each request lies apart.

    python3 tests/python/live_virtual.py target/release/vllm-sim

Starts `vllm-sim serve` with a modelled engine on a port of its own, plays a Poisson trace against
it with `vllm-sim replay --target`, plays the same trace offline with the same engine flags, and
compares TTFT and end-to-end time request by request. Ends with an error when a request is missing,
differs in its lengths, or when the 99th percentile of a difference is above the bound.

Flags behind `--` describe the engine instead of those below, such as
`-- --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --speedup-ratio 4`.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ENGINE = ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100", "--speedup-ratio", "2"]


def read():
    own, engine = sys.argv[1:], ENGINE
    if "--" in own:
        at = own.index("--")
        own, engine = own[:at], own[at + 1 :]
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("binary")
    words.add_argument("--requests", type=int, default=500)
    words.add_argument("--rate", type=float, default=14.0, help="requests per second")
    words.add_argument("--input", type=int, default=256, help="mean of prompt tokens")
    words.add_argument("--output", type=int, default=64, help="mean of output tokens")
    words.add_argument("--bound", type=float, default=5.0, help="ms at the 99th percentile")
    words.add_argument("--port", type=int, default=0)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--keep", help="folder for the rows of both runs")
    return words.parse_args(own), engine


def write_trace(path, options):
    """Lengths around their means; every fourth prompt begins as another one does."""
    draw = random.Random(options.seed)
    at, unique = 0.0, 1000
    with open(path, "w") as out:
        for number in range(options.requests):
            prompt = draw.randint(options.input // 2, options.input * 3 // 2)
            blocks = -(-prompt // 64)
            ids = list(range(unique, unique + blocks))
            unique += blocks
            if number % 4 == 0:
                ids[0] = draw.randint(1, 8)
            row = {
                "request_id": f"r{number}",
                "timestamp": at,
                "input_length": prompt,
                "output_length": draw.randint(options.output // 2, options.output * 3 // 2),
                "hash_ids": ids,
            }
            print(json.dumps(row), file=out)
            at += draw.expovariate(options.rate) * 1000


def replay(options, engine, trace, rows, more):
    words = [options.binary, "replay", str(trace), "--trace-block-size", "64", *more]
    words += ["--per-request", str(rows), *engine]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, timeout=600)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(words)}")
    with open(rows) as file:
        return {row["uuid"]: row for row in map(json.loads, file)}


def wait(url, server):
    for _ in range(300):
        if server.poll() is not None:
            sys.exit("the server ended at its start")
        try:
            with urllib.request.urlopen(url + "/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    sys.exit("the server does not start")


def show(name, values, unit="ms"):
    values = sorted(values)
    share = lambda percent: values[round((len(values) - 1) * percent / 100)]
    marks = "  ".join(f"p{p} {share(p):7.3f}" for p in (50, 90, 99))
    print(f"{name:28} {marks}  max {values[-1]:7.3f} {unit}")
    return share(99)


def main():
    options, engine = read()
    if options.port == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            options.port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{options.port}"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(options.keep or folder)
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / "trace.jsonl"
        write_trace(trace, options)
        words = [options.binary, "serve", *engine]
        words += ["--host", "127.0.0.1", "--port", str(options.port)]
        log = open(folder / "server.log", "w")
        server = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            wait(url, server)
            before = os.getloadavg()[0]
            online = replay(options, [], trace, folder / "online.jsonl", ["--target", url])
            after = os.getloadavg()[0]
        finally:
            server.terminate()
            server.wait(20)
        offline = replay(options, engine, trace, folder / "offline.jsonl", [])
    if len(online) != options.requests or online.keys() != offline.keys():
        sys.exit(f"{len(online)} requests online, {len(offline)} offline, of {options.requests}")
    apart = {"ttft_ms": [], "e2e_latency_ms": []}
    late = []
    for name, real in online.items():
        told = offline[name]
        for key in ("terminal_status", "input_length", "output_length"):
            if real[key] != told[key]:
                sys.exit(f"{name}: {key} is {real[key]} online, {told[key]} offline")
        for key, found in apart.items():
            found.append(abs(real[key] - told[key]))
        late.append(real["arrival_time_ms"] - told["arrival_time_ms"])
    print(f"{options.requests} requests; load average {before:.1f} before, {after:.1f} after")
    show("TTFT offline", [row["ttft_ms"] for row in offline.values()])
    show("E2E offline", [row["e2e_latency_ms"] for row in offline.values()])
    show("sent behind its time", late)
    worst = max(show(f"difference of {key[:-3]}", found) for key, found in apart.items())
    if worst > options.bound:
        sys.exit(f"the 99th percentile is {worst:.3f} ms, allowed are {options.bound} ms")


if __name__ == "__main__":
    main()
