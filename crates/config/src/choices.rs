//! Enums of flag values that no other crate defines.

/// Task of the model; selects the family of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Task {
    /// Every route of the simulator: generation and pooling.
    #[default]
    All,
    /// Generation: chat, completions, responses, messages.
    Generate,
    /// Embeddings and similarity scores.
    Embed,
    /// Classification.
    Classify,
    /// Cross-encoder scores and rerank.
    Score,
    /// Rewards, served at `/pooling`.
    Reward,
    /// Speech to text.
    Transcription,
    /// Speech to text over WebSocket, in addition to the generation routes.
    Realtime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Runner {
    #[default]
    Auto,
    Generate,
    Pooling,
}

/// Form of `system_fingerprint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fingerprint {
    /// Version and hash of the configuration.
    #[default]
    Full,
    /// Hash only.
    Hash,
    /// Fixed text of `--fingerprint-value`.
    Custom,
    /// JSON null.
    None,
}

/// Level of detail of vLLM's `--per-request-spec-decode-metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestDrafts {
    /// No report of draft tokens.
    #[default]
    None,
    /// Totals.
    Summary,
    /// Totals and each step.
    Detailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PerformanceMode {
    #[default]
    Balanced,
    /// A CUDA graph for every small batch size.
    Interactivity,
    Throughput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EncoderTpMode {
    /// Each GPU computes a part of each layer.
    #[default]
    Weights,
    /// Each GPU encodes whole items.
    Data,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OffloadBackend {
    #[default]
    Native,
    LmCache,
}

/// Scheduler implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulerKind {
    /// Slots as in llm-d-inference-sim; each sequence has its own timeline.
    #[default]
    Pool,
    /// Continuous batching as in vLLM v1.
    Vllm,
    /// Radix cache as in SGLang.
    Sglang,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LatencyKind {
    /// Derived from the flags that name a profile, kernel tables or a GPU.
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
    /// Errors only.
    Error,
    /// Errors and warnings.
    Warn,
    /// Info and above: events that occur a few times per process.
    #[default]
    Info,
    /// Debug and above: events of each request.
    Debug,
    /// Everything, including events of each token and block.
    Trace,
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
