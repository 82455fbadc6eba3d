use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::engine::read_delay_with_std_dev;
use super::error::{ConfigError, bail, invalid};
use super::flag::{Flag, FlagValue};
use super::flags::content;
use super::model::ModelConfig;
use super::values::FlagValues;
use vllm_sim_observe::metrics::MetricsCompat;
use vllm_sim_service::generate::ReplyTextMode;
use vllm_sim_service::generate::tools::ToolCallSettings;
use vllm_sim_tokenizer::{MediaTokenRules, config_accepts_media};

const BYTES_PER_GIB: f64 = (1_u64 << 30) as f64;

/// Settings of the generated content of responses.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyContentConfig {
    /// Source of the text of replies (default random).
    pub mode: ReplyTextMode,
    /// Seed of all random generators; `None`: derived from the clock at start.
    pub seed: Option<u64>,
    /// Whether a flag sets the seed of the random generators.
    pub seed_given: bool,
    /// Settings of generated tool calls.
    pub tools: ToolCallSettings,
    /// Whether tool definitions in requests are accepted unchecked.
    pub skip_tool_validation: bool,
    /// Whether a reply that echoes the prompt is cut to its token limit (default yes; no with
    /// `--compat llm-d`).
    pub echo_cut: bool,
    /// Location of the dataset of recorded replies; `None`: no dataset.
    pub dataset: Option<ReplyDatasetConfig>,
    /// Fraction of chat replies with an image in omni mode, in percent (default 0).
    pub image_emission_rate: u8,
    /// Mean and standard deviation of the time to generate an image (default 0).
    pub image_delay: (Duration, Duration),
    /// Number of dimensions of an embedding if the request sets none (default 384).
    pub default_embedding_dimensions: u32,
    /// Whether replies may contain images (llm-d's omni mode).
    pub omni: bool,
    /// Rules for the number of prompt tokens of images, audio and video.
    pub media: MediaTokenRules,
    /// Whether the model accepts images, audio or video, according to its `config.json` or to
    /// `--mm-tokens-per-item`.
    pub accepts_media: bool,
    /// Size of the cache of processed images, audio and video, in bytes (default 4 GiB); 0: no
    /// cache.
    pub media_cache_bytes: u64,
}

/// Location and use of a dataset of recorded replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyDatasetConfig {
    /// Path of the dataset's SQLite file.
    pub path: PathBuf,
    /// Download URL of the dataset's SQLite file, used if the file does not exist.
    pub url: Option<String>,
    /// Whether the dataset is copied to memory at start.
    pub in_memory: bool,
    /// Name of the dataset's SQLite table (default `llmd`).
    pub table: String,
    /// Expected SHA-256 of the downloaded dataset file, as 64 lower-case hex digits; `None`: not
    /// checked.
    pub sha256: Option<String>,
    /// Whether built-in sentences are used if the dataset cannot be opened (default no).
    pub fallback: bool,
    /// Whether the output tokens of a recorded reply are sent at their recorded times (default no).
    pub replay_timing: bool,
}

impl ReplyContentConfig {
    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &ModelConfig,
    ) -> Result<Self, ConfigError> {
        let compat = model.compat;
        let mode = read_text_mode(v)?;
        Ok(Self {
            mode: match v.get(&content::MM_ENCODER_ONLY)? {
                true => ReplyTextMode::Encoder,
                false => mode,
            },
            seed: v.get(&content::SEED)?.map(|seed| seed as u64),
            seed_given: v.is_flag_set(&content::SEED),
            tools: read_tool_settings(v, compat)?,
            skip_tool_validation: v.get(&content::SKIP_TOOL_VALIDATION)?,
            echo_cut: truncates_echoed_prompts(v, compat)?,
            dataset: read_reply_dataset(v, mode)?,
            image_emission_rate: v.get(&content::IMAGE_EMISSION_RATE)?,
            image_delay: read_delay_with_std_dev(
                v,
                &content::TIME_TO_GENERATE_IMAGE,
                &content::TIME_TO_GENERATE_IMAGE_STD_DEV,
                "time to generate image",
            )?,
            default_embedding_dimensions: v.get(&content::DEFAULT_EMBEDDING_DIMENSIONS)?,
            omni: v.get(&content::OMNI)?,
            media: read_media_rules(v, model)?,
            accepts_media: v.is_flag_set(&content::MM_TOKENS_PER_ITEM)
                || config_json(model).is_some_and(config_accepts_media),
            // The cast saturates.
            media_cache_bytes: (v.get(&content::MM_PROCESSOR_CACHE_GB)? * BYTES_PER_GIB) as u64,
        })
    }
}

fn config_json(model: &ModelConfig) -> Option<&Map<String, Value>> {
    model.hf_config.as_ref()?.as_object()
}

fn read_media_rules(v: &FlagValues, model: &ModelConfig) -> Result<MediaTokenRules, ConfigError> {
    let flag = &content::MM_TOKENS_PER_ITEM;
    let usual = config_json(model)
        .map_or_else(MediaTokenRules::default, MediaTokenRules::from_model_config);
    let rules = usual.override_rules_from_json(&v.get(flag)?.unwrap_or_default());
    rules.map_err(|problem| invalid!("{}: {problem}", flag.name))
}

