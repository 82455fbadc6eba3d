"""Requests as the server saw them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class RecordedRequest:
    """One request (``GET /admin/requests``). Times are seconds."""

    id: int
    time: float
    """When it arrived, since 1970."""
    path: str
    model: str | None
    stream: bool
    status: int | None
    """``None``: not answered yet."""
    outcome: Literal["running", "finished", "refused", "cut"]
    """``refused``: answered with an error; ``cut``: the client left, or a fault broke it off."""
    seconds_to_headers: float | None
    seconds: float | None
    """Until the end of the answer."""
    prompt_tokens: int
    completion_tokens: int
    key: str | None
    """What attempts at the same thing have in common: the idempotency key, the request's id, or path
    and body of an SDK that counts its attempts."""
    attempt: int
    gap_seconds: float | None
    """From the end of the attempt before."""
    headers: Mapping[str, str]
    """By their names in small letters; secrets are ``***``."""
    body_bytes: int
    body_sha256: str | None
    body: Any = None
    """What was sent, parsed where it is JSON."""


def recorded_request(shown: Mapping[str, Any]) -> RecordedRequest:
    """One element of what the server shows."""
    known = {field.name for field in fields(RecordedRequest)}
    return RecordedRequest(**{name: value for name, value in shown.items() if name in known})
