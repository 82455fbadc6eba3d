"""The requests of `front_end_oracle.py`, and the differences that are meant."""

# Stands for the name of the model that is served.
THE_MODEL = "m"
HELLO = [{"role": "user", "content": "Say something about routers."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CASES = []


def case(name, method, path, body=None, headers=None):
    CASES.append((name, method, path, body, headers or {}))


def chat(name, **fields):
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 0}
    body.update(fields)
    body = {k: v for k, v in body.items() if v is not ...}
    case(f"chat {name}", "POST", "/v1/chat/completions", body)


def completion(name, **fields):
    body = {"prompt": "A router sends", "max_tokens": 12, "temperature": 0}
    body.update(fields)
    body = {k: v for k, v in body.items() if v is not ...}
    case(f"completion {name}", "POST", "/v1/completions", body)


def responses(name, **fields):
    body = {"input": "Say something.", "max_output_tokens": 12, "temperature": 0}
    body.update(fields)
    case(f"responses {name}", "POST", "/v1/responses", body)


def messages(name, **fields):
    body = {"model": THE_MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    body.update(fields)
    body = {k: v for k, v in body.items() if v is not ...}
    case(f"messages {name}", "POST", "/v1/messages", body)


def post(name, path, body):
    case(name, "POST", path, body)


chat("plain")
chat("without a bound", max_tokens=...)
chat("stream", stream=True)
chat("stream with usage", stream=True, stream_options={"include_usage": True})
chat("stream with usage in each chunk", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
chat("of two", n=2)
chat("of two, stream", n=2, stream=True)
chat("logprobs", logprobs=True)
chat("logprobs 0", logprobs=True, top_logprobs=0)
chat("logprobs 3", logprobs=True, top_logprobs=3, max_tokens=5)
chat("logprobs 3, stream", logprobs=True, top_logprobs=3, max_tokens=5, stream=True)
chat("logprobs as ids", logprobs=True, top_logprobs=2, max_tokens=3, return_tokens_as_token_ids=True)
chat("prompt logprobs", prompt_logprobs=2, max_tokens=3)
chat("prompt logprobs 0", prompt_logprobs=0, max_tokens=3)
chat("prompt logprobs, stream", prompt_logprobs=2, max_tokens=3, stream=True)
chat("token ids", return_token_ids=True, max_tokens=4)
chat("token ids, stream", return_token_ids=True, max_tokens=4, stream=True)
chat("one token", max_tokens=1)
chat("max completion tokens", max_tokens=..., max_completion_tokens=5)
chat("min tokens", min_tokens=10)
chat("ignore eos", ignore_eos=True, max_tokens=60)
chat("stop string", stop=["e"], max_tokens=40)
chat("stop string kept", stop=["e"], include_stop_str_in_output=True, max_tokens=40)
chat("stop string, stream", stop=["e"], max_tokens=40, stream=True)
chat("stop strings of many", stop=["a", "e", "i", "o", "u", "zz"])
chat("stop token ids", stop_token_ids=[10, 12, 300], max_tokens=40)
chat("echo", echo=True, max_tokens=3)
chat("continue final message", messages=HELLO + [{"role": "assistant", "content": "A router"}], continue_final_message=True, add_generation_prompt=False)
chat("both flags of continuation", messages=HELLO + [{"role": "assistant", "content": "A"}], continue_final_message=True, add_generation_prompt=True)
chat("parts", messages=[{"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]}])
chat("system and developer", messages=[{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Really."}, *HELLO])
chat("names and tools in history", messages=[*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}], tools=[WEATHER])
chat("tools auto", tools=[WEATHER], max_tokens=40)
chat("tools none", tools=[WEATHER], tool_choice="none")
chat("tools required", tools=[WEATHER], tool_choice="required", max_tokens=100)
chat("tools named", tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": "get_weather"}}, max_tokens=100)
chat("tools named, unknown", tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "nobody"}})
chat("tools without a list", tool_choice="required")
chat("tools of no length", tools=[])
chat("tools with a wrong choice", tools=[WEATHER], tool_choice="sometimes")
chat("json object", response_format={"type": "json_object"}, max_tokens=60)
chat("json schema", response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}, max_tokens=60)
chat("json schema without one", response_format={"type": "json_schema"})
chat("structured choice", structured_outputs={"choice": ["red", "green"]})
chat("structured regex", structured_outputs={"regex": "[a-c]{3}"})
chat("structured of two kinds", structured_outputs={"regex": "a", "choice": ["b"]})
chat("structured of none", structured_outputs={})
chat("structured wrong regex", structured_outputs={"regex": "("})
chat("reasoning effort", reasoning_effort="low")
chat("reasoning effort unknown", reasoning_effort="extreme")
chat("template arguments", chat_template_kwargs={"a": 1})
chat("own template refused", chat_template="{{ messages }}")
chat("unknown field", nonsense=1)
chat("user, metadata, store", user="me", metadata={"a": "b"}, store=True)
chat("priority", priority=3)
chat("cache salt", cache_salt="abc")
chat("cache salt empty", cache_salt="")
chat("request id", request_id="mine")
chat("documents", documents=[{"title": "a", "text": "b"}])
chat("bad words", bad_words=["the"])
chat("logit bias", logit_bias={"20": 5})
chat("logit bias of unknown token", logit_bias={"999999": 5})
chat("logit bias of a text", logit_bias={"abc": 5})
chat("allowed token ids", allowed_token_ids=[20, 21, 22], max_tokens=5)
chat("allowed token ids of none", allowed_token_ids=[])
chat("allowed token ids unknown", allowed_token_ids=[999999])
for field, value in [
    ("temperature", -1), ("temperature", 3), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.5), ("top_k", -2), ("top_k", 0), ("min_p", 2),
    ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("n", 0), ("n", -1), ("n", "two"), ("n", 1.5),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 100000), ("max_tokens", "ten"), ("max_completion_tokens", 0), ("min_tokens", -1), ("min_tokens", 50),
    ("top_logprobs", 3), ("logprobs", 3), ("prompt_logprobs", -2), ("prompt_logprobs", 100), ("stream_options", {"include_usage": True}), ("stream", "maybe"),
    ("seed", -1), ("seed", 1 << 70), ("stop", 7), ("stop", [""]), ("stop", []), ("stop_token_ids", ["a"]), ("messages", []), ("messages", "hello"), ("messages", [{}]),
    ("messages", [{"role": "user"}]), ("messages", [{"role": "robot", "content": "x"}]), ("messages", [{"role": "user", "content": 7}]), ("messages", [{"role": "user", "content": [{"type": "sound"}]}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]),
    ("model", "other"), ("model", 7), ("tools", "no"), ("tools", [{}]), ("response_format", {"type": "xml"}), ("truncate_prompt_tokens", -2), ("truncate_prompt_tokens", 5),
    ("thinking_token_budget", 5), ("parallel_tool_calls", "x"), ("length_penalty", "x"), ("use_beam_search", True), ("vllm_xargs", {"a": 1}), ("kv_transfer_params", {"a": 1}), ("repetition_detection", {"max_pattern_size": 3, "min_count": 2}),
]:
    chat(f"with {field} {value!r}", **{field: value})
chat("too long", messages=[{"role": "user", "content": "word " * 4000}])
chat("top logprobs above the limit", logprobs=True, top_logprobs=30)
case("chat of broken JSON", "POST", "/v1/chat/completions", '{"messages": [', {"content-type": "application/json"})
case("chat without a body", "POST", "/v1/chat/completions", "", {"content-type": "application/json"})
case("chat of a list", "POST", "/v1/chat/completions", "[]", {"content-type": "application/json"})
case("chat of another type", "POST", "/v1/chat/completions", "hello", {"content-type": "text/plain"})
case("chat by GET", "GET", "/v1/chat/completions")

completion("plain")
completion("without a bound", max_tokens=...)
completion("stream", stream=True)
completion("stream with usage", stream=True, stream_options={"include_usage": True})
completion("of two", n=2)
completion("of two, stream", n=2, stream=True)
completion("of texts", prompt=["One", "Two words"])
completion("of texts, stream", prompt=["One", "Two words"], stream=True)
completion("of ids", prompt=[20, 21, 22])
completion("of lists of ids", prompt=[[20, 21], [30, 31, 32]])
completion("of ids unknown", prompt=[20, 999999])
completion("of ids negative", prompt=[20, -1])
completion("of nothing", prompt="")
completion("of no list", prompt=[])
completion("of no prompt", prompt=...)
completion("of a number", prompt=7)
completion("of mixed", prompt=["a", 3])
completion("echo", echo=True)
completion("echo alone", echo=True, max_tokens=0)
completion("echo and logprobs", echo=True, logprobs=2, max_tokens=4)
completion("echo alone and logprobs", echo=True, logprobs=2, max_tokens=0)
completion("echo, stream", echo=True, stream=True, max_tokens=4)
completion("echo and logprobs, stream", echo=True, logprobs=1, stream=True, max_tokens=4)
completion("logprobs", logprobs=3, max_tokens=4)
completion("logprobs 0", logprobs=0, max_tokens=4)
completion("logprobs, stream", logprobs=3, max_tokens=4, stream=True)
completion("prompt logprobs", prompt_logprobs=1, max_tokens=2)
completion("token ids", return_token_ids=True, max_tokens=3)
completion("suffix", suffix="end")
completion("best of", best_of=2)
completion("stop string", stop="e", max_tokens=40)
completion("stop string kept", stop=["e"], include_stop_str_in_output=True, max_tokens=40)
completion("without special tokens added", add_special_tokens=False)
completion("structured json", structured_outputs={"json": SCHEMA}, max_tokens=60)
completion("json object", response_format={"type": "json_object"}, max_tokens=60)
completion("min tokens", min_tokens=8)
completion("embeds", prompt=..., prompt_embeds="AAAA")
for field, value in [("logprobs", -1), ("logprobs", 30), ("max_tokens", -1), ("max_tokens", 100000), ("n", 0), ("echo", "x"), ("temperature", -1), ("model", "other"), ("seed", "x"), ("stop_token_ids", 5), ("truncate_prompt_tokens", 2), ("prompt_logprobs", -1), ("stream_options", {"include_usage": True}), ("min_tokens", 50), ("user", 5), ("cache_salt", "x")]:
    completion(f"with {field} {value!r}", **{field: value})
completion("prompt logprobs, stream", prompt_logprobs=1, stream=True)
completion("too long", prompt="word " * 4000)

responses("plain")
responses("stream", stream=True)
responses("instructions", instructions="Be brief.")
responses("messages", input=[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And?"}])
responses("parts", input=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}])
responses("json schema", text={"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}, max_output_tokens=60)
responses("tools required", tools=[{"type": "function", **WEATHER["function"]}], tool_choice="required", max_output_tokens=100)
responses("logprobs", include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=3)
responses("previous unknown", previous_response_id="resp_nobody")
responses("background without store", background=True, store=False)
responses("with a wrong input", input=7)
responses("with a wrong model", model="other")
responses("with a temperature", temperature=9)
responses("metadata", metadata={"a": "b"}, user="me")
responses("truncation", truncation="auto")
responses("unknown field", nonsense=2)
case("responses get unknown", "GET", "/v1/responses/resp_nobody")
case("responses cancel unknown", "POST", "/v1/responses/resp_nobody/cancel")

messages("plain")
messages("stream", stream=True)
messages("system", system="Be brief.")
messages("system blocks", system=[{"type": "text", "text": "Be brief."}])
messages("blocks", messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
messages("stop sequences", stop_sequences=["e"], max_tokens=40)
messages("tool any", tools=[{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}], tool_choice={"type": "any"}, max_tokens=100)
messages("tool named", tools=[{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=100)
messages("without max tokens", max_tokens=...)
messages("without messages", messages=...)
messages("with a wrong role", messages=[{"role": "robot", "content": "x"}])
messages("with a temperature", temperature=9)
messages("with max tokens 0", max_tokens=0)
post("messages count", "/v1/messages/count_tokens", {"model": THE_MODEL, "messages": HELLO})
post("messages count of nothing", "/v1/messages/count_tokens", {})

post("tokenize prompt", "/tokenize", {"prompt": "Hello world"})
post("tokenize prompt with texts", "/tokenize", {"prompt": "Hello world", "return_token_strs": True})
post("tokenize bare", "/tokenize", {"prompt": "Hello world", "add_special_tokens": False})
post("tokenize chat", "/tokenize", {"messages": HELLO})
post("tokenize chat with tools", "/tokenize", {"messages": HELLO, "tools": [WEATHER]})
post("tokenize nothing", "/tokenize", {})
post("detokenize", "/detokenize", {"tokens": [20, 21, 22]})
post("detokenize nothing", "/detokenize", {})
post("detokenize unknown", "/detokenize", {"tokens": [999999]})
post("generate", "/inference/v1/generate", {"token_ids": [20, 21, 22], "sampling_params": {"max_tokens": 5, "temperature": 0}})
post("generate, stream", "/inference/v1/generate", {"token_ids": [20, 21, 22], "sampling_params": {"max_tokens": 5, "temperature": 0}, "stream": True})
post("generate with logprobs", "/inference/v1/generate", {"token_ids": [20, 21, 22], "sampling_params": {"max_tokens": 3, "temperature": 0, "logprobs": 2}})
post("generate nothing", "/inference/v1/generate", {})
post("generate of wrong ids", "/inference/v1/generate", {"token_ids": "x", "sampling_params": {}})
post("render chat", "/v1/chat/completions/render", {"messages": HELLO, "max_tokens": 5})
post("render completion", "/v1/completions/render", {"prompt": "Hello", "max_tokens": 5})
post("embeddings of a generating model", "/v1/embeddings", {"input": "x"})
post("pooling of a generating model", "/pooling", {"input": "x"})
post("score of a generating model", "/score", {"text_1": "x", "text_2": "y"})
post("rerank of a generating model", "/rerank", {"query": "x", "documents": ["y"]})
post("classify of a generating model", "/classify", {"input": "x"})
post("transcriptions of a generating model", "/v1/audio/transcriptions", {})
case("models", "GET", "/v1/models")
case("model unknown", "GET", "/v1/models/nobody")
case("health", "GET", "/health")
case("ping", "GET", "/ping")
case("ping by POST", "POST", "/ping")
case("version", "GET", "/version")
case("load", "GET", "/load")
case("nowhere", "GET", "/nowhere")
case("metrics", "GET", "/metrics")
post("load adapter", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"})
post("scale", "/scale_elastic_ep", {"new_data_parallel_size": 2})
post("is sleeping", "/is_sleeping", {})
case("server info", "GET", "/server_info")

# Parts of the name of a case and of the place of a difference, and why it is meant.
EXPLAINED = [
    ("chat without a bound", ".", "an engine core is not told whether the client gave a bound; own HTTP draws other lengths without one"),
    ("tools auto", r"\.(body|events)", "own HTTP knows the tools and calls one; an engine core is not told of tools that are not strict"),
    ("tools? (required|named|any)", ".", "own HTTP makes arguments of the tool's schema; an engine core is told a schema for strict tools only"),
    ("messages tool (any|named)", r"\.body\.(content|usage)", "the same; and as many calls as the constraint's sample has"),
    ("use_beam_search( True|=true)", r"\.(body|events)", "own HTTP plays no beam search"),
    (r"structured_outputs=(?![{n])", r"\.(status|body)", "vLLM fails on it with 500; own HTTP refuses it with 400"),
    (r"completions: .*prompt=\[.*stream", r"\.events\[\d+\]\[1\]\.(choices|system_fingerprint)", "two sequences end in the same step: the order of their chunks is nobody's"),
    ("completion of texts, stream", r"\.events", "two sequences end in the same step: the order of their chunks is nobody's"),
    ("scale", r"\.(status|body)", "elastic ranks are only answered"),
    ("server info", r"\.body", "own settings and environment"),
]

# The same of `vllm-rs`.
EXPLAINED_RUST = [
    ("chat without a bound", ".", "an engine core is not told whether the client gave a bound; own HTTP draws other lengths without one"),
    ("tools auto", r"\.body", "own HTTP knows the tools and calls one; an engine core is not told of tools that are not strict"),
    ("tools (required|named)", r"\.body", "own HTTP makes arguments of the tool's schema, once; an engine core is told a schema for strict tools only, and says as many calls as the constraint's sample has"),
    ("history|parts|system and developer", r"content$|usage|finish_reason", "vllm-rs writes another prompt"),
    ("", r"\.system_fingerprint$", "vllm-rs has none"),
    ("", r"reasoning_tokens$", "vllm-rs counts them without a parser too"),
    ("logprob|chat echo", r"\.(token|decoded_token|bytes|tokens|top_logprobs)\b", "special tokens have no name in vllm-rs, and bytes that are no character show as U+FFFD"),
    ("prompt logprobs", r"\.logprob$", "a double in Python, rounded once more by vllm-rs"),
    ("echo.*logprobs", r"\.text_offset", "vllm-rs begins at 0 again behind the prompt"),
    ("echo.*logprobs, stream", r"\.(logprobs|prompt_token_ids)", "vllm-rs streams those of the answer alone"),
    ("echo, stream", r"\.prompt_token_ids", "vllm-rs does not show them"),
    ("of two|texts|lists of ids|with n 2", r"\.(status|body|said)$", "vllm-rs serves one sequence for a request"),
    ("(with n 0|of nothing|max_tokens 100000|of no prompt|max_completion_tokens)", r"\.(status|body)$", "vllm-rs takes it, and cuts a limit to the context"),
    ("messages \\[\\{'role': 'user'\\}\\]|use_beam_search", r"\.(status|body)$", "vllm-rs refuses it"),
    ("truncate_prompt_tokens", r"\.body", "vllm-rs passes it over"),
    ("thinking_token_budget", r"\.(status|body)$", "vllm-rs leaves it to the engine, which passes it over without a parser"),
]