/// Returns whether replies that echo the prompt are cut to their token limit, as in vLLM; llm-d
/// does not cut them.
fn truncates_echoed_prompts(v: &FlagValues, compat: MetricsCompat) -> Result<bool, ConfigError> {
    if compat == MetricsCompat::Llmd && !v.is_flag_set(&content::ECHO_CUT) {
        v.record_derived_value(&content::ECHO_CUT, false);
        return Ok(false);
    }
    v.get(&content::ECHO_CUT)
}

fn read_text_mode(v: &FlagValues) -> Result<ReplyTextMode, ConfigError> {
    let flag = &content::MODE;
    let word = v.get_text(flag).unwrap_or_default();
    flag.choice_by_name(word).copied().ok_or_else(|| {
        let words = format!("invalid mode '{word}', valid values are 'random' and 'echo'");
        v.unsupported_value_error(words, flag)
    })
}

fn read_reply_dataset(
    v: &FlagValues,
    mode: ReplyTextMode,
) -> Result<Option<ReplyDatasetConfig>, ConfigError> {
    let url = v.get(&content::DATASET_URL)?;
    let in_memory = v.get(&content::DATASET_IN_MEMORY)?;
    let fallback = v.get(&content::DATASET_FALLBACK)?;
    let replay_timing = v.get(&content::REPLAY_TIMING)?;
    let sha256 = v.get(&content::DATASET_SHA256)?.map(|hex| hex.to_lowercase());
    if let Some(hex) = &sha256
        && (hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()))
    {
        bail!("dataset-sha256 must be 64 hex digits, got {hex:?}");
    }
    let Some(path) = v.get(&content::DATASET_PATH)? else {
        for (flag, given) in [
            (content::DATASET_URL.name, url.is_some()),
            (content::REPLAY_TIMING.name, replay_timing),
        ] {
            if given {
                bail!("dataset-path is required when {flag} is set");
            }
        }
        return Ok(None);
    };
    if mode == ReplyTextMode::Echo {
        bail!("dataset cannot be defined in echo mode");
    }
    Ok(Some(ReplyDatasetConfig {
        path,
        url,
        in_memory,
        table: v.get(&content::DATASET_TABLE_NAME)?,
        sha256,
        fallback,
        replay_timing,
    }))
}

/// Reads the bounds of generated arguments; `words` is the error message for an empty range.
fn read_argument_range<T: FlagValue + PartialOrd>(
    v: &FlagValues,
    (least, most): (&Flag<T>, &Flag<T>),
    words: &str,
) -> Result<(T, T), ConfigError> {
    let range = (v.get(least)?, v.get(most)?);
    if range.1 < range.0 {
        return Err(v.unsupported_value_error(words, most));
    }
    Ok(range)
}

fn read_tool_settings(
    v: &FlagValues,
    compat: MetricsCompat,
) -> Result<ToolCallSettings, ConfigError> {
    let integer = read_argument_range(
        v,
        (&content::MIN_TOOL_CALL_INTEGER_PARAM, &content::MAX_TOOL_CALL_INTEGER_PARAM),
        "MaxToolCallIntegerParam cannot be less than MinToolCallIntegerParam",
    )?;
    let number = read_argument_range(
        v,
        (&content::MIN_TOOL_CALL_NUMBER_PARAM, &content::MAX_TOOL_CALL_NUMBER_PARAM),
        "MaxToolCallNumberParam cannot be less than MinToolCallNumberParam",
    )?;
    let (shortest, longest) =
        (&content::MIN_TOOL_CALL_ARRAY_PARAM_LENGTH, &content::MAX_TOOL_CALL_ARRAY_PARAM_LENGTH);
    // llm-d checks this before the bounds of each value.
    if v.get_integer(longest)? < v.get_integer(shortest)? {
        return Err(v.unsupported_value_error(
            "MaxToolCallArrayParamLength cannot be less than MinToolCallArrayParamLength",
            longest,
        ));
    }
    Ok(ToolCallSettings {
        // With default bounds the field names decide the values.
        integer: Some(integer).filter(|range| *range != (0, 100)),
        number: Some(number).filter(|range| *range != (0.0, 100.0)),
        array: (v.get(shortest)?, v.get(longest)?),
        not_required_probability: v.get(&content::TOOL_CALL_NOT_REQUIRED_PARAM_PROBABILITY)?,
        object_not_required_probability: v
            .get(&content::OBJECT_TOOL_CALL_NOT_REQUIRED_FIELD_PROBABILITY)?,
        extra_call_probability: v.get(&content::TOOL_CALL_EXTRA_CALL_PROBABILITY)?,
        strict_whitelist: v.get(&content::STRICT_TOOL_VALIDATION)?,
        repeats_named: compat == MetricsCompat::Llmd,
        ..ToolCallSettings::default()
    })
}
