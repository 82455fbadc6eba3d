"""The requests of `front_end_oracle.py --pooling`: parameters of embeddings, pooling, classify, score and rerank."""

import itertools

TEXT = "The quick brown fox jumps over the lazy dog."
LONG = "hello " * 9000
ABOVE = "hello " * 700
TURN = [{"role": "user", "content": "Hello there"}]
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = "data:image/svg+xml;base64,AAAA"


def form(path):
    """A request that every server of the path takes."""
    if path.endswith("rerank"):
        return {"query": "a fox", "documents": [TEXT, "Some other text."]}
    if path.endswith("score"):
        return {"text_1": "a fox", "text_2": [TEXT, "Some other text."]}
    if path == "/v2/embed":
        return {"texts": [TEXT, "Some other text."], "embedding_types": ["float"]}
    return {"input": TEXT}


# Every value of a field is asked of every path that has the field.
TRUNCATED = {
    "truncate_prompt_tokens": [0, 1, 2, 5, 2048, -1, -2, 2049, 2**40, "5", "five", 5.0, 5.5, True, None, [], {}],
    "truncation_side": ["left", "right", "middle", "", 1, None, ["left"]],
    "padding": ["max_length", "do_not_pad", True, "longest", None],
    "priority": [0, 3, -3, "2", 1.5, 2**63, -(2**63), None],
    "cache_salt": ["a", "", 5, None, "x" * 1024, "x" * 1025],
    "request_id": ["a", "", 5, None],
    "mm_processor_kwargs": [{}, {"a": 1}, [], "a", None],
    "use_activation": [True, False, "yes", "maybe", 2, None],
    "normalize": [True, None],
    "user": ["u", 5, None],
    "model": ["nobody", 5, "", None],
    "unknown_field": [1],
}
ENCODED = {
    "encoding_format": ["float", "base64", "bytes", "bytes_only", "int8", "", 1, None],
    "embed_dtype": ["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8", 5, None],
    "endianness": ["native", "big", "little", "middle", None],
    "dimensions": [1, 8, 0, -1, 10**6, "8", 1.5, "x", True, None],
}
SPECIAL = {"add_special_tokens": [True, False, "no", "x", None]}
SCORED = {
    "max_tokens_per_query": [0, 1, 5, -1, 2047, 2048, 2049, "3", "x", 1.5, None],
    "max_tokens_per_doc": [0, 1, 5, -1, 2047, 2048, 2049, "3", "x", 1.5, None],
    "instruction": ["Find it.", "", 5, None],
    "chat_template_kwargs": [{"a": 1}, [], None],
}
RANKED = {"top_n": [0, 1, 2, 9, -1, "1", 1.5, "x", True, None, 2**70]}
TASKS = {"task": ["embed", "token_embed", "classify", "token_classify", "plugin", "score", "encode", "", "x", 5, None]}
COHERE = {
    "truncate": ["START", "END", "NONE", "none", 1, None],
    "max_tokens": [1, 5, 0, -1, 2048, 2049, "4", "x", None],
    "output_dimension": [8, 0, -1, "x", None],
    "embedding_types": [["float"], ["binary"], ["ubinary", "base64"], [], ["int8"], "float", None],
    "input_type": ["query", "search_query", "", 5, None],
    "priority": [1, 2**63, "x"],
    "texts": [[], "a", [5], None, [""]],
    "images": [[SVG], []],
    "inputs": [[], [{"content": []}], [{"content": [{"type": "text"}]}], [{"content": [{"type": "text", "text": "a"}]}]],
}

FIELDS = {
    "/v1/embeddings": [TRUNCATED, ENCODED, SPECIAL],
    "/pooling": [TRUNCATED, ENCODED, SPECIAL, TASKS],
    "/classify": [TRUNCATED, SPECIAL],
    "/score": [TRUNCATED, SCORED],
    "/v1/score": [SCORED],
    "/rerank": [TRUNCATED, SCORED, RANKED],
    "/v1/rerank": [RANKED],
    "/v2/rerank": [RANKED],
    "/v2/embed": [COHERE],
}

# Texts, lists, tokens and conversations in the place of the input.
INPUTS = [
    "", [], [""], ["a", "b"], [1, 2, 3], [[1, 2], [3]], [[]], [1, "a"], ["a", [1]], [-1], [10**7], [1.5], 5, None, {}, {"a": 1},
    LONG, ABOVE, [TEXT, LONG], [5] * 2048, [5] * 2049, TURN, [TURN, TURN], [{"role": "user"}], [{"content": "a"}], [TURN, []],
    [[5] * 3, [5] * 2049],
]
SCORE_INPUTS = [
    "", [], [""], ["a", "b"], 5, None, {}, [1], {"content": []}, {"content": [{"type": "text", "text": "a"}]}, LONG, ["a", LONG], ABOVE,
]
TRUNCATIONS = [
    {"truncate_prompt_tokens": 3}, {"truncate_prompt_tokens": 3, "truncation_side": "left"},
    {"truncate_prompt_tokens": 3, "truncation_side": "right"}, {"truncate_prompt_tokens": -1},
    {"truncate_prompt_tokens": -1, "truncation_side": "left"}, {"truncate_prompt_tokens": 2049}, {"truncate_prompt_tokens": 0},
    {"truncation_side": "left"}, {"truncate_prompt_tokens": 3, "padding": "max_length"}, {"padding": "max_length"},
]


