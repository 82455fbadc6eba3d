//! Checks fake metrics, which replace real ones in `/metrics`, in the JSON format of
//! llm-d-inference-sim.
//!
//! **Source:** llm-d-inference-sim `pkg/common/config_fake_metrics.go`.

use serde_json::{Map, Value};

use super::did_you_mean::closest;
use super::error::ConfigError;
use super::values::Values;
use vllm_sim_engine::duration;

/// Keys of fake histograms with counts per bucket: maximum number of buckets, and upstream's name
/// if it limits them.
const BUCKETS: [(&str, usize, Option<&str>); 12] = [
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

const TOTALS: [&str; 4] = [
    "total-prompt-tokens",
    "total-generation-tokens",
    "prefix-cache-hits",
    "prefix-cache-queries",
];

/// Keys of fake token histograms, with the key of the total that replaces their sum if set.
pub(super) const OBSERVED_TOTALS: [(&str, &str); 2] = [
    ("request-prompt-tokens", "total-prompt-tokens"),
    ("request-generation-tokens", "total-generation-tokens"),
];

const GAUGES: [&str; 3] = ["running-requests", "waiting-requests", "kv-cache-usage"];

const OTHERS: [&str; 2] = ["loras", "request-success-total"];

const FUNCTIONS: [&str; 4] = ["oscillate", "ramp", "rampreset", "squarewave"];

const REASONS: [&str; 5] = [
    "stop",
    "length",
    "tool_calls",
    "remote_decode",
    "cache_threshold",
];

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
        let known = keys().any(|known| known == key);
        if !known {
            let hint = closest(key, keys())
                .map_or_else(String::new, |near| format!("; did you mean {near}?"));
            warn(format!("unknown key {key} in fake-metrics{hint}"));
        }
        known
    });
    for key in ["running-requests", "waiting-requests"] {
        gauge(
            &object,
            key,
            f64::INFINITY,
            "fake metrics request counters cannot be negative",
            "",
        )?;
    }
    gauge(
        &object,
        "kv-cache-usage",
        1.0,
        "fake metrics KV cache usage must be between 0 and 1",
        "fake metrics KV cache usage start and end must be between 0 and 1",
    )?;
    for (key, longest, name) in BUCKETS {
        buckets(&object, key, longest, name)?;
    }
    totals(&object)?;
    reasons(&object)?;
    if let Some(loras) = object.get_mut("loras") {
        *loras = adapters(loras)?;
    }
    Ok(Value::Object(object))
}

pub(super) fn check(object: Map<String, Value>, v: &Values) -> Result<Value, ConfigError> {
    check_fake_metrics(object, |text| v.warn(text))
}

fn keys() -> impl Iterator<Item = &'static str> {
    let buckets = BUCKETS.iter().map(|(key, _, _)| *key);
    GAUGES
        .into_iter()
        .chain(TOTALS)
        .chain(OTHERS)
        .chain(buckets)
}

fn invalid(words: impl Into<String>) -> ConfigError {
    ConfigError::Invalid(words.into())
}

fn present<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn gauge(
    object: &Map<String, Value>,
    key: &str,
    greatest: f64,
    outside: &str,
    ends_outside: &str,
) -> Result<(), ConfigError> {
    let Some(value) = present(object, key) else {
        return Ok(());
    };
    if let Some(text) = value.as_str() {
        let (start, end) = function(text)?;
        if start > greatest || end > greatest {
            return Err(invalid(format!("{ends_outside} ({key} is {text:?})")));
        }
        return Ok(());
    }
    match value.as_f64() {
        Some(number) if (0.0..=greatest).contains(&number) => Ok(()),
        Some(number) => Err(invalid(format!("{outside} ({key} is {number})"))),
        None => Err(invalid(format!(
            "fake metrics {key} must be a number or a function, not {value}"
        ))),
    }
}

fn function(text: &str) -> Result<(f64, f64), ConfigError> {
    let unreadable = |why: String| {
        invalid(format!(
            "unknown format in fake metric generation function: {why}"
        ))
    };
    let parts: Vec<&str> = text.split(':').collect();
    let &[name, start, end, period] = parts.as_slice() else {
        return Err(unreadable(format!(
            "need func:start:end:period in fake metric generation function, not {text:?}"
        )));
    };
    if !FUNCTIONS.contains(&name) {
        return Err(invalid(format!(
            "invalid fake metrics generation function {name}, valid functions are: {}",
            FUNCTIONS.join(", ")
        )));
    }
    let number = |text: &str| {
        text.parse::<f64>()
            .ok()
            .filter(|n| n.is_finite())
            .ok_or_else(|| unreadable(format!("{text:?} is not a number")))
    };
    let (start, end) = (number(start)?, number(end)?);
    // Go's message: a duration needs a unit here.
    let typed = duration::parse(period, 1)
        .map_err(|why| unreadable(format!("time: invalid duration {period:?}: {why}")))?;
    if typed.bare {
        return Err(unreadable(format!(
            "time: missing unit in duration {period:?}"
        )));
    }
    let parameter =
        |what: &str| invalid(format!("invalid fake metrics generation parameter: {what}"));
    if typed.nanos <= 0 {
        return Err(parameter("period must be positive"));
    }
    if start < 0.0 || end < 0.0 {
        return Err(parameter("start and end must not be negative"));
    }
    Ok((start, end))
}

