"""Random requests for `front_end_oracle.py --generate`, from the OpenAPI document of the front end.

A request has a body that works, with one to three fields changed: to a value that fits the schema, or to one that does
not, such as another type or a number beyond a bound. Fields whose schema does not tell what works have values of their
own in `FITTING`. A few requests change path, method, headers or the text of the body instead. The same seed gives the
same requests.
"""

import json
import random

from front_end_oracle_cases import CLOCK, HELLO, SCHEMA, THE_MODEL, WEATHER

TEXTS = ["Hello", "Say something about routers.", "", " ", "é 漢字 🙂", "a\nb", "<|im_end|>", "word " * 30]
# Values that hardly any field takes, and some that pydantic converts.
ODD = [None, "", "x", "5", " 7 ", "1.5", "true", "nan", 0, 1, -1, 7, 2.0, 1.5, 1e400, 1e20, 1 << 31, 1 << 64, True, False, [], {}, [None], ["a"], [1], [[]], {"a": 1}, {"a": None}, "é"]
BOUND = {"max_tokens": 4, "temperature": 0}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
FLAT_TOOL = {"type": "function", **WEATHER["function"]}
CLAUDE_TOOL = {"name": "get_weather", "description": "Of a city", "input_schema": WEATHER["function"]["parameters"]}
PARTS = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
SAMPLING = {"max_tokens": 3, "temperature": 0}

# A body that works for each route, and the weight of the route.
BASES = [
    (30, "/v1/chat/completions", {"messages": HELLO, **BOUND}),
    (24, "/v1/completions", {"prompt": "A router sends", **BOUND}),
    (16, "/v1/responses", {"input": "Say something.", "max_output_tokens": 4, "temperature": 0}),
    (12, "/v1/messages", {"model": THE_MODEL, "messages": HELLO, **BOUND}),
    (4, "/v1/messages/count_tokens", {"model": THE_MODEL, "messages": HELLO}),
    (4, "/tokenize", {"prompt": "Hello world"}),
    (3, "/tokenize", {"messages": HELLO}),
    (2, "/detokenize", {"tokens": [20, 21, 22]}),
    (4, "/inference/v1/generate", {"token_ids": [20, 21, 22], "sampling_params": SAMPLING}),
    (3, "/v1/chat/completions/render", {"messages": HELLO, **BOUND}),
    (3, "/v1/completions/render", {"prompt": "Hello", **BOUND}),
    (2, "/v1/chat/completions/batch", {"messages": [HELLO, HELLO], **BOUND}),
    (2, "/generative_scoring", {"query": "Is it so?", "items": ["yes", "no"], "label_token_ids": [20, 21]}),
    (1, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}),
    (1, "/v1/unload_lora_adapter", {"lora_name": "a"}),
]

