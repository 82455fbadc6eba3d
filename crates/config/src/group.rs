/// Declares the groups of flags, in the order of the help text, with their headings.
macro_rules! flag_help_groups {
    ($($(#[$doc:meta])* $group:ident: $heading:literal,)*) => {
        /// Group of flags, shown under one heading of the help text.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum FlagHelpGroup {
            $($(#[$doc])* $group,)*
        }

        impl FlagHelpGroup {
            /// All groups of flags, in the order of the help text.
            pub const ALL_FLAG_GROUPS: [Self; [$($heading),*].len()] = [$(Self::$group),*];

            /// Returns the heading of the group in help texts.
            pub fn help_text_heading(self) -> &'static str {
                match self {
                    $(Self::$group => $heading,)*
                }
            }
        }
    };
}

flag_help_groups! {
    /// Flags of configuration files and of the program itself.
    General: "General",
    /// Flags of model, tokenizer and chat template.
    Model: "Model",
    /// Flags of the server's sockets, headers and routes.
    Server: "Server",
    /// Flags of TLS.
    Tls: "TLS",
    /// Flags of logs.
    Logging: "Logging",
    /// Flags of the behavior and limits of the HTTP API.
    Api: "API",
    /// Flags of the content of replies.
    Content: "Content of replies",
    /// Flags of generated tool calls.
    Tools: "Tool calls",
    /// Flags of the delays of the pool scheduler.
    Delays: "Delays",
    /// Flags of the scheduler, its batches and its queues.
    Scheduler: "Scheduler and queue",
    /// Flags of the step times of the batching schedulers.
    Timing: "Step times",
    /// Flags of KV cache, offloading and transfer.
    KvCache: "KV cache",
    /// Flags of KV event publishing.
    KvEvents: "KV events",
    /// Flags of parallel sizes and data-parallel ranks.
    Parallel: "Parallelism",
    /// Flags of LoRA adapters.
    Lora: "LoRA",
    /// Flags of injected faults and scenarios.
    Failures: "Failures",
    /// Flags of metrics.
    Metrics: "Metrics",
}
