"""What `llmd_differential.py` sends, and to servers with which arguments.

A request is (name, method, path, body, headers): the body a value that is sent as JSON, bytes that are
sent as they are, or None.
"""

import json

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, GENERATE, EMBED = "/v1/messages", "/inference/v1/generate", "/v1/embeddings"
PNG = "data:image/png;base64,iVBORw0KGgo="
WAV = {"data": "UklGRg==", "format": "wav"}
SAID = "This is a test, number 12."


def merged(base, more):
    """A body with fields besides; `...` takes one away."""
    body = {**base, **more}
    return {key: value for key, value in body.items() if value is not ...}


def chat(**more):
    return merged({"model": "m", "messages": [{"role": "user", "content": SAID}]}, more)


def text(**more):
    return merged({"model": "m", "prompt": SAID}, more)


def response(**more):
    return merged({"model": "m", "input": SAID}, more)


def message(**more):
    return merged({"model": "m", "max_tokens": 30, "messages": [{"role": "user", "content": SAID}]}, more)


def generate(params=None, **more):
    params = {"max_tokens": 30} if params is None else params
    return merged({"model": "m", "token_ids": [1, 2, 3, 4, 5], "sampling_params": params}, more)


def tool(name="weather", required=("city", "days"), **properties):
    properties = properties or {"city": {"type": "string"}, "days": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}


def flat(name="weather"):
    return {"type": "function", **tool(name)["function"]}


def use(name="weather"):
    function = tool(name)["function"]
    return {"name": name, "description": "d", "input_schema": function["parameters"]}


