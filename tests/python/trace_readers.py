"""Reads the traces of `replay --trace-out` and of `GET /dashboard/trace` with readers of others, and compares counts.

usage: trace_readers.py [--binary PROGRAM] [--node-modules FOLDER]

The readers are Perfetto's trace processor (PyPI `perfetto`, which downloads its program) and
`@tracerbench/trace-model` 8 (npm, in the folder). One of them has to be there; the other is named as missing.
Requests, steps and tokens must be those of the report, or of `/metrics` for a live server. Exits with 1 if not.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = "--input-tokens 200 --output-tokens uniform:5:20 --request-count 60".split()
REPLAYS = [
    "--request-rate 50 --num-workers 3",
    "--replay-concurrency 8 --num-workers 2 --gpu H100 --model meta-llama/Llama-3.1-8B-Instruct",
    "--request-rate 50 --scheduler sglang",
    "--request-rate 20 --num-prefill-workers 1 --num-decode-workers 1 --kv-cache-transfer-latency 5ms",
]
# Counts slices of a name and sums their arguments.
SQL = """
select s.name as name, count(distinct s.id) as slices,
  sum(case when a.key in ('args.prompt_tokens', 'args.input_tokens') then a.int_value end) as prompt_tokens,
  sum(case when a.key = 'args.output_tokens' then a.int_value end) as output_tokens
from slice s left join args a using (arg_set_id) where s.name in ('request', 'step') group by s.name
"""
NODE = """
import { createRequire } from 'module';
import { readFileSync } from 'fs';
const { buildModel } = createRequire(process.argv[1] + '/')('@tracerbench/trace-model');
const model = buildModel(JSON.parse(readFileSync(process.argv[2], 'utf8')));
const counts = {};
for (const process_ of model.processes)
  for (const thread of process_.threads)
    for (const event of thread.events) {
      if (!event.isComplete()) continue;
      const count = (counts[event.name] ??= { slices: 0, prompt_tokens: 0, output_tokens: 0 });
      count.slices += 1;
      count.prompt_tokens += event.args.prompt_tokens ?? event.args.input_tokens ?? 0;
      count.output_tokens += event.args.output_tokens ?? 0;
    }
console.log(JSON.stringify({ counts, processes: model.processes.map((one) => one.name) }));
"""


def perfetto_counts(path):
    """Returns slices and tokens by name as Perfetto's trace processor counts them."""
    from perfetto.trace_processor import TraceProcessor

    with TraceProcessor(trace=str(path)) as processor:
        return {
            row.name: (row.slices, row.prompt_tokens, row.output_tokens) for row in processor.query(SQL)
        }


def tracerbench_counts(path, modules):
    """Returns slices and tokens by name as TracerBench's model counts them."""
    command = ["node", "--input-type=module", "-e", NODE, "--", str(modules), str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    counts = json.loads(output)["counts"]
    keys = ("slices", "prompt_tokens", "output_tokens")
    return {name: tuple(count[key] for key in keys) for name, count in counts.items()}


def readers(modules):
    """Returns the readers that are there, by name."""
    found = {}
    if modules:
        found["@tracerbench/trace-model"] = lambda path: tracerbench_counts(path, modules.resolve())
    try:
        with tempfile.TemporaryDirectory() as folder:
            empty = pathlib.Path(folder) / "trace.json"
            empty.write_text('{"traceEvents": []}')
            perfetto_counts(empty)
        found["perfetto"] = perfetto_counts
    except Exception as error:  # Its program could not be downloaded, or the package is not there.
        print(f"perfetto: not there ({str(error)[:120]})")
    assert found, "no reader"
    return found


def compare(name, path, found, expected):
    """Compares the counts of each reader: requests, steps and both numbers of tokens."""
    wrong = 0
    for reader, read in found.items():
        counts = read(path)
        requests, steps = counts["request"], counts["step"]
        own = {"requests": requests[0], "tokens": requests[1:], "tokens of steps": steps[1:], "steps": steps[0]}
        differs = {key: (own[key], value) for key, value in expected.items() if own[key] != value}
        print(f"{name}: {reader}: {own} {'differs: ' + str(differs) if differs else 'equal'}")
        wrong += bool(differs)
    return wrong


def compare_replays(binary, found):
    wrong = 0
    for more in REPLAYS:
        with tempfile.TemporaryDirectory() as folder:
            out, log = pathlib.Path(folder) / "trace.json", pathlib.Path(folder) / "steps.jsonl"
            command = [binary, "replay", *WORK, *more.split(), "--report-json", "-", "--trace-out", str(out)]
            batches = "sglang" not in more
            command += ["--step-log", str(log)] if batches else []
            report = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
            summary = json.loads(report)["summary"]
            tokens = (summary["total_input_tokens"], summary["total_output_tokens"])
            expected = {"requests": summary["completed_requests"], "tokens": tokens}
            if "prefill-workers" not in more:
                # Two workers compute parts of a request whose prefill is elsewhere.
                expected["tokens of steps"] = tokens
            if batches:
                expected["steps"] = sum('"scheduled"' in line for line in log.read_text().splitlines())
            wrong += compare(more, out, found, expected)
    return wrong


def compare_live(binary, found):
    """Compares the trace of a live server with what its metrics counted since the first look."""
    command = [binary, "serve", str(ROOT / "tests/fixtures/tiny-llama"), "--host", "127.0.0.1", "--port", "0",
               "--dev-mode", "--no-enable-prefix-caching", "--time-to-first-token", "5ms",
               "--inter-token-latency", "1ms"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = (re.search(r"http://(127\.0\.0\.1:\d+)", line) for line in server.stderr)
        url = "http://" + next(line for line in lines if line)[1]
        get = lambda path: urllib.request.urlopen(url + path, timeout=30).read()
        get("/dashboard/trace")
        for tokens, choices in ((20, 1), (33, 3), (4, 1), (900, 2)):
            body = {"prompt": list(range(100, 100 + tokens)), "n": choices, "max_tokens": 9, "ignore_eos": True}
            request = urllib.request.Request(
                url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
            urllib.request.urlopen(request, timeout=30).read()
        while "vllm:num_requests_running" in (page := get("/metrics").decode()):
            if not re.search(r"^vllm:num_requests_running\{.*\} [^0]", page, re.M):
                break
            time.sleep(0.01)
        counted = lambda name: sum(
            int(float(value)) for value in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", page, re.M))
        tokens = (counted("prompt_tokens_total"), counted("generation_tokens_total"))
        expected = {
            "requests": counted("request_success_total"), "tokens": tokens, "tokens of steps": tokens,
            "steps": counted("iteration_tokens_total_count"),
        }
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            path.write_bytes(get("/dashboard/trace"))
            return compare("live server", path, found, expected)
    finally:
        server.terminate()
        server.wait(timeout=20)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/vllm-sim"))
    parser.add_argument("--node-modules", type=pathlib.Path)
    args = parser.parse_args()
    found = readers(args.node_modules)
    sys.exit(bool(compare_replays(args.binary, found) + compare_live(args.binary, found)))


if __name__ == "__main__":
    main()
