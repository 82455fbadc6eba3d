"""Which servers `compare_answers.py` starts, and what it sends them.

A request is {"method", "path", "headers", "body"}: headers a list of pairs, the body a text. All follow
from a seed and the name of the server.
"""

import itertools
import json
import random

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES, GENERATE = "/v1/responses", "/inference/v1/generate"
FOLDER = "tests/fixtures/tiny-llama"
TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1"]
LORA = ["--enable-lora", "--lora-modules", '{"name":"sql","path":"adapters/sql"}', '{"name":"poem","path":"adapters/poem"}']
SERVERS = {
    "plain": ["--model", "demo", "--dev-mode"],
    "llmd": ["--model", "demo", "--compat", "llm-d", "--dev-mode"],
    "serve": ["serve", "demo", "--max-model-len", "2048", *TOOLS],
    "serve-bare": ["serve", "demo", "--max-model-len", "600", "--dev-mode", "--mode", "echo", "--enable-scale-out"],
    "folder": ["serve", FOLDER, "--served-model-name", "demo", "--enable-scale-out", "--dev-mode", *TOOLS,
               "--trust-request-chat-template", "--enable-prompt-tokens-details"],
    "llmd-folder": ["--model", FOLDER, "--served-model-name", "demo", "--compat", "llm-d", "--enable-kvcache", "--dev-mode",
                    "--max-model-len", "1024"],
    "plain-folder": ["--model", FOLDER, "--served-model-name", "demo", "--enable-kvcache", "--dev-mode", *LORA, *TOOLS],
    "keys": ["serve", "demo", "--served-model-name", "demo", "b", "--max-model-len", "2048", "--api-key", "k1", "k2", *LORA,
             "--enable-request-id-headers", "--allowed-origins", '["http://a.example"]', "--enable-force-include-usage"],
    "llmd-keys": ["--model", "demo", "--served-model-name", "demo", "b", "--compat", "llm-d", "--api-key", "k1", *LORA,
                  "--mode", "echo", "--pod-name", "pod", "--pod-namespace", "space", "--max-num-seqs", "3"],
    "odd": ["serve", FOLDER, "--served-model-name", "demo", "--root-path", "/sim", "--request-history", "4", "--dev-mode",
            "--stream-interval", "3", "--return-tokens-as-token-ids", "--enable-scale-out", "--mm-tokens-per-item", '{"image":7}',
            "--skip-model-name-validation", "--responses-store", "--data-parallel-size", "2", "--api-server-count", "1"],
    "transfer": ["serve", "demo", "--max-model-len", "2048", "--dev-mode", "--tool-call-parser", "hermes", "--enable-auto-tool-choice",
                 "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}', "--enable-scale-out",
                 "--legacy-guided-fields", "--mm-tokens-per-item", '{"image":5,"audio":4}'],
    "speech": ["serve", FOLDER, "--served-model-name", "demo", "--task", "transcription", "--dev-mode"],
}
# These publish KV events.
PUBLISHING = ["folder", "llmd-folder", "transfer"]

SAID = ["hi", "Tell me a story about a river.", "Grüße, 世界 😀", "a b c d e f g h i j " * 12, "x", "", "line\nline\r\n\ttab", "<think>no</think> yes"]
TOOL = {"type": "function", "function": {"name": "turn", "description": "d", "strict": True, "parameters": {
    "type": "object", "properties": {"side": {"type": "string", "enum": ["left", "right"]}, "times": {"type": "integer"}}, "required": ["side"]}}}
BARE = {"type": "function", "function": {"name": "rest"}}
FLAT = {"type": "function", **TOOL["function"]}
USE = {"name": "turn", "description": "d", "input_schema": TOOL["function"]["parameters"]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 5}}, "required": ["a"], "additionalProperties": False}
PNG = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": PNG}}
BILLING = "x-anthropic-billing-header: a\nkeep"
CALL = {"id": "c1", "type": "function", "function": {"name": "turn", "arguments": "{\"side\": \"left\"}"}}
REMOTE = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e", "remote_block_ids": [1, 2],
          "remote_host": "127.0.0.1", "remote_port": 5, "remote_request_id": "r", "tp_size": 1}


def said(content, role="user", **more):
    return {"role": role, "content": content, **more}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


