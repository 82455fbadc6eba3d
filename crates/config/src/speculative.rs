use serde_json::{Map, Value};

use super::error::ConfigError;
use super::flag::FlagSpec;
use super::flags::engine;
use super::values::Values;

/// Draft tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculative {
    /// vLLM's `method` (default ngram).
    pub method: String,
    /// Draft tokens per step; at least 1.
    pub num_tokens: u32,
    /// Chance that draft i is accepted when all before were; one per draft.
    pub acceptance: Vec<f64>,
    /// The whole object as typed.
    pub raw: Value,
}

impl Speculative {
    /// `--speculative-config` with what the `--spec-*` flags add.
    pub(super) fn from_values(v: &Values) -> Result<Option<Self>, ConfigError> {
        let mut config: Map<String, Value> = v
            .get(&engine::SPECULATIVE_CONFIG)?
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key.replace('-', "_"), value))
            .collect();
        let flags: [(&FlagSpec, &str); 3] = [
            (&engine::SPEC_METHOD, "method"),
            (&engine::SPEC_MODEL, "model"),
            (&engine::SPEC_TOKENS, "num_speculative_tokens"),
        ];
        for (flag, key) in flags {
            let Some(text) = v.text(flag) else { continue };
            if config.contains_key(key) {
                return Err(ConfigError::Invalid(format!(
                    "--{} and --speculative-config['{key}'] are mutually exclusive",
                    flag.name
                )));
            }
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
            config.insert(key.to_owned(), value);
        }
        v.get(&engine::SPEC_TOKENS)?;
        if config.is_empty() {
            return Ok(None);
        }
        let num_tokens = config
            .get("num_speculative_tokens")
            .and_then(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (1..=64).contains(n))
            .ok_or_else(|| {
                ConfigError::Invalid(
                    "speculative-config: num_speculative_tokens must be between 1 and 64"
                        .to_owned(),
                )
            })?;
        let default = if config.contains_key("model") {
            "draft_model"
        } else {
            "ngram"
        };
        let method = config
            .get("method")
            .and_then(Value::as_str)
            .unwrap_or(default);
        Ok(Some(Self {
            method: method.to_owned(),
            num_tokens,
            acceptance: acceptance(v, num_tokens)?,
            raw: Value::Object(config),
        }))
    }
}

/// One chance per draft token: missing ones are 0.
fn acceptance(v: &Values, drafts: u32) -> Result<Vec<f64>, ConfigError> {
    let flag = &engine::SPEC_ACCEPTANCE_RATES;
    let mut rates = Vec::new();
    for text in v.comma_list(flag)? {
        let rate = text
            .parse::<f64>()
            .ok()
            .filter(|rate| (0.0..=1.0).contains(rate));
        rates.push(rate.ok_or_else(|| v.bad(flag, &text, "a number between 0 and 1"))?);
    }
    rates.resize(drafts as usize, 0.0);
    Ok(rates)
}
