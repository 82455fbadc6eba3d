use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::cli_mode::CliMode;
use super::error::ConfigError;
use super::flags::model;
use super::values::Values;
use vllm_sim_observe::metrics::Compat;
use vllm_sim_tokenizer::ContentFormat;

/// Which model is imitated, and how the program was called.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Name or folder, as typed; never empty.
    pub name: String,
    /// Names that requests may use; at least one, the first is shown in answers.
    pub served_names: Vec<String>,
    /// Longest prompt plus output, in tokens [1024; with `serve` config.json's, else 32768].
    pub max_model_len: u32,
    /// The model's `config.json`, when `name` is a folder that has one.
    pub hf_config: Option<Arc<Value>>,
    /// Which revision is named.
    pub revision: Option<String>,
    /// Where tokens come from.
    pub tokenizer: TokenizerSource,
    /// The template of `--chat-template`, the text of a file or its own.
    pub chat_template: Option<String>,
    /// How message content reaches the template; `None`: as the template wants it.
    pub chat_template_content_format: Option<ContentFormat>,
    /// Arguments of every chat template call.
    pub chat_template_kwargs: Map<String, Value>,
    /// Role of answers (default assistant).
    pub response_role: String,
    /// Sampling defaults: `auto` (the model's), `vllm` (none), or a folder.
    pub generation_config: String,
    /// What the `generation_config.json` of the model's or the named folder says, where there is one.
    pub generation_config_file: Option<Map<String, Value>>,
    /// Sampling defaults laid over those.
    pub generation_config_overrides: Map<String, Value>,
    /// The imitated release (default 0.33.0).
    pub vllm_version: String,
    /// Whose wire where the two projects contradict each other.
    pub compat: Compat,
    /// Whose command line, and so whose defaults.
    pub cli_mode: CliMode,
}

/// Where tokens come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerSource {
    /// Folder, file or hub name (default the model's).
    pub name: String,
    /// Revision on the hub.
    pub revision: Option<String>,
    /// Whether to use the simulated tokenizer whatever exists.
    pub force_dummy: bool,
    /// Whether a hub name may be downloaded [no: the simulated tokenizer stands in].
    pub download: bool,
    /// Folder of this and earlier downloads; `None`: the hub library's own.
    pub cache_dir: Option<PathBuf>,
    /// `HF_TOKEN`.
    pub hf_token: Option<String>,
    /// `HF_ENDPOINT`.
    pub hf_endpoint: Option<String>,
    /// Neither tokenizer nor detokenizer: token ids only (`--skip-tokenizer-init`).
    pub skip_init: bool,
}

/// Context length behind vLLM's command line when no config.json says one.
const UNKNOWN_CONTEXT: u32 = 32768;
/// vLLM's assumption for a config.json without any of [`CONTEXT_KEYS`].
const SILENT_CONTEXT: f64 = 2048.0;
/// Keys that may hold the context length; the least one counts.
///
/// **Source:** vLLM `vllm/config/model.py`, `_get_and_verify_max_len`.
const CONTEXT_KEYS: [&str; 9] = [
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
];

/// Keys of sizes that every model has.
const SIZE_KEYS: [&str; 4] = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
];
/// vLLM's own templates, in `vllm/transformers_utils/chat_templates`.
const VLLM_TEMPLATES: [&str; 7] = [
    "template_basic.jinja",
    "template_blip2.jinja",
    "template_chatml.jinja",
    "template_deepseek_ocr.jinja",
    "template_deepseek_vl2.jinja",
    "template_fuyu.jinja",
    "template_minicpmv45.jinja",
];

/// llm-d's documents put all names into one pair of quotes.
fn served_names(v: &Values) -> Result<Vec<String>, ConfigError> {
    let mut names = v.get(&model::SERVED_MODEL_NAME)?;
    if let [all] = names.as_slice()
        && v.cli_mode == CliMode::Llmd
        && all.trim().contains(char::is_whitespace)
    {
        v.warn(format!(
            "--served-model-name {all:?} is read as several names"
        ));
        names = all.split_whitespace().map(str::to_owned).collect();
    }
    names.retain(|name| !name.is_empty());
    Ok(names)
}

