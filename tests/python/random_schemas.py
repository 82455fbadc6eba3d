"""Sends random JSON Schemas as tool parameters to a running server and checks what it calls.

    pip install "hypothesis<6.150" hypothesis-jsonschema jsonschema
    vllm-sim serve FOLDER --served-model-name tiny-llama --port 8000
    python3 tests/python/random_schemas.py http://127.0.0.1:8000 [COUNT]

Every call's arguments must satisfy the schema, in the eyes of Python's jsonschema. A schema that
is refused is refused with a 4xx that says why; no answer is a 5xx, none takes over 200 ms.
"""

import collections
import http.client
import json
import sys
import time
import urllib.parse

import jsonschema
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

URL = urllib.parse.urlparse((sys.argv + ["http://127.0.0.1:8000"])[1])
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 500
SLOWEST = 0.2
MODEL = "tiny-llama"
server = http.client.HTTPConnection(URL.hostname, URL.port, timeout=30)
counts = collections.Counter()
slowest = [0.0]


def ask(schema):
    """Status, parsed answer and seconds of one request."""
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = json.dumps({
        "model": MODEL,
        "messages": [{"role": "user", "content": "Call it."}],
        "tools": [tool],
        "tool_choice": "required",
        "max_tokens": 3000,
    })
    start = time.monotonic()
    server.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    answer = server.getresponse()
    text = answer.read()
    return answer.status, json.loads(text), time.monotonic() - start


def check(schema):
    status, answer, seconds = ask(schema)
    slowest[0] = max(slowest[0], seconds)
    counts[status] += 1
    shown = json.dumps(schema)[:600]
    assert status < 500, (status, answer, shown)
    assert seconds < SLOWEST, (seconds, shown)
    if status != 200:
        message = answer["error"]["message"]
        assert message, shown
        counts["refused: " + message[:70]] += 1
        return
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        counts["cut"] += 1
        return
    calls = choice["message"]["tool_calls"]
    assert calls, shown
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.Draft7Validator(schema).validate(arguments)
        counts["calls"] += 1


def inline(root, node, depth):
    """The metaschema without references, to a depth."""
    if isinstance(node, list):
        return [inline(root, part, depth) for part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" not in node or not isinstance(node["$ref"], str):
        return {key: inline(root, part, depth) for key, part in node.items() if key != "default"}
    if node["$ref"] != "#":
        return inline(root, root["definitions"][node["$ref"].split("/")[-1]], depth)
    if depth > 0:
        return inline(root, bare(root), depth - 1)
    return {"enum": [{}, {"type": "string"}, {"type": "integer"}, {"minLength": 2}, {"const": 1}]}


def bare(root):
    return {key: part for key, part in root.items() if key not in ("definitions", "$schema", "$id")}


def metaschema():
    """Draft 7's own schema, so that hypothesis-jsonschema writes schemas."""
    root = json.loads(json.dumps(jsonschema.Draft7Validator.META_SCHEMA))
    root["properties"]["multipleOf"] = {"type": "number", "minimum": 0.01, "maximum": 100}
    root["properties"].pop("default")
    whole = inline(root, bare(root), 1)
    for key in ("$id", "$ref", "$schema"):
        whole["properties"].pop(key)
    whole["additionalProperties"] = False
    whole["type"] = "object"
    whole["$schema"] = "http://json-schema.org/draft-07/schema#"
    return whole


def objects(part):
    def required(schema):
        names = st.lists(st.sampled_from(sorted(schema["properties"])), unique=True)
        return names.map(lambda names: {**schema, "required": names})

    properties = st.dictionaries(st.text(max_size=6), part, min_size=1, max_size=4)
    optional = {"additionalProperties": st.booleans()}
    whole = st.fixed_dictionaries({"type": st.just("object"), "properties": properties}, optional=optional)
    return whole.flatmap(required)


TYPED = st.recursive(
    st.one_of(
        st.builds(lambda t: {"type": t}, st.sampled_from("null boolean integer number string".split())),
        st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size}, st.integers(-999, 999), st.integers(0, 99)),
        st.builds(lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size}, st.integers(0, 9), st.integers(0, 30)),
        st.builds(lambda p: {"type": "string", "pattern": p}, st.sampled_from([r"^[a-z]+$", r"\d{2,4}", r"^(foo|bar)?$", r"^\w+@\w+$", "[äöü]+"])),
        st.builds(lambda f: {"type": "string", "format": f}, st.sampled_from("date date-time time email ipv4 ipv6 uri uuid".split())),
        st.builds(lambda of: {"enum": of}, st.lists(st.none() | st.integers() | st.text(max_size=8), min_size=1, max_size=4)),
        st.builds(lambda m: {"type": "number", "multipleOf": m}, st.sampled_from([1, 3, 0.5, 0.25, 7])),
    ),
    lambda part: st.one_of(
        st.builds(lambda of, low, size: {"type": "array", "items": of, "minItems": low, "maxItems": low + size}, part, st.integers(0, 3), st.integers(0, 4)),
        st.builds(lambda of: {"anyOf": of}, st.lists(part, min_size=1, max_size=3)),
        st.builds(lambda of: {"oneOf": of}, st.lists(part, min_size=1, max_size=1)),
        objects(part),
    ),
    max_leaves=10,
)


def main():
    wild = from_schema(metaschema())
    schemas = st.one_of(objects(TYPED), objects(TYPED | wild), wild.map(lambda s: {**s, "type": "object"}))

    failures = []

    @seed(33)
    @settings(
        max_examples=COUNT,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schemas)
    def run(schema):
        counts["schemas"] += 1
        try:
            check(schema)
        except Exception as error:  # all of them are wanted, not the first
            failures.append(f"{type(error).__name__}: {str(error)[:700]}\n  of {json.dumps(schema)[:700]}")

    run()
    for failure in failures:
        print("FAIL", failure)
    print(dict(counts), f"slowest {slowest[0] * 1000:.0f} ms")
    if failures:
        sys.exit(f"{len(failures)} of {counts['schemas']} failed")
    print("ok")


main()
