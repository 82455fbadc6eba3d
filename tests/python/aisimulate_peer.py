"""Runs the files of AISimulate's `predict` in AISimulate and here, and compares the reports.

usage: aisimulate_peer.py record
       aisimulate_peer.py compare [--binary PROGRAM]

`record` needs `aisimulate` 0.13 and writes `NAME.json` beside each `NAME.yaml` of
tests/fixtures/aisimulate. `compare` replays the files with `replay --aisimulate` and compares every
number of the summary and the times of every request. With `aisimulate` installed, its own functions
also read and print the reports. Exits with 1 if a report differs.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "aisimulate"
# Keys that only AISimulate has: of agent runs and of energy.
OTHER_KEYS = ("agentic_", "power_", "trajector")
# A relative difference that sums of floats in another order make.
TOLERANCE = 1e-6
# AISimulate takes percentiles of these from a sketch with an error of 0.1 %.
SKETCHED = ("itl_ms", "output_token_throughput_per_user")
SKETCH_TOLERANCE = 2e-3
# Files that differ, and by how much at most: kernel tables are read in another way, and the last
# request of an agent run belongs to another agent.
KNOWN_DIFFERENCES = {"default.yaml": 0.02, "weka-host.yaml": 0.01}
REQUEST_KEYS = ("arrival_time_ms", "first_token_ms", "terminal_time_ms", "input_length",
                "output_length", "reused_input_tokens", "terminal_status")


def reduced(report):
    """Returns the numbers of a report that do not depend on the machine."""
    numbers = {key: value for key, value in report.items()
               if isinstance(value, (int, float)) and key != "wall_time_ms"
               and not key.startswith("processed_")}
    requests = [[record[key] for key in REQUEST_KEYS] for record in report["per_request"]]
    return {"summary": numbers, "requests": sorted(requests, key=str)}


def configs():
    return sorted(FIXTURES.glob("*.yaml"))


def record():
    for path in configs():
        with tempfile.TemporaryDirectory() as folder:
            command = ["aisimulate", "predict", "--config", str(path), "--output-dir", folder,
                       "--capture-per-request", "--format", "json"]
            program = pathlib.Path(sys.executable).with_name("aisimulate")
            command[0] = str(program) if program.exists() else command[0]
            subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=600)
            report = json.loads((pathlib.Path(folder) / "prediction.json").read_text())
        path.with_suffix(".json").write_text(json.dumps(reduced(report), indent=1) + "\n")
        print(f"{path.name}: {len(report['per_request'])} requests")
    for cache in FIXTURES.glob("*.zst"):
        cache.unlink()


def replayed(binary, path):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "prediction.json"
        command = [binary, "replay", "--aisimulate", str(path), "--report-json", str(out)]
        # The kernel tables of the installed aisimulate.
        environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=600, env=environment)
        return json.loads(out.read_text())


def differs(key, theirs, ours, known):
    """Returns whether a number of the summary is not the same."""
    if ours is None:
        return True
    # Sketched percentiles and standard deviations of nearly equal values.
    is_rough = key.endswith(SKETCHED) or key.startswith("std_")
    tolerance = max(known, SKETCH_TOLERANCE if is_rough else TOLERANCE)
    return abs(theirs - ours) > tolerance * max(abs(theirs), abs(ours)) + 1e-9


def read_by_aisimulate(report):
    """Prints a report with AISimulate's own functions, and returns the table."""
    try:
        from aisimulate.detail import prediction_summary
        from aisimulate.output import format_prediction_stdout
    except ImportError:
        return None
    return format_prediction_stdout(prediction_summary(report), "table")


def compare(binary):
    wrong = 0
    for path in configs():
        known = json.loads(path.with_suffix(".json").read_text())
        most = KNOWN_DIFFERENCES.get(path.name, 0.0)
        report = replayed(binary, path)
        ours = reduced(report)
        keys = [key for key, value in known["summary"].items()
                if not any(part in key for part in OTHER_KEYS)
                and differs(key, value, ours["summary"].get(key), most)
                and not (most and key.startswith("std_"))]
        rows = sum(
            any(isinstance(a, str) and a != b or not isinstance(a, str) and abs((a or 0) - (b or 0)) > 1e-6
                for a, b in zip(theirs, own))
            for theirs, own in zip(known["requests"], ours["requests"])
        ) + abs(len(known["requests"]) - len(ours["requests"]))
        wrong += bool(keys or (rows and not most))
        print(f"{path.name}: {len(known['summary'])} numbers, {len(known['requests'])} requests; "
              f"different: {keys or 'none'}, {rows} requests")
        table = read_by_aisimulate(report)
        if table is not None and "N/A" in table.split("Request Count")[0].split("Throughput Per")[0]:
            print(table)
            wrong += 1
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["record", "compare"])
    parser.add_argument("--binary", default=str(ROOT / "target/release/vllm-sim"))
    args = parser.parse_args()
    if args.mode == "record":
        record()
        return
    sys.exit(bool(compare(args.binary)))


if __name__ == "__main__":
    main()