TALKS = [
    *([said(text)] for text in SAID),
    [said("Be kind.", "system"), said("hi")], [said(BILLING, "system"), said("hi")],
    [said(parts("x-anthropic-billing-header: a", "x-anthropic-billing-header: b\nkeep", "end"), "system"), said("hi")],
    [said("x-anthropic-billing-header: a\nx-anthropic-billing-header: b\nkeep", "system"), said("u")],
    [said("d", "developer"), said(parts("a b", "c"))], [said("q"), said("a", "assistant"), said("r")],
    [said("q"), said(None, "assistant", tool_calls=[CALL]), said("42", "tool", tool_call_id="c1"), said("so?")],
    [said("q"), said("t", "assistant", tool_calls=[CALL, CALL]), said(parts("42", "43"), "tool", tool_call_id="c1")],
    [said("q"), said("a", "assistant", reasoning="because"), said("r")], [said("q"), said("a", "assistant", reasoning_content="because")],
    [said([*parts("see"), IMAGE])], [said([IMAGE, IMAGE, *parts("two")])], [said("q"), said("half of an", "assistant")],
    [said([*parts("see"), {**IMAGE, "uuid": "u1"}])], [said([{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}])],
    [said([{"type": "video_url", "video_url": {"url": "http://h/v.mp4"}}])], [said([{"type": "refusal", "refusal": "no"}], "assistant"), said("r")],
    [said([{"type": "thinking", "thinking": "t"}, *parts("a")], "assistant"), said("r")], [said("n", name="bob")],
    [said([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}])], [said("x", "alien")], [said("f", "function", name="f")],
    [said(["a", "b"])], [said([{"text": "a"}])], [said([])], [said(None)], [said([{"type": "file", "file": {"file_id": "f"}}])],
    [said("q", prefix=True), said("a", "assistant", prefix=True)], [said([{"type": "image_url", "image_url": PNG}])],
    [said([{**parts("cached")[0], "prompt_cache_breakpoint": {"type": "ephemeral"}}])], [said([{"type": "image_embeds", "image_embeds": "AAAA"}])],
    [said("tools", "system", tools=[TOOL]), said("hi")], [said([{"type": "tool_reference", "name": "turn"}])],
]
BOOLS, ANY_IDS = [True, False], [[39, 68, 75], [5, 6, 7, 8, 9, 10, 11, 12], [1]]
SAMPLING = {
    "temperature": [0, 0.7, 1.0, 2], "top_p": [0.1, 0.9, 1], "top_k": [-1, 0, 1, 40], "min_p": [0, 0.2], "seed": [0, 3, -5, 2**40],
    "presence_penalty": [0.5, -2], "frequency_penalty": [0.5, 2], "repetition_penalty": [1.1], "stop": ["e", ["river", "the "], [], None],
    "stop_token_ids": [[220], [1, 2]], "include_stop_str_in_output": BOOLS, "ignore_eos": [True], "min_tokens": [0, 2],
    "skip_special_tokens": BOOLS, "spaces_between_special_tokens": BOOLS, "bad_words": [["bad", "word"]], "allowed_token_ids": [[39, 68, 75, 220]],
    "logit_bias": [{"39": 100}, {"5": -100, "6": 1.5}], "vllm_xargs": [{"a": 1}], "length_penalty": [1.0], "prompt_logprobs": [0, 2],
    "truncate_prompt_tokens": [1, 4, -1], "truncation_side": ["left", "right"], "thinking_token_budget": [3], "logprob_token_ids": [[5, 6]],
    "repetition_detection": [{"max_pattern_size": 3, "min_count": 2}],
}
META = {
    "request_id": ["mine", "r-2"], "priority": [0, 3, -1], "cache_salt": ["salt"], "user": ["u"], "session_id": ["s"], "watermarking": [None],
    "kv_transfer_params": [{"do_remote_decode": True}, REMOTE, {"a": 1}, None], "ec_transfer_params": [{"a": 1}], "cache_hit_threshold": [0.0, 0.5, 1.0],
    "return_token_ids": BOOLS, "return_prompt_text": BOOLS, "return_tokens_as_token_ids": BOOLS, "return_token_offsets": BOOLS,
    "return_weight_versions": BOOLS, "mm_processor_kwargs": [{"num_crops": 4}], "stream_interval": [1, 2], "unknown_member": [1], "metadata": [{"a": "b"}],
}
SHAPE = {
    "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}],
    "structured_outputs": [{"regex": "[a-c]{2,9}"}, {"choice": ["yes", "no"]}, {"json": SCHEMA}, {"grammar": 'root ::= "a" | "b"'}, {"json_object": True}],
    "stream": [True, True, False], "stream_options": [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}, None],
    "n": [1, 2, 3], "max_tokens": [1, 2, 5, 5, 20, 60], "guided_regex": ["a+"], "guided_choice": [["x", "y"]],
}
CHATTING = {
    "messages": TALKS, "tools": [[TOOL], [TOOL, BARE], [], None], "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "turn"}}],
    "parallel_tool_calls": BOOLS, "logprobs": BOOLS, "top_logprobs": [0, 1, 3], "max_completion_tokens": [1, 4, 30], "echo": BOOLS,
    "add_generation_prompt": BOOLS, "continue_final_message": BOOLS, "add_special_tokens": BOOLS, "chat_template_kwargs": [{"enable_thinking": False}, {"a": [1]}],
    "chat_template": ["{{ messages[0]['content'] }}", "{{ broken"], "documents": [[{"title": "t", "text": "x"}]], "reasoning_effort": ["low", "none", "high"],
    "include_reasoning": BOOLS, "service_tier": ["auto"], "store": BOOLS, "modalities": [["text"]], "media_io_kwargs": [{"video": {"num_frames": 3}}],
}
BLOCKS = [
    [said("hi")], [said(parts("a b", "c"))], [said("q"), said("a", "assistant"), said("r")], [said([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}, *parts("see")])],
    [said("q"), said([{"type": "tool_use", "id": "t1", "name": "turn", "input": {"side": "left"}}], "assistant"), said([{"type": "tool_result", "tool_use_id": "t1", "content": "42"}])],
    [said("q"), said([{"type": "tool_use", "id": "t1", "name": "turn", "input": {}}], "assistant"), said([{"type": "tool_result", "tool_use_id": "t1", "content": parts("4", "2")}, *parts("so?")])],
    [said("q"), said([{"type": "thinking", "thinking": "t", "signature": "s"}, *parts("a")], "assistant"), said("r")], [said("s", "system"), said("hi")],
    [said(BILLING, "system"), said("hi")], [said([{"type": "zzz"}])], [said(None)], [said([{"type": "redacted_thinking", "data": "x"}], "assistant"), said("u")],
    [said("q"), said("half of an", "assistant")], [said([{"type": "tool_reference", "tool_name": "turn"}])], [said(text) for text in SAID[1:4]],
]
ITEMS = [
    *SAID[:4], [said("hi")], [said([{"type": "input_text", "text": "a b"}])], [{"type": "message", **said([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PNG, "detail": "auto"}])}],
    [said("q"), {"type": "function_call", "name": "turn", "arguments": "{}", "call_id": "c"}, {"type": "function_call_output", "call_id": "c", "output": "42"}],
    [said("q"), {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}, said("r")], [said("s", "system"), said("d", "developer"), said("u")],
    [said([{"type": "output_text", "text": "a", "annotations": []}], "assistant"), said("r")], [], [{"type": "zzz"}], [said(BILLING, "system"), said("u")], [{"type": "item_reference", "id": "x"}],
    [said("q"), {"type": "custom_tool_call", "name": "c", "input": "i", "call_id": "c"}, {"type": "custom_tool_call_output", "call_id": "c", "output": "o"}],
]
MEMBERS = {
    CHAT: {**SAMPLING, **META, **SHAPE, **CHATTING},
    TEXT: {**SAMPLING, **META, **SHAPE, "prompt": [*SAID, ["a b", "c"], ["x"], *ANY_IDS, [[39, 68], [75]], []], "echo": BOOLS, "logprobs": [0, 1, 3],
           "suffix": ["s"], "best_of": [2], "prompt_embeds": ["AAAA"], "add_special_tokens": BOOLS},
    MESSAGES: {"messages": BLOCKS, "system": ["be kind", BILLING, parts("a", "b"), parts("x-anthropic-billing-header: a", "keep")], "max_tokens": [1, 2, 9, 40], "stream": [True, False],
               "stop_sequences": [["e"], []], "temperature": [0.5], "top_k": [5], "top_p": [0.9], "metadata": [{"user_id": "u"}], "tools": [[USE], [USE, {"name": "b", "input_schema": {"type": "object"}}]],
               "tool_choice": [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "turn"}], "thinking": [{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}],
               "output_config": [{"effort": "low"}, {"format": {"type": "json_schema", "schema": SCHEMA}}], "cache_salt": ["s"], "kv_transfer_params": META["kv_transfer_params"],
               "chat_template_kwargs": [{"a": 1}], "vllm_xargs": [{"a": 1}], "context_management": [{"edits": []}], "unknown_member": [1]},
    RESPONSES: {"input": ITEMS, "instructions": ["be kind", BILLING], "max_output_tokens": [1, 3, 20], "stream": [True, False], "temperature": [0.5, 2], "top_p": [0.9], "tools": [[FLAT], [FLAT, {"type": "custom", "name": "c"}], [{"type": "web_search"}]],
                "tool_choice": ["auto", "none", "required", {"type": "function", "name": "turn"}, {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "turn"}]}], "parallel_tool_calls": BOOLS, "store": BOOLS,
                "previous_response_id": ["@last", "resp_none"], "background": [True], "include": [["message.output_text.logprobs"], ["reasoning.encrypted_content"]], "top_logprobs": [0, 2], "metadata": [{"a": "b"}],
                "text": [{"format": {"type": "json_object"}}, {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}, {"verbosity": "low"}], "reasoning": [{"effort": "low"}, {"effort": "none"}, {"effort": "high", "summary": "auto"}],
                "truncation": ["auto", "disabled"], "service_tier": ["default"], "seed": [3], "stop": ["e"], "ignore_eos": [True], "skip_special_tokens": BOOLS, "include_reasoning": BOOLS, "enable_response_messages": BOOLS, "max_tool_calls": [2],
                "structured_outputs": SHAPE["structured_outputs"], **{k: META[k] for k in ("request_id", "priority", "cache_salt", "user", "kv_transfer_params", "unknown_member")}},
    GENERATE: {"token_ids": ANY_IDS, "sampling_params": [{"max_tokens": m, **more} for m in (1, 3, 12) for more in ({}, {"seed": 3}, {"n": 2}, {"logprobs": 2}, {"stop": ["e"]}, {"ignore_eos": True, "min_tokens": 1},
               {"temperature": 0}, {"prompt_logprobs": 1}, {"structured_outputs": {"regex": "a+"}}, {"output_kind": 1}, {"bad_words": ["a"]})], "stream": [True, False], "stream_options": SHAPE["stream_options"],
               "features": [None], "output_mode": ["tokens", "text"], **{k: META[k] for k in ("request_id", "priority", "cache_salt", "kv_transfer_params", "return_token_ids", "unknown_member", "cache_hit_threshold")}},
}
USUAL = {CHAT: {"messages": [said("hi")]}, TEXT: {"prompt": "Tell me a story."}, MESSAGES: {"messages": [said("hi")], "max_tokens": 12},
         RESPONSES: {"input": "hi"}, GENERATE: {"token_ids": [39, 68, 75], "sampling_params": {"max_tokens": 4}}}
