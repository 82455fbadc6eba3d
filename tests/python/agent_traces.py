"""Compares what vllm-sim and the load generators aiperf, guidellm and inference-perf count in agent traces.

usage: agent_traces.py [--binary PROGRAM] [--otel RUN.json]… [WEKA.json[.gz] …]

Needs aiperf 0.13 and guidellm 0.8 in the Python that runs it. Their own loaders read the files.
`--otel` adds runs of spans such as those in `examples/otel/test_traces` of inference-perf's
repository, and needs inference-perf 0.7. Runs without token counts are left out.
vllm-sim replays them with a server that takes no time, in virtual time and over HTTP, so that the
time between two requests of a session is their wait. Turns, tokens, waits and sub-agents must be
equal. A turn that aiperf lets wait for a sub-agent may start later than its own wait says. Exits with
1 if they are not.
"""

import argparse
import collections
import gzip
import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "agents"
# Times in a report are exact to a nanosecond in virtual time.
EXACT_MS = 1e-3
# Waits over HTTP are never shorter; prompts of 100,000 tokens and a busy machine make them longer.
LATE_MS = 5000.0


def totals(sessions):
    """Returns the totals of sessions, each a list of (input, output, wait in ms)."""
    turns = [turn for session in sessions.values() for turn in session]
    return {
        "sessions": len(sessions),
        "sub-agents": sum("::" in name for name in sessions),
        "turns": len(turns),
        "input": sum(turn[0] for turn in turns),
        "output": sum(turn[1] for turn in turns),
        "wait_s": round(sum(turn[2] for turn in turns) / 1e3, 3),
    }


def aiperf_sessions(path):
    """Returns the conversations that aiperf's loader makes of a Weka file, and the turns that wait for
    a sub-agent, as (session, turn)."""
    os.environ["AIPERF_DATASET_WEKA_SPLIT_FLATTENED_AGENTS"] = "false"
    from aiperf.common.environment import Environment
    from aiperf.dataset.loader import weka_trace

    Environment.DATASET.WEKA_SPLIT_FLATTENED_AGENTS = False
    loader = weka_trace.WekaTraceLoader.__new__(weka_trace.WekaTraceLoader)
    loader._path = pathlib.Path(path)
    for name in ("_user_block_size_override", "_fixed_schedule_start_offset", "_max_osl",
                 "_fixed_schedule_end_offset", "_max_isl", "_inter_turn_delay_cap_seconds"):
        setattr(loader, name, None)
    data = loader.load_dataset()
    plans = loader._build_reconstruction_plans(data)
    sessions = {}
    waited = weka_trace._end_to_start_delay_ms

    def add(name, requests):
        turns, last = [], None
        for request in requests:
            gap = None if last is None else (request.t - last.t) * 1e3
            wait = waited(gap, last.api_time if last else None) or 0.0
            turns.append((request.input_length, loader._cap_output(request), wait))
            last = request
        sessions[name] = turns

    joined = set()
    for plan in plans.parent_plans:
        for outer, entry in plan.subagents:
            end = weka_trace._sa_end_seconds(entry) - weka_trace._JOIN_EPSILON_SECONDS
            later = [turn for turn, (index, request) in enumerate(plan.normals)
                     if index > outer and request.t >= end]
            joined.update((plan.trace_id, turn) for turn in later[:1])
        add(plan.trace_id, [request for _, request in plan.normals])
        for child in weka_trace._child_plans_for_active_subagents(plan, plans.child_plans):
            add(child.session_id, child.requests)
    return sessions, joined


def guidellm_modules():
    """Imports guidellm's readers of traces, without its data loaders, which want torch."""
    sys.modules.setdefault("guidellm.data.loaders", unittest.mock.MagicMock())
    from guidellm.data.deserializers import trace_otel, trace_weka
    from guidellm.schemas.data.deserializers import OTELTraceFormatArgs, WEKATraceFormatArgs

    return trace_weka, WEKATraceFormatArgs, trace_otel, OTELTraceFormatArgs


