use std::path::PathBuf;

use serde_json::Value;

use super::choices::{ModelRunner, ModelTask, PerRequestDraftStats, SystemFingerprintForm};
use super::cli_mode::CliMode;
use super::did_you_mean::spelling_hint;
use super::error::{ConfigError, bail, invalid};
use super::flag::FlagSpec;
use super::flags::{api, engine, server};
use super::imitated_engine::imitated_engine_command_line;
use super::model::{ModelConfig, class_count};
use super::parsers::{VLLM_REASONING_PARSERS, VLLM_TOOL_PARSERS};
use super::profiler;
use super::speech::SpeechConfig;
use super::values::FlagValues;
use vllm_sim_observe::metrics::MetricsCompat;
use vllm_sim_tokenizer::MediaModality;

/// Maximum number of items of a modality (image, audio, video) in a prompt if
/// `--limit-mm-per-prompt` does not name it.
///
/// **Source:** vLLM `vllm/config/multimodal.py`.
const DEFAULT_MEDIA_ITEMS_PER_PROMPT: u64 = 999;

/// Settings of the HTTP and gRPC APIs.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiConfig {
    /// Task of the model, which selects the family of routes.
    pub task: ModelTask,
    /// Maximum number of log probabilities per token that a request may ask for (default 20);
    /// `None`: the whole vocabulary.
    pub max_logprobs: Option<u32>,
    /// Whether the model may call tools under `tool_choice: auto` (`--enable-auto-tool-choice`).
    pub enable_auto_tool_choice: bool,
    /// Name of the tool-call parser, as in vLLM; `None`: no parser.
    pub tool_call_parser: Option<String>,
    /// Name of the reasoning parser, as in vLLM; `None`: no parser.
    pub reasoning_parser: Option<String>,
    /// Fraction of output tokens that is reasoning, if a reasoning parser is set (default 0.4).
    pub reasoning_ratio: f64,
    /// Settings of the optional fields of responses.
    pub answers: ResponseFieldSettings,
    /// Settings of the routes for disaggregated serving, which accept or return token ids.
    pub scale_out: DisaggregatedServingRouteSwitches,
    /// Whether a request may contain its own chat template.
    pub trust_request_chat_template: bool,
    /// Whether a request's tools are left out of the prompt when `tool_choice` is `none`.
    pub exclude_tools_when_tool_choice_none: bool,
    /// Content of the response field `system_fingerprint`: version and hash, hash only, fixed text
    /// or null.
    pub fingerprint: SystemFingerprintForm,
    /// Text of the response field `system_fingerprint`, always set with
    /// [`SystemFingerprintForm::Custom`].
    pub fingerprint_value: Option<String>,
    /// Number of output tokens per chunk of a streamed response (default 1).
    pub stream_interval: u32,
    /// Whether events of `POST /generate` contain only the new tokens.
    pub incremental_streaming_output: bool,
    /// Whether the route `/tokenizer_info` exists.
    pub enable_tokenizer_info_endpoint: bool,
    /// Whether responses of `/v1/responses` are stored for later retrieval
    /// (`VLLM_ENABLE_RESPONSES_API_STORE`).
    pub responses_store: bool,
    /// Whether the request fields `guided_*` of older vLLM releases are applied (default no:
    /// ignored, as in vLLM 0.33).
    pub legacy_guided: bool,
    /// Whether requests may name any model (`VLLM_SKIP_MODEL_NAME_VALIDATION`).
    pub skip_model_name_validation: bool,
    /// Whether the routes `/start_profile` and `/stop_profile` exist.
    pub profiler: bool,
    /// Whether the routes below `/fault_tolerance` exist.
    pub fault_tolerance: bool,
    /// Limits of `n`, prompts, stop strings and bad words in one request.
    pub limits: RequestParameterLimits,
    /// Maximum number of images, audios and videos in a prompt, by modality
    /// (`--limit-mm-per-prompt`).
    pub limit_mm_per_prompt: Option<Value>,
    /// Folder of the images, audio and video that requests may name by `file://` URLs; `None`: such
    /// URLs are rejected.
    pub allowed_local_media_path: Option<PathBuf>,
    /// Number of classes of the simulated classifier. Default: the number in `config.json`, or 2
    /// without one.
    pub num_labels: u32,
    /// Settings of speech recognition.
    pub speech: SpeechConfig,
}

