//! Checks fake metrics, which replace real ones in `/metrics`, in the JSON format of
//! llm-d-inference-sim.
//!
//! **Source:** llm-d-inference-sim `pkg/common/config_fake_metrics.go`.

use serde_json::{Map, Value};

use super::did_you_mean::spelling_hint;
use super::error::{ConfigError, bail, invalid};
use super::values::FlagValues;
use vllm_sim_observe::metrics::Waveform;

/// Keys of fake histograms that take counts per bucket, each with its maximum number of buckets. If
/// llm-d-inference-sim limits this number too, its name of the metric follows.
const HISTOGRAM_BUCKET_KEYS: [(&str, usize, Option<&str>); 12] = [
    ("ttft-buckets-values", 23, Some("time-to-first-token")),
    ("tpot-buckets-values", 20, Some("time-per-output-token")),
    ("e2erl-buckets-values", usize::MAX, None),
    ("queue-time-buckets-values", usize::MAX, None),
    ("inf-time-buckets-values", usize::MAX, None),
    ("prefill-time-buckets-values", usize::MAX, None),
    ("decode-time-buckets-values", usize::MAX, None),
    ("request-tpot-buckets-values", usize::MAX, None),
    ("request-prompt-tokens", usize::MAX, None),
    ("request-generation-tokens", usize::MAX, None),
    ("request-params-max-tokens", usize::MAX, None),
    ("request-max-generation-tokens", usize::MAX, None),
];

const TOTAL_KEYS: [&str; 4] =
    ["total-prompt-tokens", "total-generation-tokens", "prefix-cache-hits", "prefix-cache-queries"];

/// Keys of fake token histograms, each with the key of the fake total that replaces the sum of the
/// histogram if the total is set.
pub(super) const FAKE_HISTOGRAM_AND_TOTAL_KEYS: [(&str, &str); 2] = [
    ("request-prompt-tokens", "total-prompt-tokens"),
    ("request-generation-tokens", "total-generation-tokens"),
];

const GAUGE_KEYS: [&str; 3] = ["running-requests", "waiting-requests", "kv-cache-usage"];

const OTHER_KEYS: [&str; 2] = ["loras", "request-success-total"];

const FINISH_REASONS: [&str; 5] =
    ["stop", "length", "tool_calls", "remote_decode", "cache_threshold"];

/// Checks fake metrics, complete or partial, and converts `loras` to objects. An unknown key is
/// dropped and reported to `warn`.
///
/// # Errors
/// [`ConfigError::Invalid`] with the message of llm-d-inference-sim.
fn check_fake_metrics(
    mut object: Map<String, Value>,
    mut warn: impl FnMut(String),
) -> Result<Value, ConfigError> {
    object.retain(|key, _| {
        let known = fake_metric_keys().any(|known| known == key);
        if !known {
            let hint = spelling_hint(key, fake_metric_keys());
            warn(format!("unknown key {key} in fake-metrics{hint}"));
        }
        known
    });
    for key in ["running-requests", "waiting-requests"] {
        check_gauge(
            &object,
            key,
            f64::INFINITY,
            "fake metrics request counters cannot be negative",
            "",
        )?;
    }
    check_gauge(
        &object,
        "kv-cache-usage",
        1.0,
        "fake metrics KV cache usage must be between 0 and 1",
        "fake metrics KV cache usage start and end must be between 0 and 1",
    )?;
    for (key, longest, name) in HISTOGRAM_BUCKET_KEYS {
        check_histogram_buckets(&object, key, longest, name)?;
    }
    check_totals(&object)?;
    check_request_success_totals(&object)?;
    if let Some(loras) = object.get_mut("loras") {
        *loras = lora_texts_to_objects(loras)?;
    }
    Ok(Value::Object(object))
}

pub(super) fn check_fake_metrics_flag(
    object: Map<String, Value>,
    v: &FlagValues,
) -> Result<Value, ConfigError> {
    check_fake_metrics(object, |text| v.add_warning(text))
}

fn fake_metric_keys() -> impl Iterator<Item = &'static str> {
    let buckets = HISTOGRAM_BUCKET_KEYS.iter().map(|(key, _, _)| *key);
    GAUGE_KEYS.into_iter().chain(TOTAL_KEYS).chain(OTHER_KEYS).chain(buckets)
}

