use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::cli_mode::CliMode;
use super::did_you_mean::spelling_hint;
use super::error::{ConfigError, bail, invalid};
use super::flags::{api, kv, model};
use super::preview::{PreviewedPullRequest, read_previewed_pull_requests};
use super::values::FlagValues;
use vllm_sim_engine::latency::{
    ModelShape, checkpoint_kv_cache_dtype, default_context_tokens, known_model_shape,
};
use vllm_sim_observe::metrics::MetricsCompat;
use vllm_sim_tokenizer::{ChatTemplateContentFormat, ChatTemplates};
use vllm_sim_wire::VllmVersion;

/// Settings of the model that the server imitates.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Name or folder of the model, as typed; never empty.
    pub name: String,
    /// Served model names, at least one; requests may use any of them, responses show the first.
    pub served_names: Vec<String>,
    /// Maximum length of prompt plus output, in tokens. Default: 1024; with `serve`, the length in
    /// `config.json`, else that of the built-in model, else 32768.
    pub max_model_len: u32,
    /// Content of the model's `config.json`, if there is one.
    pub hf_config: Option<Arc<Value>>,
    /// Instructions, by `input_type`, that an embedding model prepends to its inputs.
    pub task_instructions: BTreeMap<String, String>,
    /// Revision of the model on the Hugging Face Hub, if given.
    pub revision: Option<String>,
    /// Location of the tokenizer, and settings for its download.
    pub tokenizer: TokenizerSource,
    /// Jinja chat template of `--chat-template`, as text.
    pub chat_template: Option<String>,
    /// Format of message content for the chat template (string or list of parts); `None`: detected
    /// from the template.
    pub chat_template_content_format: Option<ChatTemplateContentFormat>,
    /// Default arguments passed to the chat template.
    pub chat_template_kwargs: Map<String, Value>,
    /// Role in generated chat messages (default assistant).
    pub response_role: String,
    /// Source of the sampling defaults: `auto` (the model's folder), `vllm` (none), or a folder.
    pub generation_config: String,
    /// Content of the `generation_config.json` selected by `generation_config`, if there is one.
    pub generation_config_file: Option<Map<String, Value>>,
    /// Sampling defaults with precedence over those of `generation_config`.
    pub generation_config_overrides: Map<String, Value>,
    /// Release of vLLM to imitate (default 0.33.0).
    pub vllm_version: VllmVersion,
    /// Open pull requests of vLLM whose behaviour is switched on.
    pub previews: Vec<PreviewedPullRequest>,
    /// Project (vLLM or llm-d-inference-sim) to imitate where the two contradict each other.
    pub compat: MetricsCompat,
    /// Command-line mode, which selects the flag defaults.
    pub cli_mode: CliMode,
}

/// Location of the tokenizer, and settings for its download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerSource {
    /// Folder, file or Hugging Face name of the tokenizer (default the model's).
    pub name: String,
    /// Revision of the tokenizer on the Hugging Face Hub.
    pub revision: Option<String>,
    /// Whether the simulated tokenizer is used even if a real one exists.
    pub force_dummy: bool,
    /// Whether the tokenizer may be downloaded (default no: the simulated tokenizer is used).
    pub download: bool,
    /// Folder for downloaded tokenizer files; `None`: the Hugging Face cache.
    pub cache_dir: Option<PathBuf>,
    /// Access token of the Hugging Face Hub, `HF_TOKEN`.
    pub hf_token: Option<String>,
    /// URL of the Hugging Face Hub, `HF_ENDPOINT`.
    pub hf_endpoint: Option<String>,
    /// Whether the server has no tokenizer: requests and responses hold token ids
    /// (`--skip-tokenizer-init`, `--tokens-only`).
    pub skip_init: bool,
}