/// Settings of the optional fields of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseFieldSettings {
    /// Whether the `usage` of responses contains `prompt_tokens_details`.
    pub enable_prompt_tokens_details: bool,
    /// Whether every streamed response reports token usage, requested or not.
    pub force_include_usage: bool,
    /// Whether responses contain `metrics`, the latencies of the request.
    pub per_request_metrics: bool,
    /// Level of detail at which responses report their draft tokens (default none).
    pub per_request_drafts: PerRequestDraftStats,
    /// Whether log probabilities name each token by its id, as `token_id:N`, instead of by its
    /// text.
    pub return_tokens_as_token_ids: bool,
}

/// Settings of the routes for disaggregated serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisaggregatedServingRouteSwitches {
    /// Whether the routes for render, derender and `/inference/v1/generate` are enabled; they
    /// return 403 otherwise.
    pub enable_scale_out: bool,
    /// Whether requests and responses contain only token ids, no text.
    pub tokens_only: bool,
    /// Whether only the render routes are served (`vllm launch render`).
    pub render_only: bool,
}

/// Limits of a single request, from vLLM's environment variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestParameterLimits {
    /// Maximum `n`, the number of outputs per prompt (`VLLM_MAX_N_SEQUENCES`, default 16384).
    pub n: u32,
    /// Maximum number of prompts of a completion request (`VLLM_MAX_COMPLETION_PROMPTS`, default
    /// 1024).
    pub prompts: u32,
    /// Maximum number of stop strings in a request (`VLLM_MAX_STOP_STRINGS`, default 4).
    pub stop_strings: u32,
    /// Maximum number of bad words in a request (`VLLM_MAX_NUM_BAD_WORDS`, default 128).
    pub bad_words: u32,
}

impl ApiConfig {
    /// Returns whether replies may contain reasoning: a reasoning parser is set, and the fraction
    /// of reasoning tokens is above 0.
    pub fn replies_have_reasoning(&self) -> bool {
        self.reasoning_parser.is_some() && self.reasoning_ratio > 0.0
    }

