use std::path::PathBuf;

use serde_json::Value;

use super::error::ConfigError;
use super::parsers::{REASONING_PARSERS, TOOL_PARSERS};
use super::profiler;
use super::speech::Speech;
use super::values::Values;
use super::words::closest;
use super::{CliMode, Compat, Model};

/// What the API offers and refuses.
#[derive(Debug, Clone, PartialEq)]
pub struct Api {
    /// Which family of routes exists.
    pub task: Task,
    /// Most log probabilities a request may ask for [20]; `None`: the whole vocabulary.
    pub max_logprobs: Option<u32>,
    /// Whether `tool_choice: auto` may call tools.
    pub enable_auto_tool_choice: bool,
    /// vLLM's name of the tool parser; known.
    pub tool_call_parser: Option<String>,
    /// vLLM's name of the reasoning parser; known.
    pub reasoning_parser: Option<String>,
    /// Share of output tokens that is reasoning when a reasoning parser is set [0.4].
    pub reasoning_ratio: f64,
    /// Whether usage has `prompt_tokens_details`.
    pub enable_prompt_tokens_details: bool,
    /// Usage on every stream, asked for or not.
    pub force_include_usage: bool,
    /// Whether responses carry `metrics`.
    pub per_request_metrics: bool,
    /// `token_id:N` instead of text in log probabilities.
    pub return_tokens_as_token_ids: bool,
    /// Whether render, derender and `/inference/v1/generate` answer (403 otherwise).
    pub enable_scale_out: bool,
    /// Token ids in, token ids out.
    pub tokens_only: bool,
    /// Serve nothing but render (`vllm launch render`).
    pub render_only: bool,
    /// Whether a request may bring its own chat template.
    pub trust_request_chat_template: bool,
    /// Whether tools stay out of the prompt when `tool_choice` is `none`.
    pub exclude_tools_when_tool_choice_none: bool,
    /// What `system_fingerprint` says.
    pub fingerprint: Fingerprint,
    /// Tokens per stream chunk [1].
    pub stream_interval: u32,
    /// Whether `/tokenizer_info` exists.
    pub enable_tokenizer_info_endpoint: bool,
    /// Whether responses can be fetched again (`VLLM_ENABLE_RESPONSES_API_STORE`).
    pub responses_store: bool,
    /// Whether the `guided_*` fields of older releases act [no: ignored as vLLM 0.33 does].
    pub legacy_guided: bool,
    /// Any model name is accepted (`VLLM_SKIP_MODEL_NAME_VALIDATION`).
    pub skip_model_name_validation: bool,
    /// Whether `/start_profile` and `/stop_profile` exist.
    pub profiler: bool,
    /// Whether `/fault_tolerance/*` exists.
    pub fault_tolerance: bool,
    /// Bounds on single requests.
    pub limits: Limits,
    /// Items of each modality that a prompt may have (`--limit-mm-per-prompt`).
    pub limit_mm_per_prompt: Option<Value>,
    /// Folder from which `file://` media may be read.
    pub allowed_local_media_path: Option<PathBuf>,
    /// Classes of the simulated classifier [2].
    pub num_labels: u32,
    /// What the model makes of speech.
    pub speech: Speech,
}

/// Which family of routes exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Task {
    /// Every route that the simulator has: generation and pooling side by side.
    #[default]
    All,
    /// Chat, completions, responses, messages.
    Generate,
    /// Embeddings, scores by similarity.
    Embed,
    /// Classification.
    Classify,
    /// Cross-encoder scores and rerank.
    Score,
    /// Rewards through `/pooling`.
    Reward,
    /// Speech to text.
    Transcription,
    /// Speech to text over WebSocket, beside everything that generates.
    Realtime,
}

/// What `system_fingerprint` says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Fingerprint {
    /// Version and a hash of the configuration.
    #[default]
    Full,
    /// The hash alone.
    Hash,
    /// A fixed text.
    Custom(String),
    /// Null.
    None,
}

/// Bounds on single requests, from vLLM's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `VLLM_MAX_N_SEQUENCES` [16384].
    pub n: u32,
    /// `VLLM_MAX_COMPLETION_PROMPTS` [1024].
    pub prompts: u32,
    /// `VLLM_MAX_STOP_STRINGS` [4].
    pub stop_strings: u32,
    /// `VLLM_MAX_NUM_BAD_WORDS` [128].
    pub bad_words: u32,
}