/// Context length of an unknown model with `serve`, in tokens.
const DEFAULT_CONTEXT_TOKENS: u32 = 32768;
/// vLLM's context length, in tokens, for a `config.json` without any of [`CONTEXT_LENGTH_KEYS`].
const CONTEXT_TOKENS_WITHOUT_KEYS: f64 = 2048.0;
/// Context length, in tokens, of a `config.json` of Gemma 3 without any of
/// [`CONTEXT_LENGTH_KEYS`]: the default of `Gemma3TextConfig` in Transformers.
const GEMMA3_CONTEXT_TOKENS: f64 = 131_072.0;
/// Keys of `config.json` with the context length; the smallest value counts.
///
/// **Source:** vLLM `vllm/config/model.py`, `_get_and_verify_max_len`.
const CONTEXT_LENGTH_KEYS: [&str; 9] = [
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

const SIZE_KEYS: [&str; 4] =
    ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"];
const VLLM_TEMPLATES: [&str; 7] = [
    "template_basic.jinja",
    "template_blip2.jinja",
    "template_chatml.jinja",
    "template_deepseek_ocr.jinja",
    "template_deepseek_vl2.jinja",
    "template_fuyu.jinja",
    "template_minicpmv45.jinja",
];

/// Returns the model names that requests may use. In llm-d's documentation, one argument holds all
/// names, separated by spaces.
fn served_names(v: &FlagValues) -> Result<Vec<String>, ConfigError> {
    let mut names = v.get(&model::SERVED_MODEL_NAME)?;
    if let [all] = names.as_slice()
        && v.cli_mode == CliMode::Llmd
        && all.trim().contains(char::is_whitespace)
    {
        v.add_warning(format!("--served-model-name {all:?} is read as several names"));
        names = all.split_whitespace().map(str::to_owned).collect();
    }
    names.retain(|name| !name.is_empty());
    Ok(names)
}

impl ModelConfig {
    /// Returns the layer sizes and weights of the model: from its `config.json`, else the built-in
    /// ones of a known model.
    ///
    /// # Errors
    /// A message if `config.json` lacks a size, or if the model is unknown and has no `config.json`.
    pub fn shape(&self) -> Result<ModelShape, String> {
        match &self.hf_config {
            Some(config) => ModelShape::from_hf_config(config).map_err(|error| error.to_string()),
            None => known_model_shape(&self.name).ok_or_else(|| {
                let name = &self.name;
                format!("the shape of {name:?} is not known: give a folder with its config.json")
            }),
        }
    }

    pub(super) fn from_flag_values(v: &FlagValues) -> Result<Self, ConfigError> {
        let name = v
            .get(&model::MODEL)?
            .ok_or_else(|| invalid!("model parameter is empty; name one with --model"))?;
        let mut served_names = served_names(v)?;
        if served_names.is_empty() {
            served_names.push(name.clone());
            v.record_derived_value(&model::SERVED_MODEL_NAME, &name);
        }
        if is_local_path(&name) && !Path::new(&name).exists() {
            let lost = format!("--model {name}: no such folder");
            if v.cli_mode == CliMode::Vllm {
                bail!("{lost}; name a folder that holds a model, or a model like org/name");
            }
            v.add_warning(format!("{lost}; it is served under this name, as an unknown model"));
        }
        let hf_config = hf_config(v, &name)?;
        let max_model_len = max_model_len(v, &name, hf_config.as_ref())?;
        let compat = v.get_choice(&model::COMPAT)?.unwrap_or_default();
        let sampling = v.get(&model::OVERRIDE_GENERATION_CONFIG)?.unwrap_or_default();
        warn_of_sampling_defaults(v, &sampling);
        Ok(Self {
            max_model_len,
            task_instructions: task_instructions(hf_config.as_ref(), &name)?,
            hf_config: hf_config.map(Arc::new),
            revision: v.get(&model::REVISION)?,
            tokenizer: read_tokenizer_source(v, &name)?,
            chat_template: chat_template(v)?,
            chat_template_content_format: v
                .get_choice(&model::CHAT_TEMPLATE_CONTENT_FORMAT)?
                .flatten(),
            chat_template_kwargs: v.get(&model::DEFAULT_CHAT_TEMPLATE_KWARGS)?.unwrap_or_default(),
            response_role: v.get(&model::RESPONSE_ROLE)?,
            generation_config_file: generation_config_file(v, &name)?,
            generation_config: v.get(&model::GENERATION_CONFIG)?,
            generation_config_overrides: sampling,
            vllm_version: v.vllm_version()?,
            previews: read_previewed_pull_requests(v)?,
            compat,
            cli_mode: v.cli_mode,
            name,
            served_names,
        })
    }

    /// Returns the model name that responses show: the first served name.
    pub fn response_model_name(&self) -> &str {
        self.served_names.first().unwrap_or(&self.name)
    }
}

fn read_tokenizer_source(v: &FlagValues, model: &str) -> Result<TokenizerSource, ConfigError> {
    let cache =
        v.get(&model::HF_HUB_CACHE)?.or(v.get(&model::HF_HOME)?.map(|home| home.join("hub")));
    let offline = v.get(&model::HF_HUB_OFFLINE)?;
    Ok(TokenizerSource {
        name: v.get_text(&model::TOKENIZER).unwrap_or(model).to_owned(),
        revision: v.get(&model::TOKENIZER_REVISION)?.or(v.get(&model::REVISION)?),
        force_dummy: v.get(&model::FORCE_DUMMY_TOKENIZER)?,
        download: v.get(&model::DOWNLOAD_TOKENIZER)? && !offline,
        cache_dir: v.get(&model::DOWNLOAD_DIR)?.or(cache),
        hf_token: v.get(&model::HF_TOKEN)?,
        hf_endpoint: v.get(&model::HF_ENDPOINT)?,
        // **Source:** vLLM 0.33 `vllm/engine/arg_utils.py`, `create_engine_config`.
        skip_init: v.get(&model::SKIP_TOKENIZER_INIT)? || v.get(&api::TOKENS_ONLY)?,
    })
}

fn hf_config(v: &FlagValues, model: &str) -> Result<Option<Value>, ConfigError> {
    let overrides = v.get(&model::HF_OVERRIDES)?;
    let named = v.get(&model::HF_CONFIG_PATH)?.map(PathBuf::from);
    let place = named.clone().unwrap_or_else(|| PathBuf::from(model));
    let file = if place.extension().is_some_and(|e| e == "json") {
        place
    } else {
        place.join("config.json")
    };
    let mut config = match read_json_object_file(&file)? {
        Some(config) => config,
        None if named.is_some() => {
            return Err(ConfigError::unusable_file(&file, "hf-config-path: no such file"));
        }
        None => {
            if overrides.is_some() {
                v.add_no_effect_warning(
                    "--hf-overrides has no effect: the model has no config.json here".to_owned(),
                );
            }
            return Ok(None);
        }
    };
    if let (Some(overrides), Value::Object(config)) = (overrides, &mut config) {
        let labels = overrides.get("num_labels").and_then(Value::as_u64);
        // As in Transformers, a new number of classes gives the classes new names.
        if labels.is_some() && labels != class_name_count(config) {
            config.remove("id2label");
        }
        config.extend(overrides);
    }
    check_numbers(&file, &config)?;
    Ok(Some(config))
}

fn class_name_count(config: &Map<String, Value>) -> Option<u64> {
    Some(config.get("id2label")?.as_object()?.len() as u64)
}

/// Returns the data type of the KV cache: for `auto` that of the checkpoint, if its `config.json` has
/// one.
///
/// **Source:** vLLM 0.33 `vllm/engine/arg_utils.py`, `resolved_cache_dtype`.
pub(super) fn kv_cache_dtype(v: &FlagValues, model: &ModelConfig) -> Result<String, ConfigError> {
    let typed = v.get(&kv::KV_CACHE_DTYPE)?;
    let config = model.hf_config.as_deref().filter(|_| typed == "auto");
    let own = config.and_then(|config| checkpoint_kv_cache_dtype(&config["quantization_config"]));
    Ok(own.map_or(typed, str::to_owned))
}

/// Notes for `--print-config` that the checkpoint has chosen the data type of the KV cache.
pub(super) fn record_kv_cache_dtype(v: &FlagValues, dtype: &str) -> Result<(), ConfigError> {
    if dtype != v.get(&kv::KV_CACHE_DTYPE)? {
        let rule = "the checkpoint's KV cache is quantized";
        v.record_value_derived_by_rule(&kv::KV_CACHE_DTYPE, dtype, rule);
    }
    Ok(())
}

/// Returns the number of classes of a classifier: `--num-labels`, or the number in `config.json`,
/// or 2 without either.
///
/// Source: Transformers 5.20 `configuration_utils.py`, `PretrainedConfig.num_labels`.
pub(super) fn class_count(v: &FlagValues, model: &ModelConfig) -> Result<u32, ConfigError> {
    let typed = v.get(&api::NUM_LABELS)?;
    let config = model.hf_config.as_deref().and_then(Value::as_object);
    let found = config
        .and_then(|config| class_name_count(config).or_else(|| config.get("num_labels")?.as_u64()));
    let Some(found) = found.filter(|_| !v.is_flag_set(&api::NUM_LABELS)) else {
        return Ok(typed);
    };
    u32::try_from(found).ok().filter(|count| (1..=api::MAX_CLASSES).contains(count)).ok_or_else(|| {
        invalid!("config.json: the model has {found} classes (id2label, num_labels), must be 1 to {}",
            api::MAX_CLASSES)
    })
}

/// Returns the instructions of an embedding model: those of its configuration, or the prompts of
/// its Sentence Transformers configuration.
///
/// Source: vLLM 0.33 `entrypoints/pooling/embed/io_processor.py`, `_load_task_instructions`,
/// `_load_st_prompts`.
fn task_instructions(
    config: Option<&Value>,
    model: &str,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let texts = |config: Option<&Value>, key: &str| -> BTreeMap<String, String> {
        let members = config.and_then(|config| config.get(key)?.as_object());
        let members = members.into_iter().flatten();
        members.filter_map(|(kind, text)| Some((kind.clone(), text.as_str()?.to_owned()))).collect()
    };
    let own = texts(config, "task_instructions");
    if !own.is_empty() || config.is_none() {
        return Ok(own);
    }
    let file = Path::new(model).join("config_sentence_transformers.json");
    Ok(texts(read_json_object_file(&file)?.as_ref(), "prompts"))
}

/// Reads a JSON object from a file; `None` if there is no file.
///
/// # Errors
/// [`ConfigError::File`] if the file cannot be read or holds no JSON object.
pub(super) fn read_json_object_file(file: &Path) -> Result<Option<Value>, ConfigError> {
    let Some(text) = read_optional_text_file(file)? else {
        return Ok(None);
    };
    match serde_json::from_str(&text) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => Err(ConfigError::unusable_file(file, "not a JSON object")),
        Err(error) => Err(ConfigError::unusable_file(file, format!("not JSON: {error}"))),
    }
}

