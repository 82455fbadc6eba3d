"""Whole workloads in virtual time: ``vllm-sim replay`` and ``vllm-sim sweep``."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _shards
from ._binary import find_binary

if TYPE_CHECKING:
    import pandas

Value = str | int | float | os.PathLike[str] | Mapping[str, Any]
"""What a flag may be given; a mapping is sent as JSON."""

Flag = Value | Sequence[Value] | bool | None
"""A flag's value: a sequence repeats the flag, ``None`` leaves it out."""


class ToolError(RuntimeError):
    """The tool ended with an error; the text is what it said."""


@dataclass(frozen=True)
class ReplayReport:
    """What ``--report-json`` holds."""

    summary: dict[str, Any]
    """Totals, means and percentiles by their name, times in milliseconds."""
    per_request: list[dict[str, Any]] = field(repr=False)
    """A row per request, in the order of their ends; empty with ``no_per_request=True``."""

    def to_pandas(self) -> "pandas.DataFrame":
        """The requests as a table; needs pandas."""
        import pandas

        return pandas.DataFrame(self.per_request)


@dataclass(frozen=True)
class SweepReport:
    """Every point of a grid."""

    points: list[dict[str, Any]]
    """``flags``, ``gpus``, ``goodput_rps``, ``goodput_per_gpu_rps`` and ``summary`` of each; of one
    that does not fit ``flags`` and ``error``."""
    best: dict[str, Any] | None
    """The point with the most good requests per second and GPU; ``None``: none has any."""

    def to_pandas(self) -> "pandas.DataFrame":
        """A row per point, its flags and its summary side by side; needs pandas."""
        import pandas

        rows = []
        for point in self.points:
            own = {key: value for key, value in point.items() if key not in ("flags", "summary")}
            rows.append({**point["flags"], **own, **point.get("summary", {})})
        return pandas.DataFrame(rows)


def replay(
    *workload: str | os.PathLike[str],
    args: Sequence[str] = (),
    timeout: float | None = None,
    **flags: Flag,
) -> ReplayReport:
    """Plays files, or a made-up workload, against workers in virtual time.

    Args:
        workload: Trace files; none with a workload of flags.
        args: Flags as they are typed.
        timeout: Seconds after which the tool is killed.
        flags: ``num_workers=4`` is ``--num-workers=4``, and so on.

    Raises:
        ToolError: What the tool refuses, or why it failed.
        subprocess.TimeoutExpired: It took too long.
    """
    found = _run("replay", [*(os.fspath(file) for file in workload), *args, *_typed(flags)], timeout)
    return ReplayReport(found["summary"], found.get("per_request", []))


@dataclass(frozen=True)
class PlanReport:
    """The cheapest deployment, and all that was tried."""

    best: dict[str, Any] | None
    """``flags`` and ``found`` of the cheapest combination; ``None``: none is good enough."""
    points: list[dict[str, Any]]
    """Every combination: ``flags``, ``found`` or ``error``, ``evidence``, ``trials``."""
    deploy: str | None
    """What to type for vLLM."""
    rehearse: str | None
    """What to type for vllm-sim."""
    report: dict[str, Any] = field(repr=False)
    """All of ``--report-json``."""


def sweep(
    *workload: str | os.PathLike[str],
    grid: Mapping[str, Sequence[str | int | float]],
    args: Sequence[str] = (),
    timeout: float | None = None,
    ray: bool = False,
    shards: int | None = None,
    **flags: Flag,
) -> SweepReport:
    """As :func:`replay`, once for every combination of ``grid``: ``{"num_workers": [1, 2]}``.

    With ``ray=True`` the grid is played in ``shards`` parts (one for each CPU of Ray's cluster unless
    told otherwise), each a task of Ray; the result is the same.
    """
    words = [*(os.fspath(file) for file in workload), *_axes("--grid", grid), *args, *_typed(flags)]
    found = _run("sweep", words, timeout, _parts(ray, shards))
    points, best = found["points"], found["best"]
    return SweepReport(points, None if best is None else points[best])


def plan(
    *workload: str | os.PathLike[str],
    vary: Mapping[str, Sequence[str | int | float]] | None = None,
    args: Sequence[str] = (),
    timeout: float | None = None,
    ray: bool = False,
    shards: int | None = None,
    **flags: Flag,
) -> PlanReport:
    """The cheapest deployment that serves a workload within its bounds: ``vllm-sim plan``.

    ``vary`` has the flags that may change, ``{"gpu": ["H100", "L40S"]}``; ``ray`` and ``shards`` are
    those of :func:`sweep`.
    """
    axes = _axes("--vary", vary or {})
    words = [*(os.fspath(file) for file in workload), *axes, *args, *_typed(flags)]
    found = _run("plan", words, timeout, _parts(ray, shards))
    order = found["order"]
    best = found["points"][order[0]] if order else None
    return PlanReport(best, found["points"], found["deploy"], found["rehearse"], found)


def _axes(flag: str, axes: Mapping[str, Sequence[str | int | float]]) -> list[str]:
    words = []
    for name, values in axes.items():
        words += [flag, f"{_dashed(name)}={','.join(map(str, values))}"]
    return words


def _parts(ray: bool, shards: int | None) -> int | None:
    """Parts to play with Ray; ``None``: one process does it."""
    if not ray:
        if shards is not None:
            raise ValueError("shards requires ray=True")
        return None
    return _shards.cpus() if shards is None else shards


def _run(
    tool: str, words: list[str], timeout: float | None, shards: int | None = None
) -> dict[str, Any]:
    if shards is None:
        command = [find_binary(), tool, *words, "--report-json=-"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    else:
        try:
            parts = _shards.play(tool, words, shards, timeout)
        except RuntimeError as error:
            raise ToolError(str(error)) from error
        ended = _shards.merge(tool, words, parts, timeout)
    # With 1 and a report the tool has done its work and found no answer.
    if ended.returncode != 0 and not (ended.returncode == 1 and ended.stdout):
        raise ToolError(ended.stderr.strip().removeprefix("error: "))
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def _typed(flags: Mapping[str, Flag]) -> list[str]:
    """Flags as they are typed."""
    words: list[str] = []
    for name, value in flags.items():
        flag = f"--{_dashed(name)}"
        if value is None:
            continue
        if value is True:
            words.append(flag)
        elif value is False:
            words.append(f"{flag}=false")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [f"{flag}={_text(item)}" for item in value]
        else:
            words.append(f"{flag}={_text(value)}")
    return words


def _text(value: Value) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)
    return str(os.fspath(value)) if isinstance(value, os.PathLike) else str(value)


def _dashed(name: str) -> str:
    return name.replace("_", "-")
