/// Headings of the help text, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlagGroup {
    /// Which model is imitated.
    Model,
    /// Sockets and headers.
    Server,
    /// Encryption.
    Tls,
    /// Logs.
    Logging,
    /// What the API offers.
    Api,
    /// What replies say.
    Content,
    /// Tool calls.
    Tools,
    /// Delays of the pool scheduler.
    Delays,
    /// Batches and queues.
    Scheduler,
    /// Step times of the batching schedulers.
    Timing,
    /// Blocks.
    KvCache,
    /// Events about blocks.
    KvEvents,
    /// Ranks.
    Parallel,
    /// Adapters.
    Lora,
    /// Failures on purpose.
    Failures,
    /// Metrics.
    Metrics,
    /// The program itself.
    General,
}

impl FlagGroup {
    /// All of them, in order.
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

    /// The heading.
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
