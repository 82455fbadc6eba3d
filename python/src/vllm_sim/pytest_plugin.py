"""Fixtures: ``vllm_server``, one per test, and ``vllm_session_server``, one for all.

A test says what its server is like by ``@pytest.mark.vllm_sim(model="m", args=[...])``; what all
servers have in common is the fixture ``vllm_sim_options``, to be overridden in conftest.py.
"""

import json
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from ._client import AdminError
from ._server import Server

_SERVER = pytest.StashKey[Server]()
_UNUSED = pytest.StashKey[list[tuple[str, Any]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.stash[_UNUSED] = []
    config.addinivalue_line(
        "markers", "vllm_sim(**options): how vllm_server is started (arguments of vllm_sim.Server)"
    )


@pytest.fixture(scope="session")
def vllm_sim_options() -> dict[str, Any]:
    """Arguments of :class:`vllm_sim.Server` for every server; override it in conftest.py."""
    return {}


@pytest.fixture
def vllm_server(
    request: pytest.FixtureRequest, vllm_sim_options: dict[str, Any]
) -> Iterator[Server]:
    """A server of this test's own."""
    options = dict(vllm_sim_options)
    # The nearest marker last: it wins.
    for marker in reversed(list(request.node.iter_markers("vllm_sim"))):
        if marker.args:
            raise pytest.UsageError("the marker vllm_sim takes keyword arguments only")
        options.update(marker.kwargs)
    with Server(**options) as server:
        request.node.stash[_SERVER] = server
        yield server
        if "replies" in options:
            unused = request.config.stash[_UNUSED]
            unused += [(request.node.nodeid, rule) for rule in _unused_replies(server)]


@pytest.fixture(scope="session")
def vllm_session_server(vllm_sim_options: dict[str, Any]) -> Iterator[Server]:
    """One server for the whole session; what a test changes of it stays changed."""
    with Server(**vllm_sim_options) as server:
        yield server


def _unused_replies(server: Server) -> list[Any]:
    """Returns the scripted replies that no request used; none if the test ended the server."""
    try:
        return server.unused_replies()
    except (AdminError, OSError):
        return []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Lists the scripted replies that no request used, by test."""
    unused = config.stash[_UNUSED]
    if unused:
        terminalreporter.section("vllm-sim: scripted replies that no request used")
    for test, rule in unused:
        terminalreporter.write_line(f"{test}: {json.dumps(rule)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the log of the server of a test that failed."""
    report = yield
    server = item.stash.get(_SERVER, None)
    if server is not None and report.when == "call" and report.failed:
        report.sections.append(("vllm-sim log", server.logs))
    return report
