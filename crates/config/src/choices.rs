//! What flags choose among where no other crate owns it.

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

/// vLLM's `--runner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Runner {
    /// By the model.
    #[default]
    Auto,
    Generate,
    Pooling,
}

/// What `system_fingerprint` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fingerprint {
    /// Version and a hash of the configuration.
    #[default]
    Full,
    /// The hash alone.
    Hash,
    /// A fixed text.
    Custom,
    /// Null.
    None,
}

/// vLLM's `--per-request-spec-decode-metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestDrafts {
    /// Replies say nothing of draft tokens.
    #[default]
    None,
    /// Totals.
    Summary,
    /// Totals and each step.
    Detailed,
}

/// vLLM's `--performance-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PerformanceMode {
    #[default]
    Balanced,
    /// Graphs of every small batch size.
    Interactivity,
    /// Twice the defaults of sequences and tokens.
    Throughput,
}

/// vLLM's `--mm-encoder-tp-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EncoderTpMode {
    /// Each layer is split.
    #[default]
    Weights,
    /// Items are spread.
    Data,
}

/// vLLM's `--kv-offloading-backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OffloadBackend {
    /// The engine itself.
    #[default]
    Native,
    /// A server of its own.
    LmCache,
}

/// Who decides which sequence runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulerKind {
    /// llm-d: slots, each sequence on its own timeline.
    #[default]
    Pool,
    /// Continuous batching as vLLM v1.
    Vllm,
    /// Radix cache as SGLang.
    Sglang,
}

/// Which step times are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LatencyKind {
    /// By the flags that name a profile or a GPU.
    #[default]
    Auto,
    Aic,
    Delays,
    Polynomial,
    Profile,
    Roofline,
}

/// Least important level that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// Also what looks wrong.
    Warn,
    /// Also what happens a few times per process.
    #[default]
    Info,
    /// Also once per request.
    Debug,
    /// Also per token and block.
    Trace,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
