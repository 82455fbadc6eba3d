//! Checks the fields of `--kv-transfer-config` by name and type.

use serde_json::{Map, Value};

use super::cli_mode::CliMode;
use super::did_you_mean::closest_known_name;
use super::error::ConfigError;
use super::flags::kv;
use super::values::FlagValues;

/// Type of a field of `--kv-transfer-config`, with pydantic's lax conversions.
#[derive(Clone, Copy)]
enum TransferFieldType {
    Text,
    Whole,
    Number,
    Bool,
    Object,
}

impl TransferFieldType {
    const fn description(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Whole => "a whole number",
            Self::Number => "a number",
            Self::Bool => "true or false",
            Self::Object => "a JSON object",
        }
    }

    fn accepts(self, value: &Value) -> bool {
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse::<f64>().ok(),
            _ => None,
        };
        match self {
            Self::Text => value.is_string(),
            Self::Whole => number.is_some_and(|number| number.fract() == 0.0),
            Self::Number => number.is_some(),
            Self::Bool => {
                let word = value.as_str().unwrap_or_default().to_ascii_lowercase();
                value.is_boolean() || matches!(word.as_str(), "true" | "false")
            }
            Self::Object => value.is_object(),
        }
    }
}

/// Allowed fields in the JSON object of `--kv-transfer-config`.
///
/// **Source:** vLLM `vllm/config/kv_transfer.py`; `kv_rank` up to 0.31.
const TRANSFER_FIELDS: [(&str, TransferFieldType); 13] = [
    ("kv_connector", TransferFieldType::Text),
    ("engine_id", TransferFieldType::Text),
    ("kv_buffer_device", TransferFieldType::Text),
    ("kv_buffer_size", TransferFieldType::Number),
    ("kv_role", TransferFieldType::Text),
    ("kv_rank", TransferFieldType::Whole),
    ("kv_parallel_size", TransferFieldType::Whole),
    ("kv_ip", TransferFieldType::Text),
    ("kv_port", TransferFieldType::Whole),
    ("kv_connector_extra_config", TransferFieldType::Object),
    ("kv_connector_module_path", TransferFieldType::Text),
    ("enable_permute_local_kv", TransferFieldType::Bool),
    ("kv_load_failure_policy", TransferFieldType::Text),
];

/// Rejects unknown fields and values of a wrong type; llm-d's command line only warns.
pub(super) fn check_transfer_fields(
    v: &FlagValues,
    config: &Map<String, Value>,
) -> Result<(), ConfigError> {
    let has_rank = v.vllm_version()?.major_minor() < (0, 32);
    let fields = || TRANSFER_FIELDS.iter().filter(move |(name, _)| has_rank || *name != "kv_rank");
    for (key, value) in config {
        let error = match fields().find(|(name, _)| name == key) {
            Some((_, kind)) if value.is_null() || kind.accepts(value) => continue,
            Some((_, kind)) => v.unreadable_json_value_error(
                &kv::KV_TRANSFER_CONFIG,
                key,
                &value.to_string(),
                kind.description(),
            ),
            None => ConfigError::Unknown {
                what: "key in --kv-transfer-config:".to_owned(),
                name: key.clone(),
                nearest: closest_known_name(key, fields().map(|(name, _)| *name))
                    .map(str::to_owned),
            },
        };
        match v.cli_mode {
            CliMode::Vllm => return Err(error),
            CliMode::Llmd => v.add_warning(error.to_string()),
        }
    }
    Ok(())
}