FITTING = {
    "messages": [
        HELLO,
        [{"role": "system", "content": "Be brief."}, *HELLO],
        [{"role": "developer", "content": "Be brief."}, *HELLO],
        [*HELLO, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And?"}],
        [{"role": "user", "content": PARTS}],
        [{"role": "user", "content": "Hi", "name": "Ann"}],
        [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}],
        [*HELLO, {"role": "assistant", "content": "", "reasoning": "I think", "tool_calls": []}],
        [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "refusal", "refusal": "B"}]}],
        [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": "not json"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}],
        [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {"c": 1}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "sunny"}]}],
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Hi"}]}, *HELLO],
        [],
        [{}],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "robot", "content": "x"}],
        [{"role": "tool", "content": "x"}],
        [{"role": "assistant", "content": "The last"}],
    ],
    "input": [
        "Hello",
        [{"role": "user", "content": "Hello"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        [{"role": "user", "content": "Hi"}, {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "sunny"}],
        [{"role": "user", "content": "Hi"}, {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}],
        [{"role": "user", "content": "Hi"}, {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Ho", "annotations": []}]}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1:1/a.png", "detail": "auto"}]}],
        [{"type": "nothing"}],
        [{}],
        [],
        "",
    ],
    "prompt": ["Hello", "", ["One", "Two words"], [20, 21, 22], [[20, 21], [30, 31]], [], [""], [[]], [20, 999999], [-1], [1.5], [True], "a" * 3000, {"id": "p"}],
    "tools": [[WEATHER], [WEATHER, CLOCK], [FLAT_TOOL], [CLAUDE_TOOL], [], [{}], [{"type": "function"}], [{"type": "function", "function": {"name": "a"}}], [{"type": "web_search_preview"}], [{"name": "a"}], [{"type": "function", "function": {"name": "a", "parameters": {"type": 5}}}]],
    "tool_choice": ["none", "auto", "required", {"type": "function", "function": {"name": "get_weather"}}, {"type": "function", "name": "get_weather"}, {"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "get_weather"}, {"type": "tool", "name": "nobody"}, {"type": "function", "function": {}}, {"type": "function"}],
    "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, {"type": "json_schema", "json_schema": {"name": "a"}}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, {"type": "structural_tag", "structures": [], "triggers": []}, {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}, {}],
    "structured_outputs": [{"choice": ["red", "green"]}, {"choice": []}, {"regex": "[ab]{3}"}, {"regex": "("}, {"json": SCHEMA}, {"json": "{"}, {"json_object": True}, {"grammar": 'root ::= "a"'}, {"grammar": "?"}, {"regex": "a", "json_object": True}, {}, {"choice": ["a"], "whitespace_pattern": " "}, {"structural_tag": "{}"}, {"regex": "a", "disable_any_whitespace": True}],
    "text": [{"format": {"type": "text"}}, {"format": {"type": "json_schema", "name": "p", "schema": SCHEMA}}, {"format": {"type": "json_object"}}, {"verbosity": "low"}, {"format": {"type": "json_schema"}}, {}],
    "reasoning": [{"effort": "low"}, {"effort": "none"}, {"effort": "extreme"}, {"summary": "auto"}, {}],
    "include": [["message.output_text.logprobs"], ["reasoning.encrypted_content"], ["nothing"], []],
    "stream_options": [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}, {"include_usage": False, "continuous_usage_stats": True}, {}, {"include_usage": "x"}, {"include_obfuscation": False}],
    "stop": ["e", ["e", "a"], [""], "", [], ["e", None], ["zzz"] * 5],
    "stop_sequences": [["e"], [], [""], ["zzz", "e"]],
    "logit_bias": [{"20": 5}, {"20": -100}, {"20": 101}, {"999999": 1}, {"-1": 1}, {"x": 1}, {"20": "x"}, {}],
    "allowed_token_ids": [[20, 21, 22], [], [999999], [-1]],
    "logprob_token_ids": [[20, 21], [], [999999], [-1], [20] * 200],
    "stop_token_ids": [[20], [], list(range(300)), [-1], [999999]],
    "bad_words": [["the"], [], [""], ["e", "a"]],
    "prompt_embeds": ["AAAA", ["AAAA"], "", []],
    "chat_template": ["{{ messages }}", "{{", "", "{% for m in messages %}{{ m.content }}{% endfor %}"],
    "chat_template_kwargs": [{}, {"a": 1}, {"chat_template": "x"}, {"tokenize": True}, {"enable_thinking": False}, {"add_generation_prompt": False}],
    "thinking": [{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled"}, {"type": "x"}],
    "system": ["Be brief.", [{"type": "text", "text": "Be brief."}], [], [{"type": "image"}], ""],
    "output_config": [{"effort": "low"}, {"format": {"type": "json_schema", "schema": SCHEMA}}, {}, {"effort": "x"}],
    "sampling_params": [SAMPLING, {**SAMPLING, "logprobs": 2}, {**SAMPLING, "n": 2}, {**SAMPLING, "stop": ["e"]}, {**SAMPLING, "prompt_logprobs": 1}, {**SAMPLING, "temperature": -1}, {**SAMPLING, "detokenize": False}, {**SAMPLING, "max_tokens": 0}, {**SAMPLING, "nothing": 1}, {**SAMPLING, "stop_token_ids": [20]}, {**SAMPLING, "output_kind": 2}, {**SAMPLING, "min_tokens": 9}],
    "token_ids": [[20, 21], [], [999999], [-1], ["a"], [20] * 600],
    "tokens": [[20, 21], [], [999999], [-1], ["a"], [0, 1, 2, 3]],
    "model": [THE_MODEL, "other", None, ""],
    "metadata": [{"a": "b"}, {"a": 1}, {}, {"user_id": "me"}],
    "kv_transfer_params": [{}, {"do_remote_decode": True}],
    "repetition_detection": [{"max_pattern_size": 3, "min_count": 2}, {}, {"max_pattern_size": -1, "min_count": 2}, {"max_pattern_size": 3, "min_count": 2, "min_pattern_size": 5}],
    "documents": [[{"title": "a", "text": "b"}], [], [{"a": 1}]],
    "max_tokens": [1, 2, 6, 0, -1, 600],
    "max_completion_tokens": [1, 5, 0, 600],
    "max_output_tokens": [1, 5, 0, 600],
    "min_tokens": [0, 2, 9, -1],
    "n": [1, 2, 0, -1, 100000],
    "logprobs": [True, False, 0, 2, 21, -1, -2],
    "top_logprobs": [0, 2, 20, 21, -1, -2],
    "prompt_logprobs": [0, 1, 21, -1, -2],
    "seed": [0, 1, -1, (1 << 63) - 1, 1 << 63],
    "query": ["Is it?", [20, 21], ""],
    "items": [["yes", "no"], [[20], [21]], [], [""]],
    "label_token_ids": [[20, 21], [20], [], [999999], [-1]],
    "cache_salt": ["abc", "", "s" * 300],
    "previous_response_id": ["resp_nobody", "nobody", ""],
    "stream": [True, True, True, False],
}
# Their lengths would take long, or they change what later requests see.
LEFT_OUT = {"ignore_eos", "background"}
HEADERS = [{"X-Request-Id": "mine"}, {"X-Request-Id": ""}, {"X-data-parallel-rank": "0"}, {"X-data-parallel-rank": "9"}, {"X-data-parallel-rank": "x"}, {"Accept": "text/plain"}, {"content-type": "text/plain"}, {"content-type": "application/json; charset=latin-1"}, {"content-type": ""}, {"X-Session-ID": "s"}, {"Authorization": "Bearer x"}]
BROKEN = ['{"a": ', "", "[]", "null", "5", '"x"', "{}", '{"messages": NaN}', '{"max_tokens": 1e999, "prompt": "a"}', '{"prompt": "a", "prompt": "b", "max_tokens": 2, "temperature": 0}', "{'a': 1}", '{"prompt": "\\ud800", "max_tokens": 2}', "\ufeff{}", "[" * 2000]
METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]


class Generator:
    """Draws requests from a seed."""

    def __init__(self, document, seed):
        self.document = document
        self.schemas = document["components"]["schemas"]
        self.random = random.Random(seed)

    def requests(self, count):
        """As many cases: name, method, path, body and headers."""
        weights = [weight for weight, *_ in BASES]
        for number in range(count):
            _, path, base = self.random.choices(BASES, weights)[0]
            kind = self.random.random()
            if kind < 0.03:
                body = self.random.choice(BROKEN)
                yield f"#{number} {path}: text {body[:40]!r}", "POST", path, body, {"content-type": "application/json"}
            elif kind < 0.05:
                method, path = self.random.choice(METHODS), self.random.choice(list(self.document["paths"]))
                path = path.replace("{", "").replace("}", "")
                yield f"#{number} {path}: method {method}", method, path, None, {}
            elif kind < 0.08:
                headers = self.random.choice(HEADERS)
                yield f"#{number} {path}: headers {headers}", "POST", path, base, headers
            else:
                body, changed = self.body(path, base)
                yield f"#{number} {path}: {changed}", "POST", path, body, {}

    def body(self, path, base):
        """A body with one to three changed fields, and words for the changes."""
        fields = self.fields(path, base)
        body, changed = dict(base), []
        for _ in range(self.random.choice([1, 1, 2, 2, 3])):
            name = self.random.choice(list(fields))
            if self.random.random() < 0.05:
                name = "nonsense"
            if self.random.random() < 0.03 and name in body:
                del body[name]
                changed.append(f"without {name}")
                continue
            body[name] = self.value(name, fields.get(name, {}))
            changed.append(f"{name}={json.dumps(body[name])[:100]}")
        # Other lengths of replies are another question.
        for bound in BOUND.keys() & base.keys():
            if body.get(bound, 0) is None:
                body[bound] = base[bound]
        if self.random.random() < 0.25 and "stream" in fields and "stream" not in body:
            body["stream"] = True
            changed.append("stream=true")
        return body, ", ".join(changed)

    def fields(self, path, base):
        """Properties of the schema of a route's body that has the fields of `base`."""
        operation = self.document["paths"].get(path, {}).get("post", {})
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        for option in schema.get("anyOf", [schema]):
            properties = self.resolve(option).get("properties", {})
            if base.keys() <= properties.keys():
                return {name: inner for name, inner in properties.items() if name not in LEFT_OUT}
        return {name: {} for name in base}

    def resolve(self, schema):
        while "$ref" in schema:
            schema = self.schemas[schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def value(self, name, schema):
        """A value for a field: mostly one that fits."""
        if self.random.random() < 0.3:
            return self.random.choice(ODD)
        if name in FITTING:
            return self.random.choice(FITTING[name])
        return self.of(self.resolve(schema), 0)

    def of(self, schema, depth):
        """A value of a schema, sometimes just beyond its bounds."""
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice([*schema["enum"], "other"])
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.of(self.resolve(self.random.choice(schema[several])), depth)
        kind = schema.get("type")
        if kind == "object":
            return self.object(schema, depth)
        if kind == "array":
            inner = self.resolve(schema.get("items", {}))
            return [self.of(inner, depth + 1) for _ in range(self.random.choice([0, 1, 1, 2]))] if depth < 4 else []
        low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum", schema.get("exclusiveMaximum"))
        bounds = [edge + step for edge in (low, high) if edge is not None for step in (-1, 0, 1)]
        if kind == "integer":
            return self.random.choice([0, 1, 2, 3, *bounds])
        if kind == "number":
            return self.random.choice([0, 0.5, 1, 2, -1, *bounds])
        if kind == "string":
            return self.random.choice(TEXTS)
        return {"boolean": self.random.random() < 0.5, "null": None}.get(kind, self.random.choice(ODD))

    def object(self, schema, depth):
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not properties:
            return self.random.choice([{}, {"a": 1}, {"a": "b"}])
        chosen = {name for name in properties if name in required or self.random.random() < 0.3}
        if self.random.random() < 0.1 and chosen:
            chosen.remove(self.random.choice(sorted(chosen)))
        return {name: self.of(self.resolve(properties[name]), depth + 1) for name in properties if name in chosen and depth < 4}