impl Api {
    pub(super) fn from_values(v: &Values, model: &Model) -> Result<Self, ConfigError> {
        let compat = model.compat;
        let tool_call_parser = parser(v, "tool-call-parser", "tool-parser-plugin", &TOOL_PARSERS)?;
        let enable_auto_tool_choice = v.switch("enable-auto-tool-choice")?;
        if v.cli_mode == CliMode::Vllm && enable_auto_tool_choice && tool_call_parser.is_none() {
            return Err(ConfigError::Invalid(
                "--enable-auto-tool-choice requires --tool-call-parser".to_owned(),
            ));
        }
        let details = "enable-prompt-tokens-details";
        let per_request_metrics = v.switch("enable-per-request-metrics")?;
        if per_request_metrics && v.switch("disable-log-stats")? {
            return Err(ConfigError::Invalid(
                "--enable-per-request-metrics requires engine statistics logging; \
                 remove --disable-log-stats to enable per-request metrics."
                    .to_owned(),
            ));
        }
        if v.cli_mode == CliMode::Vllm
            && v.switch("enable-log-outputs")?
            && !v.switch("enable-log-requests")?
        {
            return Err(ConfigError::Invalid(
                "--enable-log-outputs requires --enable-log-requests".to_owned(),
            ));
        }
        v.choice("tool-strict-level")?;
        let (task, speech) = Speech::from_values(v, model, task(v)?)?;
        Ok(Self {
            task,
            speech,
            max_logprobs: match v.int("max-logprobs")? {
                -1 => None,
                _ => Some(v.ranged(
                    "max-logprobs",
                    0..=1_000_000,
                    "max-logprobs must be -1 or more",
                )?),
            },
            enable_auto_tool_choice,
            tool_call_parser,
            reasoning_parser: parser(
                v,
                "reasoning-parser",
                "reasoning-parser-plugin",
                &REASONING_PARSERS,
            )?,
            reasoning_ratio: v.ranged_float(
                "reasoning-ratio",
                0.0..=1.0,
                "reasoning-ratio must be between 0 and 1",
            )?,
            // llm-d's answers always carry the details.
            enable_prompt_tokens_details: v.switch(details)?
                || compat == Compat::Llmd && !v.given(details),
            force_include_usage: v.switch("enable-force-include-usage")?,
            per_request_metrics,
            return_tokens_as_token_ids: v.switch("return-tokens-as-token-ids")?,
            enable_scale_out: v.switch("enable-scale-out")? || v.switch("render-only")?,
            tokens_only: v.switch("tokens-only")?,
            render_only: v.switch("render-only")?,
            trust_request_chat_template: v.switch("trust-request-chat-template")?,
            exclude_tools_when_tool_choice_none: v.switch("exclude-tools-when-tool-choice-none")?,
            fingerprint: fingerprint(v)?,
            stream_interval: v.ranged(
                "stream-interval",
                1..=1_000_000,
                "stream-interval cannot be less than 1",
            )?,
            enable_tokenizer_info_endpoint: v.switch("enable-tokenizer-info-endpoint")?,
            responses_store: v.switch("responses-store")?,
            legacy_guided: v.switch("legacy-guided-fields")?,
            skip_model_name_validation: v.switch("skip-model-name-validation")?,
            profiler: profiler::configured(v)?,
            fault_tolerance: profiler::tolerates_faults(v)?,
            limits: limits(v)?,
            limit_mm_per_prompt: v.object("limit-mm-per-prompt")?.map(Value::Object),
            allowed_local_media_path: v.path("allowed-local-media-path"),
            num_labels: v.ranged(
                "num-labels",
                1..=100_000,
                "num-labels cannot be less than 1",
            )?,
        })
    }
}

/// A parser's name: one of vLLM's, or any when a plugin is said to bring it.
fn parser(
    v: &Values,
    flag: &str,
    plugin: &str,
    known: &'static [&'static str],
) -> Result<Option<String>, ConfigError> {
    let Some(name) = v.text(flag) else {
        return Ok(None);
    };
    if known.contains(&name) {
        return Ok(Some(name.to_owned()));
    }
    if v.text(plugin).is_some() {
        v.warn(format!("--{flag} {name}: taken to come from --{plugin}"));
        return Ok(Some(name.to_owned()));
    }
    let hint = closest(name, known.iter().copied())
        .map_or_else(String::new, |near| format!("; did you mean {near}?"));
    let kind = flag.replace('-', " ");
    let list = known.join(",");
    Err(ConfigError::Invalid(format!(
        "invalid {kind}: {name} (chose from {{ {list} }}){hint}"
    )))
}

/// `--task` of older releases, `--runner` and `--convert` of newer ones.
fn task(v: &Values) -> Result<Task, ConfigError> {
    let pooling = v.choice("runner")? == Some("pooling");
    let convert = v.raw("convert").last().map(String::as_str);
    // `none` is a word of --convert, so it is read raw after the check.
    v.choice("convert")?;
    Ok(match v.choice("task")? {
        Some("generate" | "draft") => Task::Generate,
        Some("embed" | "embedding") => Task::Embed,
        Some("classify") => Task::Classify,
        Some("score") => Task::Score,
        Some("reward") => Task::Reward,
        Some("transcription") => Task::Transcription,
        Some("realtime") => Task::Realtime,
        _ => match (pooling, convert, v.choice("runner")?) {
            (_, Some("classify"), _) => Task::Classify,
            (_, Some("reward"), _) => Task::Reward,
            (true, _, _) | (_, Some("embed"), _) => Task::Embed,
            (_, _, Some("generate")) => Task::Generate,
            _ if v.cli_mode == CliMode::Vllm => Task::Generate,
            _ => Task::All,
        },
    })
}

fn fingerprint(v: &Values) -> Result<Fingerprint, ConfigError> {
    let mode = v.raw("fingerprint-mode").last().map(String::as_str);
    v.choice("fingerprint-mode")?;
    Ok(match mode {
        Some("hash") => Fingerprint::Hash,
        Some("none") => Fingerprint::None,
        Some("custom") => Fingerprint::Custom(v.owned("fingerprint-value").ok_or_else(|| {
            ConfigError::Invalid(
                "--fingerprint-mode custom requires --fingerprint-value".to_owned(),
            )
        })?),
        _ => Fingerprint::Full,
    })
}

fn limits(v: &Values) -> Result<Limits, ConfigError> {
    let limit = |name: &str| {
        v.ranged(
            name,
            1..=i64::from(u32::MAX),
            "limits cannot be less than 1",
        )
    };
    Ok(Limits {
        n: limit("max-n-sequences")?,
        prompts: limit("max-completion-prompts")?,
        stop_strings: limit("max-stop-strings")?,
        bad_words: limit("max-num-bad-words")?,
    })
}
