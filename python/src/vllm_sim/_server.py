"""A server that lives as long as a ``with`` block."""

import asyncio
import atexit
import contextlib
import json
import os
import secrets
import subprocess
import tempfile
import threading
import time
import urllib.parse
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._binary import find_binary
from ._client import AdminError, Response, ask
from ._metrics import Metrics
from ._requests import RecordedRequest, recorded_request

if TYPE_CHECKING:
    import anthropic as anthropic_sdk
    import openai as openai_sdk

_ADMIN_KEY = "VLLM_SIM_ADMIN_API_KEY"

_LOG_LINES = 10_000
"""Lines of a log that are kept."""

Script = str | os.PathLike[str] | Sequence[Mapping[str, Any]]
"""Scripted replies: a file, or the rules that would stand in it."""

_running: "weakref.WeakSet[Server]" = weakref.WeakSet()


class StartError(RuntimeError):
    """The server did not come up; the text has the end of its log."""


class Change:
    """Settings that were changed; as a context manager it puts the former ones back."""

    def __init__(self, server: "Server", names: Sequence[str], former: Mapping[str, Any]) -> None:
        self._server = server
        self._names = list(names)
        self._former = dict(former)

    def undo(self) -> None:
        """Puts the former settings back, once: those of an earlier change, or of the start."""
        names, self._names = self._names, []
        if names:
            self._server._admin("POST", "/admin/config", {"reset": names, **self._former})

    def __enter__(self) -> "Change":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