def guidellm_weka_sessions(path):
    """Returns the agents of the graph that guidellm's loader makes of a Weka file."""
    module, config, _, _ = guidellm_modules()
    run = json.loads(pathlib.Path(path).read_text())
    loader = module.WEKATraceFormat.__new__(module.WEKATraceFormat)
    loader.config = config.model_construct()
    specs, _ = loader._emit_chain(
        run["requests"], agent_id="default", node_prefix="main", preceding_parent_id=None,
        first_turn_history="new", t_transform=lambda t: t, spawn_seq=[0], conversation_id=run["id"],
    )
    sessions, last = collections.defaultdict(list), {}
    for spec in specs:
        name = run["id"] if spec.agent_id == "default" else f"{run['id']}::sa:{spec.agent_id}"
        row, wait = spec.row, 0.0
        if name in last:
            wait = max(0.0, spec.absolute_t - last[name]) * 1e3
        last[name] = spec.absolute_t + (row.get("api_time") or 0.0)
        sessions[name].append((row["in"], max(row["out"], 1), wait))
    return dict(sessions)


def guidellm_otel_runs(path):
    """Returns the requests of each trace as guidellm's loader lists them, one line of turns."""
    _, _, module, config = guidellm_modules()
    config = config.model_construct()
    spans = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    dataset = types.SimpleNamespace(column_names=list(spans[0]))
    dataset = unittest.mock.MagicMock(wraps=dataset)
    dataset.column_names = list(spans[0])
    dataset.__iter__.side_effect = lambda: iter(spans)
    runs = {}
    for group in module.iter_raw_span_groups(dataset, config):
        rows = module._llm_replay_spans(group, config)
        runs[group[0]["trace_id"]] = [
            (row["prompt_tokens"], row["output_tokens"], row["timestamp"] * 1e3, row["duration"] * 1e3)
            for row in rows
        ]
    return runs


def inference_perf_turns(path):
    """Returns the requests of a run as inference-perf's graph has them: input, output, wait in ms.

    Its package imports clients and media libraries, so the module with the graph is loaded alone.
    """
    if "inference_perf" not in sys.modules:
        root = pathlib.Path(importlib.util.find_spec("inference_perf").submodule_search_locations[0])
        for name in ("inference_perf", "inference_perf.datagen", "inference_perf.datagen.replay"):
            package = types.ModuleType(name)
            package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
    module = importlib.import_module("inference_perf.datagen.replay.otel_trace_to_replay_graph")
    calls, _ = module.build_raw_calls(json.loads(path.read_text())["spans"])
    graph = module.build_graph(calls, str(path))
    events = graph.events.values() if isinstance(graph.events, dict) else graph.events
    waits = [event.wait_ms for event in sorted(events, key=lambda event: event.t_start_ms)]
    return [(call.prompt_tokens, call.completion_tokens, wait) for call, wait in zip(calls, waits)]


def compare_run(binary, path, server):
    """Compares a run of spans, whose requests follow one another, with inference-perf."""
    theirs = inference_perf_turns(path)
    if any(turn[0] is None for turn in theirs):
        print(f"{path.name}: {len(theirs)} turns without token counts")
        return []
    print(f"{path.name}: inference-perf: {totals({'run': theirs})}")
    wrong, speed = [], 20.0
    for how, arguments, scale, late in [
        ("virtual time", INSTANT, 1.0, EXACT_MS),
        ("HTTP", ["--target", server.url, "--arrival-speedup-ratio", str(speed)], speed, LATE_MS),
    ]:
        sessions = replayed(binary, path, arguments)
        print(f"{path.name}: vllm-sim, {how}: {totals(sessions)}")
        scaled = {name: [(a, b, wait / scale) for a, b, wait in theirs] for name in sessions}
        wrong += [f"{path.name}, {how}: {text}" for text in differences(scaled, sessions, late, set())]
        if len(sessions) != 1:
            wrong.append(f"{path.name}, {how}: {len(sessions)} sessions")
    return wrong


def replayed(binary, path, arguments):
    """Returns the sessions of a replay."""
    command = [binary, "replay", str(path), "--report-json", "-", *arguments]
    report = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    report = json.loads(report.stdout)
    records = collections.defaultdict(list)
    for record in report["per_request"]:
        assert record["terminal_status"] == "completed", record
        records[record["session_id"]].append(record)
    sessions = {}
    for name, turns in records.items():
        turns.sort(key=lambda record: record["turn_index"])
        at = [turn["arrival_time_ms"] for turn in turns]
        ended = [turn["terminal_time_ms"] for turn in turns]
        waits = [0.0] + [start - end for start, end in zip(at[1:], ended)]
        sessions[name] = [
            (turn["input_length"], turn["output_length"], wait) for turn, wait in zip(turns, waits)
        ]
    return sessions


# A server whose requests take no time.
INSTANT = ["--scheduler", "pool", "--max-num-seqs", "100000", "--max-model-len", "10000000",
           "--num-gpu-blocks-override", "1000000"]


