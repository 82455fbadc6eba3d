use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::cli_mode::CliMode;
use super::error::{ConfigError, bail, invalid};
use super::flags::api;
use super::model::{ModelConfig, is_local_path};
use super::values::FlagValues;

/// Settings of LoRA adapter support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraConfig {
    /// Whether LoRA adapters are supported (default yes; with `serve` only by `--enable-lora`).
    pub enabled: bool,
    /// Maximum number of LoRA adapters in one batch, at least 1 (default 1).
    pub max_loras: u32,
    /// Maximum number of LoRA adapters in CPU memory. Minimum and default: `max_loras`.
    pub max_cpu_loras: u32,
    /// Maximum rank of a LoRA adapter (default 16).
    pub max_rank: u32,
    /// LoRA adapters to load when the server starts.
    pub modules: Vec<LoraModuleConfig>,
    /// Time to load a LoRA adapter (default 0).
    pub load_time: Duration,
    /// Whether the route `/v1/load_lora_adapter` exists (default yes; with `serve`, only if an
    /// environment variable enables it).
    pub runtime_updating: bool,
    /// Folder of the LoRA adapters that requests load by name; `None` without `--enable-lora` or
    /// `runtime_updating`.
    pub resolver_folder: Option<PathBuf>,
}

/// A LoRA adapter that the server loads at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraModuleConfig {
    /// Model name by which requests select the LoRA adapter; never empty.
    pub name: String,
    /// Path of the LoRA adapter's folder, as typed.
    pub path: String,
    /// Name of the LoRA adapter's base model, if given.
    pub base_model_name: Option<String>,
}

impl LoraConfig {
    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &ModelConfig,
    ) -> Result<Self, ConfigError> {
        let max_loras = v.get(&api::MAX_LORAS)?;
        let flag = &api::MAX_CPU_LORAS;
        let (least, most) = (i64::from(max_loras), i64::from(u32::MAX));
        let words = "max CPU LoRAs cannot be less than max LoRAs";
        let max_cpu_loras = match v.get(flag)? {
            Some(n) => v.check_integer_range(flag, n, least..=most, words)?,
            None => {
                v.record_derived_value(flag, max_loras);
                max_loras
            }
        };
        let modules = read_lora_modules(v, model)?;
        let mut enabled = v.get(&api::ENABLE_LORA)?;
        if !enabled && !modules.is_empty() {
            v.add_warning("--lora-modules without --enable-lora: adapters are switched on (vLLM would refuse to start)");
            enabled = true;
        }
        let runtime_updating = v.get(&api::ALLOW_RUNTIME_LORA_UPDATING)?;
        let missing = |module: &&LoraModuleConfig| {
            is_local_path(&module.path) && !Path::new(&module.path).exists()
        };
        // llm-d's examples have paths that do not exist.
        let checked = modules.iter().filter(|_| v.cli_mode == CliMode::Vllm);
        for LoraModuleConfig { name, path, .. } in checked.filter(missing) {
            v.add_warning(format!(
                "--lora-modules {name}={path}: no such folder; the adapter is served, but vLLM would not start"
            ));
        }
        Ok(Self {
            enabled,
            max_loras,
            max_cpu_loras,
            max_rank: read_max_lora_rank(v)?,
            modules,
            load_time: v.get(&api::LORA_LOAD_TIME)?,
            runtime_updating,
            resolver_folder: resolver_folder(v)?.filter(|_| enabled && runtime_updating),
        })
    }
}

fn resolver_folder(v: &FlagValues) -> Result<Option<PathBuf>, ConfigError> {
    let folder = v.get(&api::LORA_RESOLVER_CACHE_DIR)?;
    match folder.filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) if !folder.is_dir() => {
            Err(v.unsupported_value_error("no such folder", &api::LORA_RESOLVER_CACHE_DIR))
        }
        folder => Ok(folder),
    }
}

impl LoraConfig {
    /// Returns vLLM's error message if the rank of the LoRA adapter in `adapter_path` exceeds
    /// `max_rank`; `None` if the rank is allowed or unknown.
    ///
    /// **Source:** vLLM 0.33 `vllm/lora/peft_helper.py`, `validate_legal`.
    pub fn lora_rank_limit_error(&self, adapter_path: &str) -> Option<String> {
        let file = Path::new(adapter_path).join("adapter_config.json");
        let text = std::fs::read_to_string(file).ok()?;
        let adapter: Value = serde_json::from_str(&text).ok()?;
        let own = adapter.get("r").and_then(Value::as_u64);
        let patterns = adapter.get("rank_pattern").and_then(Value::as_object);
        let patterns = patterns.into_iter().flat_map(|map| map.values());
        let rank = patterns.filter_map(Value::as_u64).chain(own).max()?;
        (rank > u64::from(self.max_rank))
            .then(|| format!("LoRA rank {rank} is greater than max_lora_rank {}.", self.max_rank))
    }
}

