"""Drives a running server with the official Python SDK (`pip install openai`).

    vllm-sim serve FOLDER --served-model-name tiny-llama --port 8000
    python3 tests/python/openai_sdk.py http://127.0.0.1:8000

The SDK parses every answer into its own types. What it drops or cannot parse shows here.
"""

import asyncio
import sys

import openai

BASE = (sys.argv + ["http://127.0.0.1:8000"])[1]
MODEL = "tiny-llama"
HI = [{"role": "user", "content": "Tell me a story."}]
client = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)


def text_of(stream, index=0):
    return "".join(c.delta.content or "" for part in stream for c in part.choices if c.index == index)


def models():
    listed = client.models.list().data
    assert [m.id for m in listed] == [MODEL] and listed[0].object == "model", listed


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=20, seed=1)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def chat_stream():
    ask = dict(model=MODEL, messages=HI, max_tokens=20, seed=1)
    whole = client.chat.completions.create(**ask)
    parts = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert text_of(parts) == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].usage == whole.usage.model_copy(update={"prompt_tokens_details": None, "completion_tokens_details": None}), (
        parts[-1].usage, whole.usage)
    assert parts[-1].choices == [] and len({p.id for p in parts}) == 1
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def several():
    ask = dict(model=MODEL, messages=HI, n=2, max_tokens=20, extra_body={"ignore_eos": True})
    answer = client.chat.completions.create(**ask)
    assert [c.index for c in answer.choices] == [0, 1]
    parts = list(client.chat.completions.create(**ask, stream=True))
    assert text_of(parts, 0) and text_of(parts, 1)


def stop():
    answer = client.chat.completions.create(model=MODEL, messages=HI, stop=["e"], max_tokens=500,
                                            extra_body={"ignore_eos": True})
    choice = answer.choices[0]
    assert choice.finish_reason == "stop" and "e" not in choice.message.content, choice
    assert choice.stop_reason == "e"


def logprobs():
    answer = client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=2, max_tokens=4,
                                            extra_body={"ignore_eos": True})
    shown = answer.choices[0].logprobs.content
    assert len(shown) == answer.usage.completion_tokens and all(len(t.top_logprobs) == 2 for t in shown)
    assert bytes(b for t in shown for b in t.bytes).decode(errors="ignore").startswith(answer.choices[0].message.content[:3])
    answer = client.completions.create(model=MODEL, prompt="Once", logprobs=2, max_tokens=4)
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens


def completions():
    answer = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=5, extra_body={"ignore_eos": True})
    assert [c.index for c in answer.choices] == [0, 1] and answer.usage.completion_tokens == 10
    parts = list(client.completions.create(model=MODEL, prompt="Once", max_tokens=5, seed=3, stream=True))
    whole = client.completions.create(model=MODEL, prompt="Once", max_tokens=5, seed=3)
    assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text
    echo = client.completions.create(model=MODEL, prompt="Once", max_tokens=0, echo=True)
    assert echo.choices[0].text == "Once"


def tools():
    tool = {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    ask = dict(model=MODEL, messages=HI, tools=[tool], tool_choice="required")
    try:
        answer = client.chat.completions.create(**ask)
    except openai.BadRequestError as error:
        assert "--tool-call-parser" in str(error)
        return "no tool parser on this server"
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and '"city"' in call.function.arguments
    parts = [c for p in client.chat.completions.create(**ask, stream=True) for c in p.choices]
    named = [t.function.name for c in parts for t in c.delta.tool_calls or [] if t.function.name]
    assert named and set(named) == {"weather"} and parts[-1].finish_reason == "tool_calls"


def json_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    import json
    answer = client.chat.completions.create(model=MODEL, messages=HI, response_format=form)
    assert isinstance(json.loads(answer.choices[0].message.content)["a"], int)


def raises(kind, **ask):
    try:
        client.chat.completions.create(**{"model": MODEL, "messages": HI, **ask})
    except kind as error:
        return error
    raise AssertionError(f"{ask} is accepted")


def errors():
    error = raises(openai.NotFoundError, model="gpt-4")
    assert str(error.code) == "404" and error.param == "model" and error.type == "NotFoundError", error.body
    assert raises(openai.BadRequestError, temperature=-1).param == "temperature"
    assert raises(openai.BadRequestError, messages="hi").type == "Bad Request"
    assert raises(openai.BadRequestError, max_tokens=0).param == "max_tokens"
    assert raises(openai.APIError, logprobs=True, top_logprobs=30).param == "logprobs"
    try:
        list(client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=30, stream=True))
    except openai.APIError as error:
        assert "Requested sample logprobs of 30" in str(error)
    else:
        raise AssertionError("an error inside a stream is not seen")


def many_at_once():
    async def run():
        other = openai.AsyncOpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
        async def one(i):
            stream = await other.chat.completions.create(model=MODEL, messages=HI, max_tokens=30, seed=i, stream=True)
            parts = [p async for p in stream]
            return text_of(parts), parts[-1].choices[0].finish_reason
        answers = await asyncio.gather(*(one(i % 8) for i in range(64)))
        assert len(set(answers)) <= 8 and all(f for _, f in answers), answers
    asyncio.run(run())


failed = 0
for check in (models, chat, chat_stream, several, stop, logprobs, completions, tools, json_schema, errors, many_at_once):
    try:
        print("ok  ", check.__name__, check() or "")
    except Exception as error:  # every check is to be seen
        failed += 1
        print("FAIL", check.__name__, type(error).__name__, str(error)[:600])
sys.exit(failed > 0)
