"""Holds vllm-sim's own HTTP against a front end of vLLM that runs over vllm-sim's engine core.

    python3 tests/python/front_end_oracle.py OWN FRONT [--only PART] [--all]

OWN and FRONT are URLs, started with the same model, seed and flags (docs/engine-core.md has the
commands). Both get the same requests, one after the other; status, bodies, events of streams and
names of metric families are compared. What is an id or a time is compared by its form. A difference
that is meant has its reason in `EXPLAINED`; any other fails. `--all` prints the explained ones too.
"""

import argparse
import http.client
import json
import re
import sys
import urllib.parse

from front_end_oracle_cases import CASES, EXPLAINED, THE_MODEL

ID = re.compile(r"(?<=[-_])[0-9a-f]{16,32}\b|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
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
    text = answer.read().decode(errors="replace")
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
        if len(own) != len(other):
            yield f"{at}.length", len(own), len(other)
        for i, (a, b) in enumerate(zip(own, other)):
            yield from differences(a, b, f"{at}[{i}]")
    elif own != other or type(own) is not type(other):
        yield at, own, other


def reason_of(name, at):
    """Why a difference is meant, if it is."""
    for case, place, why in EXPLAINED:
        if re.search(case, name) and re.search(place, at):
            return why
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("own")
    parser.add_argument("front")
    parser.add_argument("--only", default="", help="a part of the names of cases")
    parser.add_argument("--all", action="store_true", help="print explained differences too")
    args = parser.parse_args()
    model = json.loads(ask(args.front, "GET", "/v1/models", None, {})[2])["data"][0]["id"]
    equal = explained = failed = 0
    for name, method, path, body, headers in CASES:
        if args.only not in name:
            continue
        if isinstance(body, dict) and body.get("model") == THE_MODEL:
            body = body | {"model": model}
        own, other = (read(path, ask(url, method, path, body, headers)) for url in (args.own, args.front))
        found = [(at, a, b, reason_of(name, at)) for at, a, b in differences(own, other)]
        meant = all(why for *_, why in found)
        if not found:
            equal += 1
        elif meant:
            explained += 1
        else:
            failed += 1
        for at, a, b, why in found[:12]:
            if why and not args.all:
                continue
            print(f"{name} {at}\n    own   {json.dumps(a)[:400]}\n    front {json.dumps(b)[:400]}" + (f"\n    meant: {why}" if why else ""))
    print(f"{equal + explained + failed} requests: {equal} equal, {explained} differ as explained, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