MEMBERS["/v1/chat/completions/batch"] = {**MEMBERS[CHAT], "messages": [[a, b] for a, b in zip(TALKS[:12], TALKS[9:21])]}
USUAL["/v1/chat/completions/batch"] = {"messages": [[said("hi")], [said("ho")]]}
for route in (CHAT, TEXT, MESSAGES, RESPONSES):
    MEMBERS[route + "/render"], USUAL[route + "/render"] = MEMBERS[route], USUAL[route]
MEMBERS["/v1/messages/count_tokens"], USUAL["/v1/messages/count_tokens"] = MEMBERS[MESSAGES], {"messages": [said("hi")]}
MEMBERS["/tokenize"] = {**CHATTING, "prompt": SAID, "return_token_strs": BOOLS}
USUAL["/tokenize"] = {}
OTHER = {
    "/detokenize": ({"tokens": [39, 68, 75]}, {"tokens": [*ANY_IDS, [39, 999_999, 2**32 + 39], []]}),
    "/v1/embeddings": ({"input": "hi"}, {"input": [*SAID, ["a", "b"], *ANY_IDS, [[39], [68, 75]]], "messages": TALKS, "encoding_format": ["float", "base64"], "dimensions": [4, 8], "truncate_prompt_tokens": [1, -1],
                                         "embed_dtype": ["float16"], "endianness": ["big"], "normalize": BOOLS, "priority": [1], "user": ["u"], "add_special_tokens": BOOLS}),
    "/v2/embed": ({"texts": ["hi"], "input_type": "search_query"}, {"texts": [["a", "b"]], "embedding_types": [["float", "int8"], ["base64"]], "output_dimension": [8], "truncate": ["END", "NONE"], "images": [[PNG]]}),
    "/pooling": ({"input": "hi"}, {"input": [["a", "b"], *ANY_IDS], "messages": TALKS, "encoding_format": ["base64", "bytes"], "task": ["embed", "token_embed", "classify", "score"], "activation": BOOLS}),
    "/score": ({"text_1": "red", "text_2": ["red", "blue"]}, {"text_1": [["a", "b"]], "text_2": ["x", ["a", "b"]], "truncate_prompt_tokens": [2], "activation": BOOLS}),
    "/rerank": ({"query": "red", "documents": ["blue", "red"]}, {"top_n": [0, 1, 9], "documents": [["a", "b", "c"], []], "truncate_prompt_tokens": [2]}),
    "/generative_scoring": ({"query": "q", "items": ["a", "b"], "label_token_ids": [5, 6]}, {"apply_softmax": BOOLS, "item_first": BOOLS, "items": [[[1], [2, 3]], []], "query": [[1, 2]], "label_token_ids": [[], [9]]}),
    "/v1/chat/completions/derender": ({"generate_response": {"request_id": "r1", "choices": [{"index": 0, "token_ids": [46, 77, 68], "finish_reason": "stop"}]}, "chat_request": USUAL[CHAT]}, {"prompt_tokens": [7], "chat_request": [{**USUAL[CHAT], "tools": [TOOL]}]}),
    "/v1/completions/derender": ({"generate_responses": [{"request_id": "r1", "choices": [{"index": 0, "token_ids": [46, 77], "finish_reason": "length"}]}], "completion_request": USUAL[TEXT]}, {"prompt_tokens": [[4]], "prompt_token_ids": [[[1]]]}),
    "/invocations": (USUAL[CHAT], {"prompt": SAID, "max_tokens": [2], "stream": [True]}),
    "/inference/v1/abort_requests": ({"request_ids": ["mine"]}, {}), "/reset_prefix_cache": ({}, {}), "/v1/load_lora_adapter": ({"lora_name": "l", "lora_path": "p"}, {}),
}
for route, (usual, members) in OTHER.items():
    USUAL[route], MEMBERS[route] = usual, members
