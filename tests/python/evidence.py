#!/usr/bin/env python3
"""Predicts all public evidence and prints the errors by set and by group.

    evidence.py EVIDENCE RUNS_DIR INFERENCEX_POINTS.jsonl [COEFFICIENTS.json] [--json FILE] [--groups]

EVIDENCE is the example of crates/calibrate (`cargo build --profile quick -p vllm-sim-calibrate --example
evidence`), RUNS_DIR the folder of recorded runs, the points are read by inferencex_runs.py. Errors are
sizes in percent: median and 90th percentile over the runs of a set. Runs with several stages count by the
mean of their stages. Goodness of a set is its median; the 90th percentile shows what a user may meet.
"""
import argparse
import json
import os
import subprocess
import tempfile

import inferencex_runs

METRICS = ("ttft_mean", "itl_mean", "e2e_mean", "e2e_p90", "e2e_p99")
# They cannot have been measured on what they are called (benches/results/fidelity.md).
DOUBTFUL = {("Llama-3.1-8B-Instruct-FP8", 8, "fp8"), ("Qwen3-32B", 2, "fp8")}


def load(folder, points):
    runs = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name)) as text:
                runs.append(json.load(text))
    with open(points) as lines:
        for number, line in enumerate(lines):
            made = inferencex_runs.run(number, json.loads(line))
            if made is not None:
                made["doubtful"] = (made["model"].split("/")[-1], made["tp"], json.loads(line)["precision"]) in DOUBTFUL
                runs.append(made)
    return runs


def sequences(run):
    """Number of sequences in progress per engine: the client's places, or arrival rate x latency."""
    load = run["workload"]
    if "group" in run:
        return max(1, load["client_max_concurrency"] // run["dp"])
    actual = run["actual"]["summary"]
    if load["kind"] == "trace":
        times = [request["t"] for request in load["trace"]]
        rate = len(times) / max(max(times) - min(times), 1e-9)
    else:
        count = sum(stage["requests"] for stage in load["stages"])
        rate = count / sum(stage["requests"] / stage["rate_rps"] for stage in load["stages"])
    latency = actual.get("e2e_mean") or run["actual"]["stages"][0]["e2e_mean"]
    places = run["vllm"]["max_num_seqs"]
    return max(1, min(places, round(rate * latency / 1e3 / run["dp"])))


def predict(program, runs, coefficients=None):
    with tempfile.TemporaryDirectory() as folder:
        given, out = os.path.join(folder, "runs"), os.path.join(folder, "out")
        with open(given, "w") as text:
            text.writelines(json.dumps(run) + "\n" for run in runs)
        subprocess.run([program, given, out, *([coefficients] if coefficients else [])], check=True)
        with open(out) as lines:
            return {row["id"]: row for row in map(json.loads, lines)}


def errors(run, said):
    """Signed errors in percent by metric; None where nothing was measured."""
    if "error" in said:
        return {}
    pairs = [(said["summary"], run["actual"]["summary"])]
    if run.get("score_level") == "stages":
        pairs = list(zip(said["stages"], run["actual"]["stages"]))
    found = {}
    for key in METRICS:
        off = [100 * (p[key] / a[key] - 1) for p, a in pairs if a.get(key)]
        if off:
            found[key] = off[0] if len(off) == 1 else sum(map(abs, off)) / len(off)
    return found


def share(values, part):
    values = sorted(map(abs, values))
    at = part * (len(values) - 1)
    low = values[int(at)]
    return low + (values[min(int(at) + 1, len(values) - 1)] - low) * (at % 1)


def sets(run):
    """Names of the sets that a run belongs to."""
    if "group" not in run:
        regime = run["regime"].split(":")[0].split(" ")[0]
        return [f"recorded, {regime}", "recorded, all"]
    if run["doubtful"]:
        return ["InferenceX, doubtful"]
    if run["dp"] > 1:
        return ["InferenceX, attention DP"]
    places = run["workload"]["client_max_concurrency"]
    weights = "bf16" if " bf16 " in run["group"] else "fp8" if " fp8 " in run["group"] else "4-bit"
    names = ["InferenceX, core", f"InferenceX, {weights}"]
    names += ["InferenceX, concurrency <= 4"] if places <= 4 else []
    names += ["InferenceX, concurrency >= 128"] if places >= 128 else []
    return names


def table(rows, title):
    print(f"\n{title:44} {'n':>4} " + " ".join(f"{key.replace('_mean', ''):>14}" for key in METRICS))
    for name, members in sorted(rows.items()):
        cells = []
        for key in METRICS:
            values = [off[key] for off in members if key in off]
            cells.append(f"{share(values, 0.5):6.1f} {share(values, 0.9):7.1f}" if values else f"{'-':>14}")
        print(f"{name:44} {len(members):4} " + " ".join(cells))


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program")
    words.add_argument("runs")
    words.add_argument("points")
    words.add_argument("coefficients", nargs="?")
    words.add_argument("--json")
    words.add_argument("--groups", action="store_true")
    asked = words.parse_args()
    runs = load(asked.runs, asked.points)
    said = predict(asked.program, runs, asked.coefficients)
    off = {run["id"]: errors(run, said[run["id"]]) for run in runs}
    by_set, by_group = {}, {}
    for run in runs:
        for name in sets(run):
            by_set.setdefault(name, []).append(off[run["id"]])
        if "group" in run:
            by_group.setdefault(run["group"], []).append(off[run["id"]])
    table(by_set, "median and 90th percentile of the sizes, %")
    if asked.groups:
        table(by_group, "by deployment")
    if asked.json:
        with open(asked.json, "w") as text:
            json.dump(off, text)


if __name__ == "__main__":
    main()
