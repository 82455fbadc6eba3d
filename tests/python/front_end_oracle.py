"""Holds vllm-sim's own HTTP against a front end of vLLM that runs over vllm-sim's engine core.

    python3 tests/python/front_end_oracle.py OWN FRONT [--rust] [--only PART] [--all]

OWN and FRONT are URLs, started with the same model, seed and flags (docs/engine-core-reference.md has the
commands). Both get the same requests, one after the other; status, bodies, events of streams and
names of metric families are compared. What is an id or a time is compared by its form. A difference
that is meant has its reason in `EXPLAINED`; any other fails. Where a whole answer is meant to differ, its
status and its shape still have to be the same. A fixed load then has to move the metrics of both alike.
`--all` prints the explained ones too.

`--pooling`: both serve with `--runner pooling`, and the requests are those of `front_end_pooling_cases.py`.

`--rust`: FRONT is `vllm-rs`, whose HTTP is not Python's. Chats and completions alone are asked; members without
a value, words of refusals and the cut of a stream into chunks are not compared; `EXPLAINED_RUST` has the rest.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import re
import sys
import time
import urllib.parse

from front_end_oracle_cases import CASES, EXPLAINED, EXPLAINED_RUST, THE_MODEL
from front_end_pooling_cases import CASES as POOLING_CASES
from front_end_pooling_cases import EXPLAINED as EXPLAINED_POOLING
from front_end_requests import Generator

DIFFERS = "differ"

ID = re.compile(r"(?<=cmpl-)[0-9a-f]{8}\b|(?<=[-_])[0-9a-f]{16,32}\b|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
TIMES = {"created", "created_at", "completed_at", "modified", "expires_at", "server_load"}
FINGERPRINTS = {"system_fingerprint"}
AGENT = "front-end-oracle"


def ask(url, method, path, body, headers):
    """Status, content type and text of an answer."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    sent = {"user-agent": AGENT}
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
        sent["content-type"] = "application/json"
    sent.update(headers)
    if isinstance(body, str):
        body = body.encode()
    connection.request(method, path, body, sent)
    answer = connection.getresponse()
    try:
        text = answer.read()
    except http.client.IncompleteRead as cut:
        text = cut.partial + b"data: (the connection was cut)\n\n"
    text = text.decode(errors="replace")
    connection.close()
    return answer.status, (answer.getheader("content-type") or "").split(";")[0], text


def normal(value, key=None):
    """Without what is drawn or a time."""
    if isinstance(value, dict):
        return {k: normal(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [normal(v, key) for v in value]
    if key in TIMES and isinstance(value, (int, float)):
        return "TIME"
    if key in FINGERPRINTS:
        return "FINGERPRINT" if value else value
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, str):
        return ID.sub("ID", value)
    return value


def events(text):
    """The events of a stream: name and data."""
    found = []
    for block in re.split(r"\r?\n\r?\n", text):
        name, data = None, []
        for line in block.splitlines():
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].strip())
        if data:
            data = "\n".join(data)
            try:
                data = normal(json.loads(data))
            except ValueError:
                pass
            found.append([name, data])
    return found


