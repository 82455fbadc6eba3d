"""A fake vLLM in pytest: what a client does about failures, and what an agent does with a tool."""

from typing import Any

import openai
import pytest

from vllm_sim import Server

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.mark.vllm_sim(
    replies=[{"say": "Here I am.", "fail": {"times": 2, "error": "rate_limit", "retry_after": 1}}]
)
def test_the_client_waits_as_long_as_it_is_told_to(vllm_server: Server) -> None:
    client = vllm_server.openai(max_retries=2)
    reply = client.chat.completions.create(model="demo", messages=HELLO)
    assert reply.choices[0].message.content == "Here I am."
    attempts = vllm_server.requests(wait=3)
    assert [attempt.status for attempt in attempts] == [429, 429, 200]
    assert all(attempt.gap_seconds >= 0.9 for attempt in attempts[1:] if attempt.gap_seconds)


@pytest.mark.vllm_sim(replies=[{"fail": {"error": "server_error"}}])
def test_the_client_gives_up(vllm_server: Server) -> None:
    client = vllm_server.openai(max_retries=1)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="demo", messages=HELLO)
    assert len(vllm_server.requests(wait=2)) == 2


def test_a_stream_that_breaks_off_is_an_error(vllm_server: Server) -> None:
    fault = {"X-Sim-Fault": "cut_after=3"}
    stream = vllm_server.openai().chat.completions.create(
        model="demo", messages=HELLO, stream=True, extra_headers=fault, extra_body={"ignore_eos": True}
    )
    with pytest.raises(openai.APIConnectionError):
        list(stream)
    (request,) = vllm_server.requests(wait=1)
    assert request.outcome == "cut"
