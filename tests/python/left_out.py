#!/usr/bin/env python3
"""Estimates the errors of every deployment with constants that were fitted without it.

    left_out.py EVIDENCE RUNS_DIR INFERENCEX_POINTS.jsonl [--out LEFT_OUT.json] [--fit ROUNDS] [--start FILE] [--save FILE]

EVIDENCE is the example of crates/calibrate (evidence.py says how to build it). Each constant is a factor
of numbers of a GPU or of coefficients (`roofline_factors` of a run), for the runs that it concerns. The fit
is Gauss-Newton on the logarithms of predicted / measured: ITL counts 1, TTFT 0.5 (InferenceMAX only), a
deployment (model, GPU, weights, tensor parallelism) by the square root of its points, soft L1 whose width is
6 %, held to the start by a ridge. Then each deployment is left out: the fit is solved again without it,
linearly around the result, and the difference of the two solutions moves its predictions. `--out` writes these
errors for fidelity_page.py; `--fit` first moves the factors. Wants numpy.
"""
import argparse
import collections
import json
import os

import numpy

import evidence

RIDGE, WIDTH, STEP = 0.03, 0.06, 0.4
# Predictions off by more than a factor of e are queues, which no slope describes.
LARGEST = 1.0


def blackwell(run):
    return run["hardware"].startswith("B")


def hopper(run):
    return run["hardware"].startswith("H")


def weights(*names):
    def of(run):
        shape = run["model_config"]
        name = shape.get("weight_quantization") or shape["config"]["quantization_config"].get("quant_algo") or "mxfp4"
        return {"NVFP4": "fp4"}.get(name, name) in names
    return of


def experts(run):
    return run["model_config"].get("experts", 2) > 1


def early(run):
    """Whether the server was older than vLLM 0.12."""
    return "InferenceMAX" in run["source"] and run["vllm"]["version"] < "0.12"


def on(*names):
    return lambda run: run["hardware"].split("-")[0] in names


def slow_router(run):
    """Whether the router computes in fp32 without tensor cores."""
    precision = run["vllm"].get("float32_matmul_precision")
    return blackwell(run) and run["model_config"].get("fp32_router") and precision != "high"


def fused(run):
    """Whether all-reduces are fused with norms."""
    return blackwell(run) and not weights("mxfp4")(run)


def unexplained(run):
    """Whether a point is judged and not fitted: gpt-oss before 0.12 is 10 % slower than 0.15.1 on the same GPUs."""
    return early(run) and "gpt-oss" in run["model"]


def fp8_cache(run):
    return run["vllm"]["kv_cache_dtype"] == "fp8"


def expert_kernels(name, part):
    return [f"/gpu/experts/{name}/{row}/{part}" for row in (0, 1)]


def all_reduce(table, columns):
    return [f"/gpu/{table}/{row}/{column}" for row in range(3) for column in columns]