fn non_null_value<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn check_gauge(
    object: &Map<String, Value>,
    key: &str,
    greatest: f64,
    outside: &str,
    ends_outside: &str,
) -> Result<(), ConfigError> {
    let Some(value) = non_null_value(object, key) else {
        return Ok(());
    };
    if let Some(text) = value.as_str() {
        let Waveform { start, end, .. } = text.parse::<Waveform>().map_err(ConfigError::Invalid)?;
        if start > greatest || end > greatest {
            bail!("{ends_outside} ({key} is {text:?})");
        }
        return Ok(());
    }
    match value.as_f64() {
        Some(number) if (0.0..=greatest).contains(&number) => Ok(()),
        Some(number) => Err(invalid!("{outside} ({key} is {number})")),
        None => Err(invalid!("fake metrics {key} must be a number or a function, not {value}")),
    }
}

fn check_histogram_buckets(
    object: &Map<String, Value>,
    key: &str,
    longest: usize,
    name: Option<&str>,
) -> Result<(), ConfigError> {
    let Some(value) = non_null_value(object, key) else {
        return Ok(());
    };
    let Some(items) = value.as_array() else {
        bail!("fake metrics {key} must be an array of counts, not {value}");
    };
    if items.len() > longest {
        let name = name.unwrap_or(key);
        bail!(
            "fake {name} array is too long: {} values, at most {longest} are allowed",
            items.len()
        );
    }
    for item in items {
        match item.as_i64() {
            Some(0..) => {}
            Some(_) => match name {
                None => bail!("fake metrics {key} cannot contain negative values"),
                Some(name) => {
                    bail!("{name} fake metrics should contain only non-negative values")
                }
            },
            None => {
                bail!("fake metrics {key} must be an array of counts, not of {item}");
            }
        }
    }
    Ok(())
}

fn check_totals(object: &Map<String, Value>) -> Result<(), ConfigError> {
    for key in TOTAL_KEYS {
        match non_null_value(object, key).map(|value| (value, value.as_i64())) {
            None | Some((_, Some(0..))) => {}
            Some((_, Some(_))) => {
                bail!("fake metrics {key} cannot be negative");
            }
            Some((value, None)) => {
                bail!("fake metrics {key} must be a whole number, not {value}");
            }
        }
    }
    let hits = non_null_value(object, "prefix-cache-hits").and_then(Value::as_i64);
    let queries = non_null_value(object, "prefix-cache-queries").and_then(Value::as_i64);
    match (hits, queries) {
        (Some(hits), Some(queries)) if hits > queries => Err(invalid!(
            "fake metrics prefix-cache-hits cannot exceed prefix-cache-queries ({hits} > {queries})"
        )),
        (Some(_), None) | (None, Some(_)) => Err(invalid!(
            "fake metrics prefix-cache-hits and prefix-cache-queries must be specified together"
        )),
        _ => Ok(()),
    }
}

fn check_request_success_totals(object: &Map<String, Value>) -> Result<(), ConfigError> {
    let key = "request-success-total";
    let Some(value) = non_null_value(object, key) else {
        return Ok(());
    };
    let Some(counts) = value.as_object() else {
        bail!("fake metrics {key} must be an object, not {value}");
    };
    for (reason, count) in counts {
        if !FINISH_REASONS.contains(&reason.as_str()) {
            bail!(
                "invalid finish reason in request-success-total: {reason}, valid reasons are: {}",
                FINISH_REASONS.join(", ")
            );
        }
        if count.as_i64().is_none_or(|n| n < 0) {
            bail!("fake metrics {key}.{reason} cannot be negative, got {count}");
        }
    }
    Ok(())
}

/// Converts the LoRA adapters in `loras` to objects; YAML files hold them as JSON texts.
fn lora_texts_to_objects(loras: &Value) -> Result<Value, ConfigError> {
    let wrong = |value: &Value| {
        invalid!(
            "fake metrics loras must be a list of {{\"running\", \"waiting\", \"timestamp\"}}, not {value}"
        )
    };
    if loras.is_null() {
        return Ok(Value::Array(Vec::new()));
    }
    let items = loras.as_array().ok_or_else(|| wrong(loras))?;
    let has_types = |lora: &Value| {
        lora.is_object()
            && ["running", "waiting"].iter().all(|key| lora.get(key).is_none_or(Value::is_string))
            && lora.get("timestamp").is_none_or(Value::is_number)
    };
    let read = |item: &Value| {
        let lora = match item {
            Value::String(text) => serde_json::from_str(text).ok(),
            _ => Some(item.clone()),
        };
        lora.filter(has_types).ok_or_else(|| wrong(item))
    };
    items.iter().map(read).collect::<Result<_, _>>().map(Value::Array)
}
