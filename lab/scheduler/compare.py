#!/usr/bin/env python3
"""Compares two step logs of one workload line by line: compare.py VLLM.jsonl OURS.jsonl; exit 1 and the first difference.

Compared: the time of each plan and each update; of a plan the sequences in order, each with its tokens computed before and
scheduled, admissions, resumptions, preemptions and blocks in use; of an update the drafts, ends, blocks in use, and the KV events
in order, each with kind, hashes, parent, layer group and medium."""
import itertools
import json
import sys


def lines(path):
    out = []
    for text in open(path):
        line = json.loads(text)
        if "scheduled" in line:
            # vLLM reports preempted requests as a set.
            line["preempted"] = sorted(line["preempted"])
            out.append(line)
        else:
            # How many blocks share a message of removed blocks is not compared.
            line["events"] = flat(line.get("events", []))
            out.append(line)
    return out


def flat(events):
    made = []
    for kind, hashes, parent, group, medium in events:
        if kind == "BlockRemoved":
            made += [[kind, [h], None, group, medium] for h in hashes]
        else:
            made.append([kind, hashes, parent, group, medium])
    # vLLM keeps the chunks of a copy to host memory in a set, without an order.
    runs = itertools.groupby(made, key=lambda event: (event[0], event[4]))
    return [event for (_, medium), run in runs for event in (sorted(run) if medium == "CPU" else run)]


def difference(a, b):
    """The first difference of two logs, or None."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x.keys() != y.keys():
            return f"line {i}: kind: vLLM {brief(x)}, ours {brief(y)}"
        for key in x:
            if x[key] != y[key]:
                return f"line {i} t {x['t']}: {key}: vLLM {brief(x[key])}, ours {brief(y[key])}"
    if len(a) != len(b):
        rest = a[len(b):] or b[len(a):]
        return f"length: vLLM {len(a)}, ours {len(b)}; then {brief(rest[0])}"
    return None


def brief(value):
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) < 200 else text[:200] + "…"


def compare(vllm, ours):
    return difference(lines(vllm), lines(ours))


if __name__ == "__main__":
    found = compare(*sys.argv[1:3])
    print(found or f"equal in {len(lines(sys.argv[1]))} lines")
    sys.exit(1 if found else 0)
