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


def test_the_cheapest_deployment_is_found() -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct"
    bounds: dict[str, Any] = {"slo_ttft_ms": 200, "max_gpus": 4, "model": model}
    found = vllm_sim.plan(vary={"gpu": ["H100", "L40S"]}, **bounds, **SMALL)
    assert found.best is not None and found.best in found.points
    assert found.deploy is not None and "vllm serve meta-llama" in found.deploy
    none = vllm_sim.plan(gpu="H100", **(bounds | {"slo_ttft_ms": 0.01}), **SMALL)
    assert none.best is None and none.points[0]["error"]


def test_a_grid_is_played_on_a_ray_cluster() -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        grid = {"num_workers": [1, 2, 3], "max_num_seqs": [4, 64]}
        alone = vllm_sim.sweep(grid=grid, slo_ttft_ms=1000, **SMALL)
        assert vllm_sim.sweep(grid=grid, slo_ttft_ms=1000, ray=True, shards=4, **SMALL) == alone
        assert vllm_sim.sweep(grid=grid, slo_ttft_ms=1000, ray=True, **SMALL) == alone
        with pytest.raises(vllm_sim.ToolError, match="--router"):
            vllm_sim.sweep(grid=grid, router="nowhere", ray=True, **SMALL)
    finally:
        ray.shutdown()
    with pytest.raises(ValueError, match="ray=True"):
        vllm_sim.sweep(grid=grid, shards=2, **SMALL)


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
