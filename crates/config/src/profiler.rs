//! Reads `--profiler-config`, which adds the profiler routes; nothing is profiled.
//!
//! **Source:** vLLM 0.33 `config/profiler.py`.

use serde_json::Value;

use super::error::{ConfigError, bail};
use super::flags::api;
use super::values::FlagValues;

const PROFILER_KINDS: [&str; 3] = ["torch", "cuda", "proton"];

/// Returns whether `--profiler-config` configures a profiler.
///
/// # Errors
/// [`ConfigError`] for an unknown profiler, or one without its directory.
pub(super) fn is_profiler_configured(v: &FlagValues) -> Result<bool, ConfigError> {
    let flag = &api::PROFILER_CONFIG;
    let Some(config) = v.get(flag)? else {
        return Ok(false);
    };
    let kind = match config.get("profiler") {
        None | Some(Value::Null) => None,
        Some(Value::String(kind)) if PROFILER_KINDS.contains(&kind.as_str()) => Some(kind.as_str()),
        Some(other) => {
            let value = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            let allowed = format!("one of {}", PROFILER_KINDS.join(", "));
            return Err(v.unreadable_json_value_error(flag, "profiler", &value, allowed));
        }
    };
    let named = |key: &str| {
        let folder = config.get(key).and_then(Value::as_str);
        folder.is_some_and(|folder| !folder.is_empty())
    };
    for (profiler, folder) in [("torch", "torch_profiler_dir"), ("proton", "proton_profiler_dir")] {
        let words = match (kind == Some(profiler), named(folder)) {
            (true, false) => format!("{folder} must be set when profiler is '{profiler}'"),
            (false, true) => {
                format!("{folder} is only applicable when profiler is set to '{profiler}'")
            }
            _ => continue,
        };
        bail!("--{}: {words}", flag.name);
    }
    Ok(kind.is_some())
}

/// Returns whether the routes below `/fault_tolerance` exist.
///
/// # Errors
/// [`ConfigError`] if the fault tolerance configuration is not a JSON object.
pub(super) fn has_fault_tolerance_routes(v: &FlagValues) -> Result<bool, ConfigError> {
    Ok(v.get(&api::ENABLE_FAULT_TOLERANCE)? || v.get(&api::FAULT_TOLERANCE_CONFIG)?.is_some())
}
