"""The differences that are meant: how their row in `docs/differences.md` begins, and what they look like.

A rule is (row, run, request, place, ours, peer): patterns, searched in the text of each. The first
that fits counts.
"""

import json
import re

# Members of vLLM's answers that llm-d's have not.
MEMBERS = (
    "annotations arguments async audio background cache_write_tokens cached_tokens_per_turn caller completion_tokens_details content "
    "content_index created created_cache_tokens data ec_transfer_params frequency_penalty function_call id incomplete_details input "
    "input_messages input_tokens_details instructions item_id kv_transfer_params logprobs max_output_tokens max_tool_calls metadata "
    "metrics mm_metadata multimodal_tokens namespace output output_index output_messages output_mode output_tokens_details "
    "parallel_tool_calls permission phase presence_penalty previous_response_id prompt prompt_cache_key prompt_cache_options "
    "prompt_cache_retention prompt_logprobs prompt_text prompt_token_ids prompt_tokens_details reasoning refusal routed_experts "
    "safety_identifier sequence_number service_tier stop_reason system_fingerprint temperature text token_ids token_strs tool_choice "
    "tools top_logprobs top_p truncation usage user verbosity weight_versions"
).replace(" ", "|")
FIELDS = "Members of vLLM's answers that llm-d's have not"
SERIES = "Metrics of vLLM that llm-d has not"
CHUNKS = "Chunks of a stream"
TYPES = "A value of another type than the schema's"
UNKNOWN = "Fields of vLLM that llm-d does not know"
TOOLS = "Tools that llm-d's schema or words refuse"
CALLS = "Tokens of a call"
NOTHING = "An echo of nothing"
LETTERS = "Letters beyond ASCII"
PATHS = "Paths, and what is said of a wrong method"
SETTINGS = "`/admin/config`, `/fake_metrics`"
REQUEST_ID = "Pod headers"
FORCED = "`X-Cache-Threshold-Finish-Reason`"
EMPTY = "A request that asks for nothing"
WORDS = "Words after"
DRAWN = "What is drawn"
COUNTS = rf"^families\.vllm:(max_num_generation_tokens|request_generation_tokens|generation_tokens_total|inter_token_latency_seconds|time_per_output_token_seconds|request_time_per_output_token)"
NAMED = [
    # Whole requests.
    (TOOLS, "", "^(chat|messages|responses): tools|allowed tools", "^verdict$", "", ""),
    (TYPES, "", "", "^verdict$", "", r"cannot unmarshal"),
    (EMPTY, "", "body (null|object|twice)|empty list|empty ids|no items|no messages|tokenize: none", "^verdict$", "", ""),
    (UNKNOWN, "", "system blocks", "^verdict$", "taken", "refused"),
    (SETTINGS, "settings", "", "^verdict$", "taken", "missing unit"),
    ("A request of several sequences", "one at a time", "", "^verdict$", "taken", "429"),
    (PATHS, "encoder", "embeddings", "^(body|content-type)$", "", "Not Found|text/plain"),
    (PATHS, "heads", "^(GET|POST|PUT|DELETE|PATCH|HEAD|OPTIONS) /", "^(verdict|status|body|allow|location|content-type)$", "", ""),
    (WORDS, "", "render: no messages", r"^body\.error\.message$", "", ""),
    (WORDS, "", "", r"^body\.error\.message$", "Failed to read|failed to read|Failed to update|JSON|is not|tool", ""),
    (WORDS, "", "", r"^body\.error\.(message|type|param)$", "", "Failed to read|cannot unmarshal|prompt"),
    # Metrics.
    (SERIES, "", "", r"^common$", "engine", r"\[\]"),
    (SERIES, "", "", r"^families\.[\w:]+$", "<family>", "absent"),
    (SERIES, "", "", r"^families\.vllm:cache_config_info", "", ""),
    (SERIES, "", "", r"^families\..*\{", r"^0\.0$", "absent"),
    ("`vllm:request_success_total`", "", "", r"^families\.vllm:request_success_total.*(abort|error|repetition)", "<value>", "absent"),
    ("A request of several sequences", "one at a time", "metrics", r"^families\.", "", ""),
    (SERIES, "encoder", "metrics", "request_success_total", "<value>", "absent"),
    (UNKNOWN, "encoder", "metrics", r"^families\.", "", ""),
    ("Requests that end by `cache_threshold`", "cache|sleep|wide|pod", "metrics", r"^families\.", "", ""),
    # The rest of an answer.
    ("Media type of an empty answer", "", "ready|health", "^content-type$", "absent", "json"),
    ("Requests that end by `cache_threshold`", "cache|wide|^sleep$", "n 2", "^verdict$", "taken", "request already exists"),
    (REQUEST_ID, "heads", "^head: (long )?id$", r"^body\.id$", "mine|xxx", ""),
    (FIELDS, "", "", r"tool_calls\[\d+\]\.index$", "absent", ""),
    (FIELDS, "", "", rf"^(body|events)\b.*\.({MEMBERS})(\b|$)", "", "absent"),
    (FIELDS, "", "", rf"^(body|events)\b.*\.(text|bytes|top_logprobs|output)$", r"absent|null", ""),
    (FIELDS, "", "", r"prompt_tokens_details$", "", "null"),
    (CHUNKS, "", "", "^content-type$", "event-stream", "event-stream"),
    (CHUNKS, "", "", r"^events\.rest\[\d+\]\.(created|usage)|^events\.choices\.\d\.role$", "", ""),
    (LETTERS, "", "unicode|signs|spaces", "", "", ""),
    (FORCED, "", "threshold", "", "", ""),
    (UNKNOWN, "", "echo|stop|format|structured|truncat|prompt_logprobs|return|strings|beam|best_of|n inside|generate: n$|request id|instructions|previous", "^(body|events)", "", ""),
    (NOTHING, "", "no content|empty|unknown block|no role|video|audio|no items|no messages", r"(content|text|_tokens|finish_reason|output|tokens|count)$", "", ""),
    (CALLS, "", "tool|call|result|chat: (all|required|free|one|streamed)|two|streamed", r"(completion_tokens|total_tokens|output_tokens|input_tokens|prompt_tokens|\.text|delta)$", "", ""),
    (DRAWN, "random|any tool|many calls|echo|no calls|cache|pod|omni", "tool|two|free|required|streamed", r"(name|city|days|arguments|tool_calls|content|call_id|type|role|\]\.id|finish_reason|stop_reason|content\[0\].*|events|order|finish|calls.*)$", "", ""),
    (DRAWN, "echo|random", "logprobs streamed|prompts streamed", r"^events.*(logprobs|head\[0\]\.id)", "", ""),
    (DRAWN, "random|basic|short|many", "", r"^events.*(texts|logprobs|order|bytes|token|head\[0\]\.id|events|output_text.*)$|^events$", "", ""),
    (DRAWN, "random|basic|short|many|any", "", r"^body\..*(logprobs|stop_reason|bytes)", "", ""),
    ("`cached_tokens` of a prompt", "", "decode", r"prompt_tokens_details\.cached_tokens$", "", "^0$"),
    ("A call in a context", "short context, random", "tools", "", "", ""),
    ("`status` of a response", "", "max|short|limit|responses", r"(status|event|type|incomplete_details|events)$", "incomplete", "completed"),
    ("Pod headers", "pod", "", "^x-", "", "absent"),
    ("The picture", "", "", r"image_url\.url$|^events\.choices\.0\.texts", "", ""),
    ("`/query` on the port of one rank", "rank 1", "query", "", "", ""),
    (SETTINGS, "", "config|settings", "^body", "", ""),
    ("Embeddings", "", "negative|unknown model|embeddings", r"embedding|model", "", ""),
    ("The order of adapters", "adapters", "", r"^body\.data", "", ""),
    # What follows from the rows above, for the requests that they name.
    (CALLS, "", "", COUNTS, "", ""),
    (TYPES, "echo|random|heads|many", "", r"^families\.", "", ""),
]


def row_of(run, request, where, ours, peer):
    """The row of a difference, if it is meant."""
    texts = (run, request, where, json.dumps(ours, ensure_ascii=False), json.dumps(peer, ensure_ascii=False))
    for row, *patterns in NAMED:
        if all(re.search(pattern, text) for pattern, text in zip(patterns, texts)):
            return row
    return None
