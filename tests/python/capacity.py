#!/usr/bin/env python3
"""Replays public statements of what a deployment serves, and prints how close `vllm-sim` comes.

    capacity.py VLLM_SIM [STATEMENTS.json]

Each statement has a source, a deployment, a load and a result. Where the load is more than the deployment serves, the
line ends with the fewest workers that serve the same load in the time that was measured.
"""
import csv
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
STATEMENTS = os.path.join(os.path.dirname(HERE), "fixtures", "capacity", "statements.json")
# Keys of a result, and those of the summary of a report of replay.
KEYS = {"ttft_ms": "mean_ttft_ms", "tpot_ms": "mean_tpot_ms", "e2e_ms": "mean_e2e_latency_ms",
        "requests_per_s": "request_throughput_rps"}
PAUSE_S = 30  # between warm-up and load, as in the profile of the guide


def write_shared_prefix(load, path):
    """Writes a Mooncake trace of prompts that share prefixes in groups: each prompt comes again and again, in one
    shuffled order. Returns its flags, and when the load begins after the warm-up, in seconds."""
    draw = random.Random(1)
    block = 100
    prompts = [(group, question) for group in range(load["groups"]) for question in range(load["prompts_per_group"])]
    draw.shuffle(prompts)
    prefix, question = load["prefix_tokens"] // block, load["question_tokens"] // block
    rows, now, number, start = [], 0.0, 0, 0.0
    for stage in (load["warm_up"], load):
        start = now
        for _ in range(stage["requests"]):
            group, own = prompts[number % len(prompts)]
            first = len(prompts) * question + group * prefix
            own = (group * load["prompts_per_group"] + own) * question
            rows.append({"timestamp": round(now * 1e3), "input_length": (prefix + question) * block,
                         "output_length": load["output_tokens"],
                         "hash_ids": [*range(first, first + prefix), *range(own, own + question)]})
            now += draw.expovariate(stage["rate"])
            number += 1
        now += PAUSE_S
    with open(path, "w") as text:
        text.writelines(json.dumps(row) + "\n" for row in rows)
    return [path, "--format=mooncake", f"--trace-block-size={block}"], start


def fewest_workers(program, statement):
    """Returns the fewest workers that end the requests of the load at the rate that was measured, all of which arrive at
    the rate of the load. `plan` finds no such number: the load is more than the deployment serves, so its queue grows."""
    measured = statement["result"]["requests_per_s"]
    for workers in range(1, 2 * statement["deployment"]["workers"]):
        if simulate(program, statement, workers)["request_throughput_rps"] >= measured:
            return workers
    return "more"


def simulate(program, statement, workers=None):
    deployment, load = statement["deployment"], statement["load"]
    other = [f"--num-workers={workers}"] if workers else []
    with tempfile.TemporaryDirectory() as folder:
        report, requests = os.path.join(folder, "report.json"), os.path.join(folder, "requests.csv")
        flags, start = load.get("flags"), None
        if flags is None:
            flags, start = write_shared_prefix(load["shared_prefix"], os.path.join(folder, "trace.jsonl"))
        command = [program, "replay", *flags, "--model", deployment["model"], "--gpu", deployment["gpu"],
                   *deployment["flags"], *other, "--report-json", report, "--per-request", requests]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(report) as text:
            summary = json.load(text)["summary"]
        if start is None:
            return summary
        with open(requests) as text:
            rows = [(float(row["arrival_time_ms"]) / 1e3, float(row["e2e_latency_ms"]) / 1e3) for row in csv.DictReader(text)]
        ends = [arrival + latency for arrival, latency in rows if arrival >= start - 1e-3]
        return {"request_throughput_rps": len(ends) / (max(ends) - start)}


def compare(program, statement):
    summary, cells, workers = simulate(program, statement), [], ""
    if "shared_prefix" in statement["load"]:
        workers = f"; {fewest_workers(program, statement)} of {statement['deployment']['workers']} workers suffice"
    for key, measured in statement["result"].items():
        said = summary[KEYS[key]]
        cells.append(f"{key} {measured:g} measured, {said:.4g} ({100 * (said / measured - 1):+.0f} %)")
    return "; ".join(cells) + workers


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    with open((sys.argv[2:] or [STATEMENTS])[0]) as text:
        statements = json.load(text)
    for statement in statements:
        print(f"{statement['deployment']['gpu']} {statement['name']}: {compare(sys.argv[1], statement)}", flush=True)


if __name__ == "__main__":
    main()
