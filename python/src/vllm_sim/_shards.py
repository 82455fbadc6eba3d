"""One sweep or plan on several machines: parts of the grid as tasks of Ray."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._binary import find_binary


def play(tool: str, words: Sequence[str], shards: int, timeout: float | None) -> list[str]:
    """Plays every part as a task of Ray; the texts of the parts, in their order.

    Starts a local Ray when none is connected. Files that ``words`` name must be there on every node.
    """
    ray = _ray()
    task = ray.remote(_part)
    parts = [task.remote(tool, list(words), f"{n + 1}/{shards}", timeout) for n in range(shards)]
    found: list[str] = ray.get(parts)
    return found


def cpus() -> int:
    """CPUs of Ray's cluster."""
    return max(1, int(_ray().cluster_resources().get("CPU", 1)))


def _ray() -> Any:
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    return ray


def merge(
    tool: str, words: Sequence[str], parts: Sequence[str], timeout: float | None
) -> "subprocess.CompletedProcess[str]":
    """Puts the parts together: what the tool says is what one process says."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, part in enumerate(parts):
            file = Path(folder) / f"{number}.json"
            file.write_text(part)
            files.append(str(file))
        command = [find_binary(), tool, *words, f"--merge={','.join(files)}", "--report-json=-"]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def _part(tool: str, words: list[str], shard: str, timeout: float | None) -> str:
    command: list[Any] = [find_binary(), tool, *words, f"--shard={shard}", "--report-json=-"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr.strip().removeprefix("error: "))
    return ended.stdout
