//! The settings of the HTTP API, by topic; `src/server` fills them in from the configuration.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

pub use super::image_output::ImageOutputSettings;
use vllm_sim_config::{
    Compat, KvEvents, KvTransfer, Lora, Parallel, Pod, RequestDrafts, Speech, Task,
};

/// Holds the settings of the HTTP API.
#[derive(Debug)]
pub struct Settings {
    /// The model.
    pub model: ModelSettings,
    /// The parsers of tool calls and reasoning.
    pub parsers: ParserSettings,
    /// The form of answers.
    pub answers: AnswerSettings,
    /// Pooling models.
    pub pooling: PoolingSettings,
    /// Settings of speech-to-text models.
    pub speech: Speech,
    /// Adapters.
    pub lora: Lora,
    /// The ranks of the deployment.
    pub parallel: Parallel,
    /// The KV cache.
    pub cache: CacheSettings,
    /// The connector that moves KV caches between servers; `None`: there is none.
    pub kv_transfer: Option<KvTransfer>,
    /// The events of the KV cache.
    pub kv_events: KvEvents,
    /// The server around the API.
    pub server: ServerSettings,
    /// Server to imitate where vLLM and llm-d differ.
    pub compat: Compat,
    /// Decides whether any uploaded data is accepted as audio.
    pub takes_any_audio: bool,
    /// Decides whether adapters load without LoRA enabled and without files.
    pub takes_any_adapter: bool,
    /// Decides whether KV transfer needs no connector.
    pub transfers_unasked: bool,
    /// The settings that an operator may change, as they begin.
    pub controls: ControlSettings,
}

/// Holds what an operator's controls begin with.
#[derive(Debug)]
pub struct ControlSettings {
    /// Decides whether replies may carry an image.
    pub has_images: bool,
    /// The images of replies.
    pub images: ImageOutputSettings,
    /// The fake metrics.
    pub fake_metrics: Value,
    /// Decides whether the engine finds prefixes again.
    pub finds_prefixes: bool,
}

/// Describes the model.
#[derive(Debug)]
pub struct ModelSettings {
    /// The name or folder of the model, as typed.
    pub name: String,
    /// The tokens of a prompt with its output, at most.
    pub max_model_len: u32,
    /// The model's `config.json`.
    pub hf_config: Option<Arc<Value>>,
    /// Decides whether it is a server's vision encoder apart from its language model.
    pub is_encoder: bool,
    /// The arguments of every call of the chat template.
    pub chat_template_kwargs: Map<String, Value>,
    /// The role of answers.
    pub response_role: String,
    /// The release of vLLM that is imitated.
    pub vllm_version: String,
    /// The text of `system_fingerprint`.
    pub fingerprint: Option<Arc<str>>,
}

/// Names the parsers that look at generated text.
#[derive(Debug)]
pub struct ParserSettings {
    /// The parser of tool calls.
    pub tools: Option<String>,
    /// Decides whether `tool_choice: auto` may call tools.
    pub auto_tool_choice: bool,
    /// Decides whether tools stay out of the prompt when `tool_choice` is `none`.
    pub hides_unchosen_tools: bool,
    /// The parser of reasoning.
    pub reasoning: Option<String>,
    /// The share of output tokens that is reasoning.
    pub reasoning_ratio: f64,
}

/// Response content in addition to the generated text.
#[derive(Debug)]
pub struct AnswerSettings {
    /// Decides whether every stream ends with its usage.
    pub force_include_usage: bool,
    /// Decides whether usage has `prompt_tokens_details`.
    pub prompt_tokens_details: bool,
    /// Decides whether answers have `metrics`.
    pub per_request_metrics: bool,
    /// Detail of the draft-token report in responses.
    pub per_request_drafts: RequestDrafts,
    /// The draft tokens of a step; `None` without speculative decoding.
    pub draft_tokens: Option<u32>,
    /// Decides whether log probabilities name `token_id:N`.
    pub tokens_as_token_ids: bool,
    /// The log probabilities that a request may ask for; `None`: the whole vocabulary.
    pub max_logprobs: Option<u32>,
    /// The choices that a prompt may have.
    pub max_choices: u32,
    /// The tokens of a chunk of a stream.
    pub stream_interval: u32,
    /// The time after which a silent stream gets a comment; `None`: it gets none.
    pub sse_keep_alive_interval: Option<Duration>,
    /// Decides whether responses can be fetched again.
    pub responses_store: bool,
    /// Decides whether the `guided_*` fields of older releases act.
    pub legacy_guided: bool,
}

/// Describes a pooling model.
#[derive(Debug)]
pub struct PoolingSettings {
    /// The family of routes that exists.
    pub task: Task,
    /// The classes of a classifier.
    pub num_labels: u32,
    /// The numbers of a vector where the model does not say.
    pub dimensions: u32,
    /// Decides whether vectors are as long as the model's hidden states.
    pub embeds_like_model: bool,
    /// Decides whether vectors of texts with words in common are near each other.
    pub embeds_words: bool,
}

/// Describes the KV cache.
#[derive(Debug)]
pub struct CacheSettings {
    /// The tokens of a block.
    pub block_size: u32,
    /// Decides whether prefixes are found again.
    pub finds_prefixes: bool,
    /// The least share of a prompt that has to be found; 0: none.
    pub hit_threshold: f64,
}

/// Describes the server around the API.
#[derive(Debug)]
pub struct ServerSettings {
    /// The prefix under which every route exists too.
    pub root_path: String,
    /// Decides whether clients speak TLS.
    pub has_tls: bool,
    /// Bytes of a body that are read.
    pub max_body_bytes: usize,
    /// The time after the start during which `/health/ready` answers 503.
    pub startup_duration: Duration,
    /// The place of the process in Kubernetes.
    pub pod: Pod,
    /// Bearer key of the operator; `None` leaves operator routes open.
    pub admin_key: Option<String>,
    /// Decides whether `/admin/config` exists.
    pub is_administered: bool,
    /// Decides whether the dashboard may change settings.
    pub dashboard_control: bool,
    /// Decides whether the routes of vLLM's development mode exist.
    pub dev_mode: bool,
    /// Decides whether `/sleep` acts.
    pub enable_sleep_mode: bool,
    /// Decides whether `/sleep` and `/wake_up` act with sleep mode alone, and ignore tags that they do not know.
    pub has_lenient_sleep: bool,
    /// Decides whether `/load` counts.
    pub load_tracking: bool,
    /// The factor of all delays at the start.
    pub latency_factor: f64,
    /// The newest requests that are remembered; 0: none.
    pub request_history: usize,
    /// Decides whether their bodies are remembered too.
    pub request_history_bodies: bool,
    /// The configuration as `/server_info` shows it.
    pub shown_config: Map<String, Value>,
}