/// Values of the LoRA rank that vLLM's kernels support.
///
/// **Source:** vLLM 0.33 `vllm/config/lora.py`, `MaxLoRARanks`.
const SUPPORTED_LORA_RANKS: [u32; 9] = [1, 8, 16, 32, 64, 128, 256, 320, 512];

fn read_max_lora_rank(v: &FlagValues) -> Result<u32, ConfigError> {
    let rank = v.get(&api::MAX_LORA_RANK)?;
    match SUPPORTED_LORA_RANKS.contains(&rank) {
        true => Ok(rank),
        false => {
            let known = SUPPORTED_LORA_RANKS.map(|rank| rank.to_string()).join(", ");
            Err(v.unsupported_value_error(format!("must be one of {known}"), &api::MAX_LORA_RANK))
        }
    }
}

/// Parses the values of `--lora-modules`: `name=path`, a JSON object, a JSON array of either, or
/// `{name: path}`.
fn read_lora_modules(
    v: &FlagValues,
    model: &ModelConfig,
) -> Result<Vec<LoraModuleConfig>, ConfigError> {
    let mut out = Vec::new();
    for typed in v.get(&api::LORA_MODULES)? {
        let typed = typed.trim();
        if typed.starts_with('{') {
            let value = serde_json::from_str(typed).map_err(|e| {
                v.unreadable_value_error(&api::LORA_MODULES, typed, format!("JSON: {e}"))
            })?;
            if let Value::Object(object) = value {
                push_lora_module(v, &object, &mut out)?;
            }
        } else if let Some((name, path)) = typed.split_once('=') {
            out.push(LoraModuleConfig {
                name: name.trim().to_owned(),
                path: path.trim().to_owned(),
                base_model_name: None,
            });
        } else {
            let expected = "name=path, or JSON such as {\"name\": \"a\", \"path\": \"/p\"}";
            return Err(v.unreadable_value_error(&api::LORA_MODULES, typed, expected));
        }
    }
    for (at, module) in out.iter().enumerate() {
        check_lora_module(v, model, module)?;
        if out[..at].iter().any(|other| other.name == module.name) {
            bail!("two LoRA modules have the name '{}'", module.name);
        }
    }
    Ok(out)
}

fn push_lora_module(
    v: &FlagValues,
    object: &Map<String, Value>,
    out: &mut Vec<LoraModuleConfig>,
) -> Result<(), ConfigError> {
    let fields = ["name", "path", "base_model_name", "base-model-name", "is_3d_lora_weight"];
    let is_field = |key: &String| fields.contains(&key.as_str());
    let is_module = object.keys().any(is_field);
    if !is_module {
        // An object of names with paths or with the other fields.
        for (name, below) in object {
            let mut module = match below {
                Value::Object(below) => below.clone(),
                other => Map::from_iter([("path".to_owned(), other.clone())]),
            };
            module.insert("name".to_owned(), Value::String(name.clone()));
            push_lora_module(v, &module, out)?;
        }
        return Ok(());
    }
    if v.cli_mode == CliMode::Vllm {
        // **Source:** vLLM `vllm/entrypoints/openai/cli_args.py`, `LoRAParserAction`.
        let unknown = object.keys().find(|key| !is_field(key));
        let missing = ["name", "path"].into_iter().find(|key| !object.contains_key(*key));
        let why = match (unknown, missing) {
            (Some(key), _) => format!("unknown field {key:?}"),
            (None, Some(key)) => format!("the field {key:?} is missing"),
            (None, None) => String::new(),
        };
        if !why.is_empty() {
            let typed = Value::Object(object.clone());
            bail!("Invalid fields for --lora-modules: {typed} - {why}");
        }
    }
    let text = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => {
            let expected = format!("a LoRA module whose {key} is a string");
            Err(v.unreadable_value_error(&api::LORA_MODULES, &other.to_string(), expected))
        }
    };
    out.push(LoraModuleConfig {
        name: text("name")?.unwrap_or_default(),
        path: text("path")?.unwrap_or_default(),
        base_model_name: text("base_model_name")?.or(text("base-model-name")?),
    });
    Ok(())
}

fn check_lora_module(
    v: &FlagValues,
    model: &ModelConfig,
    module: &LoraModuleConfig,
) -> Result<(), ConfigError> {
    if module.name.is_empty() {
        bail!("empty LoRA name");
    }
    if model.served_names.contains(&module.name) {
        bail!("LoRA '{}' has the name of the base model", module.name);
    }
    match &module.base_model_name {
        Some(base)
            if v.cli_mode == CliMode::Llmd
                && !base.is_empty()
                && *base != model.name
                && !model.served_names.contains(base) =>
        {
            Err(invalid!("unknown base model '{base}' for LoRA '{}'", module.name))
        }
        _ => Ok(()),
    }
}