    /// Returns the maximum number of items of `modality` (images, audios or videos) in a prompt.
    ///
    /// **Source:** vLLM `vllm/config/multimodal.py`, `get_limit_per_prompt`.
    pub fn max_media_items_per_prompt(&self, modality: MediaModality) -> u64 {
        let given = self.limit_mm_per_prompt.as_ref();
        let limit = given.and_then(|map| map.get(modality.as_str()));
        let count = limit.and_then(|limit| limit.get("count").unwrap_or(limit).as_u64());
        count.unwrap_or(DEFAULT_MEDIA_ITEMS_PER_PROMPT)
    }

    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &ModelConfig,
    ) -> Result<Self, ConfigError> {
        let compat = model.compat;
        let (tool_parsers, reasoning_parsers) = list_parsers(compat);
        let tool_call_parser =
            read_parser_name(v, &api::TOOL_CALL_PARSER, &api::TOOL_PARSER_PLUGIN, tool_parsers)?;
        let enable_auto_tool_choice = v.get(&api::ENABLE_AUTO_TOOL_CHOICE)?;
        if v.cli_mode == CliMode::Vllm && enable_auto_tool_choice && tool_call_parser.is_none() {
            bail!("--enable-auto-tool-choice requires --tool-call-parser");
        }
        let details = &api::ENABLE_PROMPT_TOKENS_DETAILS;
        let per_request_metrics = v.get(&api::ENABLE_PER_REQUEST_METRICS)?;
        if per_request_metrics && v.get(&server::DISABLE_LOG_STATS)? {
            bail!(
                "--enable-per-request-metrics requires engine statistics logging; \
                 remove --disable-log-stats to enable per-request metrics."
            );
        }
        if v.cli_mode == CliMode::Vllm
            && v.get(&server::ENABLE_LOG_OUTPUTS)?
            && !v.get(&server::ENABLE_LOG_REQUESTS)?
        {
            bail!("--enable-log-outputs requires --enable-log-requests");
        }
        v.get_choice(&api::TOOL_STRICT_LEVEL)?;
        let (fingerprint, fingerprint_value) = read_system_fingerprint(v)?;
        let (task, speech) = SpeechConfig::from_flag_values(v, model, read_model_task(v)?)?;
        Ok(Self {
            task,
            speech,
            max_logprobs: u32::try_from(v.get(&api::MAX_LOGPROBS)?).ok(),
            enable_auto_tool_choice,
            tool_call_parser,
            reasoning_parser: read_parser_name(
                v,
                &api::REASONING_PARSER,
                &api::REASONING_PARSER_PLUGIN,
                reasoning_parsers,
            )?,
            reasoning_ratio: v.get(&api::REASONING_RATIO)?,
            answers: ResponseFieldSettings {
                // llm-d's responses always contain the details.
                enable_prompt_tokens_details: v.get(details)?
                    || compat == MetricsCompat::Llmd && !v.is_flag_set(details),
                force_include_usage: v.get(&api::ENABLE_FORCE_INCLUDE_USAGE)?,
                per_request_metrics,
                per_request_drafts: read_per_request_draft_stats(v)?,
                return_tokens_as_token_ids: v.get(&api::RETURN_TOKENS_AS_TOKEN_IDS)?,
            },
            scale_out: DisaggregatedServingRouteSwitches {
                enable_scale_out: v.get(&api::ENABLE_SCALE_OUT)? || v.get(&api::RENDER_ONLY)?,
                tokens_only: v.get(&api::TOKENS_ONLY)?,
                render_only: v.get(&api::RENDER_ONLY)?,
            },
            trust_request_chat_template: v.get(&api::TRUST_REQUEST_CHAT_TEMPLATE)?,
            exclude_tools_when_tool_choice_none: v
                .get(&api::EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE)?,
            fingerprint,
            fingerprint_value,
            stream_interval: v.get(&api::STREAM_INTERVAL)?,
            incremental_streaming_output: v.get(&api::INCREMENTAL_STREAMING_OUTPUT)?,
            enable_tokenizer_info_endpoint: v.get(&api::ENABLE_TOKENIZER_INFO_ENDPOINT)?,
            responses_store: v.get(&api::RESPONSES_STORE)?,
            legacy_guided: v.get(&api::LEGACY_GUIDED_FIELDS)?,
            skip_model_name_validation: v.get(&api::SKIP_MODEL_NAME_VALIDATION)?,
            profiler: profiler::is_profiler_configured(v)?,
            fault_tolerance: profiler::has_fault_tolerance_routes(v)?,
            limits: read_request_limits(v)?,
            limit_mm_per_prompt: read_media_limits(v)?,
            allowed_local_media_path: v.get(&api::ALLOWED_LOCAL_MEDIA_PATH)?,
            num_labels: class_count(v, model)?,
        })
    }
}

/// Reads `--limit-mm-per-prompt`: a count, or an object with a count, for each modality.
fn read_media_limits(v: &FlagValues) -> Result<Option<Value>, ConfigError> {
    let flag = &api::LIMIT_MM_PER_PROMPT;
    let Some(limits) = v.get(flag)? else {
        return Ok(None);
    };
    for (modality, limit) in &limits {
        let count = limit.get("count").unwrap_or(limit);
        if !["image", "audio", "video"].contains(&modality.as_str()) {
            v.add_warning(format!(
                "--{}.{modality}: no effect because only image, audio and video are limited",
                flag.name
            ));
        } else if count.is_number() && count.as_u64().is_none() {
            let expected = "a whole number of at least 0";
            return Err(v.unreadable_json_value_error(
                flag,
                modality,
                &count.to_string(),
                expected,
            ));
        }
    }
    Ok(Some(Value::Object(limits)))
}