def cases():
    """All requests: name, method, path, body, headers."""
    for path, groups in FIELDS.items():
        plain = form(path)
        yield f"{path} plain", "POST", path, plain, {}
        for field, values in itertools.chain.from_iterable(group.items() for group in groups):
            for value in values:
                shown = repr(value)[:24]
                body = {k: v for k, v in plain.items() if not (path == "/v2/embed" and field in ("images", "inputs") and k == "texts")}
                yield f"{path} {field}={shown}", "POST", path, body | {field: value}, {}
        for missing in plain:
            yield f"{path} without {missing}", "POST", path, {k: v for k, v in plain.items() if k != missing}, {}
        for name, body in (("empty", {}), ("a list", []), ("a text", '"a"'), ("no JSON", "{"), ("nothing", "")):
            yield f"{path} {name}", "POST", path, body, {"content-type": "application/json"}
    for path in ("/v1/embeddings", "/pooling", "/classify"):
        for value in INPUTS:
            yield f"{path} input {repr(value)[:30]}", "POST", path, {"input": value}, {}
        for value, cut in itertools.product((TEXT, LONG, [5] * 2049, [TEXT, LONG]), TRUNCATIONS):
            yield f"{path} {repr(value)[:12]} {cut}", "POST", path, {"input": value} | cut, {}
        for more in (
            {}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "continue_final_message": True},
            {"continue_final_message": True}, {"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}},
            {"add_special_tokens": True}, {"truncate_prompt_tokens": 2}, {"truncate_prompt_tokens": 2, "truncation_side": "left"},
            {"truncate_prompt_tokens": 2049}, {"media_io_kwargs": {"image": 1}}, {"input": "a"},
        ):
            yield f"{path} messages {more}", "POST", path, {"messages": TURN} | more, {}
        for turns in ([], None, "a", [{}], [{"role": "robot", "content": "a"}], [{"role": "user", "content": 5}], [TURN]):
            yield f"{path} messages {turns}", "POST", path, {"messages": turns}, {}
    for side, value in itertools.product(("text_1", "text_2"), SCORE_INPUTS):
        yield f"/score {side} {repr(value)[:30]}", "POST", "/score", form("/score") | {side: value}, {}
    for side, value in itertools.product(("query", "documents"), SCORE_INPUTS):
        yield f"/rerank {side} {repr(value)[:30]}", "POST", "/rerank", form("/rerank") | {side: value}, {}
    for first, second in (("a", ["b", "c"]), (["a", "b"], ["c", "d"]), (["a", "b"], ["c"]), (["a"], ["b", "c"]), ([], []), (["a", "b"], "c")):
        for names in (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")):
            yield f"/score {names} {first} {second}", "POST", "/score", dict(zip(names, (first, second))), {}
    for path, cut in itertools.product(("/score", "/rerank"), TRUNCATIONS):
        long = {"text_2": [TEXT, LONG]} if path == "/score" else {"documents": [TEXT, LONG]}
        yield f"{path} long {cut}", "POST", path, form(path) | long | cut, {}
        yield f"{path} cut of queries {cut}", "POST", path, form(path) | cut | {"max_tokens_per_query": 2, "max_tokens_per_doc": 3}, {}


def combined():
    """Further requests, for the order of checks and for formats that need two fields."""
    far = "hello " * 90000
    for most, cut in itertools.product((-2, -1, 1, 3, 100, None), ("NONE", "START", "END")):
        yield "/v2/embed", {"texts": ["a b c d e f g", "h"], "max_tokens": most, "truncate": cut}
    for texts, cut in itertools.product(([LONG], [far], ["a", LONG]), ("NONE", "START", "END")):
        yield "/v2/embed", {"texts": texts, "truncate": cut}
    yield "/v2/embed", {"images": [PIXEL]}
    yield "/v2/embed", {"inputs": [{"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PIXEL}}]}]}
    yield "/v2/embed", {"inputs": [{"content": [{"type": "text", "text": "a b c"}]}], "max_tokens": 2}
    for cut in ({}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 5, "truncation_side": "left"}):
        yield "/v1/embeddings", {"input": far} | cut
        yield "/v1/embeddings", {"messages": [{"role": "user", "content": LONG}]} | cut
        yield "/v1/embeddings", {"messages": TURN, "add_special_tokens": True, "padding": "max_length"} | cut
        yield "/score", {"text_1": "a", "text_2": ["b", far]} | cut
    yield "/v1/embeddings", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]}
    yield "/v1/embeddings", {"messages": TURN, "media_io_kwargs": {"image": {"a": 1}}}
    for dtype, order, form_of in itertools.product(
        ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"), ("native", "little", "big"), ("base64", "bytes", "bytes_only")
    ):
        for more in ({}, {"use_activation": False}):
            yield "/v1/embeddings", {"input": TEXT, "encoding_format": form_of, "embed_dtype": dtype, "endianness": order} | more
    for first, second in ((["a", "b"], []), ([], ["a"]), ([LONG], [far])):
        yield "/score", {"text_1": first, "text_2": second}
    for query, document in itertools.product((0, 1, 3, 2047), repeat=2):
        documents = ["a b c d e", "bb cc dd ee", "Grüße, 世界! 👋🏽 naïve café"]
        yield "/rerank", {"query": "What is a fox?", "documents": documents, "max_tokens_per_query": query, "max_tokens_per_doc": document}
    for model in ("nobody", None):
        for more in ({"dimensions": 4}, {"task": "classify"}, {"mm_processor_kwargs": {"a": 1}}, {"truncate_prompt_tokens": 5000}, {"task": "token_embed"}):
            yield "/pooling", {"input": "a", "model": model} | more
            yield "/v1/embeddings", {"input": "a", "model": model} | more


CASES = list(cases())
CASES += [(f"{path} combined {number} {str(body)[:60]}", "POST", path, body, {}) for number, (path, body) in enumerate(combined())]
# Case and place, as expressions, and the reason.
EXPLAINED = [
    ("/v2/embed images", r"^\.body\.error\.message$", "the model is checked before the image is decoded"),
]
