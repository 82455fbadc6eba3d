#!/usr/bin/env python3
"""Writes tests/fixtures/scheduler: fixtures.py OUT COUNT SEED [CLASS...]. Per class one file with COUNT small workloads and vLLM's step logs.

    fixtures.py OUT.jsonl WORKLOAD.json...

writes one file with the given workloads, such as those that `shrink.py` cut down.

A record of a log is kept as a hash of 32 bits, so that the fixtures stay small; `scheduler_logs.rs` of the engine crate computes
the same. Needs the variables of vllm_side.py. A workload with the first difference is printed by `compare.py`.
"""
import io
import json
import os
import pathlib
import sys

import compare
import vllm_side
import workloads


def fnv(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def record(line):
    if "scheduled" in line:
        parts = [line["t"], line["scheduled"], line["admitted"], line["resumed"], sorted(line["preempted"]), line["used"]]
        parts += [line["encoded"]] if "encoded" in line else []
    else:
        parts = [line["t"], line["drafts"], line["ended"], compare.flat(line["events"]), line["used"]]
    return fnv(json.dumps(parts, separators=(",", ":")))


def small(name, seed):
    """A workload of few, short requests: prompts of a shared prefix are kept as they are."""
    work = workloads.workload(name, seed)
    work["requests"] = work["requests"][:10]
    for request in work["requests"]:
        request["output"] = min(request["output"], 40)
        request["at"] = request["at"] // 3
        if "abort_at" in request:
            request["abort_at"] = request["at"] + (request["abort_at"] - request["at"]) % 20_000
        if "drafts" in request:
            request["drafts"] = request["drafts"][:request["output"]]
    return work


def write(path, works):
    with open(path, "w") as file:
        for name, work in works:
            # vLLM's hashes differ if two media items share one string, which read ones do not.
            work, log = json.loads(json.dumps(work)), io.StringIO()
            vllm_side.play(work, log)
            lines = [json.loads(line) for line in log.getvalue().splitlines()]
            fixture = {"name": name, "workload": work, "records": [record(line) for line in lines]}
            print(json.dumps(fixture, separators=(",", ":")), file=file)


if __name__ == "__main__":
    out = sys.argv[1]
    if out.endswith(".jsonl"):
        write(out, [(pathlib.Path(path).stem, json.load(open(path))) for path in sys.argv[2:]])
    else:
        count, first = int(sys.argv[2]), int(sys.argv[3])
        os.makedirs(out, exist_ok=True)
        for name in sys.argv[4:] or workloads.CLASSES:
            works = [(f"{name}-{seed}", small(name, seed)) for seed in range(first, first + count)]
            write(f"{out}/{name}.jsonl", works)
