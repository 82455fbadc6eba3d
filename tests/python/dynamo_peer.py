"""Holds `vllm-sim replay --dynamo-run` against NVIDIA Dynamo's own offline replay.

    python3 -m venv peer && peer/bin/pip install ai-dynamo-runtime==1.6.1 && \
        peer/bin/pip install --no-deps ai-dynamo==1.6.1
    peer/bin/python tests/python/dynamo_peer.py record RUNS [NAME…]
    python3 tests/python/dynamo_peer.py compare RUNS --binary vllm-sim [NAME…]

With `pip install --no-deps aisimulate==<a wheel of 0.13.0.dev>` and `pip install packaging numpy pyyaml` the
peer reads kernel tables: `tables RUNS` makes the runs of `tests/fixtures/dynamo-tables`.

`record` makes a folder per case of `dynamo_peer_cases.py`: `args.json`, the trace, and `report.json`
or, where the peer refuses, `error.txt`. `compare` plays each with ours. Runs without random draws
must be equal request by request (1e-6); those with `kv_router`, whose ties the peer draws unseeded,
in their aggregates within 2 % of the mean of the peer's runs (`record` makes several). A NAME may be
the beginning of one.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from dynamo_peer_cases import CASES, GOLDEN, LENIENT, TABLES  # noqa: E402

# Speed of the host, and what the peer takes from a sketch with 0.1 % relative error.
HOST = ("wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s")
SKETCHED = tuple(f"{p}_{x}" for p in ("median", "p75", "p90", "p95", "p99") for x in ("itl_ms", "output_token_throughput_per_user"))
# Runs of the peer per case with draws, for the mean and the spread.
RUNS = 15
# What a golden report keeps of a request.
KEPT = (
    "uuid", "session_id", "turn_index", "arrival_time_ms", "first_admit_ms", "first_token_ms", "last_token_ms",
    "terminal_status", "output_length", "reused_input_tokens", "decode_worker_idx", "prefill_worker_idx",
    "destination_activated_ms", "source_released_ms", "admission_count",
    "first_admission_g1_reused_input_tokens", "first_admission_host_reused_input_tokens",
)
# What ours does not tell of an agentic trace.
PLAYS = ("request_id", "play_id", "agentic", "session_id", "turn_index", "dispatched_at_ms")
# What the aggregates of a run with draws are held to.
AGGREGATES = (
    "duration_ms", "request_throughput_rps", "output_throughput_tok_s", "mean_ttft_ms", "mean_tpot_ms",
    "mean_itl_ms", "mean_e2e_latency_ms", "median_e2e_latency_ms", "p90_e2e_latency_ms", "prefix_cache_reused_ratio",
)


def chosen(names):
    """The cases that the command line names."""
    return [name for name in CASES if not names or any(name.startswith(n) for n in names)]


def drawn(args):
    """Whether the peer draws in such a run."""
    return args["kwargs"].get("router_mode") == "kv_router"


def play(args, folder):
    """One run of the peer."""
    os.environ.setdefault("DYN_LOG", "error")
    import dynamo.replay as peer
    from dynamo._core import KvRouterConfig
    from dynamo.replay.api import TelemetryOptions

    kwargs = dict(args["kwargs"])
    if kwargs.get("router_config"):
        kwargs["router_config"] = KvRouterConfig(**kwargs["router_config"])
    if kwargs.get("telemetry_options"):
        kwargs["telemetry_options"] = TelemetryOptions(**kwargs["telemetry_options"])
    positional = [str(folder / p) if isinstance(p, str) else p for p in args["positional"]]
    report = getattr(peer, args["api"])(*positional, **kwargs)
    return {key: getattr(report, key) for key in ("summary", "per_request", "coverage")}


def golden(out, cases=GOLDEN):
    """Small runs, with what a test needs of their reports."""
    for name, (args, rows) in cases.items():
        write(out / name, args, rows)
        report = play(args, out / name)
        summary = {k: v for k, v in report["summary"].items() if k not in HOST + SKETCHED and v is not None}
        kept = KEPT
        if "agentic_graph" in summary:
            # What ours does not tell of plays.
            summary = {k: v for k, v in summary.items() if "agentic" not in k and "trajector" not in k}
            kept = [k for k in KEPT if k != "turn_index"]
        requests = [{k: r[k] for k in kept if k in r} for r in report["per_request"]]
        requests.sort(key=lambda r: (r["arrival_time_ms"], r["session_id"] or r["uuid"], r.get("turn_index") or 0))
        text = json.dumps({"summary": summary, "per_request": requests}, separators=(",", ":"), default=list)
        (out / name / "report.json").write_text(text.replace('{"uuid"', '\n{"uuid"') + "\n")


def write(folder, args, rows):
    """The input of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    args = {"peer": "ai-dynamo 1.6.1 / ai-dynamo-runtime 1.6.1", **args}
    (folder / "args.json").write_text(json.dumps(args, indent=1) + "\n")
    if rows is not None:
        (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def record(out, names):
    for name in chosen(names):
        args, rows = CASES[name]
        folder = out / name
        write(folder, args, rows)
        for old in folder.glob("report*.json"):
            old.unlink()
        (folder / "error.txt").unlink(missing_ok=True)
        try:
            for i in range(RUNS if drawn(args) else 1):
                report = play(args, folder)
                to = "report.json" if i == 0 else f"report-{i}.json"
                (folder / to).write_text(json.dumps(report, default=list))
        except BaseException as error:  # panics of the peer too
            (folder / "error.txt").write_text(f"{type(error).__name__}: {error}\n")
            print(f"{name}: {type(error).__name__}: {str(error)[:150]}")


def same(a, b):
    if isinstance(a, bool) or isinstance(b, bool) or not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
        return a == b
    return abs(a - b) <= 1e-6 * max(1.0, abs(b))


def nested(a, b, path=""):
    """Paths at which two values differ; keys that only ours has are no difference."""
    if isinstance(b, dict) and isinstance(a, dict):
        for key, value in b.items():
            yield from nested(a.get(key), value, f"{path}.{key}")
    elif isinstance(b, list) and isinstance(a, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b)):
            yield from nested(x, y, f"{path}[{i}]")
    elif not same(a, b):
        yield path, a, b


