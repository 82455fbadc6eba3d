use std::path::PathBuf;

use serde_json::Value;

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
    /// Whether forced tool calls are bound to their schema: `auto`, `parameter`, ….
    pub tool_strict_level: String,
    /// Bounds on single requests.
    pub limits: Limits,
    /// Items of each modality that a prompt may have (`--limit-mm-per-prompt`).
    pub limit_mm_per_prompt: Option<Value>,
    /// Folder from which `file://` media may be read.
    pub allowed_local_media_path: Option<PathBuf>,
    /// Classes of the simulated classifier [2].
    pub num_labels: u32,
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
