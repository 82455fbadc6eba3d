//! Settings of the HTTP API, by topic; `src/server` builds them from the configuration.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

pub use super::media::ImageOutputSettings;
use vllm_sim_config::{
    HttpServerConfig, KvEventsConfig, KvTransferConfig, LoraConfig, ModelConfig, ModelTask,
    ParallelConfig, PerRequestDraftStats, SpeechConfig,
};

/// Settings of the HTTP API.
#[derive(Debug)]
pub struct HttpSettings {
    /// Settings of the served model.
    pub model: ModelConfig,
    /// Whether the server only encodes media for another server (`--mm-encoder-only`).
    pub is_encoder: bool,
    /// Value of `system_fingerprint` in responses.
    pub fingerprint: Option<Arc<str>>,
    /// Settings of the parsers of tool calls and reasoning in generated text.
    pub parsers: ToolAndReasoningParserSettings,
    /// Settings of responses, apart from the generated text.
    pub answers: ResponseSettings,
    /// Settings of pooling models.
    pub pooling: PoolingSettings,
    /// Settings of speech-to-text models.
    pub speech: SpeechConfig,
    /// Settings of LoRA adapters.
    pub lora: LoraConfig,
    /// Settings of the deployment's data-parallel ranks.
    pub parallel: ParallelConfig,
    /// Settings of the KV cache.
    pub cache: KvCacheSettings,
    /// Settings of the KV connector to other servers; `None` without one.
    pub kv_transfer: Option<KvTransferConfig>,
    /// Whether the KV cache is offloaded to CPU memory, for which vLLM adds a connector.
    pub offloads_kv: bool,
    /// Settings of KV events.
    pub kv_events: KvEventsConfig,
    /// Settings of the HTTP server, apart from its API: TLS, limits, keys and operator routes.
    pub server: HttpServerConfig,
    /// Whether `/admin/config` is served.
    pub is_administered: bool,
    /// Initial factor by which all simulated latencies are multiplied.
    pub latency_factor: f64,
    /// Configuration of the server for the response of `/server_info`.
    pub shown_config: Map<String, Value>,
    /// Whether `/sleep` and `/wake_up` have an effect only with sleep mode and development mode,
    /// and ignore unknown tags (llm-d).
    pub has_lenient_sleep: bool,
    /// Whether any uploaded data is accepted as audio.
    pub takes_any_audio: bool,
    /// Whether LoRA adapters load without LoRA enabled and without files.
    pub takes_any_adapter: bool,
    /// Whether KV transfer works without a KV connector.
    pub transfers_unasked: bool,
    /// Initial values of the settings that can change at run time.
    pub controls: RuntimeSettings,
}

/// Initial values of the settings that can change at run time.
#[derive(Debug)]
pub struct RuntimeSettings {
    /// Whether chat replies may contain an image.
    pub has_images: bool,
    /// Rate and delay of generated images in chat replies.
    pub images: ImageOutputSettings,
    /// Initial fake values of metrics (`--fake-metrics`).
    pub fake_metrics: Value,
    /// Whether the engines have a prefix cache.
    pub finds_prefixes: bool,
}

/// Settings of the parsers of tool calls and reasoning in generated text.
#[derive(Debug)]
pub struct ToolAndReasoningParserSettings {
    /// Name of the tool call parser (`--tool-call-parser`).
    pub tools: Option<String>,
    /// Whether `tool_choice: auto` may produce tool calls (`--enable-auto-tool-choice`).
    pub auto_tool_choice: bool,
    /// Whether the prompt omits tools if `tool_choice` is `none`.
    pub hides_unchosen_tools: bool,
    /// Name of the reasoning parser (`--reasoning-parser`).
    pub reasoning: Option<String>,
    /// Fraction of output tokens that is reasoning, 0 to 1.
    pub reasoning_ratio: f64,
}

/// Settings of the parts of responses that are not generated text, and of streaming.
#[derive(Debug)]
pub struct ResponseSettings {
    /// Whether every stream ends with a chunk with usage.
    pub force_include_usage: bool,
    /// Whether `usage` has `prompt_tokens_details`.
    pub prompt_tokens_details: bool,
    /// Whether responses have a `metrics` object with timings.
    pub per_request_metrics: bool,
    /// Detail of the report on draft tokens in responses (`--per-request-spec-decode-metrics`).
    pub per_request_drafts: PerRequestDraftStats,
    /// Number of draft tokens per engine step; `None` without speculative decoding.
    pub draft_tokens: Option<u32>,
    /// Whether log probabilities name tokens as `token_id:N`.
    pub tokens_as_token_ids: bool,
    /// Maximum number of log probabilities per token; `None` allows the whole vocabulary.
    pub max_logprobs: Option<u32>,
    /// Maximum number of choices per prompt.
    pub max_choices: u32,
    /// Minimum number of tokens per stream chunk.
    pub stream_interval: u32,
    /// Whether events of `POST /generate` contain only the new tokens.
    pub incremental_output: bool,
    /// Idle time before a keep-alive comment in a stream; `None` sends none.
    pub sse_keep_alive_interval: Option<Duration>,
    /// Whether responses of `/v1/responses` are stored for later retrieval.
    pub responses_store: bool,
    /// Whether the `guided_*` request fields of older vLLM releases are accepted.
    pub legacy_guided: bool,
}

/// Settings of a pooling model, such as an embedding model or a classifier.
#[derive(Debug)]
pub struct PoolingSettings {
    /// Task of the pooling model, which selects the served routes.
    pub task: ModelTask,
    /// Number of classes of a classifier.
    pub num_labels: u32,
    /// Length of embedding vectors, if the model does not define one.
    pub dimensions: u32,
    /// Whether embedding vectors have the length of the model's hidden states.
    pub embeds_like_model: bool,
    /// Whether texts with common words get similar embedding vectors.
    pub embeds_words: bool,
}

/// Settings of the KV cache.
#[derive(Debug)]
pub struct KvCacheSettings {
    /// Size of a KV block, in tokens.
    pub block_size: u32,
    /// Whether the engines have a prefix cache.
    pub finds_prefixes: bool,
    /// Minimum cached fraction of a prompt for a request to run, 0 to 1; 0 disables the check.
    pub hit_threshold: f64,
}
