#!/usr/bin/env python3
"""Prints a table class -> workloads, steps, equal, and the first difference of each class: table.py FOLDER (both sides were run).

Fails if a workload differs."""
import collections
import glob
import os
import sys

from compare import compare

rows = collections.defaultdict(lambda: [0, 0, 0, ""])
for path in sorted(glob.glob(sys.argv[1] + "/*-*.json")):
    base = path.removesuffix(".json")
    if not (os.path.exists(base + ".vllm.jsonl") and os.path.exists(base + ".ours.jsonl")):
        continue
    row = rows[os.path.basename(base).rsplit("-", 1)[0]]
    found = compare(base + ".vllm.jsonl", base + ".ours.jsonl")
    row[0] += 1
    row[1] += sum('"scheduled"' in line for line in open(base + ".vllm.jsonl"))
    row[2] += found is None
    if found and not row[3]:
        row[3] = f"{os.path.basename(base)}: {found[:260]}"
for name, (n, steps, equal, first) in sorted(rows.items()):
    print(f"{name:24} workloads {n:4} steps {steps:7} equal {equal:4}  {first}")
n, steps, equal = (sum(row[i] for row in rows.values()) for i in range(3))
print(f"{'all ' + str(len(rows)):24} workloads {n:4} steps {steps:7} equal {equal:4}; wholly equal classes "
      f"{sum(row[0] == row[2] for row in rows.values())}")
sys.exit(0 if 0 < n == equal else 1)