def families(text):
    """Names, types and label names of the metric families."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            found[name] = [kind, []]
        elif line and not line.startswith("#"):
            name = re.match(r"[\w:]+", line).group()
            base = re.sub(r"_(bucket|sum|count|created|total)$", "", name)
            labels = sorted(set(re.findall(r'(\w+)="', line)))
            for candidate in (name, base):
                if candidate in found and labels not in found[candidate][1]:
                    found[candidate][1].append(labels)
                    break
    return {k: v for k, v in found.items() if k.startswith("vllm:")}


def read(path, answer):
    """What of an answer is compared."""
    status, kind, text = answer
    if path.startswith("/metrics"):
        return {"status": status, "families": families(text)}
    if kind == "text/event-stream":
        return {"status": status, "type": kind, "events": events(text)}
    try:
        body = normal(json.loads(text))
    except ValueError:
        body = text
    return {"status": status, "type": kind, "body": body}


def differences(own, other, at=""):
    """Where two values differ: path, ours, theirs."""
    if isinstance(own, dict) and isinstance(other, dict):
        for key in list(other) + [k for k in own if k not in other]:
            inner = f"{at}.{key}"
            if key not in own:
                yield inner, "(none)", other[key]
            elif key not in other:
                yield inner, own[key], "(none)"
            else:
                yield from differences(own[key], other[key], inner)
    elif isinstance(own, list) and isinstance(other, list):
        if own and isinstance(own[0], float) and isinstance(other[0] if other else None, float):
            # A vector is one value.
            if own != other:
                yield at, own[:3], other[:3]
            return
        if len(own) != len(other):
            yield f"{at}.length", len(own), len(other)
        for i, (a, b) in enumerate(zip(own, other)):
            yield from differences(a, b, f"{at}[{i}]")
    elif own != other or type(own) is not type(other):
        yield at, own, other


def reason_of(explained, name, at, own, other):
    """Why a difference is meant, if it is."""
    for case, place, why in explained:
        if re.search(case, name) and re.search(place, at):
            # A whole answer that differs is still one of the same kind.
            if place != "." or (at != ".status" and shape(own) == shape(other)):
                return why
    return None


def shape(value):
    """What kind of value it is, without its words."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if type(value) in (int, float) else type(value).__name__


def without_chunks(events):
    """What the events of a stream say together: texts, numbers and lists joined, by place."""
    said = {}

    def add(place, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{place}.{key}", inner)
        elif isinstance(value, list) and not (value and isinstance(value[0], dict) and "index" in value[0]):
            said.setdefault(place, []).extend(value)
        elif isinstance(value, list):
            for inner in value:
                add(f"{place}[{inner['index']}]", inner)
        elif isinstance(value, str) and place.rsplit(".", 1)[-1] in ("content", "text", "arguments", "reasoning"):
            said[place] = said.get(place, "") + value
        elif value is not None:
            said[place] = value

    for _, data in events:
        add("", data)
    return {place: with_value(value) for place, value in said.items() if value not in ("", [])}


def as_rust(read):
    """What of an answer both kinds of HTTP have to agree on."""
    if read["status"] >= 400:
        return {"status": read["status"]}
    if "events" in read:
        return {"status": read["status"], "said": without_chunks(read["events"])}
    return {"status": read["status"], "body": with_value(read["body"])}


def with_value(value):
    """Without members that have none, and without what stands for half a character."""
    if isinstance(value, dict):
        kept = {k: with_value(v) for k, v in value.items() if k not in ("system_fingerprint", "completion_tokens_details")}
        return {k: v for k, v in kept.items() if v is not None}
    if isinstance(value, list):
        return [with_value(v) for v in value]
    # Bytes that are no character show so, or not at all.
    return value.replace("\ufffd", "") if isinstance(value, str) else value


LOAD = [{"max_tokens": 5 + 3 * n, "ignore_eos": True, "messages": [{"role": "user", "content": "The same beginning of a prompt, for the cache. " * (n % 3 + 2)}]} for n in range(9)]
MOVED = "prompt_tokens_total generation_tokens_total prefix_cache_queries_total prefix_cache_hits_total request_success_total iteration_tokens_total_count iteration_tokens_total_sum request_prompt_tokens_sum request_generation_tokens_sum request_params_max_tokens_sum time_to_first_token_seconds_count inter_token_latency_seconds_count e2e_request_latency_seconds_count num_requests_running num_requests_waiting num_preemptions_total".split()


def counted(url):
    """Sums of the families that a load moves."""
    found = dict.fromkeys(MOVED, 0.0)
    for line in ask(url, "GET", "/metrics", None, {})[2].splitlines():
        name = re.match(r"vllm:(\w+)", line)
        if name and name[1] in found:
            found[name[1]] += float(line.rsplit(" ", 1)[1])
    return found


def moved(url, model):
    """What a fixed load, one request after the other, adds to each of them."""
    settle(url)
    before = counted(url)
    for body in LOAD:
        status, _, text = ask(url, "POST", "/v1/chat/completions", ({"model": model} if model else {}) | body | {"temperature": 0}, {})
        assert status == 200, text
    settle(url)
    after = counted(url)
    return {name: after[name] - before[name] for name in MOVED}


def settle(url):
    """Waits until nothing runs."""
    for _ in range(500):
        if counted(url)["num_requests_running"] == 0:
            return
        time.sleep(0.01)


def both(args, case):
    """What of the two answers to a case is compared."""
    name, method, path, body, headers = case
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda url: ask(url, method, path, body, headers), (args.own, args.front)))
    own, other = (read(path, answer) for answer in answers)
    return (as_rust(own), as_rust(other)) if args.rust else (own, other)