/// Reads a text file; `None` if it does not exist or the name is not a valid path.
fn read_optional_text_file(file: &Path) -> Result<Option<String>, ConfigError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput => Ok(None),
            _ => Err(ConfigError::unusable_file(file, error)),
        },
    }
}

fn check_numbers(file: &Path, config: &Value) -> Result<(), ConfigError> {
    let inner = config.get("text_config").filter(|c| c.is_object());
    for config in [Some(config), inner].into_iter().flatten() {
        for key in CONTEXT_LENGTH_KEYS.iter().chain(&SIZE_KEYS) {
            let value = &config[*key];
            let known = value.as_f64().map(|n| n >= 1.0);
            // Some models have a list with one number per layer.
            if !known.unwrap_or(value.is_null() || value.is_array()) {
                let reason = format!("{key} is {value}, must be at least 1");
                return Err(ConfigError::unusable_file(file, reason));
            }
        }
    }
    Ok(())
}

fn generation_config_file(
    v: &FlagValues,
    model: &str,
) -> Result<Option<Map<String, Value>>, ConfigError> {
    let typed = v.get(&model::GENERATION_CONFIG)?;
    let folder = match typed.as_str() {
        "vllm" => return Ok(None),
        "auto" => model,
        folder => folder,
    };
    if typed != "auto" && is_local_path(folder) && !Path::new(folder).is_dir() {
        return Err(v.unsupported_value_error("no such folder", &model::GENERATION_CONFIG));
    }
    let file = read_json_object_file(&Path::new(folder).join("generation_config.json"))?;
    let is_known = vllm_sim_engine::latency::sampling_defaults(folder).is_some();
    if typed != "auto" && file.is_none() && !is_known {
        v.add_warning(format!(
            "--generation-config {folder}: no effect because there is no such folder with a \
             generation_config.json, and none is known of such a model"
        ));
    }
    Ok(file.and_then(|file| file.as_object().cloned()))
}