impl Model {
    pub(super) fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let name = v.get(&model::MODEL)?.ok_or_else(|| {
            ConfigError::Invalid("model parameter is empty; name one with --model".to_owned())
        })?;
        let mut served_names = served_names(v)?;
        if served_names.is_empty() {
            served_names.push(name.clone());
            v.derive(&model::SERVED_MODEL_NAME, &name);
        }
        let hf_config = hf_config(v, &name)?;
        let max_model_len = max_model_len(v, hf_config.as_ref())?;
        let compat = v.choice(&model::COMPAT)?.unwrap_or_default();
        Ok(Self {
            max_model_len,
            hf_config: hf_config.map(Arc::new),
            revision: v.get(&model::REVISION)?,
            tokenizer: tokenizer(v, &name)?,
            chat_template: chat_template(v)?,
            chat_template_content_format: v.choice(&model::CHAT_TEMPLATE_CONTENT_FORMAT)?.flatten(),
            chat_template_kwargs: v
                .get(&model::DEFAULT_CHAT_TEMPLATE_KWARGS)?
                .unwrap_or_default(),
            response_role: v.get(&model::RESPONSE_ROLE)?,
            generation_config_file: generation_config_file(v, &name)?,
            generation_config: v.get(&model::GENERATION_CONFIG)?,
            generation_config_overrides: v
                .get(&model::OVERRIDE_GENERATION_CONFIG)?
                .unwrap_or_default(),
            vllm_version: v.get(&model::VLLM_VERSION)?,
            compat,
            cli_mode: v.cli_mode,
            name,
            served_names,
        })
    }

    /// The first served name, which answers show.
    pub fn displayed(&self) -> &str {
        self.served_names.first().unwrap_or(&self.name)
    }
}

fn tokenizer(v: &Values, model: &str) -> Result<TokenizerSource, ConfigError> {
    let cache = v
        .get(&model::HF_HUB_CACHE)?
        .or(v.get(&model::HF_HOME)?.map(|home| home.join("hub")));
    let offline = v.get(&model::HF_HUB_OFFLINE)?;
    Ok(TokenizerSource {
        name: v.text(&model::TOKENIZER).unwrap_or(model).to_owned(),
        revision: v
            .get(&model::TOKENIZER_REVISION)?
            .or(v.get(&model::REVISION)?),
        force_dummy: v.get(&model::FORCE_DUMMY_TOKENIZER)?,
        download: v.get(&model::DOWNLOAD_TOKENIZER)? && !offline,
        cache_dir: v.get(&model::DOWNLOAD_DIR)?.or(cache),
        hf_token: v.get(&model::HF_TOKEN)?,
        hf_endpoint: v.get(&model::HF_ENDPOINT)?,
        skip_init: v.get(&model::SKIP_TOKENIZER_INIT)?,
    })
}

/// `config.json` with the overrides laid over it, when there is one.
fn hf_config(v: &Values, model: &str) -> Result<Option<Value>, ConfigError> {
    let overrides = v.get(&model::HF_OVERRIDES)?;
    let named = v.get(&model::HF_CONFIG_PATH)?.map(PathBuf::from);
    let place = named.clone().unwrap_or_else(|| PathBuf::from(model));
    let file = if place.extension().is_some_and(|e| e == "json") {
        place
    } else {
        place.join("config.json")
    };
    let mut config = match read_json(&file)? {
        Some(config) => config,
        None if named.is_some() => {
            return Err(ConfigError::File {
                path: file.display().to_string(),
                reason: "hf-config-path names no file".to_owned(),
            });
        }
        None => return Ok(None),
    };
    check_numbers(&file, &config)?;
    if let (Some(overrides), Value::Object(config)) = (overrides, &mut config) {
        config.extend(overrides);
    }
    Ok(Some(config))
}

/// Reads a file's JSON object; `None`: there is no file.
///
/// # Errors
/// What is there and cannot be read.
pub(super) fn read_json(file: &Path) -> Result<Option<Value>, ConfigError> {
    let wrong = |reason: String| ConfigError::File {
        path: file.display().to_string(),
        reason,
    };
    let Some(text) = read_file(file)? else {
        return Ok(None);
    };
    match serde_json::from_str(&text) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => Err(wrong("not a JSON object".to_owned())),
        Err(error) => Err(wrong(format!("not JSON: {error}"))),
    }
}

/// Reads a file; `None`: there is none, and none can be of that name.
fn read_file(file: &Path) -> Result<Option<String>, ConfigError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput => Ok(None),
            _ => Err(ConfigError::File {
                path: file.display().to_string(),
                reason: error.to_string(),
            }),
        },
    }
}

/// Refuses numbers of a config.json that no model has.
fn check_numbers(file: &Path, config: &Value) -> Result<(), ConfigError> {
    let inner = config.get("text_config").filter(|c| c.is_object());
    for config in [Some(config), inner].into_iter().flatten() {
        for key in CONTEXT_KEYS.iter().chain(&SIZE_KEYS) {
            let value = &config[*key];
            let known = value.as_f64().map(|n| n >= 1.0);
            // Some models have a list, one number for each layer.
            if !known.unwrap_or(value.is_null() || value.is_array()) {
                return Err(ConfigError::File {
                    path: file.display().to_string(),
                    reason: format!("{key} is {value}, must be a number from 1 on"),
                });
            }
        }
    }
    Ok(())
}