# Name, plausible distance as a logarithm, which runs it concerns, and the numbers that it scales.
CONSTANTS = [
    ("prompt steps, Hopper", 0.7, [hopper], ["/gpu/eager_prefill_us/0"]),
    ("prompt steps, Blackwell", 0.5, [blackwell], ["/gpu/eager_prefill_us/0"]),
    ("launch of prompt steps, early Blackwell", 0.25, [blackwell, early], ["/gpu/eager_prefill_us/1"]),
    ("launch of fp4 experts", 0.4, [blackwell, experts, weights("fp4")], ["/gpu/eager_experts_us/0"]),
    ("launch of experts, Blackwell", 0.5, [blackwell, experts, weights("fp8_block", "mxfp4")], ["/gpu/eager_experts_us/1"]),
    ("launch of experts, Hopper", 0.6, [hopper, experts], ["/gpu/eager_experts_us/1"]),
    ("fp8 arithmetic, Hopper", 0.15, [hopper, weights("fp8")], ["/gpu/gemm_fp8/compute"]),
    ("fp8 bandwidth, H100", 0.1, [on("H100"), weights("fp8")], ["/gpu/gemm_fp8/memory"]),
    ("fp8 bandwidth, H200", 0.1, [on("H200"), weights("fp8")], ["/gpu/gemm_fp8/memory"]),
    ("fp8 above 16 rows, early Hopper", 0.2, [hopper, early, weights("fp8")], ["/gpu/fp8_memory_factor_above_16_rows"]),
    ("fp8 arithmetic, Blackwell", 0.15, [blackwell, weights("fp8")], ["/gpu/gemm_fp8/compute"]),
    ("fp8 bandwidth, Blackwell", 0.1, [blackwell, weights("fp8")], ["/gpu/gemm_fp8/memory"]),
    ("fp4 arithmetic", 0.15, [blackwell, weights("fp4")], ["/gpu/gemm_fp4/compute"]),
    ("fp4 bandwidth", 0.1, [blackwell, weights("fp4")], ["/gpu/gemm_fp4/memory"]),
    ("bf16 arithmetic, Blackwell", 0.15, [blackwell], ["/gpu/gemm/compute"]),
    ("fp8 block arithmetic, Blackwell", 0.15, [blackwell, weights("fp8_block")], ["/gpu/gemm_fp8_block/compute"]),
    ("fp8 block bandwidth, Blackwell", 0.15, [blackwell, weights("fp8_block")], ["/gpu/gemm_fp8_block/memory"]),
    ("fp8 block launch, Blackwell", 0.3, [blackwell, weights("fp8_block")], ["/gpu/gemm_fp8_block/fixed"]),
    ("fp8 block arithmetic, Hopper", 0.15, [hopper, weights("fp8_block")], ["/gpu/gemm_fp8_block/compute"]),
    ("bf16 arithmetic, Hopper", 0.15, [hopper, weights("none", "mxfp4")], ["/gpu/gemm/compute"]),
    ("early fp8 cache, Hopper", 0.3, [hopper, early, fp8_cache], ["/gpu/fp8_cache_bandwidth"]),
    ("fp8 cache, Blackwell", 0.1, [blackwell, fp8_cache], ["/gpu/fp8_cache_bandwidth"]),
    ("prefill attention, Blackwell", 0.2, [blackwell], ["/gpu/prefill_attention/1"]),
    ("prefill attention, Hopper", 0.2, [hopper], ["/gpu/prefill_attention/1"]),
    ("decode attention, Blackwell", 0.1, [blackwell], ["/gpu/decode_attention/1"]),
    ("small all-reduces, Blackwell", 0.12, [fused], all_reduce("fused_all_reduce", range(7))),
    ("large all-reduces, Blackwell", 0.2, [fused], all_reduce("fused_all_reduce", range(7, 10))),
    ("popularity of experts", 0.3, [experts], ["/coefficients/expert_popularity"]),
    ("router of 64 tokens", 0.3, [slow_router], ["/gpu/fp32_router/0"]),
    ("router of large steps", 0.4, [slow_router], ["/gpu/fp32_router/1"]),
    ("wait for ranks", 0.8, [lambda run: run["dp"] > 1], ["/gpu/expert_wait_us"]),
] + [
    (f"{name} experts, {where.__name__}: {part}", sigma, [where, weights(name)], expert_kernels(kernels, part))
    for where, name, kernels in ((blackwell, "fp4", "fp4"), (blackwell, "mxfp4", "mxfp4"), (blackwell, "fp8_block", "fp8_block"),
                                 (hopper, "fp8_block", "fp8_block"), (hopper, "mxfp4", "mxfp4"))
    for part, sigma in (("fixed", 0.15), ("memory", 0.1), ("compute", 0.15))
]


def concerns(constant, run):
    return all(condition(run) for condition in constant[2])


def with_factors(run, place):
    factors = collections.defaultdict(lambda: 1.0)
    for constant, value in zip(CONSTANTS, place):
        if value and concerns(constant, run):
            for pointer in constant[3]:
                factors[pointer] *= float(numpy.exp(value * constant[1]))
    return {**run, "roofline_factors": dict(factors)}


class Fit:
    def __init__(self, program, runs):
        self.program = program
        seen, self.twins, kept = {}, {}, []
        for run in runs:
            # The same measurement under two names counts once.
            measured = run["actual"]["summary"]
            key = (run["group"], measured["ttft_mean"], measured["itl_mean"])
            self.twins[run["id"]] = seen.setdefault(key, run["id"])
            if self.twins[run["id"]] == run["id"]:
                kept.append(run)
        self.runs = {run["id"]: run for run in kept}
        counts = collections.Counter(run["group"] for run in kept)
        self.rows = []
        for run in kept:
            weight = counts[run["group"]] ** -0.5
            self.rows.append((run["id"], "itl_mean", weight))
            if run["source"].startswith("InferenceMAX"):
                self.rows.append((run["id"], "ttft_mean", 0.5 * weight))
        self.weights = numpy.array([weight for _, _, weight in self.rows])
        self.fitted = numpy.array([not unexplained(self.runs[name]) for name, _, _ in self.rows])
        self.owners = numpy.array([self.runs[name]["group"] for name, _, _ in self.rows])

    def predict(self, place, names=None):
        runs = [with_factors(self.runs[name], place) for name in names or self.runs]
        # Long runs first, so that all processors end together.
        runs.sort(key=lambda run: -len(run["workload"]["trace"]))
        return evidence.predict(self.program, runs)

    def off(self, said, row):
        name, key, _ = row
        return numpy.log(said[name]["summary"][key] / self.runs[name]["actual"]["summary"][key])

    def residuals(self, said):
        return numpy.array([self.off(said, row) for row in self.rows])

    def slopes(self, place, here):
        """Derivatives of the residuals; constants that concern no run in common are moved together."""
        sets = [{name for name, run in self.runs.items() if concerns(constant, run)} for constant in CONSTANTS]
        groups = []
        for column in sorted(range(len(CONSTANTS)), key=lambda column: -len(sets[column])):
            group = next((group for group in groups if not any(sets[column] & sets[other] for other in group)), None)
            if group is None:
                groups.append(group := [])
            group.append(column)
        slopes = numpy.zeros((len(self.rows), len(CONSTANTS)))
        for group in groups:
            moved = place.copy()
            moved[group] += STEP
            said = self.predict(moved, sorted(set().union(*(sets[column] for column in group))))
            for column in group:
                for at, row in enumerate(self.rows):
                    if row[0] in sets[column]:
                        slopes[at, column] = (self.off(said, row) - here[at]) / STEP
        return slopes


