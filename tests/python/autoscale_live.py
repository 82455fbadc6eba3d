#!/usr/bin/env python3
"""The autoscaler of `replay` beside a live fleet under the same rule.

A workload is played in virtual time by `vllm-sim replay --autoscale-max`, and sent to servers that
this script starts and ends by the same rule, which it applies to their `/metrics`. Modelled times and
the clock of the script are divided by --speed-up: 20 minutes take one. Prints the numbers of
replicas at every look, and fails when they differ by more than one step: at each look the live fleet
must have a number that the replay has within one look before or after, give or take one replica.

    python3 tests/python/autoscale_live.py target/release/vllm-sim
"""

import argparse
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

INTERVAL, COOL_DOWN, STARTUP, TOLERANCE = 15.0, 120.0, 30.0, 0.1
TARGET, LEAST, MOST = 4.0, 1, 8
# Slow and small, so that few requests fill a replica and little of its time is ours.
ENGINE = ["--max-num-seqs", "4", "--block-size", "16"]
ENGINE += ["--time-to-first-token", "400ms", "--inter-token-latency", "100ms"]
# Requests per second over time: calm, a rush, calm.
RATES = [(0, 0.2), (240, 0.2), (360, 1.6), (660, 1.6), (780, 0.2), (1200, 0.2)]
INPUT, OUTPUT = 64, 60


def arrivals(seconds: float) -> list[float]:
    """Poisson arrivals at the rates, by thinning."""
    draw, at, found = random.Random(7), 0.0, []
    most = max(rate for _, rate in RATES)
    while True:
        at += draw.expovariate(most)
        if at >= seconds:
            return found
        pairs = zip(RATES, RATES[1:])
        (t0, r0), (t1, r1) = next(pair for pair in pairs if pair[0][0] <= at < pair[1][0])
        if draw.random() * most < r0 + (r1 - r0) * (at - t0) / (t1 - t0):
            found.append(at)


def wanted(ready: int, starting: int, waiting: float) -> int:
    """Kubernetes' rule for a metric of the pods (calcPlainMetricReplicas)."""
    present, ratio = ready + starting, waiting / max(ready, 1) / TARGET
    if ready == 0:
        return present
    whole = (ratio * ready + (starting if ratio < 1 else 0)) / present
    if (ratio - 1) * (whole - 1) < 0 or abs(whole - 1) <= TOLERANCE:
        return min(max(present, LEAST), MOST)
    return min(max(math.ceil(present * whole), LEAST), MOST)