fn buckets(
    object: &Map<String, Value>,
    key: &str,
    longest: usize,
    name: Option<&str>,
) -> Result<(), ConfigError> {
    let Some(value) = present(object, key) else {
        return Ok(());
    };
    let Some(items) = value.as_array() else {
        return Err(invalid(format!(
            "fake metrics {key} must be an array of counts, not {value}"
        )));
    };
    if items.len() > longest {
        let name = name.unwrap_or(key);
        return Err(invalid(format!(
            "fake {name} array is too long: {} values, at most {longest} are allowed",
            items.len()
        )));
    }
    for item in items {
        match item.as_i64() {
            Some(0..) => {}
            Some(_) => {
                return Err(invalid(name.map_or_else(
                    || format!("fake metrics {key} cannot contain negative values"),
                    |name| format!("{name} fake metrics should contain only non-negative values"),
                )));
            }
            None => {
                return Err(invalid(format!(
                    "fake metrics {key} must be an array of counts, not of {item}"
                )));
            }
        }
    }
    Ok(())
}

fn totals(object: &Map<String, Value>) -> Result<(), ConfigError> {
    for key in TOTALS {
        match present(object, key).map(|value| (value, value.as_i64())) {
            None | Some((_, Some(0..))) => {}
            Some((_, Some(_))) => {
                return Err(invalid(format!("fake metrics {key} cannot be negative")));
            }
            Some((value, None)) => {
                return Err(invalid(format!(
                    "fake metrics {key} must be a whole number, not {value}"
                )));
            }
        }
    }
    let hits = present(object, "prefix-cache-hits").and_then(Value::as_i64);
    let queries = present(object, "prefix-cache-queries").and_then(Value::as_i64);
    match (hits, queries) {
        (Some(hits), Some(queries)) if hits > queries => Err(invalid(format!(
            "fake metrics prefix-cache-hits cannot exceed prefix-cache-queries ({hits} > {queries})"
        ))),
        (Some(_), None) | (None, Some(_)) => Err(invalid(
            "fake metrics prefix-cache-hits and prefix-cache-queries must be specified together",
        )),
        _ => Ok(()),
    }
}

fn reasons(object: &Map<String, Value>) -> Result<(), ConfigError> {
    let key = "request-success-total";
    let Some(value) = present(object, key) else {
        return Ok(());
    };
    let Some(counts) = value.as_object() else {
        return Err(invalid(format!(
            "fake metrics {key} must be an object, not {value}"
        )));
    };
    for (reason, count) in counts {
        if !REASONS.contains(&reason.as_str()) {
            return Err(invalid(format!(
                "invalid finish reason in request-success-total: {reason}, valid reasons are: {}",
                REASONS.join(", ")
            )));
        }
        if count.as_i64().is_none_or(|n| n < 0) {
            return Err(invalid(format!(
                "fake metrics {key}.{reason} cannot be negative, got {count}"
            )));
        }
    }
    Ok(())
}

/// Converts the LoRA adapters in `loras` to objects; YAML files hold them as JSON texts.
fn adapters(loras: &Value) -> Result<Value, ConfigError> {
    let wrong = |value: &Value| {
        invalid(format!(
            "fake metrics loras must be a list of {{\"running\", \"waiting\", \"timestamp\"}}, not {value}"
        ))
    };
    if loras.is_null() {
        return Ok(Value::Array(Vec::new()));
    }
    let items = loras.as_array().ok_or_else(|| wrong(loras))?;
    let read = |item: &Value| match item {
        Value::Object(_) => Ok(item.clone()),
        Value::String(text) => serde_json::from_str(text)
            .ok()
            .filter(Value::is_object)
            .ok_or_else(|| wrong(item)),
        _ => Err(wrong(item)),
    };
    items
        .iter()
        .map(read)
        .collect::<Result<_, _>>()
        .map(Value::Array)
}