pub(super) fn is_local_path(name: &str) -> bool {
    ["/", "./", "../", "~"].iter().any(|start| name.starts_with(start)) || name == "."
}

/// Sampling defaults of `--override-generation-config`: name, bounds, description of the bounds.
///
/// **Source:** vLLM 0.33 `vllm/config/model.py`, `get_diff_sampling_param`, without the last two;
/// `vllm/sampling_params.py`.
const SAMPLING_DEFAULTS: [(&str, (f64, f64), &str); 8] = [
    ("temperature", (0.0, f64::MAX), "a number of at least 0"),
    ("top_p", (f64::MIN_POSITIVE, 1.0), "a number above 0, at most 1"),
    ("top_k", (-1.0, f64::MAX), "a whole number of at least -1"),
    ("min_p", (0.0, 1.0), "a number from 0 to 1"),
    ("repetition_penalty", (f64::MIN_POSITIVE, f64::MAX), "a number above 0"),
    ("max_new_tokens", (1.0, f64::MAX), "a whole number of at least 1"),
    ("presence_penalty", (-2.0, 2.0), "a number from -2 to 2"),
    ("frequency_penalty", (-2.0, 2.0), "a number from -2 to 2"),
];

/// Warns of sampling defaults that vLLM ignores, and of values that fail every request.
fn warn_of_sampling_defaults(v: &FlagValues, overrides: &Map<String, Value>) {
    let flag = model::OVERRIDE_GENERATION_CONFIG.name;
    for (key, value) in overrides.iter().filter(|(_, value)| !value.is_null()) {
        let known = SAMPLING_DEFAULTS.iter().find(|(name, ..)| name == key);
        let Some((_, (least, most), expected)) = known else {
            let names = SAMPLING_DEFAULTS.map(|(name, ..)| name);
            let hint = spelling_hint(key, names.into_iter());
            let names = names.join(", ");
            v.add_warning(format!(
                "--{flag}.{key}: no effect because only {names} are sampling defaults{hint}"
            ));
            continue;
        };
        let is_whole = expected.starts_with("a whole") && !(value.is_i64() || value.is_u64());
        if is_whole || !value.as_f64().is_some_and(|n| (*least..=*most).contains(&n)) {
            v.add_warning(format!(
                "--{flag}.{key}: {value} is not {expected}; requests that set no {key} of their own \
                 may fail"
            ));
        }
    }
}