WEIGHTS = {CHAT: 30, TEXT: 14, MESSAGES: 11, RESPONSES: 12, GENERATE: 9, "/v1/chat/completions/batch": 2, "/tokenize": 3, "/v1/messages/count_tokens": 2,
           **{route + "/render": 2 for route in (CHAT, TEXT, MESSAGES, RESPONSES)}, "/v1/embeddings": 2, **{route: 0.7 for route in OTHER if route != "/v1/embeddings"}}
GETS = ["/v1/models", "/version", "/load", "/health", "/nothing", "/v1/nothing", CHAT, "/v1/models/", "/query", "/is_sleeping", "/tokenizer_info", "/v1/responses/resp_none",
        "/v1/responses/@last", "/ping", "/kv_event_sources", "/sim/v1/models", "/sim/version", "/server_info?config_format=json"]
WRONG = [None, True, False, 0, -1, 1.5, 10**12, 2**63, -(2**70), "", "x", "5", "yes", [], ["x"], [1], [[]], [None], {}, {"a": 1}, {"type": "zzz"}, "\ud800", "a" * 300, ...]
RAW = [b"", b"null", b"[]", b"{", b'{"model":"demo",}', b'{"model":"demo"} x', b"\xff", b'{"a":NaN}', b'"x"', b'{"model":"demo","model":"b","prompt":"x","messages":[{"role":"user","content":"a"}],"max_tokens":1e0}',
       b"5", b'{"model":"demo","prompt":"x","max_tokens":3,"messages":[{"role":"user","content":"\\ud83d"}]}', b"  \n", b"[" * 300, b'{"model":"demo","messages":[{"role":"user","content":"a"}],"prompt":"a","max_tokens":Infinity}']
