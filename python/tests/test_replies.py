"""Scripted replies, and requests as the server saw them."""

import time
from pathlib import Path
from typing import Any

import pytest

from vllm_sim import AdminError, Server

MESSAGES: Any = [{"role": "user", "content": "How is the weather in Paris?"}]
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
AGENT: Any = [
    {"when": {"contains": "weather"}, "call": {"name": "get_weather", "arguments": {"city": "Paris"}}},
    {"when": {"contains": "degrees"}, "say": "It is warm."},
]


@pytest.mark.parametrize("serve", [False, True], ids=["plain", "serve"])
def test_the_sdk_retries_after_what_the_script_says(serve: bool) -> None:
    pytest.importorskip("openai")
    failing = {"times": 1, "error": "rate_limit", "retry_after": 1}
    with Server(serve=serve, replies=[{"say": "Fine.", "fail": failing}]) as server:
        client = server.openai(max_retries=2)
        reply = client.chat.completions.create(model="demo", messages=MESSAGES)
        assert reply.choices[0].message.content == "Fine."
        first, second = server.requests(wait=2)
        assert (first.status, second.status) == (429, 200)
        assert (first.attempt, second.attempt) == (1, 2)
        assert second.gap_seconds is not None and 0.9 < second.gap_seconds < 5
        assert second.body["messages"] == MESSAGES
        assert second.completion_tokens > 0
        assert first.headers["authorization"] == "***"


@pytest.mark.parametrize("as_file", [False, True], ids=["rules", "file"])
def test_an_agent_calls_a_tool_and_gives_its_answer(as_file: bool, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    file = tmp_path / "replies.yaml"
    file.write_text(
        "- {when: {contains: weather}, call: {name: get_weather, arguments: {city: Paris}}}\n"
        "- {when: {contains: degrees}, say: It is warm.}\n"
    )
    with Server(replies=file if as_file else AGENT) as server:
        create = server.openai().chat.completions.create
        reply = create(model="demo", messages=MESSAGES, tools=[TOOL]).choices[0].message
        call: Any = (reply.tool_calls or [])[0]
        assert call.function.arguments == '{"city": "Paris"}'
        result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
        messages: Any = [*MESSAGES, reply.to_dict(), result]
        answer = create(model="demo", messages=messages, tools=[TOOL])
        assert answer.choices[0].message.content == "It is warm."


def test_replies_can_be_set_and_are_checked() -> None:
    with Server() as server:
        ask: Any = {"model": "demo", "messages": MESSAGES}
        server.set_replies([{"say": "Once.", "times": 1}])
        said = [server.request("POST", "/v1/chat/completions", ask).text for _ in range(2)]
        assert "Once." in said[0] and "Once." not in said[1]
        with pytest.raises(AdminError, match="replies\\[0\\]: unknown key"):
            server.set_replies([{"tell": "x"}])


def test_requests_are_waited_for_and_forgotten() -> None:
    with Server() as server:
        server.request("POST", "/v1/completions", {"model": "demo", "prompt": "x"})
        (request,) = server.requests(wait=1, path="/v1/completions", model="demo", status=200)
        assert abs(request.time - time.time()) < 60
        assert request.outcome == "finished"
        assert server.requests(after=request.id) == []
        with pytest.raises(TimeoutError, match="1 of 2 requests"):
            server.requests(wait=2, timeout=0.05)
        assert server.forget_requests() == 1
        assert server.requests() == []