/// Returns the names that `--tool-call-parser` and `--reasoning-parser` accept.
pub fn list_parsers(compat: MetricsCompat) -> (&'static [&'static str], &'static [&'static str]) {
    match imitated_engine_command_line(Some(compat)) {
        Some(own) => (own.tool_parsers, own.reasoning_parsers),
        None => (&VLLM_TOOL_PARSERS, &VLLM_REASONING_PARSERS),
    }
}

fn read_system_fingerprint(
    v: &FlagValues,
) -> Result<(SystemFingerprintForm, Option<String>), ConfigError> {
    let mode = v.get_choice(&api::FINGERPRINT_MODE)?.unwrap_or_default();
    let typed = v.get(&api::FINGERPRINT_VALUE)?;
    if mode == SystemFingerprintForm::Custom && typed.is_none() {
        bail!("--fingerprint-mode custom requires --fingerprint-value");
    }
    Ok((mode, typed))
}

/// Reads the name of a tool or reasoning parser: one of vLLM's, or any name if a plugin is
/// configured.
fn read_parser_name(
    v: &FlagValues,
    flag: &FlagSpec,
    plugin: &FlagSpec,
    known: &'static [&'static str],
) -> Result<Option<String>, ConfigError> {
    let Some(name) = v.get_text(flag) else {
        return Ok(None);
    };
    if known.contains(&name) {
        return Ok(Some(name.to_owned()));
    }
    if v.get_text(plugin).is_some() {
        v.add_warning(format!(
            "--{} {name}: not a built-in parser; assumed to be defined by --{}",
            flag.name, plugin.name
        ));
        return Ok(Some(name.to_owned()));
    }
    let hint = spelling_hint(name, known.iter().copied());
    let kind = flag.name.replace('-', " ");
    let list = known.join(",");
    Err(invalid!("invalid {kind}: {name} (chose from {{ {list} }}){hint}"))
}

/// Reads the level of detail of draft-token statistics, which needs speculative decoding unless the
/// level is `none`.
///
/// **Source:** vLLM 0.33 `vllm/config/vllm.py`, `__post_init__`.
fn read_per_request_draft_stats(v: &FlagValues) -> Result<PerRequestDraftStats, ConfigError> {
    let flag = &api::PER_REQUEST_SPEC_DECODE_METRICS;
    let chosen = v.get_choice(flag)?.unwrap_or_default();
    let keys = [&engine::SPEC_METHOD, &engine::SPEC_MODEL];
    let drafts = v.is_flag_set(&engine::SPECULATIVE_CONFIG)
        || v.is_flag_set(&engine::SPEC_TOKENS)
        || keys.iter().any(|flag| v.is_flag_set(flag));
    if chosen != PerRequestDraftStats::None && !drafts {
        bail!(
            "--per-request-spec-decode-metrics requires speculative decoding to be enabled (via \
             --speculative-config)."
        );
    }
    Ok(chosen)
}

pub(super) fn read_model_task(v: &FlagValues) -> Result<ModelTask, ConfigError> {
    let runner = v.get_choice(&api::RUNNER)?.unwrap_or_default();
    let convert = v.get_choice(&api::CONVERT)?.flatten();
    if let Some(task) = v.get_choice(&api::TASK)?.flatten() {
        return Ok(task);
    }
    Ok(match (convert, runner) {
        (Some(ModelTask::Classify), _) => ModelTask::Classify,
        (Some(ModelTask::Reward), _) => ModelTask::Reward,
        (Some(_), _) | (None, ModelRunner::Pooling) => ModelTask::Embed,
        (None, ModelRunner::Generate) => ModelTask::Generate,
        (None, ModelRunner::Auto) if v.cli_mode == CliMode::Vllm => ModelTask::Generate,
        (None, ModelRunner::Auto) => ModelTask::All,
    })
}

fn read_request_limits(v: &FlagValues) -> Result<RequestParameterLimits, ConfigError> {
    Ok(RequestParameterLimits {
        n: v.get(&api::MAX_N_SEQUENCES)?,
        prompts: v.get(&api::MAX_COMPLETION_PROMPTS)?,
        stop_strings: v.get(&api::MAX_STOP_STRINGS)?,
        bad_words: v.get(&api::MAX_NUM_BAD_WORDS)?,
    })
}
