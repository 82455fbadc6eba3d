"""Workloads in virtual time."""

from pathlib import Path
from typing import Any

import pytest

import vllm_sim

SMALL: dict[str, Any] = {"input_tokens": 256, "output_tokens": 16, "request_count": 40, "request_rate": 20}


def test_a_made_up_workload_is_replayed_and_repeats() -> None:
    one = vllm_sim.replay(num_workers=2, router="kv_router", **SMALL)
    assert one.summary["completed_requests"] == 40
    assert len(one.per_request) == 40
    assert one == vllm_sim.replay(num_workers=2, router="kv_router", **SMALL)


def test_a_trace_is_a_file(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 64, "output_length": 8, "hash_ids": [1]}\n')
    report = vllm_sim.replay(trace, no_per_request=True, trace_block_size=64)
    assert report.summary["total_output_tokens"] == 8
    assert report.per_request == []


def test_switches_may_be_false() -> None:
    report = vllm_sim.replay(no_per_request=False, enable_prefix_caching=False, **SMALL)
    assert len(report.per_request) == 40
    assert vllm_sim.replay(no_per_request=True, **SMALL).per_request == []


def test_every_point_of_a_grid_is_played() -> None:
    found = vllm_sim.sweep(grid={"num_workers": [1, 2]}, slo_ttft_ms=1000, **SMALL)
    assert [point["flags"] for point in found.points] == [
        {"num-workers": "1"},
        {"num-workers": "2"},
    ]
    assert found.best in found.points


def test_tables_are_pandas() -> None:
    pytest.importorskip("pandas")
    found = vllm_sim.sweep(grid={"num_workers": [1, 2]}, **SMALL)
    assert list(found.to_pandas()["num-workers"]) == ["1", "2"]
    assert len(vllm_sim.replay(**SMALL).to_pandas()) == 40


def test_what_is_refused_is_told() -> None:
    with pytest.raises(vllm_sim.ToolError, match="--router"):
        vllm_sim.replay(router="nowhere", **SMALL)
    with pytest.raises(vllm_sim.ToolError, match="no_such|no-such"):
        vllm_sim.replay(no_such_flag=True, **SMALL)
