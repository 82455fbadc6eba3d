#!/usr/bin/env python3
"""Fits the coefficients of the roofline to recorded runs, and says what they are worth on
deployments that were left out of the fit.

    roofline_fit.py VLLM_SIM RUNS_DIR [START.json] [--fit NAME,…] [--rounds N] [--out FILE]
                    [--left-out FILE] [--wide]

Every guess is played by `vllm-sim validate --latency-coefficients`; the fit is Gauss-Newton on the
logarithms of predicted / measured (ITL counts 1, TTFT 0.3, ITL of overloaded runs 0.2, soft L1 whose
width is the spread of the residuals that are being fitted), held to the start by a ridge. Then every
deployment (model, GPU, tensor parallelism) is left out in turn: the coefficients are fitted to the
others from the start on, so that nothing of the one left out is in them but slopes of predictions; its
runs are played with them, and `--left-out` writes their errors, for fidelity_page.py.
`first_use_stall_s` is no coefficient but a property of runs whose server compiled kernels: it is
fitted with the others. The shares that fp8 products reach are in no fit: they come from kernel
tables that know none of these runs. Wants numpy.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import numpy

# What was known before, and how far from it is plausible.
NUMBERS = {
    "step_us": (494.0, 600.0), "truncated_us": (0.0, 600.0), "truncated_vocab_us": (0.0, 4.7e-3),
    "first_use_stall_s": (0.0, 3.0), "sequence_us": (7.3, 10.0),
    "sync_us": (410.0, 200.0), "sync_sequence_us": (0.0, 10.0), "mixed_group_share": (0.0, 0.5),
    "front_end_us": (5600.0, 1500.0), "front_end_sequence_us": (45.0, 30.0),
    "vocab_us": (38.8e-6, 20e-6), "mixed_us": (610.0, 400.0), "layer_us": (15.1, 3.0),
    "gemm_memory_scale": (1.0, 0.05), "gemm_compute_scale": (1.0, 0.15),
    "attention_scale": (1.0, 0.1), "all_reduce_scale": (1.0, 0.3), "moe_scale": (1.0, 0.1),
}
# The first eight: more constants fit the runs better, and those left out worse.
CHOSEN = list(NUMBERS)[:8]
# Those that were ever fitted to recorded runs: for an honest --left-out.
WIDE = list(NUMBERS)[:16]
STALL = "first_use_stall_s"
RIDGE = 0.03
# Of a normal distribution the deviation is so many times the median size.
NORMAL = 1.4826
# A fit is done when it moves by less than this, in plausible distances, or after so many steps.
STILL, STEPS = 0.05, 8


def compiles(run):
    """Whether its server compiled kernels at the first request: Triton's, of experts in bf16."""
    shape = run["model_config"]
    if "config" in shape:
        config = shape["config"].get("text_config", shape["config"])
        experts = [config.get(key) or 0 for key in ("num_local_experts", "num_experts", "n_routed_experts")]
        return max(experts) > 1 and "quantization_config" not in config
    triton = shape["experts"] > 1 and shape["weight_quantization"] == "none"
    return triton and "in process" not in run["workload"]["api"]


class Player:
    def __init__(self, program, runs):
        self.program, self.runs = program, {}
        for name in sorted(os.listdir(runs)):
            if name.endswith(".json"):
                with open(os.path.join(runs, name)) as file:
                    run = json.load(file)
                self.runs[run["id"]] = run

    def play(self, coefficients, names=None):
        with tempfile.TemporaryDirectory() as folder:
            runs, out = os.path.join(folder, "runs"), os.path.join(folder, "out")
            os.mkdir(runs)
            coefficients = dict(coefficients)
            stall = coefficients.pop(STALL)
            for name in names or self.runs:
                run = self.runs[name]
                if compiles(run):
                    run = {**run, "workload": {**run["workload"], STALL: stall}}
                with open(os.path.join(runs, name + ".json"), "w") as text:
                    json.dump(run, text)
            file = os.path.join(folder, "coefficients.json")
            with open(file, "w") as text:
                json.dump(coefficients, text)
            subprocess.run([self.program, "validate", "--runs", runs, "--out", out,
                            "--latency-coefficients", file], check=True, stdout=subprocess.DEVNULL)
            said = {}
            for name in names or self.runs:
                with open(os.path.join(out, name + ".json")) as text:
                    said[name] = json.load(text)
            return said


def pairs(run, said):
    if run.get("score_level") == "stages":
        return list(zip(said["stages"], run["actual"]["stages"]))
    return [(said["summary"], run["actual"]["summary"])]


def deployment(run):
    return (run["model"], run["hardware"], run["tp"])


def residuals(runs, said):
    """Logarithms, their weights, and whose they are."""
    found = []
    for name, run in runs.items():
        if name not in said:
            continue
        overloaded = run["regime"].startswith("overload")
        both = pairs(run, said[name])
        for key, weight in (("itl_mean", 1.0), ("ttft_mean", 0.3)):
            if overloaded and key != "itl_mean":
                continue
            for predicted, actual in both:
                # A stage beyond what the server can do is a queue, not a step time.
                if actual.get(key) and (key == "itl_mean" or actual[key] < 1000.0):
                    weight_here = (0.2 if overloaded else weight) / len(both)
                    found.append((numpy.log(max(predicted[key], 1e-6) / actual[key]),
                                  weight_here, name))
    return (numpy.array([row[0] for row in found]), numpy.array([row[1] for row in found]),
            [row[2] for row in found])


