"""The fixtures of the pytest plugin."""

from collections.abc import Iterator

import pytest

from vllm_sim import Server

pytest_plugins = ["pytester"]


@pytest.mark.vllm_sim(model="other", args=["--max-model-len", "64"])
def test_a_marker_says_what_the_server_is_like(vllm_server: Server) -> None:
    model = vllm_server.request("GET", "/v1/models").json()["data"][0]
    assert (model["id"], model["max_model_len"]) == ("other", 64)


@pytest.fixture(scope="module")
def urls() -> Iterator[set[str]]:
    """Where the session's server was seen."""
    yield set()


@pytest.mark.parametrize("turn", range(2))
def test_the_session_has_one_server(
    vllm_session_server: Server, vllm_server: Server, urls: set[str], turn: int
) -> None:
    urls.add(vllm_session_server.url)
    assert len(urls) == 1
    assert vllm_server.url not in urls


def test_options_of_a_project_and_the_log_of_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def vllm_sim_options():
            return {"model": "ours"}
        """
    )
    pytester.makepyfile(
        """
        def test_fails(vllm_server):
            assert vllm_server.model != "ours"
        """
    )
    result = pytester.runpytest("--strict-markers")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*vllm-sim log*", "*imitates vLLM*", "*listening on*"])


def test_unused_replies_are_listed_below_the_results(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.vllm_sim(replies=[
            {"when": {"contains": "Hello"}, "say": "Hi."},
            {"when": {"contains": "Goodbye"}, "say": "Bye."},
        ])
        def test_greets(vllm_server):
            body = {"messages": [{"role": "user", "content": "Hello"}]}
            vllm_server.request("POST", "/v1/chat/completions", body)
            assert [rule["say"] for rule in vllm_server.unused_replies()] == ["Bye."]
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*scripted replies that no request used*", "*test_greets: *Goodbye*"])
    assert "Hello" not in result.stdout.str()
