/// Group of flags, shown under one heading of the help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlagHelpGroup {
    /// Flags of model, tokenizer and chat template.
    Model,
    /// Flags of the server's sockets, headers and routes.
    Server,
    /// Flags of TLS.
    Tls,
    /// Flags of logs.
    Logging,
    /// Flags of the behavior and limits of the HTTP API.
    Api,
    /// Flags of the content of replies.
    Content,
    /// Flags of generated tool calls.
    Tools,
    /// Flags of the delays of the pool scheduler.
    Delays,
    /// Flags of the scheduler, its batches and its queues.
    Scheduler,
    /// Flags of the step times of the batching schedulers.
    Timing,
    /// Flags of KV cache, offloading and transfer.
    KvCache,
    /// Flags of KV event publishing.
    KvEvents,
    /// Flags of parallel sizes and data-parallel ranks.
    Parallel,
    /// Flags of LoRA adapters.
    Lora,
    /// Flags of injected faults and scenarios.
    Failures,
    /// Flags of metrics.
    Metrics,
    /// Flags of configuration files and of the program itself.
    General,
}

impl FlagHelpGroup {
    /// All groups of flags, in the order of the help text.
    pub const ALL_FLAG_GROUPS: [Self; 17] = [
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

    /// Returns the heading of the group in help texts.
    pub fn help_text_heading(self) -> &'static str {
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
