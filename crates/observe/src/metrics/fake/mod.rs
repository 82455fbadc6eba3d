//! Fake metrics, as in llm-d-inference-sim's `fake-metrics`.
//!
//! A server with fake metrics exposes them instead of real values, for every series that they can
//! set; those without a value are zero. With llm-d's rules, requests are still added to token
//! histograms, totals and finish reasons. Other series (steps, preemptions, HTTP) stay real, and
//! the simulator itself never reads a fake value.
//!
//! An update is partial: absent or `null` keys keep their value, `[]` and `{}` clear. A function of
//! time starts its period when it is set. The configuration validates values: here unknown keys are
//! ignored and surplus buckets are merged.
//!
//! **Source:** llm-d-inference-sim `pkg/common/config_fake_metrics.go`,
//! `pkg/llm-d-inference-sim/fake_metrics.go`.

#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Fake metrics as configured, or a partial update of them: a JSON object with the keys of
/// llm-d-inference-sim.
///
/// Histograms have numbers of observations per bucket. A total that is absent is derived from its
/// histogram. `tpot-buckets-values` are the inter-token latencies, `request-tpot-buckets-values` the
/// means of requests. `loras` are series of `vllm:lora_requests_info`, with names of adapters
/// separated by commas.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct FakeMetrics(pub(super) Map<String, Value>);

/// Error for an update of fake metrics on a server with real metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulator is reporting real metrics; fake metrics cannot be updated")]
pub struct FakeMetricsDisabled;
