"""Single HTTP requests to a server, by the standard library alone."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

# A proxy of the environment would not know this machine's ports.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class AdminError(RuntimeError):
    """The server refuses what an operator asks of it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status."""


@dataclass(frozen=True)
class Response:
    """An answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def ask(
    method: str,
    url: str,
    body: object | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Response:
    """One request; ``body`` is sent as it is when it is bytes, else as JSON.

    Raises:
        OSError: There is no answer.
    """
    sent = dict(headers or {})
    data: bytes | None = None
    if isinstance(body, bytes):
        data = body
    elif body is not None:
        data = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(url, data=data, headers=sent, method=method)
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            return _response(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return _response(error.code, error.headers, error.read())


def _response(status: int, headers: Message, body: bytes) -> Response:
    return Response(status, {name.lower(): value for name, value in headers.items()}, body)
