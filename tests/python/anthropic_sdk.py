"""Drives a running server with the official Anthropic SDK (`pip install anthropic`).

    vllm-sim serve FOLDER --served-model-name tiny-llama --port 8000 \
        --enable-auto-tool-choice --tool-call-parser hermes
    python3 tests/python/anthropic_sdk.py http://127.0.0.1:8000

Typed objects of messages, the SDK's stream helper and a loop of tool use that ends.
"""

import sys

import anthropic
from anthropic.types import TextBlock, ToolUseBlock

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
MODEL = "tiny-llama"
client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0, timeout=60)
HELLO = [{"role": "user", "content": "Tell me a story."}]
CLOCK = {
    "name": "clock",
    "description": "The time in a zone.",
    "input_schema": {
        "type": "object",
        "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
        "required": ["zone"],
        "additionalProperties": False,
    },
}


def unary():
    message = client.messages.create(model=MODEL, max_tokens=20, messages=HELLO)
    assert message.type == "message" and message.role == "assistant", message
    assert all(isinstance(block, TextBlock) for block in message.content), message
    assert message.stop_reason in ("end_turn", "max_tokens"), message
    assert 0 < message.usage.output_tokens <= 20, message.usage
    stopped = client.messages.create(
        model=MODEL, max_tokens=200, messages=HELLO, stop_sequences=["e"]
    )
    if stopped.stop_reason == "stop_sequence":
        assert stopped.stop_sequence == "e", stopped


def counted():
    tokens = client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
    message = client.messages.create(model=MODEL, max_tokens=1, messages=HELLO)
    assert tokens == message.usage.input_tokens, (tokens, message.usage)


def streamed():
    seen = []
    with client.messages.stream(model=MODEL, max_tokens=20, messages=HELLO) as stream:
        for event in stream:
            seen.append(event.type)
        whole = stream.get_final_message()
    with client.messages.stream(model=MODEL, max_tokens=20, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        assert text == stream.get_final_text(), text
    assert seen[0] == "message_start" and seen[-1] == "message_stop", seen
    assert whole.stop_reason and whole.usage.output_tokens > 0, whole


def called(choice):
    with client.messages.stream(
        model=MODEL, max_tokens=400, messages=HELLO, tools=[CLOCK], tool_choice=choice
    ) as stream:
        whole = stream.get_final_message()
    (call,) = [block for block in whole.content if isinstance(block, ToolUseBlock)]
    assert call.name == "clock" and call.input["zone"] in ("UTC", "CET"), call
    assert whole.stop_reason == "tool_use", whole.stop_reason


def loop():
    """An agent's loop: it calls until the model answers in words."""
    messages = list(HELLO)
    for turn in range(10):
        choice = {"type": "any"} if turn < 2 else {"type": "none"}
        message = client.messages.create(
            model=MODEL, max_tokens=400, messages=messages, tools=[CLOCK], tool_choice=choice
        )
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        if not calls:
            assert turn == 2, turn
            return
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "12:00"} for call in calls
        ]
        messages.append({"role": "user", "content": results})
    raise AssertionError("the loop does not end")


def refused():
    for kind, arguments in [
        (anthropic.NotFoundError, {"model": "nobody"}),
        (anthropic.BadRequestError, {"max_tokens": 10**6}),
        (anthropic.BadRequestError, {"extra_body": {"temperature": 9.0}}),
    ]:
        sent = {"model": MODEL, "max_tokens": 5, "messages": HELLO, **arguments}
        try:
            client.messages.create(**sent)
        except kind as error:
            assert error.body["type"] == "error", error.body
        else:
            raise AssertionError(f"{arguments} was taken")


unary()
counted()
streamed()
called({"type": "any"})
called({"type": "tool", "name": "clock"})
loop()
refused()
print("anthropic_sdk: all as expected")