class Server:
    """A vllm-sim on a free port of the loopback interface.

    ``with Server() as server:`` or ``async with``; :meth:`start` and :meth:`stop` do the same by
    hand. A server can be started again after its end.

    Args:
        model: The model's name.
        args: More flags, as they are typed (``docs/flags.md``).
        serve: Whether flags and defaults are those of ``vllm serve`` instead of
            llm-d-inference-sim's.
        scenario: Failures over time: a file, or what would stand in it.
        replies: Scripted replies: a file, or the rules that would stand in it.
        env: Variables over those of this process.
        binary: The program [``find_binary()``].
        start_timeout: Seconds it may take to listen.
    """

    def __init__(
        self,
        model: str = "demo",
        args: Sequence[str] = (),
        *,
        serve: bool = False,
        scenario: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        replies: Script | None = None,
        env: Mapping[str, str] | None = None,
        binary: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        if isinstance(args, str):
            raise TypeError("args must be a list of strings, such as ['--max-num-seqs', '8']")
        self.model = model
        self._args = list(args)
        self._serve = serve
        self._scenario = scenario
        self._replies = replies
        self._env = dict(env or {})
        self._binary = binary
        self._start_timeout = start_timeout
        # Without a key, `serve` has no /admin routes.
        self._key = (
            _flag(self._args, "--admin-api-key")
            or {**os.environ, **self._env}.get(_ADMIN_KEY)
            or (secrets.token_urlsafe() if serve else _flag(self._args, "--api-key") or "")
        )
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._reader: threading.Thread | None = None
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._urls: list[str] = []

    # Life

    def start(self) -> "Server":
        """Starts it; returns once it listens.

        Raises:
            StartError: It ended instead, or took too long.
            BinaryNotFound: There is no program.
        """
        if self._process is not None:
            raise RuntimeError("the server is already running")
        binary = os.fspath(self._binary) if self._binary is not None else find_binary()
        self._log.clear()
        self._folder = tempfile.TemporaryDirectory(prefix="vllm-sim-")
        ready = Path(self._folder.name, "ready.json")
        try:
            self._process = subprocess.Popen(
                [binary, *self._words(ready)],
                # Its end, which comes with that of this process, is the server's.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **self._env, **self._keys()},
                encoding="utf-8",
                errors="replace",
            )
            _running.add(self)
            self._reader = threading.Thread(target=self._read_log, daemon=True)
            self._reader.start()
            self._urls = self._wait(ready)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kills it; without effect when it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        for pipe in (process.stdin, process.stderr) if process is not None else ():
            if pipe is not None:
                pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        self._urls = []
        _running.discard(self)

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> "Server":
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    # Where it is

    @property
    def url(self) -> str:
        """Its address, ``http://127.0.0.1:PORT``; of several servers the first one's."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """The address of each server (``--replicas``, a port per rank)."""
        if not self._urls:
            raise RuntimeError("the server is not running: use it within its `with` block")
        return list(self._urls)

    @property
    def logs(self) -> str:
        """Its log so far, the last 10,000 lines of it; kept after its end."""
        return "".join(list(self._log))

    @property
    def pid(self) -> int:
        """The id of its process."""
        if self._process is None:
            raise RuntimeError("the server is not running: use it within its `with` block")
        return self._process.pid

    # Clients

    def openai(self, **options: Any) -> "openai_sdk.OpenAI":
        """A client of the openai package, with its ``options``; without a key and without retries
        unless they say otherwise."""
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", **_client_options(options))

    def async_openai(self, **options: Any) -> "openai_sdk.AsyncOpenAI":
        """As :meth:`openai`, asynchronous."""
        import openai

        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", **_client_options(options))

    def anthropic(self, **options: Any) -> "anthropic_sdk.Anthropic":
        """A client of the anthropic package, as :meth:`openai`."""
        import anthropic

        return anthropic.Anthropic(base_url=self.url, **_client_options(options))

    def async_anthropic(self, **options: Any) -> "anthropic_sdk.AsyncAnthropic":
        """As :meth:`anthropic`, asynchronous."""
        import anthropic

        return anthropic.AsyncAnthropic(base_url=self.url, **_client_options(options))

    def request(
        self,
        method: str,
        path: str,
        body: object | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Response:
        """One request by the standard library; ``body`` is sent as JSON unless it is bytes."""
        return ask(method, f"{self.url}{path}", body, headers, timeout)

    # What it saw, and what it is to do

    def metrics(self) -> Metrics:
        """What ``/metrics`` shows now."""
        return Metrics(self.request("GET", "/metrics").text)

    def configuration(self) -> dict[str, Any]:
        """All flags as they are in force (``GET /admin/config``)."""
        found: dict[str, Any] = self._admin("GET", "/admin/config")
        return found

    def configure(self, settings: Mapping[str, Any] | None = None, **more: Any) -> Change:
        """Changes settings from now on (``POST /admin/config``): all of them or, when one is
        refused, none. ``time_to_first_token="50ms"`` is ``time-to-first-token``.

        Raises:
            AdminError: What is wrong with them.
        """
        named = {**(settings or {}), **more}
        update = {name.replace("_", "-"): value for name, value in named.items()}
        changed = self._admin("GET", "/admin/config?changed=true")
        self._admin("POST", "/admin/config", update)
        former = {name: changed[name] for name in update if name in changed}
        return Change(self, list(update), former)

    def faults(
        self,
        rate: int = 0,
        types: Sequence[str] = (),
        *,
        stream_rate: float = 0.0,
        stream_faults: Sequence[str] = (),
    ) -> Change:
        """Makes a share of all requests fail; ``faults()`` ends it.

        Args:
            rate: Percentage of requests that are refused.
            types: How: ``rate_limit``, ``server_error``, … [all].
            stream_rate: Percentage of replies that go wrong.
            stream_faults: How: ``cut_after=5``, ``stall=3:2s``, … [``cut_after=5``].
        """
        settings: dict[str, Any] = {"failure-injection-rate": rate, "stream-fault-rate": stream_rate}
        if types:
            settings["failure-types"] = list(types)
        if stream_faults:
            settings["stream-faults"] = list(stream_faults)
        return self.configure(settings)

    def requests(
        self,
        *,
        wait: int | None = None,
        timeout: float = 5.0,
        path: str | None = None,
        model: str | None = None,
        status: int | None = None,
        key: str | None = None,
        after: int | None = None,
    ) -> list[RecordedRequest]:
        """The requests so far, oldest first: those of which all that is given holds.

        Args:
            wait: Wait until so many of them have ended.
            timeout: For so many seconds.
            after: Only those behind this id.

        Raises:
            TimeoutError: Fewer have ended.
        """
        asked: dict[str, str | int | None] = {
            "path": path,
            "model": model,
            "status": status,
            "key": key,
            "after": after,
            "limit": 1_000_000,
        }
        if wait is not None:
            asked |= {"wait": wait, "timeout": f"{round(timeout * 1000)}ms"}
        query = urllib.parse.urlencode({n: v for n, v in asked.items() if v is not None})
        try:
            found = self._admin("GET", f"/admin/requests?{query}", timeout=timeout + 30)
        except AdminError as error:
            if error.status == 408:
                raise TimeoutError(str(error)) from None
            raise
        return [recorded_request(shown) for shown in found["requests"]]

    def forget_requests(self) -> int:
        """Empties the list; how many there were."""
        removed: int = self._admin("DELETE", "/admin/requests")["removed"]
        return removed

    def set_replies(self, replies: Script) -> None:
        """Scripts replies from now on, in place of those before; ``[]`` ends it.

        Raises:
            AdminError: What is wrong with them.
        """
        if isinstance(replies, str | os.PathLike):
            text = Path(replies).read_text()
        else:
            text = json.dumps(list(replies))
        self._admin("POST", "/admin/replies", text.encode())

    def unused_replies(self) -> list[Any]:
        """Returns the scripted replies that no request used (``GET /admin/replies``)."""
        rules = self._admin("GET", "/admin/replies")["replies"]
        return [rule["rule"] for rule in rules if not rule["answered"] and not rule["failed"]]

    def scenario(self) -> dict[str, Any]:
        """Where the scenario is (``GET /admin/scenario``)."""
        found: dict[str, Any] = self._admin("GET", "/admin/scenario")
        return found

    def run_scenario(self, scenario: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        """Plays a scenario from its first phase: a file, or what would stand in it."""
        text = json.dumps(scenario) if isinstance(scenario, Mapping) else Path(scenario).read_text()
        self._admin("POST", "/admin/scenario", text.encode())

    def end_scenario(self) -> None:
        """Ends it; the settings from before it are in force again."""
        self._admin("DELETE", "/admin/scenario")

    # How

    def _words(self, ready: Path) -> list[str]:
        words = ["serve", self.model] if self._serve else ["--model", self.model]
        words += ["--host", "127.0.0.1", "--port", "0"]
        words += ["--request-history", "10000", "--request-history-bodies"]
        words += ["--enable-request-id-headers", *self._args]
        if self._scenario is not None:
            words += ["--scenario", self._file("scenario.yaml", self._scenario)]
        if self._replies is not None:
            words += ["--replies", self._file("replies.yaml", self._replies)]
        return [*words, "--ready-file", str(ready), "--exit-on-stdin-eof"]

    def _keys(self) -> dict[str, str]:
        return {_ADMIN_KEY: self._key} if self._key else {}

    def _file(self, name: str, given: Script | Mapping[str, Any]) -> str:
        """The path of a file that is given as such, or by what stands in it."""
        if isinstance(given, str | os.PathLike):
            return os.fspath(given)
        assert self._folder is not None
        path = Path(self._folder.name, name)
        # JSON is YAML.
        path.write_text(json.dumps(given))
        return str(path)

    def _wait(self, ready: Path) -> list[str]:
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout
        pause = 0.001
        while True:
            with contextlib.suppress(FileNotFoundError):
                servers = json.loads(ready.read_text())["servers"]
                if all("url" in server for server in servers):
                    return [server["url"] for server in servers]
                raise StartError("a server on a Unix socket (--uds) has no URL")
            code = self._process.poll()
            if code is not None:
                if self._reader is not None:
                    self._reader.join()
                raise StartError(f"vllm-sim ended with exit code {code}:\n{self._last_lines()}")
            if time.monotonic() > deadline:
                took = f"vllm-sim does not listen after {self._start_timeout} s"
                raise StartError(f"{took}:\n{self._last_lines()}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def _last_lines(self) -> str:
        return "".join(list(self._log)[-20:]).rstrip()

    def _read_log(self) -> None:
        process = self._process
        if process is not None and process.stderr is not None:
            self._log.extend(process.stderr)

    def _admin(
        self, method: str, path: str, body: object | None = None, timeout: float = 30.0
    ) -> Any:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        answer = self.request(method, path, body, headers, timeout)
        if answer.status >= 300:
            raise AdminError(answer.status, _message(answer))
        return answer.json() if answer.body else None


def _flag(words: Sequence[str], name: str) -> str | None:
    """The value of a flag among words as they are typed."""
    found = None
    for at, word in enumerate(words):
        if word.startswith(f"{name}="):
            found = word.partition("=")[2]
        elif word == name and at + 1 < len(words):
            found = words[at + 1]
    return found


def _client_options(options: dict[str, Any]) -> dict[str, Any]:
    # A test wants to see the first failure.
    return {"api_key": "none", "max_retries": 0, **options}


def _message(answer: Response) -> str:
    """What an error says."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["error"]["message"])
    return f"status {answer.status}: {answer.text[:200]}"


@atexit.register
def _stop_all() -> None:
    for server in list(_running):
        server.stop()
