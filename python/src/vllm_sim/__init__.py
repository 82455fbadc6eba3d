"""A vLLM server for tests, with no GPU and no model, and replays of whole workloads.

    from vllm_sim import Server

    with Server(model="demo") as server:
        client = server.openai()
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hi"}])
"""

from ._binary import BinaryNotFound, find_binary
from ._client import AdminError, Response
from ._metrics import Metrics, Sample
from ._replay import PlanReport, ReplayReport, SweepReport, ToolError, plan, replay, sweep
from ._requests import RecordedRequest
from ._server import Change, Server, StartError

__all__ = [
    "AdminError",
    "BinaryNotFound",
    "Change",
    "Metrics",
    "PlanReport",
    "RecordedRequest",
    "ReplayReport",
    "Response",
    "Sample",
    "Server",
    "StartError",
    "SweepReport",
    "ToolError",
    "find_binary",
    "plan",
    "replay",
    "sweep",
]
