//! Projects that a server imitates, and the formats of their KV events.

/// Project to imitate where vLLM, llm-d-inference-sim and SGLang differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetricsCompat {
    /// Metrics as in vLLM: an adapter with requests is in the lists of running and of waiting
    /// adapters. Tool calls count as `stop`, and prefills for a remote decode server as `length`.
    #[default]
    Vllm,
    /// Metrics as in llm-d-inference-sim: the lists of running and waiting adapters contain only
    /// adapters with such requests. Tool calls and prefills for a remote decode server count under
    /// separate finish reasons.
    Llmd,
    /// Metrics as in SGLang: `/metrics` has the families of SGLang instead of those of vLLM.
    Sglang,
}

impl MetricsCompat {
    /// The names of the projects in `--compat`.
    pub const NAMES: [&'static str; 3] = ["vllm", "llm-d", "sglang"];

    /// The projects to imitate, in the order of [`Self::NAMES`].
    pub const ALL: [Self; 3] = [Self::Vllm, Self::Llmd, Self::Sglang];
}

/// Format of KV events, named after the program that publishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvEventFormat {
    /// Format of vLLM 0.32 and later: each KV event is a map.
    #[default]
    Vllm,
    /// Default format of llm-d-inference-sim: each KV event is an array.
    LlmdArray,
    /// Format of llm-d-inference-sim with `use-vllm-map-event-format`: each KV event is a map.
    LlmdMap,
    /// Format of SGLang: each KV event is a map without fields that are not set.
    Sglang,
}

impl KvEventFormat {
    /// Returns whether the KV event format is one of llm-d-inference-sim's.
    pub const fn is_llmd_format(self) -> bool {
        matches!(self, Self::LlmdArray | Self::LlmdMap)
    }
}
