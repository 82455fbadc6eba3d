"""A server that lives as long as a block."""

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import vllm_sim
from vllm_sim import AdminError, Server, StartError

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
# A reply may end by itself before its limit.
WHOLE = {"ignore_eos": True}
CHAT = {"model": "demo", "messages": MESSAGES, "max_tokens": 4, "ignore_eos": True}


@pytest.mark.parametrize("serve", [False, True], ids=["plain", "serve"])
def test_it_answers_within_its_block_and_is_gone_after_it(serve: bool) -> None:
    with Server(serve=serve) as server:
        url, pid = server.url, server.pid
        answer = server.request("POST", "/v1/chat/completions", CHAT)
        assert answer.status == 200
        assert answer.json()["model"] == "demo"
        assert answer.headers["x-request-id"]
        assert server.configuration()["model"] == "demo"
        assert server.metrics()["vllm:generation_tokens_total"] == 4
    with pytest.raises(OSError):
        vllm_sim._client.ask("GET", f"{url}/health")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="within its `with` block"):
        server.url
    assert "listening" in server.logs


def test_servers_side_by_side_have_ports_of_their_own() -> None:
    with Server("a") as one, Server("b", ["--replicas", "2"]) as other:
        assert len({one.url, *other.urls}) == 3
        assert other.request("GET", "/v1/models").json()["data"][0]["id"] == "b"


def test_it_can_be_started_again() -> None:
    server = Server()
    for _ in range(2):
        with server:
            assert server.request("GET", "/health").status == 200


def test_many_can_be_started_by_threads() -> None:
    def ask(_: int) -> int:
        with Server() as server:
            return server.request("GET", "/health").status

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(16))) == [200] * 16


def test_a_flag_that_is_refused_is_told_with_the_log() -> None:
    with pytest.raises(StartError, match="exit code 2:\nerror: --max-num-seqs"):
        Server(args=["--max-num-seqs", "many"]).start()
    with pytest.raises(TypeError, match="a list of strings"):
        Server(args="--max-num-seqs 8")


def test_a_program_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SIM_BINARY", "no-such-program")
    with pytest.raises(vllm_sim.BinaryNotFound, match="no-such-program"):
        Server().start()


def test_a_program_that_says_nothing_is_given_up() -> None:
    idle = Path(__file__).with_name("idle.sh")
    with pytest.raises(StartError, match="does not listen after 0.2 s"):
        Server(binary=idle, start_timeout=0.2).start()


def test_settings_change_and_come_back() -> None:
    with Server(args=["--time-to-first-token", "1ms"]) as server:
        with server.configure(time_to_first_token="2ms"):
            assert server.configuration()["time-to-first-token"] == "2ms"
        assert server.configuration()["time-to-first-token"] == "1ms"
        with pytest.raises(AdminError, match="'port' is not admin-configurable"):
            server.configure(port=1)


def test_what_had_no_value_and_what_a_change_within_set_come_back() -> None:
    with Server() as server:
        before = server.configuration()
        with server.faults(100, ["rate_limit"], stream_rate=5, stream_faults=["cut_after=2"]):
            with server.faults(50, ["server_error"]):
                assert server.configuration()["failure-types"] == ["server_error"]
            assert server.configuration()["failure-types"] == ["rate_limit"]
            assert server.configuration()["stream-faults"] == ["cut_after=2"]
            assert server.configuration()["failure-injection-rate"] == 100
        assert server.configuration() == before


@pytest.mark.parametrize("serve", [False, True], ids=["plain", "serve"])
def test_a_share_of_all_requests_fails(serve: bool) -> None:
    with Server(serve=serve) as server:
        with server.faults(100, ["rate_limit"]):
            assert server.request("POST", "/v1/chat/completions", CHAT).status == 429
        assert server.request("POST", "/v1/chat/completions", CHAT).status == 200
        faults = server.metrics()
        assert faults.value("vllm_sim_faults_total", kind="rate_limit") == 1
        server.faults(stream_rate=100, stream_faults=["missing_done"])
        body = server.request("POST", "/v1/chat/completions", {**CHAT, "stream": True}).text
        assert "data: " in body and "[DONE]" not in body


def test_a_scenario_is_a_mapping_or_a_file(tmp_path: Path) -> None:
    failing = {"name": "down", "set": {"failure-injection-rate": 100}}
    story = {"name": "story", "phases": [{**failing, "requests": 1}, {"name": "up"}]}
    with Server(scenario=story) as server:
        asked = [server.request("POST", "/v1/chat/completions", CHAT).status for _ in range(2)]
        assert asked[0] != 200 and asked[1] == 200
        server.end_scenario()
        file = tmp_path / "down.yaml"
        file.write_text('{"name": "again", "phases": [{"name": "down"}]}')
        server.run_scenario(file)
        assert server.scenario()["scenario"] == "again"


def test_asynchronous_blocks() -> None:
    async def ask() -> list[int]:
        async with Server() as server, server.async_openai() as client:
            create = client.chat.completions.create
            demo: Any = {"model": "demo", "extra_body": WHOLE}
            replies = await asyncio.gather(
                *(create(messages=MESSAGES, max_tokens=n, **demo) for n in (1, 2))
            )
            return [reply.usage.completion_tokens for reply in replies if reply.usage]

    pytest.importorskip("openai")
    assert asyncio.run(ask()) == [1, 2]


def test_clients_of_the_sdks() -> None:
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    with Server() as server:
        stream = server.openai().chat.completions.create(
            model="demo", messages=MESSAGES, max_tokens=5, stream=True, extra_body=WHOLE
        )
        assert sum(bool(chunk.choices[0].delta.content) for chunk in stream) == 5
        said = server.anthropic().messages.create(model="demo", messages=MESSAGES, max_tokens=3)
        # Messages has no field that keeps a reply from ending by itself.
        assert 1 <= said.usage.output_tokens <= 3
        server.faults(100, ["rate_limit"])
        with pytest.raises(openai.RateLimitError):
            server.openai().chat.completions.create(model="demo", messages=MESSAGES)
        with pytest.raises(anthropic.RateLimitError):
            server.anthropic().messages.create(model="demo", messages=MESSAGES, max_tokens=3)


def test_no_server_outlives_the_interpreter() -> None:
    code = "import vllm_sim; print(vllm_sim.Server().start().pid)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    with pytest.raises(ProcessLookupError):
        os.kill(int(printed), 0)


def test_no_server_outlives_an_interpreter_that_is_killed() -> None:
    code = (
        "import os, vllm_sim; print(vllm_sim.Server().start().pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode == -9
    deadline = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(int(ended.stdout), 0)
            time.sleep(0.01)


def test_a_key_of_the_environment_is_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SIM_ADMIN_API_KEY", "sesame")
    with Server() as server:
        assert server.request("GET", "/admin/config").status == 401
        with server.configure(time_to_first_token="2ms"):
            assert server.configuration()["time-to-first-token"] == "2ms"
