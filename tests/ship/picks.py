#!/usr/bin/env python3
"""Sees that a gateway's picker keeps a beginning with one pod and spreads others over all: picks.py URL PODS"""

import json
import sys
import time
import urllib.request


def ask(prompt):
    body = json.dumps({"model": "demo", "prompt": prompt, "max_tokens": 2}).encode()
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
        return answer.headers["x-inference-pod"]


def text(topic):
    return " ".join(f"{topic}{n}" for n in range(400))


def main():
    for _ in range(150):
        try:
            ask("hello")
            break
        except OSError as error:
            last = error
            time.sleep(0.2)
    else:
        raise SystemExit(f"no answer: {last}")
    topics = [f"topic{n}-" for n in range(12)]
    first = {topic: ask(text(topic)) for topic in topics}
    again = {topic: ask(text(topic) + " more") for topic in topics}
    kept = sum(first[topic] == again[topic] for topic in topics)
    pods = sorted(set(first.values()))
    print(f"{kept} of {len(topics)} beginnings stayed; first picks went to {', '.join(pods)}")
    sys.exit(0 if kept >= len(topics) - 1 and len(pods) == int(sys.argv[2]) else 1)


if __name__ == "__main__":
    main()