/// Reads the file that `--generation-config` means.
fn generation_config_file(
    v: &Values,
    model: &str,
) -> Result<Option<Map<String, Value>>, ConfigError> {
    let typed = v.get(&model::GENERATION_CONFIG)?;
    let folder = match typed.as_str() {
        "vllm" => return Ok(None),
        "auto" => model,
        folder => folder,
    };
    if typed != "auto" && is_path(folder) && !Path::new(folder).is_dir() {
        return Err(v.wrong("no such folder", &model::GENERATION_CONFIG));
    }
    let file = read_json(&Path::new(folder).join("generation_config.json"))?;
    Ok(file.and_then(|file| file.as_object().cloned()))
}

/// Returns whether a name can only be a path: no model of the hub begins so.
fn is_path(name: &str) -> bool {
    ["/", "./", "../", "~"]
        .iter()
        .any(|start| name.starts_with(start))
        || name == "."
}

/// Checks `--chat-template` as vLLM does: a text without braces and line ends is the name of a file.
///
/// **Source:** vLLM 0.33 `vllm/entrypoints/chat_utils.py`, `_load_chat_template`.
fn chat_template(v: &Values) -> Result<Option<String>, ConfigError> {
    let Some(given) = v.get(&model::CHAT_TEMPLATE)? else {
        return Ok(None);
    };
    if given.contains(['{', '}', '\n']) && !Path::new(&given).is_file() {
        return Ok(Some(given));
    }
    if VLLM_TEMPLATES.contains(&given.as_str()) && !Path::new(&given).is_file() {
        v.warn(format!(
            "--chat-template {given} is one of vLLM's own, which are not here: the tokenizer's acts"
        ));
        return Ok(None);
    }
    match read_file(Path::new(&given))? {
        Some(text) => Ok(Some(text)),
        None => Err(ConfigError::Invalid(format!(
            "The supplied chat template ({given}) appears path-like, but doesn't exist! \
             (--chat-template)"
        ))),
    }
}

fn max_model_len(v: &Values, config: Option<&Value>) -> Result<u32, ConfigError> {
    let words = "max model len cannot be less than 1";
    let limit = config.map(context_of);
    match v.get(&model::MAX_MODEL_LEN)? {
        Some(-1) if v.cli_mode == CliMode::Vllm => {}
        Some(typed) => {
            if typed > u32::MAX.into() {
                let most = format!("max model len cannot be more than {}", u32::MAX);
                return Err(v.wrong(most, &model::MAX_MODEL_LEN));
            }
            let typed = u32::try_from(typed)
                .ok()
                .filter(|n| *n >= 1)
                .ok_or_else(|| v.wrong(words, &model::MAX_MODEL_LEN))?;
            if let Some(limit) =
                limit.filter(|limit| *limit < typed && v.given(&model::MAX_MODEL_LEN))
            {
                v.warn(format!(
                    "max-model-len {typed} is more than the {limit} of the model's config.json; vLLM would refuse it"
                ));
            }
            return Ok(typed);
        }
        None => {}
    }
    let derived = limit.unwrap_or(UNKNOWN_CONTEXT);
    v.derive(&model::MAX_MODEL_LEN, derived);
    Ok(derived)
}

/// The context length that a config.json gives.
fn context_of(config: &Value) -> u32 {
    let config = config
        .get("text_config")
        .filter(|c| c.is_object())
        .unwrap_or(config);
    let least = CONTEXT_KEYS
        .iter()
        .filter_map(|key| config.get(key)?.as_f64())
        .filter(|n| *n >= 1.0)
        .fold(f64::INFINITY, f64::min);
    let mut length = if least.is_finite() {
        least
    } else {
        SILENT_CONTEXT
    };
    let rope = config
        .get("rope_scaling")
        .filter(|rope| rope.is_object())
        .or_else(|| config.get("rope_parameters"));
    if let Some(rope) = rope {
        let kind = rope
            .get("rope_type")
            .or_else(|| rope.get("type"))
            .and_then(Value::as_str)
            .unwrap_or("default");
        let factor = rope.get("factor").and_then(Value::as_f64).unwrap_or(1.0);
        // These kinds already say the scaled length.
        if !matches!(kind, "su" | "longrope" | "llama3" | "mrope" | "default") {
            if kind == "yarn"
                && let Some(base) = rope
                    .get("original_max_position_embeddings")
                    .and_then(Value::as_f64)
            {
                length = base;
            }
            length *= factor.max(1.0);
        }
    }
    // Saturates for absurd files.
    (length as u32).max(1)
}
