//! Metrics that are made up: llm-d-inference-sim's `fake-metrics`.
//!
//! A server started with them shows them instead of what happens to it, for every series that
//! they can name; series it does not name are zero. Other series (steps, preemptions, HTTP)
//! stay true, and the simulator itself never reads a fake value.
//!
//! An update is partial: what is absent or `null` stays, `[]` and `{}` clear. A moving value
//! starts its period when it is set.
//!
//! Source: llm-d-inference-sim `pkg/common/config_fake_metrics.go`,
//! `pkg/llm-d-inference-sim/fake_metrics.go`, HEAD of 2026-08; messages are its own.

mod go_duration;
mod signal;
mod state;

use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use signal::{Shape, Signal};
pub(super) use state::FakeState;

use super::Buckets;

/// Finish reasons that fake metrics may count.
const FAKE_REASONS: [&str; 5] = [
    "stop",
    "length",
    "tool_calls",
    "remote_decode",
    "cache_threshold",
];

/// Fake metrics as configured, or a partial update of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Fake {
    /// Series of `lora_requests_info`.
    pub loras: Option<Vec<FakeLora>>,
    /// Gauge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_requests: Option<Signal>,
    /// Gauge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_requests: Option<Signal>,
    /// Gauge, 0..=1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_usage: Option<Signal>,
    /// Observations per bucket of the time to first token.
    pub ttft_buckets_values: Option<Vec<i64>>,
    /// Observations per bucket of the inter-token latency, and of its retired name.
    pub tpot_buckets_values: Option<Vec<i64>>,
    /// Observations per bucket.
    pub request_prompt_tokens: Option<Vec<i64>>,
    /// Observations per bucket.
    pub request_generation_tokens: Option<Vec<i64>>,
    /// Observations per bucket.
    pub request_params_max_tokens: Option<Vec<i64>>,
    /// Observations per bucket.
    pub request_max_generation_tokens: Option<Vec<i64>>,
    /// Requests per finish reason.
    pub request_success_total: Option<IndexMap<String, i64>>,
    /// Counter; otherwise what the histogram of prompts comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_prompt_tokens: Option<i64>,
    /// Counter; otherwise what the histogram of outputs comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_generation_tokens: Option<i64>,
    /// Observations per bucket of the end-to-end latency.
    pub e2erl_buckets_values: Option<Vec<i64>>,
    /// Observations per bucket.
    pub queue_time_buckets_values: Option<Vec<i64>>,
    /// Observations per bucket.
    pub inf_time_buckets_values: Option<Vec<i64>>,
    /// Observations per bucket.
    pub prefill_time_buckets_values: Option<Vec<i64>>,
    /// Observations per bucket.
    pub decode_time_buckets_values: Option<Vec<i64>>,
    /// Observations per bucket of a request's mean time per output token.
    pub request_tpot_buckets_values: Option<Vec<i64>>,
    /// Counter, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache_hits: Option<i64>,
    /// Counter, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache_queries: Option<i64>,
}

/// One series of `lora_requests_info`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FakeLora {
    /// Adapters that run, comma-separated.
    pub running: String,
    /// Adapters that wait, comma-separated.
    pub waiting: String,
    /// Value of the series.
    pub timestamp: f64,
}

