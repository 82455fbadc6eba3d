#!/usr/bin/env python3
"""Prints how much recorded runs of one deployment differ from each other: the floor of every prediction's error.

    repeats.py VLLM_SIM RUNS_DIR

A deployment is a model, a GPU type and a tensor-parallel size. The first figure is the spread of the mean gap of tokens
(ITL) between stages that were recorded several times with one deployment, rate and length. A prediction is the same for
all of them, so its median error is at least 0.67 of their standard deviation. The second figure is the error of each
stable run, predicted with a factor that makes the other runs of its deployment right.
"""
import collections
import json
import math
import os
import statistics
import sys

import fidelity_page

# Share of the standard deviation of a normal distribution that half of the deviations exceed.
MEDIAN_SHARE = 0.6745
# Prompts whose mean lengths differ by less than this are equal, in tokens.
SAME_LENGTH = 15


def stable_runs(folder):
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name)) as text:
                run = json.load(text)
            if run["regime"] == "stable" and run["workload"]["kind"] == "shared_prefix":
                yield run


def deployment(run):
    return (run["model"].split("/")[-1], run["hardware"], run["tp"])


def repeated_stages(runs):
    """Returns the ITLs in ms of each load that was recorded more than once."""
    loads = collections.defaultdict(list)
    for run in runs:
        workload = run["workload"]
        length = round(workload["prompts"]["prompt_tokens_estimate"] / SAME_LENGTH)
        for stage, actual in zip(workload["stages"], run["actual"]["stages"]):
            key = (*deployment(run), workload["output_tokens"]["requested"], length, stage["rate_rps"])
            loads[key].append(actual["itl_mean"])
    return {load: times for load, times in loads.items() if len(times) > 1}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, folder = sys.argv[1:]
    runs = list(stable_runs(folder))
    squares = degrees = 0
    for (model, gpu, tp, _, _, rate), times in repeated_stages(runs).items():
        logs = [math.log(time) for time in times]
        squares += sum((log - statistics.mean(logs)) ** 2 for log in logs)
        degrees += len(logs) - 1
        spread = 100 * statistics.stdev(logs)
        print(f"{model}, {tp} x {gpu}, {rate:g} req/s: {len(times)} recordings, standard deviation {spread:.1f} %")
    spread = 100 * math.sqrt(squares / degrees)
    print(f"all: standard deviation {spread:.2f} %, median error of a perfect prediction {MEDIAN_SHARE * spread:.2f} %\n")

    said = {run["id"]: run["error_percent"]["itl_mean"] for run in fidelity_page.validated(program, folder)["runs"]}
    groups = collections.defaultdict(list)
    for run in runs:
        groups[deployment(run)].append(math.log1p(said[run["id"]] / 100))
    several = [errors for errors in groups.values() if len(errors) > 1]
    plain = [error for errors in several for error in errors]
    scaled = [error - statistics.mean(errors[:at] + errors[at + 1:]) for errors in several for at, error in enumerate(errors)]
    for title, errors in ((f"all {len(runs)} runs", [math.log1p(said[run["id"]] / 100) for run in runs]),
                          (f"{len(plain)} runs of {len(several)} deployments with several", plain),
                          ("the same, scaled by the other runs of their deployment", scaled)):
        print(f"{title}: median error {100 * statistics.median(map(abs, errors)):.2f} %")


if __name__ == "__main__":
    main()