def solve(here, slopes, weights_, place):
    step = numpy.zeros(slopes.shape[1])
    for _ in range(30):
        scaled = weights_ / numpy.sqrt(1 + ((here + slopes @ step) / WIDTH) ** 2)
        left = slopes.T @ (scaled[:, None] * slopes) + RIDGE ** 2 * numpy.eye(len(step))
        step = numpy.linalg.solve(left, -slopes.T @ (scaled * here) - RIDGE ** 2 * place)
    return step


def report(title, fit, here):
    errors = collections.defaultdict(lambda: collections.defaultdict(list))
    for (name, key, _), value in zip(fit.rows, here):
        for group in [*evidence.sets(fit.runs[name]), fit.runs[name]["group"]]:
            errors[group][key].append(100 * (numpy.exp(value) - 1))
    print(f"\n{title:44} {'n':>4}  ITL: median p90 signed   TTFT")
    for group, of in sorted(errors.items()):
        cells = [f"{evidence.share(of[key], 0.5):6.1f} {evidence.share(of[key], 0.9):6.1f} {numpy.median(of[key]):+6.1f}"
                 for key in ("itl_mean", "ttft_mean") if of[key]]
        print(f"{group:44} {len(of['itl_mean']):4}  " + "   ".join(cells), flush=True)


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program")
    words.add_argument("runs")
    words.add_argument("points")
    words.add_argument("--out")
    words.add_argument("--fit", type=int, default=0, metavar="ROUNDS")
    words.add_argument("--start", help="factors that --save wrote")
    words.add_argument("--save")
    asked = words.parse_args()
    runs = [run for run in evidence.load(asked.runs, asked.points) if "group" in run and not run["doubtful"]]
    fit = Fit(asked.program, runs)
    place = numpy.zeros(len(CONSTANTS))
    if asked.start and os.path.exists(asked.start):
        with open(asked.start) as file:
            start = json.load(file)
        place = numpy.array([numpy.log(start.get(name, 1.0)) / sigma for name, sigma, _, _ in CONSTANTS])
    here = fit.residuals(fit.predict(place))
    report("start", fit, here)
    for number in range(asked.fit):
        slopes = fit.slopes(place, here)
        near = (numpy.abs(here) < LARGEST) & fit.fitted
        place = place + numpy.clip(solve(here[near], slopes[near], fit.weights[near], place), -2, 2)
        here = fit.residuals(fit.predict(place))
        report(f"round {number + 1}", fit, here)
        factors = {name: round(float(numpy.exp(value * sigma)), 4) for (name, sigma, _, _), value in zip(CONSTANTS, place)}
        print(json.dumps(factors, indent=1), flush=True)
        if asked.save:
            with open(asked.save, "w") as file:
                json.dump(factors, file, indent=1)
    slopes = fit.slopes(place, here)
    near = (numpy.abs(here) < LARGEST) & fit.fitted
    full = solve(here[near], slopes[near], fit.weights[near], numpy.zeros(len(CONSTANTS)))
    apart = here.copy()
    for owner in sorted(set(fit.owners)):
        mine, kept = fit.owners == owner, near & (fit.owners != owner)
        moved = solve(here[kept], slopes[kept], fit.weights[kept], numpy.zeros(len(CONSTANTS))) - full
        apart[mine] += numpy.clip(slopes[mine] @ moved, -LARGEST, LARGEST)
    report("left out", fit, apart)
    if asked.out:
        found = collections.defaultdict(dict)
        for (name, key, _), value in zip(fit.rows, apart):
            found[name][key] = round(100 * (float(numpy.exp(value)) - 1), 2)
        errors = {name: [found[twin].get("ttft_mean"), found[twin]["itl_mean"], None] for name, twin in sorted(fit.twins.items())}
        with open(asked.out, "w") as file:
            json.dump(errors, file, indent=0)
            file.write("\n")


if __name__ == "__main__":
    main()