HEADERS = [
    ("x-request-id", "given"), ("X-Request-Id", "z" * 70), ("X-Return-Error", "503"), ("X-Return-Error", "429"), ("X-Return-Error", "no"), ("X-Sim-Fault", "cut_after=2"), ("X-Sim-Fault", "missing_done"),
    ("X-Sim-Fault", "duplicate_done"), ("X-Sim-Fault", "malformed_after=1"), ("X-Sim-Fault", "stall=1:2ms"), ("X-Sim-Fault", "wrong_content_length=20"), ("X-Sim-Fault", "rate_limit"), ("X-Sim-Fault", "context_length"),
    ("X-Sim-Fault", "invalid_api_key"), ("X-Sim-Fault", "server_error"), ("X-Sim-Fault", "invalid_request"), ("X-Sim-Fault", "model_not_found"), ("X-Sim-Fault", "zzz=1"), ("X-Sim-Fault", "kv_load_failure"), ("x-data-parallel-rank", "0"),
    ("x-data-parallel-rank", "1"), ("x-data-parallel-rank", "9"), ("x-data-parallel-rank", "x"), ("x-cache-threshold-finish-reason", "true"), ("x-cache-threshold-finish-reason", "false"), ("Authorization", "Bearer k2"),
    ("Authorization", "Bearer wrong"), ("Authorization", "k1"), ("X-vLLM-Priority", "3"), ("endpoint-load-metrics-format", "TEXT"), ("endpoint-load-metrics-format", "JSON"), ("Origin", "http://a.example"),
    ("Origin", "http://b.example"), ("content-type", "text/plain"), ("content-type", "application/json; charset=utf-8"), ("content-type", ""), ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("x-inference-request-id", "i"), ("x-session-id", "s"), ("Connection", "close"), ("Accept", "text/event-stream"),
]