class Fleet:
    """Servers, the script's router, and its autoscaler."""

    def __init__(self, program: str, port: int, speed: float) -> None:
        self.program, self.port, self.speed = program, port, speed
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self.since: dict[int, float] = {}
        self.draining: set[int] = set()
        self.loads: dict[int, int] = {}
        self.turn, self.lock, self.changed = 0, threading.Lock(), -math.inf
        self.failed = 0
        self.start(0.0, -STARTUP)
        self.wait_for(0)
        self.begun = time.monotonic()

    def now(self) -> float:
        return (time.monotonic() - self.begun) * self.speed

    def url(self, place: int) -> str:
        return f"http://127.0.0.1:{self.port + place}"

    def start(self, now: float, since: float | None = None) -> None:
        place = next(n for n in range(2 * MOST) if n not in self.servers)
        self.servers[place] = subprocess.Popen(
            [self.program, "serve", "demo", "--port", str(self.port + place), "--host", "127.0.0.1",
             "--speedup-ratio", str(self.speed), *ENGINE],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.since[place] = now if since is None else since
        self.loads[place] = 0

    def wait_for(self, place: int) -> None:
        for _ in range(1000):
            try:
                urllib.request.urlopen(self.url(place) + "/health", timeout=5).read()
                return
            except OSError:
                time.sleep(0.02)
        raise SystemExit("a server does not start")

    def ready(self) -> list[int]:
        now = self.now()
        up = (n for n in self.servers if n not in self.draining)
        return sorted(n for n in up if now >= self.since[n] + STARTUP)

    def waiting(self, place: int) -> float:
        text = urllib.request.urlopen(self.url(place) + "/metrics", timeout=5).read().decode()
        return float(re.search(r"^vllm:num_requests_waiting\{[^}]*\} (\S+)", text, re.M)[1])

    def look(self, now: float) -> int:
        """Applies the rule; the replicas that serve."""
        with self.lock:
            ready = self.ready()
        for place in ready:
            self.wait_for(place)
        waits = sum(self.waiting(place) for place in ready)
        with self.lock:
            present = len(self.servers) - len(self.draining)
            want = wanted(len(ready), present - len(ready), waits)
            if want < present and now - self.changed < COOL_DOWN:
                want = present
            if want != present:
                self.changed = now
            for _ in range(present, want):
                self.start(now)
            for _ in range(want, present):
                # First those that do not serve yet, then the one with the fewest requests.
                young = [n for n in self.servers if n not in self.draining and n not in ready]
                ready_now = [n for n in ready if n not in self.draining]
                go = young[-1] if young else min(ready_now, key=lambda n: (self.loads[n], -n))
                self.draining.add(go)
            self.reap()
            return len([n for n in ready if n not in self.draining])

    def reap(self) -> None:
        for place in [n for n in self.draining if self.loads[n] == 0]:
            self.draining.discard(place)
            self.end(place)

    def end(self, place: int) -> None:
        server = self.servers.pop(place)
        server.terminate()
        server.wait()

    def request(self) -> None:
        with self.lock:
            ready = self.ready()
            place = ready[self.turn % len(ready)]
            self.turn = self.turn % len(ready) + 1
            self.loads[place] += 1
        body = {"model": "demo", "prompt": [random.randrange(1000) for _ in range(INPUT)],
                "max_tokens": OUTPUT, "ignore_eos": True}
        ask = urllib.request.Request(self.url(place) + "/v1/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
        try:
            urllib.request.urlopen(ask, timeout=300).read()
        except OSError:
            self.failed += 1
        with self.lock:
            self.loads[place] -= 1

    def stop(self) -> None:
        for place in list(self.servers):
            self.end(place)


def offline(program: str, times: list[float], seconds: float) -> list[tuple[float, int]]:
    """The replicas that serve, from when on, in the replay."""
    with tempfile.TemporaryDirectory() as folder:
        trace, report = Path(folder) / "trace.jsonl", Path(folder) / "report.json"
        rows = ({"timestamp": at * 1e3, "input_length": INPUT, "output_length": OUTPUT, "hash_ids": [n]}
                for n, at in enumerate(times))
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # A trace begins with its first request, the fleet with its first look.
        first = times[0]
        assert first < INTERVAL, first
        subprocess.run(
            [program, "replay", str(trace), "--report-json", str(report), "--no-per-request",
             "--num-workers", str(LEAST), "--router", "round_robin", "--autoscale-max", str(MOST),
             "--autoscale-min", str(LEAST), "--autoscale-target-queue", str(TARGET),
             "--autoscale-interval", str(INTERVAL), "--autoscale-cool-down", str(COOL_DOWN),
             "--startup-time", str(STARTUP), "--max-sim-time-seconds", str(seconds), *ENGINE],
            check=True, stdout=subprocess.DEVNULL)
        steps = json.loads(report.read_text()).get("workers_over_time", [(0.0, LEAST)])
        return [(at, count) for at, count in steps]


def at_time(steps: list[tuple[float, int]], at: float) -> int:
    return next((count for since, count in reversed(steps) if since <= at), LEAST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--port", type=int, default=22500)
    parser.add_argument("--speed-up", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=1200.0, help="virtual")
    args = parser.parse_args()
    times = arrivals(args.seconds)
    times = [at - times[0] for at in times]
    steps = offline(args.program, times, args.seconds)
    fleet = Fleet(args.program, args.port, args.speed_up)
    live: list[tuple[float, int]] = []
    pool = ThreadPoolExecutor(256)
    try:
        looks = [n * INTERVAL for n in range(1, int(args.seconds / INTERVAL))]
        events = sorted([(at, "send") for at in times] + [(at, "look") for at in looks])
        for at, what in events:
            time.sleep(max(0.0, (at - fleet.now()) / args.speed_up))
            if what == "send":
                pool.submit(fleet.request)
            else:
                live.append((at, fleet.look(at)))
    finally:
        fleet.stop()
        pool.shutdown()
    worst = 0
    for at, count in live:
        near = [at_time(steps, at + late) for late in (-INTERVAL, 0.0, INTERVAL)]
        off = min(abs(count - other) for other in range(min(near), max(near) + 1))
        worst = max(worst, off)
        print(f"{at:6.0f} s  live {count}  replay {at_time(steps, at)}  off by {off}")
    print(f"{len(times)} requests, {fleet.failed} failed, replicas up to {max(c for _, c in live)} "
          f"live and {max(c for _, c in steps)} in the replay, off by at most {worst}")
    sys.exit(worst > 1 or fleet.failed > 0)


if __name__ == "__main__":
    main()