class Server:
    """A server of vllm-sim whose requests take no time."""

    def __init__(self, binary):
        command = [binary, "--model", "demo", "--port", "0", "--host", "127.0.0.1",
                   "--force-dummy-tokenizer", *INSTANT]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "http://" in line or "127.0.0.1:" in line:
                self.url = "http://127.0.0.1:" + line.split("127.0.0.1:")[1].split()[0].strip('/",')
                break

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=20)


def differences(theirs, ours, ms, joined):
    """Returns how sessions differ; waits may be up to `ms` longer, those of `joined` turns more."""
    wrong = []
    if sorted(theirs) != sorted(ours):
        return [f"sessions {sorted(theirs)} and {sorted(ours)}"]
    for name, turns in theirs.items():
        own = ours[name]
        if len(turns) != len(own):
            wrong.append(f"{name}: {len(turns)} and {len(own)} turns")
            continue
        for index, (a, b) in enumerate(zip(turns, own)):
            late = float("inf") if (name, index) in joined else ms
            if a[:2] != b[:2] or not -EXACT_MS <= b[2] - a[2] <= late:
                wrong.append(f"{name} turn {index}: {a} and {b}")
    return wrong


def compare_weka(binary, path, server):
    """Compares a Weka file, whose parent also waits for sub-agents, with both load generators."""
    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder) / "run.json"
        opened = gzip.open if path.suffix == ".gz" else open
        plain.write_bytes(opened(path, "rb").read())
        (aiperf, joined), guidellm = aiperf_sessions(plain), guidellm_weka_sessions(plain)
        speed = 200.0
        runs = [
            ("virtual time", replayed(binary, plain, INSTANT), EXACT_MS, 1.0),
            ("HTTP", replayed(binary, plain, [
                "--target", server.url, "--arrival-speedup-ratio", str(speed)]), LATE_MS, speed),
        ]
    wrong = []
    for name, theirs in [("aiperf", aiperf), ("guidellm", guidellm)]:
        print(f"{path.name}: {name}: {totals(theirs)}, {len(joined)} turns wait for sub-agents")
        for how, ours, late, speed in runs:
            scaled = {key: [(a, b, wait / speed) for a, b, wait in turns]
                      for key, turns in theirs.items()}
            found = differences(scaled, ours, late, joined)
            wrong += [f"{path.name}, {name}, {how}: {text}" for text in found]
    for how, ours, _, _ in runs:
        print(f"{path.name}: vllm-sim, {how}: {totals(ours)}")
    return wrong


def compare_otel(binary, path, server):
    """Compares spans with guidellm, which puts the requests of all agents of a trace in a row."""
    theirs = guidellm_otel_runs(path)
    wrong = []
    for how, arguments, speed, late in [
        ("virtual time", INSTANT, 1.0, EXACT_MS),
        ("HTTP", ["--target", server.url, "--arrival-speedup-ratio", "50"], 50.0, LATE_MS),
    ]:
        sessions = replayed(binary, path, arguments)
        print(f"{path.name}: vllm-sim, {how}: {totals(sessions)}")
        listed = [row for rows in theirs.values() for row in rows]
        turns = [turn for turns in sessions.values() for turn in turns]
        if sorted(row[:2] for row in listed) != sorted(turn[:2] for turn in turns):
            wrong.append(f"{path.name}, {how}: {listed} and {turns}")
            continue
        # Lengths tell the requests of the sample apart.
        known = {row[:2]: row for row in listed}
        for name, turns in sessions.items():
            rows = [known[turn[:2]] for turn in turns]
            for last, row, turn in zip(rows, rows[1:], turns[1:]):
                waited = max(0.0, row[2] - last[2] - last[3]) / speed
                if not -EXACT_MS <= turn[2] - waited <= late:
                    wrong.append(f"{path.name}, {how}, {name}: waits {waited} and {turn[2]}")
        print(f"{path.name}: guidellm: {sum(map(len, theirs.values()))} turns in {len(theirs)} traces")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/vllm-sim"))
    parser.add_argument("--otel", action="append", default=[], type=pathlib.Path)
    parser.add_argument("weka", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    server = Server(args.binary)
    try:
        wrong = compare_otel(args.binary, FIXTURES / "otel.jsonl", server)
        for path in args.otel:
            wrong += compare_run(args.binary, path, server)
        for path in args.weka or [FIXTURES / "weka.json.gz"]:
            wrong += compare_weka(args.binary, path, server)
    finally:
        server.stop()
    print("\n".join(wrong) or "all are equal")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
