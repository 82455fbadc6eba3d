"""Requests that `sglang_compare.py` sends to SGLang's application and to `vllm-sim sglang`.

A case is its group, the method and path, and the body: JSON, raw bytes or none.
"""

HELLO = [{"role": "user", "content": "Hello there"}]
# A message to which the program replies with a call; it replies to others with the text of the script.
CALL = [{"role": "user", "content": "Call it"}]
FUNCTION = {"name": "f", "description": "d", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CHAT, COMPLETION, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
RESPONSES, MESSAGES, EMBED = "/v1/responses", "/v1/messages", "/v1/embeddings"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def posts(group, path, base, changes):
    """Returns a case per change of a base body; a member that is `...` is left out."""
    for change in changes:
        body = {name: value for name, value in (base | change).items() if value is not ...}
        yield group, "POST", path, body


def generate_cases():
    params = {"max_new_tokens": 3}
    base = {"text": "Hello there", "sampling_params": params}
    yield from posts("generate", GENERATE, base, [
        {}, {"text": ["a", "b"]}, {"text": ..., "input_ids": [5, 6]}, {"text": ..., "input_ids": [[5], [6, 7]]},
        {"rid": "mine"}, {"text": ["a", "b"], "rid": "mine"}, {"sampling_params": params | {"n": 2}},
        {"return_logprob": True}, {"return_logprob": True, "top_logprobs_num": 2},
        {"return_logprob": True, "logprob_start_len": 0, "return_text_in_logprobs": True},
        {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1},
        {"return_prompt_token_ids": True}, {"sampling_params": params | {"temperature": 0}},
        {"sampling_params": {"max_new_tokens": 0}}, {"text": "Choose", "sampling_params": params | {"regex": "yes", "max_new_tokens": 30}},
        {"unknown_member": 1}, {"text": ["a"]}, {"sampling_params": [params]},
        {"text": ["a", "b"], "sampling_params": [params, {"max_new_tokens": 1}]},
    ])
    yield "generate", "PUT", GENERATE, base
    yield from posts("generate stream", GENERATE, base | {"stream": True}, [
        {}, {"text": ["a", "b"]}, {"return_logprob": True}, {"sampling_params": params | {"n": 2}},
        {"text": ..., "input_ids": [5, 6]}, {"return_prompt_token_ids": True},
    ])
    yield from posts("generate errors", GENERATE, base, [
        {"text": ...}, {"text": [], }, {"text": ..., "input_ids": []}, {"text": ..., "input_ids": ["x"]},
        {"text": ..., "input_ids": [5] * 3000}, {"text": 5}, {"text": {"a": 1}}, {"input_ids": [5]},
        {"sampling_params": {"max_new_tokens": 3000}}, {"sampling_params": {"max_new_tokens": -1}},
        {"sampling_params": {"temperature": -1}}, {"sampling_params": {"top_p": 0}},
        {"sampling_params": {"top_k": 0}}, {"sampling_params": {"min_p": 2}},
        {"sampling_params": {"frequency_penalty": 3}}, {"sampling_params": {"repetition_penalty": 0}},
        {"sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}}, {"sampling_params": {"stop": 3}},
        {"sampling_params": {"unknown": 3}}, {"sampling_params": {"temperature": "x"}}, {"sampling_params": 3},
        {"sampling_params": {"regex": "a", "json_schema": "{}"}}, {"sampling_params": {"logit_bias": {"99999": 1}}},
        {"rid": 5}, {"text": ["a", "b"], "rid": ["a", "a"]}, {"text": ["a", "b"], "rid": ["a"]},
        {"stream": "maybe"}, {"stream": True, "text": ...}, {"stream": True, "sampling_params": {"top_p": 0}},
        {"lora_path": "none"}, {"return_hidden_states": True}, {"routed_dp_rank": 3},
        {"session_params": {"id": "unknown"}}, {"custom_logit_processor": "x"}, {"return_logprob": "x"},
        {"top_logprobs_num": "x"}, {"priority": "x"},
    ])
    yield "generate errors", "POST", GENERATE, b"{"
    yield "generate errors", "POST", GENERATE, b"[]"
    yield "generate errors", "POST", GENERATE, b""


def chat_cases():
    base = {"messages": HELLO, "max_tokens": 4}
    required = {"messages": CALL, "tools": TOOLS, "tool_choice": "required", "max_tokens": 99}
    named = {"messages": CALL, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}, "max_tokens": 99}
    changes = [
        {}, {"n": 2}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}, {"seed": 3}, {"model": "other"},
        {"temperature": 0}, {"rid": "mine"}, {"tools": TOOLS}, {"ignore_eos": True, "max_tokens": 12},
        {"max_completion_tokens": 3}, {"user": "me"}, {"separate_reasoning": False}, {"return_meta_info": True},
        {"messages": [{"role": "system", "content": "s"}, *HELLO]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}]
    yield from posts("chat", CHAT, base, [*changes, {"return_token_ids": True}, {"return_prompt_token_ids": True},
                                          required, named])
    yield from posts("chat stream", CHAT, base | {"stream": True}, [
        {}, {"n": 2}, {"logprobs": True, "top_logprobs": 1}, USAGE,
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, required, {"tools": TOOLS}])
    yield from posts("chat errors", CHAT, base, [
        {"messages": ...}, {"messages": []}, {"messages": "x"}, {"messages": [{}]},
        {"messages": [{"role": "user"}]}, {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]}, {"max_tokens": "x"}, {"max_tokens": 3000}, {"max_tokens": 2045},
        {"max_tokens": -1}, {"temperature": "x"}, {"temperature": -1}, {"top_p": 2}, {"top_k": -5}, {"n": "x"}, {"n": 0},
        {"stream": "x"}, {"stop": 5}, {"logit_bias": 5}, {"logit_bias": {"99999": 1}}, {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": [{}]}, {"tools": [{"type": "function", "function": {}}]}, {"tool_choice": "sometimes"},
        {"response_format": {"type": "json_schema"}}, {"response_format": {"type": "unknown"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        {"model": "tiny-llama:adapter"}, {"return_hidden_states": True}, {"stream": True, "return_token_ids": True},
        {"stream": True, "return_meta_info": True}, {"chat_template_kwargs": {"chat_template": "x"}},
        {"reasoning_effort": "extreme"}, {"logprobs": "x"}, {"stream_options": {"include_usage": True}},
        {"frequency_penalty": 5}, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"routed_dp_rank": 7}, {"top_logprobs": 2}, {"stream": True, "top_p": 2}])
    yield "chat errors", "POST", CHAT, b"{"
    yield "chat errors", "POST", CHAT, b""
    yield "chat errors", "POST", CHAT, b"[]"
    yield "chat errors", "GET", CHAT, None


def completion_cases():
    base = {"prompt": "Hello there", "max_tokens": 4}
    yield from posts("completions", COMPLETION, base, [
        {}, {"prompt": ["a", "b"]}, {"prompt": [5, 6, 7]}, {"prompt": [[5], [6, 7]]}, {"n": 2}, {"logprobs": 0},
        {"logprobs": 2}, {"echo": True}, {"echo": True, "logprobs": 1}, {"return_token_ids": True}, {"temperature": 0},
        {"suffix": "x"}, {"user": "me"}, {"model": "other"}])
    yield from posts("completions stream", COMPLETION, base | {"stream": True}, [
        {}, {"n": 2}, {"prompt": ["a", "b"]}, {"logprobs": 1}, USAGE, {"echo": True}])
    yield from posts("completions errors", COMPLETION, base, [
        {"prompt": ...}, {"prompt": ""}, {"prompt": []}, {"prompt": 5}, {"prompt": [""]}, {"prompt": ["a", 5]},
        {"max_tokens": 0}, {"max_tokens": -3}, {"max_tokens": "x"}, {"max_tokens": 3000}, {"n": "x"},
        {"temperature": "x"}, {"top_p": 2}, {"logprobs": "x"}, {"stop": {}}, {"stream": "x"},
        {"response_format": {"type": "json_schema"}}, {"model": 5}, {"prompt": [99999]}])


def embedding_cases(kind):
    """Cases of the pooling routes; `kind` is the group: that of a generating or an embedding model."""
    base = {"input": "Hello there"}
    yield from posts(kind, EMBED, base, [
        {}, {"input": ["a", "b"]}, {"input": [5, 6]}, {"input": [[5], [6, 7]]}, {"encoding_format": "base64"},
        {"dimensions": 8}, {"model": "other"}, {"input": [{"text": "a"}]}, {"user": "me"}, {"rid": "mine"},
        {"input": ""}, {"input": []}, {"input": [""]}, {"input": ...}, {"input": 5}, {"input": ["a", 5]},
        {"encoding_format": "other"}, {"dimensions": -1}, {"dimensions": "x"}, {"input": [5] * 3000},
        {"input": [-5]}, {"model": 5}])
    yield from posts(kind, "/encode", {"text": "Hello there"}, [
        {}, {"text": ["a", "b"]}, {"text": ..., "input_ids": [5, 6]}, {"text": ...}, {"text": 5}])
    yield from posts(kind, "/classify", {"text": "Hello there"}, [{}, {"text": ["a", "b"]}, {"text": ...}])
    yield from posts(kind, "/v1/classify", {"input": "Hello there", "model": "tiny-llama"}, [{}, {"input": ["a", "b"]}, {"input": ""}, {"input": ...}])
    rerank = {"query": "q", "documents": ["a", "b"]}
    yield from posts(kind, "/v1/rerank", rerank, [
        {}, {"return_documents": False}, {"top_n": 1}, {"top_n": 0}, {"query": ""}, {"documents": []},
        {"documents": ...}, {"query": ...}, {"documents": "x"}, {"documents": ["a", ""]}])
    score = {"query": "q", "items": ["a", "b"], "label_token_ids": [5, 6], "model": "tiny-llama"}
    choice = {"id": "c", "type": "choice", "question": "Which?", "options": [{"name": "red"}, {"name": "blue", "description": "cold"}]}
    score_question = {"id": "s", "type": "score", "question": {"a": 1}, "levels": ["low", ["high"]]}
    yes_no = {"id": "y", "type": "yes_no", "question": "Blue?", "no": "grey"}
    decisions = {"input": "The sky is blue.", "questions": [choice, score_question, yes_no]}
    yield from posts(kind, "/v1/decisions", decisions, [
        {}, {"questions": [choice]}, {"questions": [score_question]}, {"questions": [yes_no]}, {"return_prompt_token_ids": True, "questions": [choice]},
        {"temperature": 0.5, "questions": [choice]}, {"temperature": 0}, {"input": " "}, {"input": [1]}, {"questions": []}, {"questions": [{}]},
        {"questions": [choice, choice]}, {"questions": [{**choice, "type": "other"}]}, {"questions": [{**choice, "options": [{"name": "a"}]}]},
        {"questions": [{**choice, "options": [{"name": "a"}, {"name": "A "}]}]}, {"questions": [{**choice, "options": [{"name": "a"}, {"name": " "}]}]},
        {"questions": [{**choice, "more": 1}]}, {"prompt_format_version": 2}, {"model": "tiny-llama:x"}, {"images": ["x"]}, {"more": 1}, {"model": 5}])
    yield from posts(kind, "/v1/score", score, [
        {}, {"apply_softmax": True}, {"item_first": True}, {"items": "a"}, {"query": [5], "items": [[6], [7]]},
        {"label_token_ids": ...}, {"items": ...}, {"query": ...}, {"label_token_ids": [99999]}, {"label_token_ids": "x"}])


def responses_cases():
    base = {"model": "tiny-llama", "input": "Hello there", "max_output_tokens": 4}
    yield from posts("responses", RESPONSES, base, [
        {}, {"instructions": "Be brief"}, {"input": HELLO}, {"temperature": 0}, {"store": False}, {"metadata": {"a": "b"}},
        {"request_id": "resp_mine"}, {"tools": [{"type": "function", **FUNCTION}]}, {"top_logprobs": 1}, {"user": "me"},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}])
    yield from posts("responses stream", RESPONSES, base | {"stream": True}, [
        {}, {"instructions": "Be brief"},
        {"input": "Call it", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required", "max_output_tokens": 99}])
    yield from posts("responses errors", RESPONSES, base, [
        {"model": ...}, {"input": ...}, {"input": 5}, {"previous_response_id": "resp_unknown"}, {"previous_response_id": "x"},
        {"max_output_tokens": "x"}, {"max_output_tokens": 3000}, {"temperature": "x"}, {"tool_choice": "sometimes"},
        {"background": True, "store": False}, {"stream": "x"}, {"top_p": 3}, {"background": True, "stream": True}])
    yield "responses errors", "GET", "/v1/responses/resp_unknown", None
    yield "responses errors", "GET", "/v1/responses/unknown", None
    yield "responses errors", "POST", "/v1/responses/resp_unknown/cancel", {}
    yield "responses errors", "POST", RESPONSES, b"{"


def messages_cases():
    base = {"model": "tiny-llama", "messages": HELLO, "max_tokens": 4}
    tool = {"name": "f", "description": "d", "input_schema": FUNCTION["parameters"]}
    yield from posts("messages", MESSAGES, base, [
        {}, {"system": "Be brief"}, {"system": [{"type": "text", "text": "Be brief"}]}, {"temperature": 0}, {"top_k": 5},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}, {"tools": [tool]},
        {"metadata": {"user_id": "me"}}, {"stop_sequences": ["zzzz"]}, {"model": "other"},
        {"messages": CALL, "tools": [tool], "tool_choice": {"type": "tool", "name": "f"}, "max_tokens": 99}])
    yield from posts("messages stream", MESSAGES, base | {"stream": True}, [
        {}, {"system": "Be brief"}, {"top_p": 4},
        {"messages": CALL, "tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 99}])
    yield from posts("messages errors", MESSAGES, base, [
        {"messages": ...}, {"messages": []}, {"max_tokens": ...}, {"max_tokens": 0}, {"max_tokens": "x"}, {"model": ...},
        {"messages": [{"role": "system", "content": "x"}]}, {"messages": [{"role": "user"}]}, {"temperature": "x"},
        {"temperature": 3}, {"tools": [{}]}, {"tool_choice": {"type": "sometimes"}}, {"max_tokens": 3000}, {"stream": "x"},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, {"tool_choice": {"type": "any"}}, {"top_p": 3}])
    yield "messages errors", "POST", MESSAGES, b"{"
    yield from posts("messages", MESSAGES + "/count_tokens", base, [
        {"max_tokens": ...}, {"max_tokens": ..., "system": "Be brief"}, {"max_tokens": ..., "tools": [tool]}])
    yield from posts("messages errors", MESSAGES + "/count_tokens", base, [
        {"messages": ...}, {"messages": []}, {"model": ...}])


def storage_and_logging_cases():
    """Cases of the hierarchical cache, logging and the check of weights."""
    for body in ({}, {"log_level": "debug", "log_requests": True, "log_requests_level": 3}, {"log_level": "nope"},
                 {"log_requests_level": 9}, {"log_requests_format": "nope"}, {"log_requests": "x"}, None):
        yield "control", "POST", "/configure_logging", body
    for body in ({"action": "snapshot"}, {"action": "compare"}, {"action": "nope"}, {"action": 5, "selector": "x"}, []):
        yield "control", "POST", "/weights_checker", body
    for method in ("GET", "PUT", "DELETE", "POST"):
        body = None if method != "PUT" else {"hicache_storage_backend": "file"}
        yield "control", method, "/hicache/storage-backend", body
    yield "control", "PUT", "/hicache/storage-backend", {}
    yield "control", "POST", "/hicache/storage-backend/clear", None
    yield "control", "GET", "/get_hicache_l3_cache_layout", None


def transcription_cases():
    """Cases of a model that transcribes no speech."""
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
    def part(name, value):
        return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    for parts in ([file], [file, part("language", "en")], [part("model", "x")], [part("file", "x")],
                  [file, part("response_format", "srt")], [file, part("temperature", "x"), part("stream", "x")]):
        yield "transcriptions", "POST", "/v1/audio/transcriptions", b"".join(parts) + b"--b--\r\n"
    yield "transcriptions", "GET", "/v1/audio/transcriptions", None


def systemone_cases():
    """Cases of `/v1/systemone`."""
    noul = {"type": "noul", "instructions": "Is it blue?"}
    choice = {"type": "choice", "instructions": "Which?", "criteria": {"red": None, "blue": "cold"}}
    score = {"type": "score", "criteria": ["low", ["high"]]}
    base = {"state": "The sky is blue.", "model": "tiny-llama", "questions": {"n": noul, "c": choice, "s": score}}
    yield from posts("systemone", "/v1/systemone", base, [
        {}, {"model": "other"}, {"questions": {"n": {"type": "noul", "criteria": {"true": "blue"}}}}, {"state": {"a": 1}},
        {"questions": {"c": choice}}, {"questions": {"s": score}}, {"questions": {"c": {"type": "choice", "criteria": {"one": None}}}}, {"more": 1}, {"state": ...}, {"state": 5},
        {"model": ...}, {"model": "tiny-llama:x"}, {"questions": ...}, {"questions": []}, {"questions": {"n": 5}},
        {"questions": {"n": {}}}, {"questions": {"n": {"type": "noul"}}}, {"questions": {"n": {**noul, "more": 1}}},
        {"questions": {"c": {"type": "choice"}}}, {"questions": {"c": {**choice, "criteria": {"a": None, "A ": None}}}},
        {"images": ["x"]}, {"temperature": 1.0}])
    yield "systemone", "POST", "/v1/systemone", b"{"
    yield "systemone", "POST", "/v1/systemone", b""


def control_cases():
    for path in ("/release_memory_occupation", "/resume_memory_occupation"):
        yield "control", "POST", path, {}
        yield "control", "POST", path, {"tags": ["kv_cache"]}
        yield "control", "POST", path, {"tags": 5}
    yield "control", "POST", "/release_memory_occupation", None
    for body in ({"forward_sleep_time": 0.001}, {"forward_sleep_time": None}, {}, {"forward_sleep_time": "x"}, None):
        yield "control", "POST", "/slow_down", body
    for body in ({"capacity_of_str_len": 1000}, {"capacity_of_str_len": 1000, "session_id": "s"},
                 {"capacity_of_str_len": 1000, "session_id": "s"}, {}, {"capacity_of_str_len": "x"}, None):
        yield "sessions", "POST", "/open_session", body
    first = {"text": "Hello", "session_params": {"id": "s"}, "sampling_params": {"max_new_tokens": 2}}
    yield "sessions", "POST", GENERATE, first
    for body in ({"session_id": "s"}, {"session_id": "unknown"}, {}, {"session_id": 5}):
        yield "sessions", "POST", "/close_session", body
    for path, bodies in {
        "/update_weight_version": [{"new_version": "v2"}, {"new_version": "default"}, {}],
        "/pause_generation": [{"mode": "other"}, {"mode": "in_place"}],
        "/continue_generation": [{}, {"torch_empty_cache": False}],
        "/abort_request": [{"rid": "unknown"}, {"abort_all": True}, {}, {"rid": 5}],
        "/load_lora_adapter": [{"lora_name": "a", "lora_path": "/none"}, {}, {"lora_name": "a"}],
        "/unload_lora_adapter": [{"lora_name": "a"}, {}],
        "/flush_cache": [None],
        "/tokenize": [{"prompt": "a b"}, {"prompt": ["a"]}, {"messages": HELLO}, {}, {"prompt": 5}],
        "/v1/tokenize": [{"prompt": "a b", "add_special_tokens": False}],
        "/detokenize": [{"tokens": [5]}, {"tokens": [[5], [6]]}, {}, {"tokens": "x"}, {"tokens": [99999]}, {"tokens": []}],
    }.items():
        for body in bodies:
            yield "control", "POST", path, body
    for path in ("/flush_cache", "/slow_down", "/get_weights_by_name"):
        yield "control", "GET", path, None
    for path in ("/", "/health", "/health_generate", "/ready", "/ping", "/v1/models", "/v1/models/tiny-llama", "/v1/models/x",
                 "/model_info", "/get_model_info", "/unknown", "/metrics", "/v1/responses", "/api/tags"):
        yield "information", "GET", path, None
    yield "information", "HEAD", "/", None


def ollama_cases():
    base = {"model": "tiny-llama", "messages": HELLO, "options": {"num_predict": 4}, "stream": False}
    yield from posts("Ollama", "/api/chat", base, [{}, {"stream": True}, {"model": ...}, {"messages": ...}])
    base = {"model": "tiny-llama", "prompt": "Hello", "options": {"num_predict": 4}, "stream": False}
    yield from posts("Ollama", "/api/generate", base, [{}, {"stream": True}, {"prompt": ...}, {"system": "s"}, {"prompt": ""}])
    yield from posts("Ollama", "/api/show", {"model": "tiny-llama"}, [{}, {"model": ...}])


def generating_cases():
    """Cases for a generating model."""
    for cases in (generate_cases(), chat_cases(), completion_cases(), embedding_cases("pooling of a generating model"),
                  responses_cases(), messages_cases(), control_cases(), ollama_cases(), storage_and_logging_cases(),
                  transcription_cases(), systemone_cases()):
        yield from cases


def parser_cases():
    """Cases for a server with a parser of tool calls and the report of cached tokens."""
    for case in [*chat_cases(), *responses_cases(), *messages_cases()]:
        group, _, _, body = case
        if isinstance(body, dict) and "tools" in body and "errors" not in group:
            yield "tool calls with a parser", *case[1:]
