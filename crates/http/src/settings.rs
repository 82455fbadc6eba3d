//! Settings of the HTTP API, by topic; `src/server` builds them from the configuration.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

pub use super::image_output::ImageOutputSettings;
use vllm_sim_config::{
    Compat, KvEvents, KvTransfer, Lora, Parallel, Pod, RequestDrafts, Speech, Task,
};

/// Settings of the HTTP API.
#[derive(Debug)]
pub struct Settings {
    /// Settings of the model.
    pub model: ModelSettings,
    /// Settings of the parsers of tool calls and reasoning.
    pub parsers: ParserSettings,
    /// Settings of responses, apart from the generated text.
    pub answers: AnswerSettings,
    /// Settings of pooling models.
    pub pooling: PoolingSettings,
    /// Settings of speech-to-text models.
    pub speech: Speech,
    /// Settings of LoRA adapters.
    pub lora: Lora,
    /// Settings of the deployment's data-parallel ranks.
    pub parallel: Parallel,
    /// Settings of the KV cache.
    pub cache: CacheSettings,
    /// KV connector between servers; `None` without one.
    pub kv_transfer: Option<KvTransfer>,
    /// Whether the KV cache is offloaded to CPU memory, for which vLLM adds a connector.
    pub offloads_kv: bool,
    /// Settings of KV events.
    pub kv_events: KvEvents,
    /// Settings of the server around the API.
    pub server: ServerSettings,
    /// Server to imitate where vLLM and llm-d differ.
    pub compat: Compat,
    /// Whether any uploaded data is accepted as audio.
    pub takes_any_audio: bool,
    /// Whether adapters load without LoRA enabled and without files.
    pub takes_any_adapter: bool,
    /// Whether KV transfer works without a connector.
    pub transfers_unasked: bool,
    /// Initial values of the run-time settings.
    pub controls: ControlSettings,
}

/// Initial values of the run-time settings.
#[derive(Debug)]
pub struct ControlSettings {
    /// Whether replies may contain an image.
    pub has_images: bool,
    /// Rate and delay of generated images.
    pub images: ImageOutputSettings,
    /// Initial fake values of metrics (`--fake-metrics`).
    pub fake_metrics: Value,
    /// Whether the engines have a prefix cache.
    pub finds_prefixes: bool,
}

/// Settings of the model.
#[derive(Debug)]
pub struct ModelSettings {
    /// Name or folder of the model, as configured.
    pub name: String,
    /// Context length, in tokens.
    pub max_model_len: u32,
    /// Contents of the model's `config.json`.
    pub hf_config: Option<Arc<Value>>,
    /// Whether the server only encodes media for another server.
    pub is_encoder: bool,
    /// Arguments of every call of the chat template.
    pub chat_template_kwargs: Map<String, Value>,
    /// Role of reply messages.
    pub response_role: String,
    /// vLLM release to report.
    pub vllm_version: String,
    /// Value of `system_fingerprint`.
    pub fingerprint: Option<Arc<str>>,
}

/// Settings of the parsers of generated text.
#[derive(Debug)]
pub struct ParserSettings {
    /// Name of the tool call parser.
    pub tools: Option<String>,
    /// Whether `tool_choice: auto` may call tools.
    pub auto_tool_choice: bool,
    /// Whether the prompt omits tools if `tool_choice` is `none`.
    pub hides_unchosen_tools: bool,
    /// Name of the reasoning parser.
    pub reasoning: Option<String>,
    /// Fraction of output tokens that is reasoning.
    pub reasoning_ratio: f64,
}

/// Settings of the parts of responses that are not generated text, and of streaming.
#[derive(Debug)]
pub struct AnswerSettings {
    /// Whether every stream ends with usage.
    pub force_include_usage: bool,
    /// Whether usage has `prompt_tokens_details`.
    pub prompt_tokens_details: bool,
    /// Whether responses have `metrics`.
    pub per_request_metrics: bool,
    /// Detail of the draft-token report in responses.
    pub per_request_drafts: RequestDrafts,
    /// Number of draft tokens per step; `None` without speculative decoding.
    pub draft_tokens: Option<u32>,
    /// Whether log probabilities name tokens as `token_id:N`.
    pub tokens_as_token_ids: bool,
    /// Maximum number of log probabilities per token; `None` allows the whole vocabulary.
    pub max_logprobs: Option<u32>,
    /// Maximum number of choices per prompt.
    pub max_choices: u32,
    /// Minimum number of tokens per stream chunk.
    pub stream_interval: u32,
    /// Idle time before a keep-alive comment in a stream; `None` sends none.
    pub sse_keep_alive_interval: Option<Duration>,
    /// Whether responses are stored for later retrieval.
    pub responses_store: bool,
    /// Whether the `guided_*` fields of older releases are accepted.
    pub legacy_guided: bool,
}

/// Settings of a pooling model.
#[derive(Debug)]
pub struct PoolingSettings {
    /// Task, which selects the served routes.
    pub task: Task,
    /// Number of classes of a classifier.
    pub num_labels: u32,
    /// Vector length, in dimensions, if the model does not define one.
    pub dimensions: u32,
    /// Whether vectors have the length of the model's hidden states.
    pub embeds_like_model: bool,
    /// Whether texts with common words get similar vectors.
    pub embeds_words: bool,
}

/// Settings of the KV cache.
#[derive(Debug)]
pub struct CacheSettings {
    /// Block size, in tokens.
    pub block_size: u32,
    /// Whether the engines have a prefix cache.
    pub finds_prefixes: bool,
    /// Minimum cached fraction of a prompt, 0 to 1; 0 disables the check.
    pub hit_threshold: f64,
}

/// Settings of the server around the API.
#[derive(Debug)]
pub struct ServerSettings {
    /// Prefix under which every route is served too.
    pub root_path: String,
    /// Whether clients connect with TLS.
    pub has_tls: bool,
    /// Maximum size of a request body, in bytes.
    pub max_body_bytes: usize,
    /// Simulated start-up time, during which `/health/ready` returns 503.
    pub startup_duration: Duration,
    /// Kubernetes pod of the process.
    pub pod: Pod,
    /// Bearer key of the operator; `None` leaves operator routes open.
    pub admin_key: Option<String>,
    /// Whether `/admin/config` is served.
    pub is_administered: bool,
    /// Whether the dashboard may change settings.
    pub dashboard_control: bool,
    /// Whether the routes of vLLM's development mode are served.
    pub dev_mode: bool,
    /// Whether `--enable-sleep-mode` is set; only llm-d's sleep routes check it.
    pub enable_sleep_mode: bool,
    /// Whether `/sleep` and `/wake_up` only act in sleep and development mode, and ignore unknown
    /// tags (llm-d).
    pub has_lenient_sleep: bool,
    /// Whether `/load` counts requests.
    pub load_tracking: bool,
    /// Factor of all delays at the start.
    pub latency_factor: f64,
    /// Maximum number of recorded requests; 0 records none.
    pub request_history: usize,
    /// Whether request bodies are recorded too.
    pub request_history_bodies: bool,
    /// Configuration that `/server_info` returns.
    pub shown_config: Map<String, Value>,
}