/// Warns of a chat template that does not compile: each request that needs it fails.
fn warn_of_template_syntax(v: &FlagValues, template: &str) {
    if let Err(error) = ChatTemplates::check_template_syntax(template) {
        v.add_warning(format!(
            "--chat-template does not compile: {error}; every request that needs it gets HTTP 400"
        ));
    }
}

/// Reads `--chat-template` as vLLM does: text without braces and newlines is a file name.
///
/// **Source:** vLLM 0.33 `vllm/entrypoints/chat_utils.py`, `_load_chat_template`.
fn chat_template(v: &FlagValues) -> Result<Option<String>, ConfigError> {
    let Some(given) = v.get(&model::CHAT_TEMPLATE)? else {
        return Ok(None);
    };
    if given.contains(['{', '}', '\n']) && !Path::new(&given).is_file() {
        warn_of_template_syntax(v, &given);
        return Ok(Some(given));
    }
    if VLLM_TEMPLATES.contains(&given.as_str()) && !Path::new(&given).is_file() {
        v.add_warning(format!(
            "--chat-template {given}: vLLM's example templates are not included; the tokenizer's \
             template is used"
        ));
        return Ok(None);
    }
    match read_optional_text_file(Path::new(&given))? {
        Some(text) => {
            warn_of_template_syntax(v, &text);
            Ok(Some(text))
        }
        None => Err(invalid!(
            "The supplied chat template ({given}) appears path-like, but doesn't exist! \
             (--chat-template)"
        )),
    }
}