NAMED = {"type": "function", "function": {"name": "weather"}}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
IMAGE = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PNG}}]
AUDIO = [{"type": "text", "text": "hear"}, {"type": "input_audio", "input_audio": WAV}]
VIDEO = [{"type": "text", "text": "see"}, {"type": "video_url", "video_url": {"url": "http://h/v.mp4"}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}


def said(content, role="user", **more):
    return {"messages": [{"role": role, "content": content, **more}]}


ODD_CHATS = {
    "no model": {"model": ...}, "empty model": {"model": ""}, "unknown model": {"model": "x"}, "null model": {"model": None},
    "number as model": {"model": 3}, "no content": said(None), "no role": {"messages": [{"content": "x"}]},
    "empty content": said(""), "empty blocks": said([]), "number as content": said(3), "unknown block": said([{"type": "zzz"}]),
    "text blocks": said([{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]),
    "image": said(IMAGE), "audio": said(AUDIO), "video": said(VIDEO), "two images": said(IMAGE + IMAGE),
    "system": {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u v"}]},
    "assistant's call": said(None, "assistant", tool_calls=[CALL]),
    "assistant's call and text": said("t", "assistant", tool_calls=[CALL]),
    "tool result": {"messages": [{"role": "tool", "content": "42", "tool_call_id": "c1"}]},
    "odd role": said("x", "alien"), "messages as text": {"messages": "x"},
    "max_tokens 0": {"max_tokens": 0}, "max_tokens -1": {"max_tokens": -1}, "max_tokens 1": {"max_tokens": 1},
    "max_tokens as text": {"max_tokens": "5"}, "max_tokens 2.0": {"max_tokens": 2.0}, "max_tokens 2.5": {"max_tokens": 2.5},
    "max_tokens 10": {"max_tokens": 10}, "both limits": {"max_tokens": 3, "max_completion_tokens": 7},
    "max_completion_tokens": {"max_completion_tokens": 4}, "max_tokens beyond": {"max_tokens": 5000},
    "n 0": {"n": 0}, "n -1": {"n": -1}, "n 2": {"n": 2}, "n as text": {"n": "2"}, "n 1.5": {"n": 1.5}, "n null": {"n": None},
    "n 2 streamed": {"n": 2, **USAGE}, "ignore_eos bare": {"ignore_eos": True}, "ignore_eos": {"ignore_eos": True, "max_tokens": 9},
    "ignore_eos as text": {"ignore_eos": "yes"}, "stream as text": {"stream": "yes"}, "stream 1": {"stream": 1},
    "stream": {"stream": True}, "stream with usage": USAGE, "stream_options bare": {"stream_options": {"include_usage": True}},
    "stream without usage": {"stream": True, "stream_options": {"include_usage": False}},
    "continuous usage": {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    "logprobs": {"logprobs": True}, "logprobs 0": {"logprobs": True, "top_logprobs": 0},
    "logprobs 3": {"logprobs": True, "top_logprobs": 3}, "logprobs 30": {"logprobs": True, "top_logprobs": 30},
    "top_logprobs bare": {"top_logprobs": 3}, "top_logprobs -1": {"logprobs": True, "top_logprobs": -1},
    "logprobs streamed": {"logprobs": True, "top_logprobs": 2, "stream": True}, "logprobs as text": {"logprobs": "x"},
    "temperature 9": {"temperature": 9}, "temperature as text": {"temperature": "hot"}, "top_p 9": {"top_p": 9},
    "top_k x": {"top_k": "x"}, "stop number": {"stop": 3}, "stop": {"stop": ["test"]}, "seed as text": {"seed": "x"},
    "min_tokens beyond": {"min_tokens": 9, "max_tokens": 3}, "penalties": {"presence_penalty": 9, "frequency_penalty": -9},
    "odd format": {"response_format": {"type": "yaml"}}, "json format": {"response_format": {"type": "json_object"}},
    "unknown field": {"zzz": 1}, "user number": {"user": 3}, "extra_body": {"extra_body": {"a": 1}},
    "structured outputs": {"structured_outputs": {"choice": ["a", "b"]}},
    "reasoning": {"reasoning_effort": "high", "include_reasoning": True},
    "threshold 0.5": {"cache_hit_threshold": 0.5}, "threshold 7": {"cache_hit_threshold": 7},
    "prefill": {"kv_transfer_params": {"do_remote_decode": True}},
    "prefill streamed": {"kv_transfer_params": {"do_remote_decode": True}, "stream": True},
    "decode": {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": ["a"]}},
    "transfer as text": {"kv_transfer_params": "x"}, "transfer null": {"kv_transfer_params": None},
    "long": said("word " * 2000), "unicode": said("grüße 你好 x"), "newlines": said("a\n\nb\tc  d "),
    "tools none": {"tools": [tool()], "tool_choice": "none"}, "tools empty": {"tools": []}, "choice without tools": {"tool_choice": "auto"},
    "required without tools": {"tool_choice": "required"}, "named without tools": {"tool_choice": NAMED},
    "tools required": {"tools": [tool()], "tool_choice": "required"}, "tools named": {"tools": [tool()], "tool_choice": NAMED},
    "tools named streamed": {"tools": [tool()], "tool_choice": NAMED, **USAGE},
    "tools required streamed": {"tools": [tool()], "tool_choice": "required", "stream": True},
    "tools named, 1 token": {"tools": [tool()], "tool_choice": NAMED, "max_tokens": 1},
    "tools required, 1 token": {"tools": [tool()], "tool_choice": "required", "max_tokens": 1},
    "tools named, 1 token streamed": {"tools": [tool()], "tool_choice": NAMED, "max_tokens": 1, "stream": True},
    "tools unknown name": {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
    "tools unknown word": {"tools": [tool(), tool("b")], "tool_choice": "zzz"},
    "tools odd choice": {"tools": [tool()], "tool_choice": {"type": "zzz"}}, "tools number choice": {"tools": [tool()], "tool_choice": 3},
    "tools flat choice": {"tools": [tool()], "tool_choice": {"type": "function", "name": "weather"}},
    "tools nameless choice": {"tools": [tool()], "tool_choice": {"type": "function"}},
    "tools null choice": {"tools": [tool()], "tool_choice": None},
    "tools n 2": {"tools": [tool()], "tool_choice": NAMED, "n": 2}, "tools logprobs": {"tools": [tool()], "tool_choice": NAMED, "logprobs": True},
    "tools no properties": {"tools": [{"type": "function", "function": {"name": "weather"}}], "tool_choice": NAMED},
    "tools no name": {"tools": [{"type": "function", "function": {}}], "tool_choice": "required"},
    "tools odd type": {"tools": [tool(x={"type": "zzz"})], "tool_choice": "required"},
    "tools custom": {"tools": [{"type": "custom", "custom": {"name": "weather"}}], "tool_choice": "none"},
    "tools all types": {"tools": [tool(required=("a", "b", "c", "d", "e", "o"), a={"type": "string"}, b={"type": "integer"},
        c={"type": "number"}, d={"type": "boolean"}, e={"type": "array", "items": {"type": "string"}},
        o={"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]})], "tool_choice": NAMED},
    "tools enum": {"tools": [tool(required=("city",), city={"type": "string", "enum": ["Rome"]})], "tool_choice": NAMED},
    "tools parallel": {"tools": [tool()], "tool_choice": "required", "parallel_tool_calls": False},
    "tools as object": {"tools": {}}, "tools null": {"tools": None},
}
ODD_TEXTS = {
    "no prompt": {"prompt": ...}, "null prompt": {"prompt": None}, "empty prompt": {"prompt": ""}, "no prompts": {"prompt": []},
    "two prompts": {"prompt": ["a b", "c d e"]}, "two prompts, n 2": {"prompt": ["a", "b c"], "n": 2}, "an empty one": {"prompt": ["a", ""]},
    "ids": {"prompt": [5, 6, 7]}, "lists of ids": {"prompt": [[5, 6], [7]]}, "an empty list": {"prompt": [[5], []]},
    "mixed": {"prompt": ["a", 5]}, "negative id": {"prompt": [-5]}, "large id": {"prompt": [4000000000]}, "half id": {"prompt": [1.5]},
    "number": {"prompt": 5}, "object": {"prompt": {}}, "ids streamed": {"prompt": [5, 6, 7], "stream": True},
    "prompts streamed": {"prompt": ["a b", "c"], **USAGE}, "max_tokens 0": {"max_tokens": 0}, "max_tokens 2": {"max_tokens": 2},
    "max_tokens beyond": {"max_tokens": 5000}, "n 2": {"n": 2}, "n 0": {"n": 0}, "stream": {"stream": True}, "stream with usage": USAGE,
    "logprobs": {"logprobs": 2}, "logprobs 0": {"logprobs": 0}, "logprobs 30": {"logprobs": 30}, "logprobs -1": {"logprobs": -1},
    "logprobs true": {"logprobs": True}, "logprobs streamed": {"logprobs": 2, "stream": True}, "echo": {"echo": True}, "echo 0": {"echo": True, "max_tokens": 0},
    "suffix": {"suffix": "x"}, "best_of": {"best_of": 3}, "stop": {"stop": "test"}, "temperature -1": {"temperature": -1},
    "beam": {"use_beam_search": True, "n": 2}, "ignore_eos bare": {"ignore_eos": True}, "ignore_eos": {"ignore_eos": True, "max_tokens": 9},
    "model unknown": {"model": "x"}, "no model": {"model": ...}, "long": {"prompt": "word " * 2000}, "unicode": {"prompt": "你好"},
    "prefill": {"kv_transfer_params": {"do_remote_decode": True}}, "threshold": {"cache_hit_threshold": 0.9},
    "prompt_logprobs": {"prompt_logprobs": 1}, "embeds": {"prompt": ..., "prompt_embeds": "AAAA"}, "truncate": {"truncate_prompt_tokens": 2},
}
ODD_RESPONSES = {
    "plain": {}, "stream": {"stream": True}, "no input": {"input": ...}, "null input": {"input": None}, "empty input": {"input": ""},
    "no items": {"input": []}, "number": {"input": 3}, "message": {"input": [{"role": "user", "content": "a b"}]},
    "typed message": {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a b"}]}]},
    "untyped part": {"input": [{"role": "user", "content": [{"text": "a b"}]}]}, "plain part": {"input": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    "image": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PNG}]}]},
    "audio": {"input": [{"role": "user", "content": [{"type": "input_audio", "data": "UklGRg==", "format": "wav"}]}]},
    "image and text": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PNG}]}]},
    "output text": {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]}, "reasoning item": {"input": [{"type": "reasoning"}]},
    "call": {"input": [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}]},
    "result": {"tools": [flat()], "input": [{"type": "function_call_output", "call_id": "c", "output": "42"}]},
    "instructions": {"instructions": "be kind"}, "instructions streamed": {"instructions": "be kind", "stream": True},
    "max 1": {"max_output_tokens": 1}, "max 0": {"max_output_tokens": 0}, "max beyond": {"max_output_tokens": 5000}, "max 3 streamed": {"max_output_tokens": 3, "stream": True},
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2}, "logprobs bare": {"include": ["message.output_text.logprobs"]},
    "logprobs streamed": {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "stream": True}, "top_logprobs bare": {"top_logprobs": 2},
    "tools": {"tools": [flat()]}, "tools streamed": {"tools": [flat()], "stream": True}, "tools required": {"tools": [flat()], "tool_choice": "required"},
    "tools none": {"tools": [flat()], "tool_choice": "none"}, "tools nested": {"tools": [tool()]}, "tools two": {"tools": [flat(), flat("b")]},
    "tools named": {"tools": [flat()], "tool_choice": {"type": "function", "name": "weather"}}, "tools max 1": {"tools": [flat()], "max_output_tokens": 1},
    "tools nameless": {"tools": [{"type": "function"}]}, "tools custom": {"tools": [{"type": "custom", "name": "x"}]}, "tools unknown": {"tools": [flat()], "tool_choice": {"type": "function", "name": "x"}},
    "tools untyped": {"tools": [{"name": "weather", "parameters": {"type": "object", "properties": {}}}]}, "allowed tools": {"tools": [flat()], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
    "model unknown": {"model": "x"}, "no model": {"model": ...}, "store": {"store": True, "metadata": {"a": "b"}}, "background": {"background": True},
    "previous": {"previous_response_id": "resp_x"}, "format": {"text": {"format": {"type": "json_object"}}}, "temperature 9": {"temperature": 9}, "truncation": {"truncation": "zzz"},
    "include odd": {"include": ["zzz"]}, "long": {"input": "word " * 2000}, "reasoning": {"reasoning": {"effort": "low"}}, "service tier": {"service_tier": "zzz"},
}
ODD_MESSAGES = {
    "plain": {}, "stream": {"stream": True}, "no max": {"max_tokens": ...}, "max 0": {"max_tokens": 0}, "max 1": {"max_tokens": 1}, "max 1 streamed": {"max_tokens": 1, "stream": True},
    "no messages": {"messages": []}, "absent messages": {"messages": ...}, "system": {"system": "be kind"}, "system blocks": {"system": [{"type": "text", "text": "x"}]},
    "blocks": said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "image": said([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}]),
    "image url": said([{"type": "text", "text": "x"}, {"type": "image", "source": {"type": "url", "url": "http://h/i.png"}}]), "image bare": said([{"type": "image"}]),
    "tool use": said([{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}], "assistant"), "tool result": said([{"type": "tool_result", "tool_use_id": "t", "content": "42"}]),
    "result blocks": said([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "42"}]}]), "thinking": said([{"type": "thinking", "thinking": "h", "signature": "s"}], "assistant"),
    "unknown block": said([{"type": "zzz"}]), "tools any": {"tools": [use()], "tool_choice": {"type": "any"}}, "tools any streamed": {"tools": [use()], "tool_choice": {"type": "any"}, "stream": True},
    "tools tool": {"tools": [use()], "tool_choice": {"type": "tool", "name": "weather"}}, "tools nameless": {"tools": [use()], "tool_choice": {"type": "tool"}}, "tools none": {"tools": [use()], "tool_choice": {"type": "none"}},
    "tools unknown": {"tools": [use()], "tool_choice": {"type": "tool", "name": "x"}}, "tools max 1": {"tools": [use()], "tool_choice": {"type": "any"}, "max_tokens": 1}, "tools odd": {"tools": [use()], "tool_choice": {"type": "zzz"}},
    "model unknown": {"model": "x"}, "no model": {"model": ...}, "temperature 9": {"temperature": 9}, "stop": {"stop_sequences": ["test"]}, "long": said("word " * 2000), "metadata": {"metadata": {"user_id": "u"}},
    "thinking on": {"thinking": {"type": "enabled", "budget_tokens": 5}}, "empty text": said(""), "odd role": said("x", "alien"), "max as text": {"max_tokens": "3"},
}
ODD_GENERATES = {
    "plain": generate(), "no ids": generate(token_ids=...), "empty ids": generate(token_ids=[]), "null ids": generate(token_ids=None), "no params": generate(sampling_params=...),
    "null params": generate(sampling_params=None), "no max": generate({}), "max 2": generate({"max_tokens": 2}), "max 0": generate({"max_tokens": 0}), "max beyond": generate({"max_tokens": 5000}),
    "stream": generate(stream=True), "stream with usage": generate(**USAGE), "text ids": generate(token_ids="x"), "negative id": generate(token_ids=[-1]), "large id": generate(token_ids=[4000000000]),
    "no model": generate(model=...), "unknown model": generate(model="x"), "n inside": generate({"max_tokens": 3, "n": 2}), "n": generate(n=2), "logprobs": generate({"max_tokens": 3, "logprobs": 2}),
    "logprobs 30": generate({"max_tokens": 3, "logprobs": 30}), "temperature -1": generate({"max_tokens": 3, "temperature": -1}), "ignore_eos": generate(ignore_eos=True), "ignore_eos bare": generate({}, ignore_eos=True),
    "prefill": generate(kv_transfer_params={"do_remote_decode": True}), "prefill inside": generate({"max_tokens": 3, "extra_args": {"kv_transfer_params": {"do_remote_decode": True}}}),
    "prefill streamed": generate(kv_transfer_params={"do_remote_decode": True}, stream=True), "features": generate(features={"mm_hashes": {"image": ["h1"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 2}]}}),
    "features bare": generate(features={"mm_hashes": {"image": ["h1"]}}), "audio features": generate(features={"mm_hashes": {"audio": ["a1"]}}), "request id": generate(request_id="mine"), "priority": generate(priority=3), "salt": generate(cache_salt="x"),
}
EMBEDDINGS = {
    "text": {"input": "a b c"}, "texts": {"input": ["a", "b c"]}, "ids": {"input": [1, 2, 3]}, "lists": {"input": [[1, 2], [3]]}, "none": {}, "empty": {"input": ""}, "no inputs": {"input": []}, "an empty one": {"input": ["a", ""]},
    "null": {"input": None}, "mixed": {"input": ["a", 1]}, "empty list": {"input": [[]]}, "negative": {"input": [-3]}, "dimensions 4": {"input": "a", "dimensions": 4}, "dimensions 0": {"input": "a", "dimensions": 0}, "dimensions x": {"input": "a", "dimensions": "x"},
    "base64": {"input": "a b", "dimensions": 4, "encoding_format": "base64"}, "odd format": {"input": "a", "dimensions": 4, "encoding_format": "zzz"}, "model": {"input": "a", "model": "m", "dimensions": 2}, "unknown model": {"input": "a", "model": "x", "dimensions": 2}, "number": {"input": 3}, "user": {"input": "a", "user": 3},
}
TOKENIZES = {
    "prompt": {"model": "m", "prompt": SAID}, "messages": {"model": "m", "messages": [{"role": "user", "content": "a b"}]}, "both": {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "none": {"model": "m"}, "empty": {"prompt": ""},
    "unknown model": {"model": "x", "prompt": "a b"}, "no model": {"prompt": "a b"}, "strings": {"prompt": "a b", "return_token_strs": True}, "number": {"prompt": 3}, "special": {"prompt": "a", "add_special_tokens": False},
    "image": {"messages": [{"role": "user", "content": IMAGE}]}, "call": {"messages": [{"role": "assistant", "content": "t", "tool_calls": [CALL]}]}, "result": {"messages": [{"role": "tool", "content": "4", "tool_call_id": "c1"}]}, "no messages": {"messages": []}, "unicode": {"prompt": "grüße 你好"},
    "spaces": {"prompt": "  a   b\n\nc "}, "signs": {"prompt": "a+b=c; (d) \"e\" 'f' `g` |h| ~ é"},
}


def posts(prefix, path, bodies, base=None):
    return [(f"{prefix}: {name}", "POST", path, base(**more) if base else more, {}) for name, more in bodies.items()]


def generations():
    """Everything about the routes that generate, and those beside them."""
    yield from posts("chat", CHAT, ODD_CHATS, chat)
    yield from posts("text", TEXT, ODD_TEXTS, text)
    yield from posts("responses", RESPONSES, ODD_RESPONSES, response)
    yield from posts("messages", MESSAGES, ODD_MESSAGES, message)
    yield from posts("generate", GENERATE, ODD_GENERATES)
    yield from posts("embeddings", EMBED, EMBEDDINGS)
    yield from posts("tokenize", "/tokenize", TOKENIZES)
    renders = ("no model", "unknown model", "image", "audio", "video", "two images", "no content", "system", "long", "tool result", "assistant's call", "messages as text", "n 0")
    yield from posts("render", CHAT + "/render", {name: ODD_CHATS[name] for name in renders}, chat)
    yield ("render: plain", "POST", CHAT + "/render", chat(), {})
    yield ("render: no messages", "POST", CHAT + "/render", chat(messages=[]), {})
    renders = ("two prompts", "ids", "lists of ids", "no prompt", "empty prompt", "mixed", "unicode", "long", "no model")
    yield from posts("render text", TEXT + "/render", {name: ODD_TEXTS[name] for name in renders}, text)


def heads():
    """Routes, methods, headers and bodies that are none."""
    for path in ("/health", "/health/ready", "/v1/models", "/query", "/is_sleeping", "/admin/config"):
        yield (f"GET {path}", "GET", path, None, {})
    for method, path in (
        ("GET", CHAT), ("PUT", CHAT), ("DELETE", CHAT), ("PATCH", CHAT), ("OPTIONS", CHAT), ("HEAD", "/health"), ("POST", "/health"), ("POST", "/v1/models"), ("OPTIONS", "/v1/models"), ("OPTIONS", "/health"), ("OPTIONS", "/nope"), ("OPTIONS", "/admin/config"),
        ("GET", "/nope"), ("POST", "/nope"), ("GET", "/"), ("GET", "//v1//models"), ("GET", "/v1/models/"), ("GET", "/V1/models"), ("GET", "/v1/./models"), ("GET", "/v1/../v1/models"), ("GET", "/v1/models?x=1"), ("GET", "/v1%2Fmodels"), ("GET", "/metrics/"), ("GET", "/ready"), ("GET", "/v1/models/m"),
        ("POST", "/sleep"), ("POST", "/sleep?level=2"), ("POST", "/wake_up"), ("POST", "/wake_up?tags=zzz"), ("GET", "/sleep"),
    ):
        yield (f"{method} {path}", method, path, None, {})
    yield ("POST double slash", "POST", "//v1/chat/completions", chat(), {})
    yield ("POST trailing slash", "POST", CHAT + "/", chat(), {})
    whole = json.dumps(chat()).encode()
    for name, headers in {
        "no type": {"Content-Type": None}, "form": {"Content-Type": "application/x-www-form-urlencoded"}, "text": {"Content-Type": "text/plain"}, "charset": {"Content-Type": "application/json; charset=utf-8"},
        "accept": {"Accept": "text/html"}, "gzip asked": {"Accept-Encoding": "gzip"}, "key": {"Authorization": "Bearer x"}, "id": {"X-Request-Id": "mine"}, "empty id": {"X-Request-Id": ""}, "long id": {"X-Request-Id": "x" * 300},
        "rank 0": {"X-data-parallel-rank": "0"}, "rank 7": {"X-data-parallel-rank": "7"}, "rank x": {"X-data-parallel-rank": "x"}, "rank -1": {"X-data-parallel-rank": "-1"},
        "error 500": {"X-Return-Error": "500"}, "error 429": {"X-Return-Error": "429"}, "error empty": {"X-Return-Error": ""}, "error x": {"X-Return-Error": "x"}, "error 404": {"X-Return-Error": "404"}, "error 200": {"X-Return-Error": "200"},
        "error 599": {"X-Return-Error": "599"}, "error 1.5": {"X-Return-Error": "1.5"}, "error 418": {"X-Return-Error": "418"}, "error +400": {"X-Return-Error": "+400"}, "threshold true": {"X-Cache-Threshold-Finish-Reason": "true"},
        "threshold 1": {"X-Cache-Threshold-Finish-Reason": "1"}, "threshold zzz": {"X-Cache-Threshold-Finish-Reason": "zzz"}, "threshold T": {"X-Cache-Threshold-Finish-Reason": "T"}, "image": {"X-Send-Image": "true"}, "origin": {"Origin": "http://o"},
    }.items():
        yield (f"head: {name}", "POST", CHAT, whole, headers)
    for path, body in ((CHAT, chat(stream=True)), (TEXT, text()), (TEXT, text(stream=True)), (RESPONSES, response()), (RESPONSES, response(stream=True)), (MESSAGES, message()), (MESSAGES, message(stream=True)), (GENERATE, generate()), (GENERATE, generate(stream=True))):
        streamed = " streamed" if body.get("stream") else ""
        yield (f"threshold: {path}{streamed}", "POST", path, body, {"X-Cache-Threshold-Finish-Reason": "true"})
        yield (f"error: {path}{streamed}", "POST", path, body, {"X-Return-Error": "503"})
    for path in (CHAT, TEXT, RESPONSES, MESSAGES, GENERATE, EMBED, "/tokenize", CHAT + "/render", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        for name, body in {"empty": b"", "half": b'{"a": ', "list": b"[]", "null": b"null", "text": b'"x"', "number": b"3", "object": b"{}", "twice": b'{"model": "x", "model": "m"}', "nan": b'{"model": "m", "x": NaN}', "tail": b'{"model": "m"} x'}.items():
            yield (f"body {name}: {path}", "POST", path, body, {})


LORAS = [
    ("load", "POST", "/v1/load_lora_adapter", {"lora_name": "extra", "lora_path": "/p"}, {}), ("load again", "POST", "/v1/load_lora_adapter", {"lora_name": "extra", "lora_path": "/p"}, {}),
    ("load bare", "POST", "/v1/load_lora_adapter", {"lora_name": "bare"}, {}), ("models with it", "GET", "/v1/models", None, {}), ("chat with it", "POST", CHAT, chat(model="extra"), {}),
    ("chat streamed with it", "POST", CHAT, chat(model="extra", stream=True), {}), ("text with it", "POST", TEXT, text(model="extra"), {}), ("too long with it", "POST", CHAT, chat(model="extra", max_tokens=5000), {}), ("render with it", "POST", CHAT + "/render", chat(model="extra"), {}),
    ("responses with it", "POST", RESPONSES, response(model="extra"), {}), ("messages with it", "POST", MESSAGES, message(model="extra"), {}), ("generate with it", "POST", GENERATE, generate(model="extra"), {}),
    ("unload", "POST", "/v1/unload_lora_adapter", {"lora_name": "extra"}, {}), ("unload again", "POST", "/v1/unload_lora_adapter", {"lora_name": "extra"}, {}), ("unload unknown", "POST", "/v1/unload_lora_adapter", {"lora_name": "zzz"}, {}), ("chat after it", "POST", CHAT, chat(model="extra"), {}),
    ("unload bare", "POST", "/v1/unload_lora_adapter", {"lora_name": "bare"}, {}),
]


def settings(*bodies):
    return [(f"settings {json.dumps(body)[:60]}", "POST", "/admin/config", body, {}) for body in bodies]


ADMIN = settings(
    {}, {"time-to-first-token": "1ms"}, {"time-to-first-token": 1000000}, {"time-to-first-token": "1"}, {"time-to-first-token": "x"}, {"time-to-first-token": -1}, {"time-to-first-token": None}, {"zzz": 1}, {"model": "x"}, {"mode": "echo"},
    {"inter-token-latency": "1ms", "inter-token-latency-std-dev": "1ms"}, {"time-factor-under-load": 0.5}, {"time-factor-under-load": 2}, {"latency-calculator": "constant"}, {"latency-calculator": "zzz"}, {"latency-calculator": ""},
    {"failure-injection-rate": 101}, {"failure-injection-rate": 100, "failure-types": ["rate_limit"]}, {"failure-types": ["zzz"]}, {"prefill-overhead": "1ms", "prefill-time-per-token": "1us"}, {"image-emission-rate": 50}, {"fake-metrics": {"running-requests": 3}}, [], 3,
) + [("chat that fails", "POST", CHAT, chat(), {})] + settings({"failure-injection-rate": 0, "failure-types": [], "time-to-first-token": "0s", "inter-token-latency": 0, "inter-token-latency-std-dev": "0s"}) + [("config", "GET", "/admin/config", None, {}), ("chat that does not", "POST", CHAT, chat(), {})]
FAKE_VALUES = {
    "running-requests": 4, "waiting-requests": 2, "kv-cache-usage": 0.5, "loras": [{"running": "a,b", "waiting": "c", "timestamp": 5}, {"running": "a", "waiting": "", "timestamp": 7}], "ttft-buckets-values": [1, 2, 3], "tpot-buckets-values": [1, 2],
    "e2erl-buckets-values": [1], "queue-time-buckets-values": [2], "inf-time-buckets-values": [0, 1], "prefill-time-buckets-values": [1], "decode-time-buckets-values": [1], "request-prompt-tokens": [1, 2], "request-generation-tokens": [3],
    "request-params-max-tokens": [1], "request-max-generation-tokens": [2], "request-success-total": {"stop": 3, "length": 2}, "prefix-cache-hits": 3, "prefix-cache-queries": 9,
}
FAKE = json.dumps(FAKE_VALUES)


def fakes(*bodies):
    return [(f"fake {json.dumps(body)[:60]}", "POST", "/fake_metrics", body, {}) for body in bodies]


FAKES = fakes({}, {"running-requests": 9}, {"running-requests": -1}, {"kv-cache-usage": 2}, {"kv-cache-usage": "ramp:0:1:5s"}, {"kv-cache-usage": "zzz"}, {"loras": []}, {"ttft-buckets-values": [5]}, {"ttft-buckets-values": [1] * 40}, {"ttft-buckets-values": [-1]},
    {"request-success-total": {"stop": 8}}, {"request-success-total": {"zzz": 8}}, {"request-prompt-tokens": [7, 7]}, {"prefix-cache-hits": 9}, {"prefix-cache-hits": 1, "prefix-cache-queries": 10}, {"total-prompt-tokens": 77}, {"zzz": 1}, [], None, {"kv-cache-usage": 0.25})
METRICS = ("metrics", "GET", "/metrics", None, {})
BASIC = [
    ("chat", "POST", CHAT, chat(), {}), ("chat again", "POST", CHAT, chat(), {}), ("chat streamed", "POST", CHAT, chat(**USAGE), {}), ("chat n 2", "POST", CHAT, chat(n=2), {}), ("chat limit", "POST", CHAT, chat(max_tokens=5), {}), ("text", "POST", TEXT, text(), {}),
    ("text streamed", "POST", TEXT, text(**USAGE), {}), ("texts", "POST", TEXT, text(prompt=["a b c", "d"]), {}), ("responses", "POST", RESPONSES, response(), {}), ("responses streamed", "POST", RESPONSES, response(stream=True), {}), ("messages", "POST", MESSAGES, message(), {}),
    ("messages streamed", "POST", MESSAGES, message(stream=True), {}), ("generate", "POST", GENERATE, generate(), {}), ("generate streamed", "POST", GENERATE, generate(**USAGE), {}), ("image", "POST", CHAT, chat(**said(IMAGE)), {}), ("image streamed", "POST", CHAT, chat(**said(IMAGE), stream=True), {}),
    ("audio", "POST", CHAT, chat(**said(AUDIO)), {}), ("tools", "POST", CHAT, chat(tools=[tool()], tool_choice=NAMED), {}), ("tools streamed", "POST", CHAT, chat(tools=[tool()], tool_choice=NAMED, stream=True), {}), ("prefill", "POST", CHAT, chat(kv_transfer_params={"do_remote_decode": True}), {}),
    ("too long", "POST", CHAT, chat(max_tokens=5000), {}), ("ids", "POST", TEXT, text(prompt=list(range(100, 140))), {}), ("generate longer", "POST", GENERATE, generate(token_ids=list(range(100, 164))), {}), ("features", "POST", GENERATE, ODD_GENERATES["features bare"], {}),
    ("embeddings", "POST", EMBED, {"input": "a b"}, {}), ("tokenize", "POST", "/tokenize", {"prompt": "a b"}, {}), ("models", "GET", "/v1/models", None, {}), ("ready", "GET", "/health/ready", None, {}), ("query", "GET", "/query", None, {}), ("config", "GET", "/admin/config", None, {}),
]
SENT_IMAGE = [(f"sent image: {name}", method, path, body, {"X-Send-Image": "true"}) for name, method, path, body, _ in BASIC[:21]]
LOWER = [("threshold 0.5", "POST", CHAT, chat(cache_hit_threshold=0.5), {}), ("threshold 1", "POST", CHAT, chat(cache_hit_threshold=1), {}), ("threshold 1 streamed", "POST", CHAT, chat(cache_hit_threshold=1, **USAGE), {}), ("threshold text", "POST", TEXT, text(cache_hit_threshold=1.0), {}), ("threshold 7", "POST", CHAT, chat(cache_hit_threshold=7), {})]

ECHO, SEED = ["--mode", "echo"], ["--seed", "7"]
CACHE = ["--enable-kvcache", "--kv-cache-size", "64", "--block-size", "8", "--zmq-endpoint", "tcp://127.0.0.1:1"]
POD = {"POD_IP": "127.0.0.1"}
SLOW = ["--time-to-first-token", "700ms"]
ADAPTERS = ["--lora-modules", '{"name":"a"}', '{"name":"b"}', '{"name":"c"}']


def at_once(name, *models, **more):
    """Requests that are sent 50 ms apart and looked at while the server is busy."""
    return (f"busy: {name}", "BUSY", "/busy", [(f"{model} {i}", "POST", CHAT, chat(model=model, **more), {}) for i, model in enumerate(models)], {})


# Name of a run: arguments, environment, requests.
RUNS = {
    "echo": (ECHO, {}, [*generations(), METRICS]),
    "random": (SEED, {}, [*generations(), METRICS]),
    "heads": (ECHO, {}, [*heads(), METRICS]),
    "basic": (SEED, {}, [METRICS, *BASIC, METRICS]),
    "cache": (ECHO + CACHE, POD, [*BASIC, *LOWER, METRICS]),
    "cache by flag": (ECHO + CACHE + ["--global-cache-hit-threshold", "0.5"], POD, [*BASIC, *BASIC, METRICS]),
    "adapters": (ECHO + ["--lora-modules", '{"name":"a","path":"/a"}', '{"name":"b"}', "--max-loras", "2"], {}, [METRICS, *LORAS, ("chat with a", "POST", CHAT, chat(model="a"), {}), METRICS]),
    "names": (ECHO + ["--served-model-name", "m", "other"], {}, [*BASIC, ("other", "POST", CHAT, chat(model="other"), {}), ("full", "POST", CHAT, chat(model="org/full"), {}), ("other in text", "POST", TEXT, text(model="other"), {}), METRICS]),
    "settings": (ECHO, {}, [*ADMIN, METRICS]),
    "fake": (ECHO + ["--fake-metrics", FAKE], {}, [METRICS, *BASIC, METRICS, *FAKES, METRICS, *settings({"fake-metrics": {"running-requests": 3, "waiting-requests": "ramp:1:1:1s"}}, {"fake-metrics": {"running-requests": -3}}), METRICS]),
    "fake by function": (ECHO + ["--fake-metrics", '{"running-requests":"squarewave:3:3:1s","waiting-requests":"ramp:5:5:1s","kv-cache-usage":"oscillate:0.5:0.5:1s"}'], {}, [METRICS]),
    "not fake": (ECHO, {}, [*FAKES[:4], METRICS]),
    "pod": (ECHO + ["--enable-request-id-headers"], {"POD_NAME": "p", "POD_NAMESPACE": "ns"}, [*BASIC, *((f"named {n}", m, p, b, {"X-Request-Id": "mine"}) for n, m, p, b, _ in BASIC), *list(heads())[-120:-100], METRICS]),
    "omni": (ECHO + ["--omni"], {}, [*SENT_IMAGE, *BASIC, METRICS]),
    "omni always": (ECHO + ["--omni", "--image-emission-rate", "100"], {}, [*BASIC, METRICS]),
    "omni late": (ECHO + ["--omni", "--image-emission-rate", "100", "--time-to-generate-image", "30ms"], {}, [*BASIC, METRICS]),
    "encoder": (["--mm-encoder-only"], {}, [*BASIC, *posts("generate", GENERATE, ODD_GENERATES), *posts("chat", CHAT, {k: ODD_CHATS[k] for k in ("image", "audio", "video", "two images", "stream", "n 2")}, chat), METRICS]),
    "short context": (ECHO + ["--max-model-len", "12"], {}, [*BASIC, METRICS]),
    "short context, random": (SEED + ["--max-model-len", "24"], {}, [*BASIC, METRICS]),
    "any tool": (SEED + ["--skip-tool-validation"], {}, [*posts("chat", CHAT, {k: v for k, v in ODD_CHATS.items() if k.startswith("tools ")}, chat)]),
    "many calls": (SEED + ["--tool-call-extra-call-probability", "100"], {}, [*posts("chat", CHAT, {"one": {"tools": [tool()], "tool_choice": "auto"}, "required": {"tools": [tool(), tool("b")], "tool_choice": "required"}, "free": {"tools": [tool(), tool("b"), tool("c")]}, "streamed": {"tools": [tool(), tool("b")], "stream": True}}, chat), *posts("responses", RESPONSES, {"two": {"tools": [flat(), flat("b")]}, "streamed": {"tools": [flat(), flat("b")], "stream": True}}, response), *posts("messages", MESSAGES, {"two": {"tools": [use(), use("b")]}, "streamed": {"tools": [use(), use("b")], "stream": True}}, message), METRICS]),
    "no calls": (ECHO + ["--tool-call-extra-call-probability", "0", "--tool-call-not-required-param-probability", "0"], {}, [*posts("chat", CHAT, {"free": {"tools": [tool(required=())]}, "required": {"tools": [tool(required=())], "tool_choice": "required"}, "all": {"tools": [tool()], "tool_choice": "required"}}, chat), METRICS]),
    "delays": (ECHO + ["--time-to-first-token", "20ms", "--inter-token-latency", "1ms", "--time-factor-under-load", "1"], {}, [*BASIC, METRICS]),
    "delays by token": (ECHO + ["--latency-calculator", "per-token", "--prefill-overhead", "5ms", "--prefill-time-per-token", "1ms", "--kv-cache-transfer-time-per-token", "1ms"], {}, [*BASIC, METRICS]),
    "ranks": (ECHO + ["--data-parallel-size", "2"], {}, [*BASIC, METRICS]),
    "rank 1": (ECHO + ["--data-parallel-rank", "1"], {}, [*BASIC, METRICS]),
    "sleep": (ECHO + CACHE + ["--enable-sleep-mode"], {**POD, "VLLM_SERVER_DEV_MODE": "1"}, [*BASIC[:3], ("sleep", "POST", "/sleep", None, {}), ("asleep", "GET", "/is_sleeping", None, {}), *BASIC[:6], ("wake weights", "POST", "/wake_up?tags=weights", None, {}), ("awake", "GET", "/is_sleeping", None, {}), *BASIC[:6], ("wake", "POST", "/wake_up", None, {}), *BASIC[:6], METRICS]),
    "sleep, no mode": (ECHO, {}, [("sleep", "POST", "/sleep", None, {}), ("asleep", "GET", "/is_sleeping", None, {}), ("wake", "POST", "/wake_up", None, {}), *BASIC[:3]]),
    "starting": (ECHO + ["--startup-duration", "1h"], {}, [("ready", "GET", "/health/ready", None, {}), ("health", "GET", "/health", None, {}), *BASIC[:6]]),
    "short vectors": (ECHO + ["--default-embedding-dimensions", "3"], {}, [*posts("embeddings", EMBED, EMBEDDINGS)]),
    "one at a time": (ECHO + ["--max-num-seqs", "1", "--max-waiting-queue-length", "0"], {}, [*BASIC, METRICS]),
    "busy": (ECHO + SLOW + ["--max-num-seqs", "2"], {}, [at_once("two", "m", "m"), at_once("five", "m", "m", "m", "m", "m"), at_once("streams", "m", "m", "m", stream=True), at_once("choices", "m", "m", n=2), METRICS]),
    "busy, full": (ECHO + SLOW + ["--max-num-seqs", "1", "--max-waiting-queue-length", "1"], {}, [at_once("three", "m", "m", "m"), at_once("streams", "m", "m", "m", stream=True), METRICS]),
    "busy adapters": (ECHO + SLOW + ADAPTERS + ["--max-num-seqs", "2", "--max-loras", "1"], {}, [at_once("one", "a"), at_once("same", "a", "a", "a"), at_once("others", "a", "b", "c", "m"), at_once("base", "m", "m", "a"), METRICS]),
    "busy adapters, two": (ECHO + SLOW + ADAPTERS + ["--max-num-seqs", "3", "--max-loras", "2"], {}, [at_once("three", "a", "b", "c", "a"), METRICS]),
    "busy, loaded": (ECHO + ["--inter-token-latency", "30ms", "--time-factor-under-load", "3", "--max-num-seqs", "4"], {}, [at_once("four", "m", "m", "m", "m"), METRICS]),
    "small bodies": (ECHO + ["--max-request-body-size-mb", "1"], {}, [("most", "POST", CHAT, chat(**said("a" * 900_000)), {}), *BASIC[:3]]),
    "logged": (ECHO + ["--log-http"], {}, BASIC),
    "wide blocks": (ECHO + CACHE[:3] + ["--block-size", "16", "--hash-seed", "s", "--zmq-endpoint", "tcp://127.0.0.1:1"], POD, [*BASIC, *BASIC, METRICS]),
    **{f"failure {kind}": (ECHO + ["--failure-injection-rate", "100", "--failure-types", kind], {}, [*BASIC[:24], *BASIC[-6:]]) for kind in ("rate_limit", "invalid_api_key", "context_length", "server_error", "invalid_request", "model_not_found")},
}
