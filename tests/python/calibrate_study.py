#!/usr/bin/env python3
"""What `vllm-sim calibrate` is worth on runs that it has not seen.

    calibrate_study.py VLLM_SIM RUNS triples [COUNT]     three random runs held out, COUNT times
    calibrate_study.py VLLM_SIM RUNS deployments         every run, fitted on its deployment's others

RUNS is a folder of recorded runs as `vllm-sim validate` reads them. Triples are drawn with a fixed
seed from the runs that are not overloaded; a deployment is a model, a GPU and a tensor-parallel size.
Prints the mean size of the error of held-out runs in per cent, before and after, and how often it did
not rise. Errors of overloaded runs are not counted.
"""
import collections
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

SEED = 20261121
STATISTICS = ["TTFT", "ITL", "E2E"]


def held_out(binary, folder, names):
    """(before, after) for each held-out run, three numbers each."""
    words = [binary, "calibrate", "--runs", str(folder), "--hold-out", ",".join(names)]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found = {}
    for line in text.splitlines():
        if line.startswith("#") or "  held out" not in line:
            continue
        name, *cells = line.split("  held out")[0].split()
        numbers = [abs(float(cell)) for cell in cells if re.fullmatch(r"[+-][0-9.]+", cell)]
        if name in names and len(numbers) == 6:
            found[name] = (numbers[:3], numbers[3:])
    return found


def mean(values):
    return sum(values) / len(values)


def report(trials):
    """`trials`: lists of (before, after) that were held out together."""
    for i, name in enumerate(STATISTICS):
        before = [mean([b[i] for b, _ in trial]) for trial in trials]
        after = [mean([a[i] for _, a in trial]) for trial in trials]
        kept = sum(a <= b + 0.05 for b, a in zip(before, after))
        print(f"{name}: {mean(before):.2f} to {mean(after):.2f}, not worse in {kept} of {len(trials)}")


def main():
    binary, runs, what = sys.argv[1:4]
    specs = {}
    for path in sorted(pathlib.Path(runs).glob("*.json")):
        specs[path.stem] = json.loads(path.read_text())
    steady = [name for name in sorted(specs) if not specs[name]["regime"].startswith("overload")]
    trials = []
    if what == "triples":
        chance = random.Random(SEED)
        for _ in range(int(sys.argv[4]) if len(sys.argv) > 4 else 12):
            names = sorted(chance.sample(steady, 3))
            trials.append(list(held_out(binary, runs, names).values()))
            print(names, trials[-1], file=sys.stderr, flush=True)
        report(trials)
        return
    groups = collections.defaultdict(list)
    for name, spec in specs.items():
        groups[spec["model"], spec["hardware"], spec["tp"], spec["vllm"]["version"]].append(name)
    for names in groups.values():
        known = [name for name in names if name in steady]
        for name in known if len(names) > 2 else []:
            with tempfile.TemporaryDirectory() as folder:
                for other in names:
                    shutil.copy(pathlib.Path(runs) / f"{other}.json", folder)
                trials.append(list(held_out(binary, folder, [name]).values()))
                print(name, trials[-1], file=sys.stderr, flush=True)
    report(trials)


if __name__ == "__main__":
    main()