def solve(here, slopes, weights, at):
    """Steps, in plausible distances, that cost least; `at` is where they begin."""
    step = numpy.zeros(slopes.shape[1])
    for _ in range(20):
        off = here + slopes @ step
        width = NORMAL * numpy.median(numpy.abs(off))
        weight = weights / numpy.sqrt(1.0 + (off / width) ** 2)
        left = slopes.T @ (weight[:, None] * slopes) + RIDGE**2 * numpy.eye(len(step))
        right = -slopes.T @ (weight * here) - RIDGE**2 * at
        step = numpy.linalg.solve(left, right)
    return step


def errors(runs, said):
    rows = {}
    for name, prediction in said.items():
        rows[name] = [
            statistics.mean(abs(p[key] / a[key] - 1) * 100
                            for p, a in pairs(runs[name], prediction) if a.get(key))
            for key in ("ttft_mean", "itl_mean", "e2e_mean")]
    return rows


def report(title, runs, said):
    rows = errors(runs, said)
    for kind, names in (("stable", [n for n in rows if runs[n]["regime"].startswith("stable")]),
                        ("all", list(rows))):
        cells = [f"{statistics.median(column):5.2f} / {statistics.mean(column):5.2f}"
                 for column in zip(*(rows[name] for name in names))]
        print(f"{title:24} {len(names):3} {kind:6}  TTFT {cells[0]}   ITL {cells[1]}   "
              f"E2E {cells[2]}", flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program")
    args.add_argument("runs")
    args.add_argument("start", nargs="?")
    args.add_argument("--fit")
    args.add_argument("--wide", action="store_true", help="fit all that was ever fitted to runs")
    args.add_argument("--rounds", type=int, default=2)
    args.add_argument("--out")
    args.add_argument("--left-out")
    args.add_argument("--each", action="store_true", help="a line for every run")
    args = args.parse_args()
    player = Player(args.program, args.runs)
    start = {name: first for name, (first, _) in NUMBERS.items()}
    if args.start:
        with open(args.start) as file:
            start.update(json.load(file))
    chosen = args.fit.split(",") if args.fit else WIDE if args.wide else CHOSEN
    scale = numpy.array([NUMBERS[name][1] for name in chosen])
    origin = numpy.array([start[name] for name in chosen])
    least = numpy.array([0.0 if name.endswith(("_us", "_s", "_share")) else 0.5 for name in chosen])

    def coefficients(place):
        values = numpy.maximum(origin + place * scale, least)
        return {**start, **{name: float(value) for name, value in zip(chosen, values)}}

    place = numpy.zeros(len(chosen))
    said = player.play(coefficients(place))
    report("start", player.runs, said)
    first = None
    for number in range(args.rounds):
        here, weights, owners = residuals(player.runs, said)
        slopes = numpy.empty((len(here), len(chosen)))
        for column in range(len(chosen)):
            moved = place.copy()
            moved[column] += 0.4
            there = residuals(player.runs, player.play(coefficients(moved)))[0]
            slopes[:, column] = (there - here) / 0.4
        first = first or (here, slopes)
        place = place + solve(here, slopes, weights, place)
        before, said = said, player.play(coefficients(place))
        report(f"fitted, round {number + 1}", player.runs, said)
    if args.rounds:
        groups = {}
        for name, run in player.runs.items():
            groups.setdefault(deployment(run), []).append(name)
        unseen = {}
        for names in groups.values():
            fitted = {name: run for name, run in player.runs.items() if name not in names}
            kept = numpy.array([owner not in names for owner in owners])
            (here, along), at = (part[kept] for part in first), numpy.zeros(len(chosen))
            for _ in range(STEPS):
                step = solve(here, along, weights[kept], at)
                at = at + step
                if numpy.linalg.norm(step) < STILL:
                    break
                here = residuals(fitted, player.play(coefficients(at), fitted))[0]
                along = slopes[kept]
            unseen.update(player.play(coefficients(at), names))
        report("left out by deployment", player.runs, unseen)
    else:
        unseen = said
    for name, value in coefficients(place).items():
        print(f"  {name:24} {value:.6g}")
    if args.each:
        for name, row in errors(player.runs, said).items():
            run = player.runs[name]
            signed = [100 * (p["itl_mean"] / a["itl_mean"] - 1)
                      for p, a in pairs(run, said[name])][:1]
            print(f"{name:42} {run['model'].split('/')[-1][:30]:30} {run['hardware'][:5]} "
                  f"tp{run['tp']} fitted {row[0]:6.1f} {row[1]:5.1f} {row[2]:5.1f} "
                  f"left out {' '.join(f'{x:6.1f}' for x in errors(player.runs, {name: unseen[name]})[name])}"
                  f"   ITL {signed[0]:+.1f}")
    if args.left_out:
        with open(args.left_out, "w") as file:
            json.dump(errors(player.runs, unseen), file, indent=1)
            file.write("\n")
    if args.out:
        with open(args.out, "w") as file:
            json.dump(coefficients(place), file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