def key_of(request):
    """What says which request it is; the peer names those of traces at random."""
    if request["session_id"] is not None:
        return request["session_id"], request["turn_index"]
    return request["uuid"]


def matched(ours, theirs):
    """Pairs of requests of the same session and turn, or name, or arrival and lengths."""
    if all(r.get("request_id") for r in theirs):
        # Of agentic traces, which ours names by their requests.
        named = {r["uuid"]: r for r in ours}
        return [(named[r["request_id"]], r) for r in theirs if r["request_id"] in named]
    keys = {key_of(r): r for r in ours}
    if all(key_of(r) in keys for r in theirs):
        return [(keys[key_of(r)], r) for r in theirs]
    order = lambda r: (r["arrival_time_ms"], r["input_length"], r["requested_output_length"], r["first_token_ms"] or 0, r["reused_input_tokens"] or 0)
    return list(zip(sorted(ours, key=order), sorted(theirs, key=order)))


def exact(ours, theirs):
    """Differences of two reports, at most one per path of a request."""
    found = {}
    agentic = "agentic_graph" in theirs["summary"]
    for path, a, b in nested(ours["summary"], theirs["summary"]):
        key = path.lstrip(".")
        if agentic and ("agentic" in key or "trajector" in key):
            continue
        if key in HOST or key in SKETCHED and b and abs(a - b) <= 0.003 * abs(b):
            continue
        found[f"summary.{key}"] = (1, a, b, "")
    if len(ours["per_request"]) != len(theirs["per_request"]):
        found["per_request"] = (1, len(ours["per_request"]), len(theirs["per_request"]), "")
    for a, b in matched(ours["per_request"], theirs["per_request"]):
        for path, x, y in nested(a, b):
            if path == ".uuid" or agentic and path.split(".")[1] in PLAYS:
                continue
            n, *first = found.get(path, (0, x, y, f"{key_of(b)} at {b['arrival_time_ms']}"))
            found[path] = (n + 1, *first)
    return [f"{path} ×{n}: {a} is {b} {where}" for path, (n, a, b, where) in found.items()]