LONG = "word " * 3000
BROKEN_SCHEMA = {"$ref": "#/nowhere"}
# Faults of a body: patches of members, by route. Two of them go into one body, all pairs of a route in turn.
SAMPLING_FAULTS = [{"temperature": -1}, {"top_p": 3}, {"n": 0}, {"n": 20000}, {"max_tokens": 0}, {"max_tokens": "x"}, {"max_tokens": 10**7}, {"min_tokens": 90, "max_tokens": 3}, {"bad_words": [""]},
                   {"logit_bias": {"9999999": 1}}, {"stop": ["a"] * 2000}, {"stop": [""]}, {"structured_outputs": {"json": BROKEN_SCHEMA}}, {"structured_outputs": {"regex": "("}}, {"structured_outputs": {"regex": "a", "choice": ["b"]}},
                   {"stream_options": {"include_usage": True}, "stream": False}, {"kv_transfer_params": "x"}, {"truncate_prompt_tokens": -2}, {"allowed_token_ids": []}, {"cache_salt": ""}, {"prompt_logprobs": 99}, {"priority": 5}]
COMMON_FAULTS = [{"model": "x"}, {"model": 3}, {"model": ...}, {"model": ""}, {"@x-data-parallel-rank": "9"}, {"@X-Return-Error": "503"}, {"@X-Sim-Fault": "rate_limit"}, {"@X-Sim-Fault": "zzz"}, {"@Authorization": "Bearer no"}]
FAULTS = {
    CHAT: [*COMMON_FAULTS, *SAMPLING_FAULTS, {"tool_choice": "required"}, {"tool_choice": {"type": "function", "function": {"name": "no"}}, "tools": [TOOL]}, {"tools": [{"type": "function"}]}, {"messages": [said([{"type": "zzz"}])]},
           {"messages": []}, {"messages": "x"}, {"messages": [said(LONG)]}, {"messages": [said("x", "alien")]}, {"top_logprobs": 99, "logprobs": True}, {"top_logprobs": 2}, {"response_format": {"type": "yaml"}}, {"chat_template": "{{ broken"},
           {"continue_final_message": True, "add_generation_prompt": True}, {"reasoning_effort": "zzz"}],
    TEXT: [*COMMON_FAULTS, *SAMPLING_FAULTS, {"prompt": ...}, {"prompt": ""}, {"prompt": []}, {"prompt": [-5]}, {"prompt": [10**9]}, {"prompt": LONG}, {"prompt": ["a"] * 3000}, {"logprobs": 99}, {"logprobs": -1}, {"suffix": "s"}, {"echo": True, "stream": True, "prompt_logprobs": 1},
           {"prompt_embeds": "AAAA"}],
    MESSAGES: [*COMMON_FAULTS, {"max_tokens": 0}, {"max_tokens": ...}, {"max_tokens": 10**7}, {"messages": []}, {"messages": ...}, {"messages": [said([{"type": "zzz"}])]}, {"messages": [said(LONG)]}, {"system": 3}, {"tools": [{}]}, {"tool_choice": {"type": "tool", "name": "no"}, "tools": [USE]},
               {"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "zzz"}}, {"temperature": -1}, {"top_p": 3}, {"stop_sequences": [""]}, {"thinking": {"type": "zzz"}}, {"kv_transfer_params": 3}, {"output_config": {"format": {"type": "json_schema", "schema": BROKEN_SCHEMA}}}],
    RESPONSES: [*COMMON_FAULTS, {"input": ...}, {"input": [{"type": "zzz"}]}, {"input": LONG}, {"input": []}, {"max_output_tokens": 0}, {"max_output_tokens": 10**7}, {"previous_response_id": "resp_none"}, {"previous_response_id": "bad"}, {"tools": [{}]}, {"tool_choice": "required"}, {"tool_choice": "zzz"},
                {"tool_choice": {"type": "function", "name": "no"}, "tools": [FLAT]}, {"temperature": -1}, {"top_logprobs": 99}, {"text": {"format": {"type": "zzz"}}}, {"include": ["zzz"]}, {"background": True, "store": False}, {"truncation": "zzz"}, {"stop": [""]}, {"structured_outputs": {"regex": "("}},
                {"reasoning": {"effort": "zzz"}}, {"kv_transfer_params": "x"}, {"prompt": {"id": "p"}}],
    GENERATE: [*COMMON_FAULTS, {"token_ids": []}, {"token_ids": ...}, {"token_ids": [-1]}, {"token_ids": [10**9]}, {"token_ids": [1] * 5000}, {"sampling_params": ...}, {"sampling_params": {"max_tokens": 0}}, {"sampling_params": {"max_tokens": 10**7}}, {"sampling_params": {"n": 0}},
               {"sampling_params": {"temperature": -1}}, {"sampling_params": {"logprobs": 99}}, {"sampling_params": {"bad_words": [""]}}, {"sampling_params": {"structured_outputs": {"regex": "("}}}, {"sampling_params": 3}, {"stream_options": {"include_usage": True}}, {"kv_transfer_params": "x"}, {"priority": "x"},
               {"output_mode": "zzz"}, {"features": 3}, {"cache_salt": 3}],
}


def patched(body, headers, *patches):
    """A body with members set, or left out where the value is `...`; names that begin with @ are headers."""
    body, headers = dict(body), list(headers)
    for patch in patches:
        for name, value in patch.items():
            if name.startswith("@"):
                headers = [pair for pair in headers if pair[0] != name[1:]] + [(name[1:], value)]
            elif value is ...:
                body.pop(name, None)
            else:
                body[name] = value
    return body, headers


def form(rng):
    """A form with speech in it."""
    seconds, fields = rng.choice([0, 0.2, 1, 2.5, 31]), {"model": "demo"}
    choices = {"language": ["en", "de", "zz"], "response_format": ["json", "text", "verbose_json", "srt", "zzz"], "temperature": ["0", "0.5", "x", "-1"], "seed": ["3", "x"], "stream": ["true", "false"], "prompt": ["hi", "x" * 3000],
               "timestamp_granularities[]": ["segment", "word"], "stream_include_usage": ["true"], "max_completion_tokens": ["3", "0"], "model": ["x", "", "demo"], "to_language": ["en"], "top_p": ["0.5", "9"]}
    for name in rng.sample(sorted(choices), rng.choice([0, 1, 1, 2, 3])):
        fields[name] = rng.choice(choices[name])
    data = int(seconds * 16_000) * 2
    wav = b"RIFF" + (36 + data).to_bytes(4, "little") + b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data" + data.to_bytes(4, "little") + bytes(data)
    wav = rng.choice([wav] * 8 + [b"", b"RIFF", None])
    out = b"".join(b'--xyz\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (n.encode(), v.encode()) for n, v in fields.items())
    if wav is not None:
        out += b'--xyz\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\ncontent-type: audio/wav\r\n\r\n' + wav + b"\r\n"
    return out + b"--xyz--\r\n"


class Sender:
    """The requests of one server, in turn."""

    def __init__(self, seed, server):
        self.rng, self.server = random.Random(f"{seed} {server}"), server
        # The servers of a dialect share out the pairs: each begins where the one before may have ended.
        dialect = [name for name in SERVERS if ("llmd" in name) == ("llmd" in server)]
        self.pairs, self.lengths = {}, {}
        for route, faults in FAULTS.items():
            found = list(itertools.combinations(faults, 2))
            random.Random(f"{seed} pairs").shuffle(found)
            start = len(found) * dialect.index(server) // len(dialect)
            self.pairs[route], self.lengths[route] = itertools.cycle(found[start:] + found[:start]), len(found)

    def one(self):
        rng = self.rng
        headers = [("content-type", "application/json")]
        if "keys" in self.server and rng.random() < 0.93:
            headers.append(("Authorization", "Bearer k1"))
        if rng.random() < 0.02:
            method = rng.choice(["GET"] * 6 + ["DELETE", "HEAD", "OPTIONS", "PUT"])
            return self.request(method, rng.choice(GETS), headers + rng.sample(HEADERS, 1), b"")
        if self.server == "speech" and rng.random() < 0.9:
            headers[0] = ("content-type", "multipart/form-data; boundary=xyz")
            more = rng.sample(HEADERS, rng.choice([0, 0, 0, 1]))
            path = rng.choice(["/v1/audio/transcriptions"] * 2 + ["/v1/audio/translations"])
            return self.request("POST", path, headers + [pair for pair in more if pair[0] != "content-type"], form(rng))
        if rng.random() < 1 / 3:
            route = rng.choices(list(self.lengths), self.lengths.values())[0]
            stream = {"stream": True} if rng.random() < 0.3 and route != GENERATE else {}
            body, headers = patched({"model": "demo", **USUAL[route], **stream}, headers, *next(self.pairs[route]))
            return self.request("POST", route, headers, body)
        route = rng.choices(list(WEIGHTS), WEIGHTS.values())[0]
        body = {"model": self.model(), **USUAL[route]}
        members = MEMBERS[route]
        for name in rng.sample(sorted(members), min(len(members), rng.choice([0, 1, 1, 2, 2, 3, 4, 6]))):
            body[name] = rng.choice(members[name])
        if route == "/tokenize" and "messages" not in body and "prompt" not in body:
            body["prompt"] = rng.choice(SAID)
        if "ignore_eos" in body:
            body["max_output_tokens" if route.startswith(RESPONSES) else "max_tokens"] = 20
        way = rng.random()
        if way < 0.2:
            name = rng.choice(sorted({*body, *members}))
            body, headers = patched(body, headers, {name: rng.choice(WRONG)})
        elif way < 0.23:
            return self.request("POST", route, headers, rng.choice(RAW))
        elif way < 0.26:
            whole = json.dumps(body).encode()
            at = rng.randrange(len(whole))
            return self.request("POST", route, headers, whole[:at] + rng.choice([b"", b"}", b'"', b"\0", b"1", b",,"]) + whole[at + 1 :])
        if rng.random() < 0.15:
            body, headers = patched(body, headers, *({"@" + name: value} for name, value in rng.sample(HEADERS, 1)))
            headers = [pair for n, pair in enumerate(headers) if pair[0] not in [later[0] for later in headers[n + 1 :]]]
        path = rng.choice([route] * 30 + [route + "/", route + "?a=b", "/sim" + route])
        return self.request("POST", path, headers, body)

    def model(self):
        return self.rng.choice(["demo"] * 12 + ["sql", "b", "poem"])

    def request(self, method, path, headers, body):
        if isinstance(body, dict):
            # vLLM's clients leave blanks out, Python's json does not.
            body = json.dumps(body, separators=self.rng.choice([(",", ":"), (", ", ": ")])).encode()
        return {"method": method, "path": path, "headers": headers, "body": body.decode("latin-1")}