/// What is wrong with fake metrics.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FakeError {
    /// Not JSON, or no object.
    #[error("fake metrics must be a JSON object: {0}")]
    Json(String),
    /// A value of the wrong kind.
    #[error("fake metrics {key}: {reason}")]
    Field {
        /// Whose.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Not a moving value.
    #[error("unknown format in fake metric generation function: {0}")]
    Function(String),
    /// No such function.
    #[error(
        "invalid fake metrics generation function {0}, must be one of the following: {names}",
        names = signal::shape_names()
    )]
    UnknownFunction(String),
    /// A moving value below zero.
    #[error("invalid fake metrics generation parameter: start and end must not be negative")]
    NegativeFunction,
    /// No period.
    #[error("invalid fake metrics generation parameter: period must be positive")]
    Period,
    /// Running or waiting requests below zero.
    #[error("fake metrics request counters cannot be negative")]
    NegativeRequests,
    /// A fixed cache usage that is no share.
    #[error("fake metrics KV cache usage must be between 0 and 1")]
    KvUsage,
    /// A moving cache usage that is no share.
    #[error("fake metrics KV cache usage start and end must be between 0 and 1")]
    KvUsageFunction,
    /// More counts than buckets.
    #[error("fake {0} array is too long")]
    TooLong(&'static str),
    /// A count below zero.
    #[error("{0} fake metrics should contain only non-negative values")]
    NegativeBucket(&'static str),
    /// A count below zero.
    #[error("fake metrics {0} cannot contain negative values")]
    NegativeCount(&'static str),
    /// A total below zero.
    #[error("fake metrics {0} cannot be negative")]
    Negative(&'static str),
    /// Requests below zero.
    #[error("fake metrics request-success-total.{0} cannot be negative, got {1}")]
    NegativeSuccess(String, i64),
    /// No such finish reason.
    #[error(
        "invalid finish reason in request-success-total: {0} (valid reasons: [{reasons}])",
        reasons = FAKE_REASONS.join(" ")
    )]
    Reason(String),
    /// One of two that belong together.
    #[error("fake metrics prefix-cache-hits and prefix-cache-queries must be specified together")]
    HitsWithoutQueries,
    /// More found than looked up.
    #[error("fake metrics prefix-cache-hits cannot exceed prefix-cache-queries")]
    HitsExceedQueries,
    /// The refresh interval is zero.
    #[error("fake metrics refresh interval must be positive")]
    Refresh,
    /// The server shows real metrics.
    #[error("the simulator is reporting real metrics; fake metrics cannot be updated")]
    RealMetrics,
}

impl Fake {
    /// Reads the JSON object of `--fake-metrics`, `/fake_metrics` or `/admin/config`; unknown
    /// keys are ignored, as upstream ignores them. It is not checked yet: an update is checked
    /// once it is laid over what there is.
    ///
    /// # Errors
    /// [`FakeError::Json`], [`FakeError::Field`], [`FakeError::Function`].
    pub fn parse(json: &str) -> Result<Self, FakeError> {
        let value = serde_json::from_str(json).map_err(|e| FakeError::Json(e.to_string()))?;
        Self::from_value(value)
    }

    /// As [`Self::parse`], from a value (a YAML file's, turned to JSON).
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn from_value(value: Value) -> Result<Self, FakeError> {
        let Value::Object(mut map) = value else {
            return Err(FakeError::Json(format!("got {value}")));
        };
        let m = &mut map;
        Ok(Self {
            loras: loras(m)?,
            running_requests: signal(m, "running-requests")?,
            waiting_requests: signal(m, "waiting-requests")?,
            kv_cache_usage: signal(m, "kv-cache-usage")?,
            ttft_buckets_values: take(m, "ttft-buckets-values")?,
            tpot_buckets_values: take(m, "tpot-buckets-values")?,
            request_prompt_tokens: take(m, "request-prompt-tokens")?,
            request_generation_tokens: take(m, "request-generation-tokens")?,
            request_params_max_tokens: take(m, "request-params-max-tokens")?,
            request_max_generation_tokens: take(m, "request-max-generation-tokens")?,
            request_success_total: take(m, "request-success-total")?,
            total_prompt_tokens: take(m, "total-prompt-tokens")?,
            total_generation_tokens: take(m, "total-generation-tokens")?,
            e2erl_buckets_values: take(m, "e2erl-buckets-values")?,
            queue_time_buckets_values: take(m, "queue-time-buckets-values")?,
            inf_time_buckets_values: take(m, "inf-time-buckets-values")?,
            prefill_time_buckets_values: take(m, "prefill-time-buckets-values")?,
            decode_time_buckets_values: take(m, "decode-time-buckets-values")?,
            request_tpot_buckets_values: take(m, "request-tpot-buckets-values")?,
            prefix_cache_hits: take(m, "prefix-cache-hits")?,
            prefix_cache_queries: take(m, "prefix-cache-queries")?,
        })
    }

    /// Lays `update` over these.
    #[must_use]
    pub fn updated(self, update: &Self) -> Self {
        let u = update.clone();
        Self {
            loras: u.loras.or(self.loras),
            running_requests: u.running_requests.or(self.running_requests),
            waiting_requests: u.waiting_requests.or(self.waiting_requests),
            kv_cache_usage: u.kv_cache_usage.or(self.kv_cache_usage),
            ttft_buckets_values: u.ttft_buckets_values.or(self.ttft_buckets_values),
            tpot_buckets_values: u.tpot_buckets_values.or(self.tpot_buckets_values),
            request_prompt_tokens: u.request_prompt_tokens.or(self.request_prompt_tokens),
            request_generation_tokens: u
                .request_generation_tokens
                .or(self.request_generation_tokens),
            request_params_max_tokens: u
                .request_params_max_tokens
                .or(self.request_params_max_tokens),
            request_max_generation_tokens: u
                .request_max_generation_tokens
                .or(self.request_max_generation_tokens),
            request_success_total: u.request_success_total.or(self.request_success_total),
            total_prompt_tokens: u.total_prompt_tokens.or(self.total_prompt_tokens),
            total_generation_tokens: u.total_generation_tokens.or(self.total_generation_tokens),
            e2erl_buckets_values: u.e2erl_buckets_values.or(self.e2erl_buckets_values),
            queue_time_buckets_values: u
                .queue_time_buckets_values
                .or(self.queue_time_buckets_values),
            inf_time_buckets_values: u.inf_time_buckets_values.or(self.inf_time_buckets_values),
            prefill_time_buckets_values: u
                .prefill_time_buckets_values
                .or(self.prefill_time_buckets_values),
            decode_time_buckets_values: u
                .decode_time_buckets_values
                .or(self.decode_time_buckets_values),
            request_tpot_buckets_values: u
                .request_tpot_buckets_values
                .or(self.request_tpot_buckets_values),
            prefix_cache_hits: u.prefix_cache_hits.or(self.prefix_cache_hits),
            prefix_cache_queries: u.prefix_cache_queries.or(self.prefix_cache_queries),
        }
    }

    /// Whether they can be shown, with these buckets.
    ///
    /// # Errors
    /// The first thing that is wrong, in upstream's order.
    pub fn check(&self, buckets: &Buckets) -> Result<(), FakeError> {
        let requests = [&self.running_requests, &self.waiting_requests];
        for signal in requests.into_iter().flatten() {
            if matches!(signal, Signal::Fixed(v) if *v < 0.0) {
                return Err(FakeError::NegativeRequests);
            }
        }
        if matches!(self.kv_cache_usage, Some(Signal::Fixed(v)) if !(0.0..=1.0).contains(&v)) {
            return Err(FakeError::KvUsage);
        }
        let signals = requests.into_iter().chain([&self.kv_cache_usage]);
        signals.flatten().try_for_each(Signal::check)?;
        if let Some(Signal::Moving { start, end, .. }) = &self.kv_cache_usage
            && (*start > 1.0 || *end > 1.0)
        {
            return Err(FakeError::KvUsageFunction);
        }
        self.check_token_times(buckets)?;
        self.check_counts()?;
        self.check_prefix_cache()
    }

    fn check_token_times(&self, buckets: &Buckets) -> Result<(), FakeError> {
        let ttft = (
            "time-to-first-token",
            &self.ttft_buckets_values,
            &buckets.time_to_first_token,
        );
        let tpot = (
            "time-per-output-token",
            &self.tpot_buckets_values,
            &buckets.inter_token_latency,
        );
        for (name, counts, bounds) in [ttft, tpot] {
            let Some(counts) = counts else { continue };
            if counts.len() > bounds.len() + 1 {
                return Err(FakeError::TooLong(name));
            }
            if counts.iter().any(|n| *n < 0) {
                return Err(FakeError::NegativeBucket(name));
            }
        }
        for (reason, n) in self.request_success_total.iter().flatten() {
            if *n < 0 {
                return Err(FakeError::NegativeSuccess(reason.clone(), *n));
            }
            if !FAKE_REASONS.contains(&reason.as_str()) {
                return Err(FakeError::Reason(reason.clone()));
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), FakeError> {
        for (key, counts) in [
            ("request-prompt-tokens", &self.request_prompt_tokens),
            ("request-generation-tokens", &self.request_generation_tokens),
            ("request-params-max-tokens", &self.request_params_max_tokens),
            (
                "request-max-generation-tokens",
                &self.request_max_generation_tokens,
            ),
            ("e2erl-buckets-values", &self.e2erl_buckets_values),
            ("queue-time-buckets-values", &self.queue_time_buckets_values),
            ("inf-time-buckets-values", &self.inf_time_buckets_values),
            (
                "prefill-time-buckets-values",
                &self.prefill_time_buckets_values,
            ),
            (
                "decode-time-buckets-values",
                &self.decode_time_buckets_values,
            ),
            (
                "request-tpot-buckets-values",
                &self.request_tpot_buckets_values,
            ),
        ] {
            if counts.iter().flatten().any(|n| *n < 0) {
                return Err(FakeError::NegativeCount(key));
            }
        }
        for (key, total) in [
            ("total-prompt-tokens", self.total_prompt_tokens),
            ("total-generation-tokens", self.total_generation_tokens),
            ("prefix-cache-hits", self.prefix_cache_hits),
            ("prefix-cache-queries", self.prefix_cache_queries),
        ] {
            if total.is_some_and(|n| n < 0) {
                return Err(FakeError::Negative(key));
            }
        }
        Ok(())
    }

    fn check_prefix_cache(&self) -> Result<(), FakeError> {
        match (self.prefix_cache_hits, self.prefix_cache_queries) {
            (Some(hits), Some(queries)) if hits > queries => Err(FakeError::HitsExceedQueries),
            (Some(_), Some(_)) | (None, None) => Ok(()),
            _ => Err(FakeError::HitsWithoutQueries),
        }
    }
}

fn field_error(key: &'static str) -> impl Fn(serde_json::Error) -> FakeError {
    move |e| FakeError::Field {
        key,
        reason: e.to_string(),
    }
}

fn take<T: DeserializeOwned>(
    map: &mut Map<String, Value>,
    key: &'static str,
) -> Result<Option<T>, FakeError> {
    let value = map.remove(key).unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(field_error(key))
}

fn signal(map: &mut Map<String, Value>, key: &'static str) -> Result<Option<Signal>, FakeError> {
    match map.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Signal::parse(&text).map(Some),
        Some(value) => serde_json::from_value(value).map_err(field_error(key)),
    }
}

/// Each entry is an object, or a string that holds one, as the YAML files of llm-d have it.
fn loras(map: &mut Map<String, Value>) -> Result<Option<Vec<FakeLora>>, FakeError> {
    let Some(entries) = take::<Vec<Value>>(map, "loras")? else {
        return Ok(None);
    };
    let one = |entry| match entry {
        Value::String(text) => serde_json::from_str(&text),
        entry => serde_json::from_value(entry),
    };
    let loras: Result<Vec<_>, _> = entries.into_iter().map(one).collect();
    loras.map(Some).map_err(field_error("loras"))
}

#[cfg(test)]
mod tests;
