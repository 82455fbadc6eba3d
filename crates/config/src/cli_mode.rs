//! The command-line mode.

/// Command-line mode, which selects the set of flag defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CliMode {
    /// `vllm-sim --model X`: the flags and defaults of llm-d-inference-sim.
    #[default]
    Llmd,
    /// `vllm-sim serve X`: the flags and defaults of vLLM.
    Vllm,
}