fn max_model_len(v: &FlagValues, name: &str, config: Option<&Value>) -> Result<u32, ConfigError> {
    let words = "max model len cannot be less than 1";
    let built_in = known_model_shape(name).filter(|_| v.cli_mode == CliMode::Vllm);
    let (limit, file) = match (config, built_in) {
        (Some(config), _) => (Some(context_tokens_of_hf_config(config)), "the model's config.json"),
        (None, shape) => (shape.map(|shape| shape.max_context), "the built-in model"),
    };
    match v.get(&model::MAX_MODEL_LEN)? {
        Some(-1) if v.cli_mode == CliMode::Vllm => {}
        Some(typed) => {
            if typed > u32::MAX.into() {
                let most = format!("max model len cannot be more than {}", u32::MAX);
                return Err(v.unsupported_value_error(most, &model::MAX_MODEL_LEN));
            }
            let typed = u32::try_from(typed)
                .ok()
                .filter(|n| *n >= 1)
                .ok_or_else(|| v.unsupported_value_error(words, &model::MAX_MODEL_LEN))?;
            if let Some(limit) =
                limit.filter(|limit| *limit < typed && v.is_flag_set(&model::MAX_MODEL_LEN))
            {
                v.add_warning(format!(
                    "max-model-len {typed} is more than the {limit} of {file}; vLLM would refuse it"
                ));
            }
            return Ok(typed);
        }
        None => {}
    }
    let derived = match config {
        Some(config) => Some(default_context_tokens_of_hf_config(config)),
        None => default_context_tokens(name),
    };
    let derived = derived.unwrap_or(DEFAULT_CONTEXT_TOKENS);
    v.record_derived_value(&model::MAX_MODEL_LEN, derived);
    Ok(derived)
}

/// Returns the context length that vLLM chooses for a `config.json`, in tokens: with LongRoPE the
/// length before scaling.
///
/// **Source:** vLLM 0.33 `vllm/config/model.py`, `_get_and_verify_max_len`.
fn default_context_tokens_of_hf_config(config: &Value) -> u32 {
    let text = config.get("text_config").filter(|c| c.is_object()).unwrap_or(config);
    let original = text.get("original_max_position_embeddings").and_then(Value::as_u64);
    let mut ropes = rope_parameters_by_layer_type(text).into_iter();
    let original = original.filter(|_| ropes.any(|rope| rope_type(rope) == Some("longrope")));
    let original = original.and_then(|tokens| u32::try_from(tokens).ok()).filter(|n| *n >= 1);
    original.unwrap_or_else(|| context_tokens_of_hf_config(config))
}

fn context_tokens_of_hf_config(config: &Value) -> u32 {
    let config = config.get("text_config").filter(|c| c.is_object()).unwrap_or(config);
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let least = CONTEXT_LENGTH_KEYS
        .iter()
        .filter_map(|key| config.get(key)?.as_f64())
        .filter(|n| *n >= 1.0)
        .fold(f64::INFINITY, f64::min);
    let mut length = match kind {
        _ if least.is_finite() => least,
        "gemma3_text" => GEMMA3_CONTEXT_TOKENS,
        _ => CONTEXT_TOKENS_WITHOUT_KEYS,
    };
    // The lengths of Gemma 3 include the scaling factor.
    if !kind.contains("gemma3") {
        let mut factor = 1.0;
        for rope in rope_parameters_by_layer_type(config) {
            let kind = rope_type(rope).unwrap_or("default");
            // These RoPE types already include the scaling factor.
            if matches!(kind, "su" | "longrope" | "llama3" | "mrope" | "default") {
                continue;
            }
            factor = rope.get("factor").and_then(Value::as_f64).unwrap_or(factor);
            if kind == "yarn"
                && let Some(base) =
                    rope.get("original_max_position_embeddings").and_then(Value::as_f64)
            {
                length = base;
            }
        }
        length *= factor.max(1.0);
    }
    // The cast saturates.
    (length as u32).max(1)
}

/// Returns the RoPE parameters of a model: one object, or one of each type of layer
/// (Transformers 5).
fn rope_parameters_by_layer_type(config: &Value) -> Vec<&Value> {
    let scaling = config.get("rope_scaling").filter(|rope| rope.is_object());
    let Some(rope) = scaling.or_else(|| config.get("rope_parameters")) else {
        return Vec::new();
    };
    match rope.as_object() {
        Some(layers) if !layers.is_empty() && layers.values().all(Value::is_object) => {
            layers.values().collect()
        }
        _ => vec![rope],
    }
}

fn rope_type(rope: &Value) -> Option<&str> {
    rope.get("rope_type").or_else(|| rope.get("type"))?.as_str()
}
