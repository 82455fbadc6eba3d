#!/usr/bin/env python3
"""Writes docs/fidelity.md and the table behind `vllm-sim explain` from recorded runs.

    fidelity_page.py VLLM_SIM RUNS_DIR INFERENCEX_POINTS.jsonl [LEFT_OUT.json]

RUNS_DIR holds recorded runs as docs/recording.md describes them, the points are measured servers as
inferencex_runs.py reads them, and LEFT_OUT.json holds the errors of every run and point with constants that
were fitted without its deployment, by id (tests/python/left_out.json is that of the constants in the
repository, see benches/results/fidelity.md). Where it has a run, the tables show these errors.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import evidence

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PAGE = os.path.join(ROOT, "docs", "fidelity.md")
TABLE = os.path.join(ROOT, "crates", "explain", "src", "recorded_deployments.csv")
METRICS = ("ttft_mean", "itl_mean", "e2e_mean")
BEGIN, END = "<!-- written by tests/python/fidelity_page.py -->", "<!-- end -->"


def validated(program, runs):
    text = subprocess.run([program, "validate", "--runs", runs, "--json", "-"], check=True,
                          stdout=subprocess.PIPE).stdout
    return json.loads(text)


def inferencex(program, points):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(HERE, "inferencex_runs.py"), points, folder],
                       check=True, stdout=subprocess.DEVNULL)
        return validated(program, folder)


def median(errors, digits=1):
    errors = [abs(error) for error in errors if error is not None]
    return f"{statistics.median(errors):.{digits}f}" if errors else ""


def deployments(judge, runs, left_out, sequences):
    """Lines of the table: runs of one deployment, the stable ones if there are any. A few prompts that come
    again are cached; random ones (InferenceX) and a trace of conversations are computed. `sequences` holds
    the number of sequences in progress of each run, per engine."""
    def error(run, key):
        if run["id"] in left_out:
            return left_out[run["id"]][METRICS.index(key)]
        return run["error_percent"].get(key)

    groups = {}
    for run in runs:
        key = (run["model"], run["gpu"], run["weights"], run["tp"], run["dp"])
        groups.setdefault(key, []).append(run)
    for (model, gpu, weights, tp, ranks), members in sorted(groups.items()):
        members = [run for run in members if run["regime"] == "stable"] or members
        errors = [median([error(run, key) for run in members]) for key in METRICS]
        first = members[0]
        apart = all(run["id"] in left_out for run in members)
        busy = [sequences[run["id"]] for run in members]
        yield [judge, model, gpu, weights, str(tp), "experts" if first["experts"] else "dense",
               "computed" if judge == "InferenceX" or first["id"].startswith("l-") else "cached",
               str(ranks), f"{first['weight_gb']:.3f}", str(min(busy)), str(max(busy)), str(len(members)),
               first["regime"],
               "without" if apart else "with", *errors]


def gpu_section(rows):
    """The section of errors by GPU and kind of prompts, from the rows of `deployments`."""
    yield "## By GPU"
    yield ""
    yield ("Medians over the deployments of a GPU, in percent. Cached: constants fitted on these runs. Computed: fitted "
           "without the deployment, except two overloaded runs on RTX PRO 6000. A GPU without a row is not validated. "
           "Models and tensor parallelism: [by deployment](#by-deployment), or "
           "`vllm-sim explain MODEL --gpu GPU`.")
    yield ""
    groups = {}
    for row in rows:
        groups.setdefault((row[2], row[6], row[3].split()[0]), []).append(row)
    yield from markdown(["GPU", "prompts", "weights", "deployments", "runs", "TTFT", "ITL"], [
        [gpu, prompts, weights, str(len(members)), str(sum(int(row[11]) for row in members)),
         *(median([float(row[column]) for row in members if row[column] not in ("", "-")]) for column in (14, 15))]
        for (gpu, prompts, weights), members in sorted(groups.items())])
    yield ""


def markdown(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell) or "-" for cell in row) + " |"


def cells(errors, of="median"):
    return [f"{errors[key][of]:.1f}" if key in errors else "" for key in METRICS]


def left_out_row(left_out, runs, keep):
    kept = [left_out[run["id"]] for run in runs if keep(run) and run["id"] in left_out]
    return [median([errors[i] for errors in kept]) for i in range(3)]


def inferencex_table(runs):
    groups = {}
    for run in runs:
        groups.setdefault((run["gpu"], run["weights"]), []).append(run)
    rows = []
    for (gpu, weights), members in sorted(groups.items()):
        errors = [run["error_percent"]["itl_mean"] for run in members if "itl_mean" in run["error_percent"]]
        models = sorted({run["model"].split("/")[-1] for run in members})
        rows.append([gpu, weights, ", ".join(models), len(members), median(errors),
                     f"{statistics.median(errors):+.1f}"])
    yield from markdown(["GPU", "weights", "models", "points", "size", "signed"], rows)


def page(report, measured, left_out, sequences):
    runs, summary = report["runs"], report["summary"]
    stable = [run for run in runs if run["regime"] == "stable"]
    table = list(deployments("public runs", runs, left_out, sequences))
    points = list(deployments("InferenceX", measured["runs"], left_out, sequences))
    yield from gpu_section(table + points)
    yield "## Recorded runs"
    yield ""
    yield (f"{len(runs)} runs, {len(stable)} of them stable. Sizes of the errors of the means, in percent:")
    yield ""
    rows = [[f"median of the {len(stable)} stable runs", *cells(summary["stable"])],
            [f"mean of the {len(stable)} stable runs", *cells(summary["stable"], "mean")],
            [f"median of all {len(runs)}", *cells(summary["all"])],
            [f"mean of all {len(runs)}", *cells(summary["all"], "mean")]]
    apart = [run for run in runs if run["id"] in left_out]
    if apart:
        row = left_out_row(left_out, runs, lambda run: run["regime"] == "stable")
        rows.insert(1, ["**the same, constants fitted without the run's deployment**",
                        *(f"**{cell}**" for cell in row)])
    yield from markdown(["", "TTFT", "ITL", "E2E"], rows)
    yield ""
    yield ("The constants of the roofline were fitted on runs of this set; the bold row estimates their "
           "errors for other deployments. For it, the sixteen fitted numbers are fitted "
           "again without each deployment. Values from kernel tables (shares of GPUs, all-reduce) stay." if apart else
           "The constants of the roofline were fitted on runs of this set.")
    yield ""
    yield "## Other simulators on these runs"
    yield ""
    yield ("Median sizes of the errors of the predictions that their authors published, and ours on the "
           "same runs. `trained-on-this`: its authors fitted it on these runs, as ours was.")
    yield ""
    rows = []
    for peer in report["peers"]:
        theirs, ours = cells(peer["error_percent"]), cells(peer["ours_on_these"])
        rows.append([peer["name"], peer["runs"],
                     *(f"{a or '-'} ({b or '-'})" for a, b in zip(theirs, ours))])
    yield from markdown(["Simulator (ours on the same runs)", "runs", "TTFT", "ITL", "E2E"], rows)
    yield ""
    yield "## By deployment"
    yield ""
    yield ("Median sizes of the errors of the stable runs of a deployment, or of the others where it has "
           f"none. Those of InferenceX are by constants fitted without it, except those marked \\*. `vllm-sim explain` names "
           "the nearest of these deployments.")
    yield ""
    rows = [[row[1].split("/")[-1], f"{row[4]} x {row[2]}" + (f", {row[7]} ranks" if row[7] != "1" else ""),
             row[3], row[6], f"{row[9]} to {row[10]}", f"{row[11]} {row[12]}", row[0] + (" \\*" if row[0] == "InferenceX" and row[13] == "with" else ""),
             *row[14:]]
            for row in table + points]
    yield from markdown(["Model", "GPUs", "weights", "prompts", "sequences", "runs", "from", "TTFT", "ITL",
                         "E2E"], rows)
    yield ""
    yield "## InferenceX by GPU and weights"
    yield ""
    yield (f"Inter-token latency of {len(measured['runs'])} measured points, with constants fitted to them. "
           "Median sizes of the errors in percent, and the signed medians.")
    yield ""
    yield from inferencex_table(measured["runs"])
    yield ""
    yield "Sources of the runs:"
    yield ""
    for group in report["groups"]:
        if group["by"] == "source":
            yield f"- {group['name']}: {group['runs']} runs"
    yield "- InferenceMAX, InferenceX and NVIDIA's own runs (measured points in aiconfigurator-core, Apache-2.0): " \
          f"{sum(int(row[11]) for row in points)} runs"
    with open(TABLE, "w") as file:
        file.write("judge,model,gpu,weights,tp,kind,prompts,ranks,weight_gb,fewest,most,runs,regime,basis,ttft,itl,e2e\n")
        for row in table + points:
            file.write(",".join(row) + "\n")


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    program, runs, points = sys.argv[1:4]
    left_out = {}
    if len(sys.argv) == 5:
        with open(sys.argv[4]) as file:
            left_out = json.load(file)
    with open(PAGE) as file:
        before, rest = file.read().split(BEGIN)
    after = rest.split(END)[1]
    known = list(evidence.load(runs, points))
    sequences = {run["id"]: evidence.sequences(run) for run in known}
    doubtful = {run["id"] for run in known if run.get("doubtful")}
    measured = inferencex(program, points)
    measured["runs"] = [run for run in measured["runs"] if run["id"] not in doubtful]
    lines = page(validated(program, runs), measured, left_out, sequences)
    text = "\n".join(lines)
    with open(PAGE, "w") as file:
        file.write(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