def judged(args, case):
    """Differences of the answers to a case: place, ours, theirs, why it is meant."""
    explained_by = EXPLAINED_RUST if args.rust else EXPLAINED_POOLING if args.pooling else EXPLAINED
    # Chunks of a stream join on a busy machine: what differs is asked once more.
    for _ in range(2):
        own, other = both(args, case)
        found = [(at, a, b, reason_of(explained_by, case[0], at, own.get("body"), other.get("body"))) for at, a, b in differences(own, other)]
        if not found:
            break
    return found


def cases_of(args, model):
    """The cases of the command line, for the model that is served."""
    cases = POOLING_CASES if args.pooling else CASES
    if args.generate:
        # `vllm-rs` has no document.
        document = json.loads(ask(args.own if args.rust else args.front, "GET", "/openapi.json", None, {})[2])
        cases = Generator(document, args.seed).requests(args.generate)
    for name, method, path, body, headers in cases:
        if args.only in name and not (args.rust and path not in ("/v1/chat/completions", "/v1/completions")):
            if isinstance(body, dict) and body.get("model") == THE_MODEL:
                body = body | {"model": model}
            yield name, method, path, body, headers


def compare_loads(args, model, causes):
    """Counts where the metrics of a fixed load differ."""
    loads = [moved(url, name) for url, name in ((args.own, None), (args.front, model))]
    for at, a, b in differences(*loads):
        causes[DIFFERS] += 1
        print(f"metrics of a fixed load {at}\n    own   {a}\n    front {b}")
    print(f"the load moved {loads[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("own")
    parser.add_argument("front")
    parser.add_argument("--only", default="", help="a part of the names of cases")
    parser.add_argument("--rust", action="store_true", help="the front end is vllm-rs")
    parser.add_argument("--pooling", action="store_true", help="both serve with --runner pooling")
    parser.add_argument("--all", action="store_true", help="print explained differences too")
    parser.add_argument("--generate", type=int, default=0, metavar="COUNT", help="ask so many random requests instead")
    parser.add_argument("--seed", type=int, default=0, help="of the random requests")
    args = parser.parse_args()
    model = json.loads(ask(args.front, "GET", "/v1/models", None, {})[2])["data"][0]["id"]
    causes = collections.Counter()
    for case in cases_of(args, model):
        found = judged(args, case)
        meant = [why for *_, why in found if why]
        cause = "equal" if not found else meant[0] if len(meant) == len(found) else DIFFERS
        causes[cause] += 1
        for at, a, b, why in found[:12]:
            if why and not args.all:
                continue
            print(f"{case[0]} {at}\n    own   {json.dumps(a)[:400]}\n    front {json.dumps(b)[:400]}" + (f"\n    meant: {why}" if why else ""), flush=True)
    if not args.pooling:
        compare_loads(args, model, causes)
    for cause, number in causes.most_common():
        print(f"{number:6} {cause}")
    explained = causes.total() - causes["equal"] - causes[DIFFERS]
    print(f"{causes.total()} requests: {causes['equal']} equal, {explained} differ as explained, {causes[DIFFERS]} differ")
    return 1 if causes[DIFFERS] else 0


if __name__ == "__main__":
    sys.exit(main())
