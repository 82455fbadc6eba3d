//! Enums of flag values that no other crate defines.

/// Task of the model; selects the family of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ModelTask {
    /// The server serves every task: all routes of generation and pooling.
    #[default]
    All,
    /// The model generates text, over the routes for chat, completions, responses and messages.
    Generate,
    /// The model computes embeddings and their similarity scores.
    Embed,
    /// The model classifies texts (`/classify`).
    Classify,
    /// The model is a cross-encoder, for scores and reranking.
    Score,
    /// The model is a reward model, whose scores are served at `/pooling`.
    Reward,
    /// The model converts speech to text, over HTTP.
    Transcription,
    /// The model converts speech to text over WebSocket, in addition to the generation routes.
    Realtime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ModelRunner {
    #[default]
    Auto,
    Generate,
    Pooling,
}

/// Content of the response field `system_fingerprint`: version and hash, hash only, fixed text or
/// null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SystemFingerprintForm {
    /// Form of `system_fingerprint`: the vLLM version and a hash of the configuration.
    #[default]
    Full,
    /// Form of `system_fingerprint`: a hash of the configuration only.
    Hash,
    /// Form of `system_fingerprint`: the fixed text of `--fingerprint-value`.
    Custom,
    /// Form of `system_fingerprint`: JSON null.
    None,
}

/// Level of detail of the draft-token statistics in responses
/// (`--per-request-spec-decode-metrics`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PerRequestDraftStats {
    /// Responses have no statistics of draft tokens.
    #[default]
    None,
    /// Responses have the total numbers of draft tokens.
    Summary,
    /// Responses have the totals and the draft tokens of each step.
    Detailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PerformanceMode {
    #[default]
    Balanced,
    /// Performance mode `interactivity`: vLLM captures a CUDA graph for every small batch size.
    Interactivity,
    Throughput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EncoderTensorParallelMode {
    /// Each GPU of a tensor-parallel group computes a part of each layer of the image or audio
    /// encoder.
    #[default]
    Weights,
    /// Each GPU of a tensor-parallel group encodes whole images or audios.
    Data,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum KvOffloadBackend {
    #[default]
    Native,
    LmCache,
}

/// Kind of engine scheduler to simulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulerKind {
    /// Scheduler with a fixed number of request slots, as in llm-d-inference-sim; each sequence has
    /// its own timeline.
    #[default]
    Pool,
    /// Scheduler with continuous batching, as in vLLM v1.
    Vllm,
    /// Scheduler with continuous batching and a radix cache, as in SGLang.
    Sglang,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LatencyModelKind {
    /// The latency model follows from the flags that name a profile, kernel tables or a GPU.
    #[default]
    Auto,
    Aic,
    Delays,
    Polynomial,
    Profile,
    Roofline,
}

/// Minimum level of log lines to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Log level at which only errors are logged.
    Error,
    /// Log level at which errors and warnings are logged.
    Warn,
    /// Log level `info`: errors, warnings and events that occur a few times per process.
    #[default]
    Info,
    /// Log level `debug`: also the events of each request.
    Debug,
    /// Log level `trace`: all events, including those of each token and KV block.
    Trace,
}

/// Format of the program's log lines: text or JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Log lines of plain text for people.
    #[default]
    Text,
    /// Log lines of one JSON object each.
    Json,
}
