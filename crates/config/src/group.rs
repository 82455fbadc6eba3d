/// Group of flags, shown under one heading of the help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlagGroup {
    /// Model, tokenizer and chat template.
    Model,
    /// Sockets, headers and routes.
    Server,
    /// TLS.
    Tls,
    /// Logs.
    Logging,
    /// API behavior and limits.
    Api,
    /// Content of replies.
    Content,
    /// Generated tool calls.
    Tools,
    /// Delays of the pool scheduler.
    Delays,
    /// Scheduler, batches and queues.
    Scheduler,
    /// Step times of the batching schedulers.
    Timing,
    /// KV cache, offloading and transfer.
    KvCache,
    /// KV event publishing.
    KvEvents,
    /// Parallel sizes and data-parallel ranks.
    Parallel,
    /// LoRA adapters.
    Lora,
    /// Injected faults and scenarios.
    Failures,
    /// Metrics.
    Metrics,
    /// Configuration files and the program itself.
    General,
}

impl FlagGroup {
    /// All groups, in the order of the help text.
    pub const ALL: [Self; 17] = [
        Self::General,
        Self::Model,
        Self::Server,
        Self::Tls,
        Self::Logging,
        Self::Api,
        Self::Content,
        Self::Tools,
        Self::Delays,
        Self::Scheduler,
        Self::Timing,
        Self::KvCache,
        Self::KvEvents,
        Self::Parallel,
        Self::Lora,
        Self::Failures,
        Self::Metrics,
    ];

    /// Returns the heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Server => "Server",
            Self::Tls => "TLS",
            Self::Logging => "Logging",
            Self::Api => "API",
            Self::Content => "Content of replies",
            Self::Tools => "Tool calls",
            Self::Delays => "Delays",
            Self::Scheduler => "Scheduler and queue",
            Self::Timing => "Step times",
            Self::KvCache => "KV cache",
            Self::KvEvents => "KV events",
            Self::Parallel => "Parallelism",
            Self::Lora => "LoRA",
            Self::Failures => "Failures",
            Self::Metrics => "Metrics",
            Self::General => "General",
        }
    }
}
