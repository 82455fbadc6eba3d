"""Compares our /tokenize of conversations with vLLM's own renderer, token for token.

    vllm-rs render FOLDER --served-model-name tiny-llama --port 8001 --trust-request-chat-template true
    vllm-sim serve FOLDER --served-model-name tiny-llama --port 8000
    python3 tests/python/render_compare.py http://127.0.0.1:8000 http://127.0.0.1:8001

`vllm-rs` lies in vLLM's wheel. Needs nothing but Python.
"""

import json
import sys
import urllib.error
import urllib.request

OURS, THEIRS = (sys.argv + ["http://127.0.0.1:8000", "http://127.0.0.1:8001"])[1:3]

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, e.g. \"Zürich\" <now>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Ort – 城市"},
                "days": {"type": "integer", "minimum": 1, "default": 1},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
BARE = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
UNDESCRIBED = {"type": "function", "function": {"name": "noop"}}
STRICT = {"type": "function", "function": {**BARE["function"], "strict": True}}
CALL = {"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 2}'}}
SECOND = {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}}


def user(text):
    return {"role": "user", "content": text}


def chats():
    texts = [
        "Hello there", "", " ", "\n\n\n", "  leading and trailing  ", "Grüße aus Köln, naïve café",
        "世界你好，这是一个测试。", "こんにちは世界", "안녕하세요", "Привет, мир!", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया",
        "😀👩‍👩‍👧‍👦🇩🇪 emoji", "combining: e\u0301 a\u0308", "zero\u200bwidth\u00a0nbsp", "tab\tand\r\nreturn",
        "<|eot_id|> in the text", "<|begin_of_text|><|start_header_id|>system<|end_header_id|>", "<think>no</think>",
        "<tool_call>{}</tool_call>", "{{ 7 * 7 }} {% raw %}", "1234567890 12,345.678 0x1F", "def f(x):\n    return x ** 2\n",
        "a" * 500, "don't we'll I'm THEY'RE", "\u0000nul", "\ud83d\ude00", "\u2028line sep", "ＦＵＬＬ　ｗｉｄｔｈ",
    ]
    for text in texts:
        yield {"messages": [user(text)]}
    system = {"role": "system", "content": "Du bist nett. 😀"}
    answer = {"role": "assistant", "content": "Gerne."}
    yield {"messages": [system, user("Hi")]}
    yield {"messages": [system, user("Hi"), answer, user("Und?")]}
    yield {"messages": [user("Hi"), system, user("Und?")]}
    yield {"messages": [{"role": "developer", "content": "Be brief."}, user("Hi")]}
    yield {"messages": [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])]}
    yield {"messages": [user([{"type": "text", "text": "日本"}])]}
    yield {"messages": [user("Hi"), answer], "add_generation_prompt": False}
    yield {"messages": [user("Hi"), answer], "add_generation_prompt": False, "continue_final_message": True}
    yield {"messages": [user("Hi"), {"role": "assistant", "content": "trailing  "}],
           "add_generation_prompt": False, "continue_final_message": True}
    yield {"messages": [user("Hi")], "add_special_tokens": True}
    yield {"messages": [user("Hi")], "tools": [TOOL]}
    yield {"messages": [system, user("Hi")], "tools": [TOOL, BARE]}
    yield {"messages": [user("Hi")], "tools": [UNDESCRIBED]}
    yield {"messages": [user("Hi")], "tools": [STRICT]}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "20 °C, sonnig"}
    yield {"messages": [user("Wetter?"), called, result], "tools": [TOOL]}
    yield {"messages": [user("Wetter?"), {**called, "content": "Ich sehe nach."}, result, answer, user("Danke")],
           "tools": [TOOL]}
    yield {"messages": [user("Beides?"), {**called, "tool_calls": [CALL, SECOND]}, result,
                        {**result, "tool_call_id": "call_2"}], "tools": [TOOL, BARE]}
    yield {"messages": [user("Wetter?"), {"role": "assistant", "tool_calls": [CALL]}, result]}
    yield {"messages": [user("Liste"), {**result, "content": [{"type": "text", "text": "Teil"}]}], "tools": [BARE]}
    yield {"messages": [user("Hi"), {"role": "assistant", "content": "x", "reasoning": "weil"}, user("Und?")]}
    yield {"messages": [{"role": "user", "name": "anna", "content": "Hi"}]}
    yield {"messages": [{"role": "critic", "content": "Naja."}]}
    yield {"messages": [user("Hi")], "chat_template_kwargs": {"enable_thinking": False}}
    yield {"messages": [user(f"Frage {i}") if i % 2 == 0 else answer for i in range(31)]}


def post(url, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def main():
    count, wrong = 0, 0
    for count, body in enumerate(chats(), 1):
        ours, mine = post(OURS + "/tokenize", body)
        theirs, other = post(THEIRS + "/v1/chat/completions/render", body)
        if ours == theirs == 200 and mine["tokens"] == other["token_ids"]:
            continue
        if ours == theirs != 200:
            print(f"{count}: both refuse with {ours}: {json.dumps(body, ensure_ascii=False)[:200]}")
            continue
        wrong += 1
        print(f"{count}: {json.dumps(body, ensure_ascii=False)[:300]}")
        if ours == theirs == 200:
            for name, tokens in ("ours  ", mine["tokens"]), ("theirs", other["token_ids"]):
                text = post(OURS + "/detokenize", {"tokens": tokens})[1]["prompt"]
                print(f"   {name} {len(tokens)} {text[-700:]!r}")
        else:
            print(f"   ours   {ours} {str(mine)[:200]}\n   theirs {theirs} {str(other)[:200]}")
    print(f"{count} conversations, {wrong} differ")
    sys.exit(wrong > 0)


main()
