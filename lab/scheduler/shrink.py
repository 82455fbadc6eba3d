#!/usr/bin/env python3
"""Cuts a workload that differs down to its smallest form: shrink.py STEP_LOG WORKLOAD.json > SMALL.json (needs vllm_side.py's variables)."""
import copy
import json
import subprocess
import sys
import tempfile

import compare
import vllm_side

MOST_TRIES = 1500


def difference(binary, work):
    """The first difference, or None where both logs are equal or one side refuses the workload."""
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/w.json"
        with open(path, "w") as file:
            json.dump(work, file)
        try:
            with open(folder + "/w.vllm.jsonl", "w") as out:
                vllm_side.play(work, out)
        except Exception:
            return None
        if subprocess.run([binary, path], capture_output=True).returncode:
            return None
        return compare.compare(folder + "/w.vllm.jsonl", folder + "/w.ours.jsonl")


def candidates(work):
    for key in ("requests", "commands"):
        for i in range(len(work.get(key, [])) - 1, -1, -1):
            small = copy.deepcopy(work)
            del small[key][i]
            yield small
    for i, request in enumerate(work["requests"]):
        output = request["output"]
        for key, value in (("output", output // 2), ("output", output - 1), ("at", request["at"] // 2), ("at", request["at"] - 1000)):
            if value >= (1 if key == "output" else 0) and value != request[key]:
                small = copy.deepcopy(work)
                small["requests"][i][key] = value
                yield small
        for run, (_, count) in enumerate(request["prompt"]):
            for keep in (count // 2, count - 1):
                if 0 < keep < count:
                    small = copy.deepcopy(work)
                    small["requests"][i]["prompt"][run][1] = keep
                    yield small


def main():
    binary, work = sys.argv[1], json.load(open(sys.argv[2]))
    found, tries, going = difference(binary, work), 0, True
    if not found:
        sys.exit("no difference")
    while going and tries < MOST_TRIES:
        going = False
        for small in candidates(work):
            tries += 1
            now = difference(binary, small)
            # The same kind of difference: scheduled, used, events and so on.
            if now and now.split(":")[1:2] == found.split(":")[1:2]:
                work, found, going = small, now, True
                break
            if tries >= MOST_TRIES:
                break
    work["difference"] = found
    print(json.dumps(work))


if __name__ == "__main__":
    main()
