"""Scrapes as values."""

import pytest

from vllm_sim import Metrics

SCRAPE = """\
# HELP vllm:x_total Count.
# TYPE vllm:x_total counter
vllm:x_total{engine="0",model_name="a \\"b\\" {c}"} 2.0
vllm:x_total{engine="1",model_name="a"} 3e0
vllm:b_bucket{le="+Inf"} 4
plain NaN
up +Inf
"""


def test_samples_are_summed_by_name_and_labels() -> None:
    metrics = Metrics(SCRAPE)
    assert metrics["vllm:x_total"] == 5
    assert metrics.value("vllm:x_total", model_name='a "b" {c}') == 2
    assert metrics.value("vllm:b_bucket", le="+Inf") == 4
    assert metrics["up"] == float("inf")
    assert metrics["plain"] != metrics["plain"]
    assert "plain" in metrics and "vllm:x" not in metrics
    assert metrics.samples[0].labels["engine"] == "0"
    with pytest.raises(KeyError, match="engine='2'"):
        metrics.value("vllm:x_total", engine="2")