def rough(ours, theirs):
    """Differences of aggregates of more than 2 %, and the table's row."""
    row, wrong = [], []
    for key in AGGREGATES:
        values = [r["summary"].get(key) for r in theirs]
        mean = sum(values) / len(values)
        a = ours["summary"].get(key)
        off = (a - mean) / mean if mean else a
        spread = (max(values) - min(values)) / mean if mean else 0.0
        row.append((key, mean, a, off, spread))
        if abs(off) > 0.02:
            wrong.append(f"{key}: {a:.6g} is {mean:.6g} ({off:+.2%}, the peer's own spread {spread:.2%})")
    wrong += [f"key {key} is missing" for key in theirs[0]["summary"] if key not in ours["summary"]]
    return row, wrong


def compare(out, binary, names, table, limit):
    good, bad = 0, []
    for name in chosen(names):
        folder = out / name
        if not (folder / "args.json").exists():
            continue
        args = json.loads((folder / "args.json").read_text())
        made = folder / "ours.json"
        made.unlink(missing_ok=True)
        run = subprocess.run([binary, "replay", "--dynamo-run", folder, "--report-json", made], capture_output=True, text=True, timeout=120)
        refused = (folder / "error.txt").exists()
        if refused and name in LENIENT:
            continue
        theirs = [] if refused else [json.loads(p.read_text()) for p in sorted(folder.glob("report*.json"))]
        if run.returncode:
            words = run.stderr.strip().splitlines()[-1:] or ["no words"]
            wrong = [] if refused else [f"ours refuses: {words[0]}"]
            if refused:
                print(f"{name}: both refuse: {words[0]}")
        elif refused:
            wrong = [f"the peer refuses: {(folder / 'error.txt').read_text().strip()[:200]}"]
        else:
            ours = json.loads(made.read_text())
            if drawn(args):
                row, wrong = rough(ours, theirs)
                if table:
                    by = {key: (mean, a, off, spread) for key, mean, a, off, spread in row}
                    cells = [f"{by[k][0]:.4g} / {by[k][1]:.4g} ({by[k][2]:+.1%})" for k in ("duration_ms", "mean_ttft_ms", "mean_itl_ms", "mean_e2e_latency_ms", "prefix_cache_reused_ratio")]
                    print(f"| {name} | " + " | ".join(cells) + " |")
            else:
                wrong = exact(ours, theirs[0])
        if wrong:
            bad.append(name)
            print(f"{name}: {len(wrong)} differences")
            for line in wrong[:limit]:
                print("   ", line[:220])
        else:
            good += 1
    print(f"{good} equal, {len(bad)} not: {' '.join(bad)}")
    return bool(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("golden", "tables"):
        commands.add_parser(command).add_argument("runs", type=pathlib.Path)
    for command in ("record", "compare"):
        sub = commands.add_parser(command)
        sub.add_argument("runs", type=pathlib.Path)
        sub.add_argument("names", nargs="*")
        if command == "compare":
            sub.add_argument("--binary", default="vllm-sim")
            sub.add_argument("--table", action="store_true", help="rows of a Markdown table for runs with draws")
            sub.add_argument("--limit", type=int, default=12, help="differences shown per case")
    args, more = parser.parse_known_args()
    if args.command == "golden":
        return golden(args.runs)
    if args.command == "tables":
        return golden(args.runs, TABLES)
    args.names += more
    if args.command == "record":
        return record(args.runs, args.names)
    return compare(args.runs, args.binary, args.names, args.table, args.limit)


if __name__ == "__main__":
    sys.exit(main())
