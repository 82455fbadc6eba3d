//! Bounds that vLLM takes from its environment while it checks the schema of a request.
//!
//! Schemas are constants, but `VLLM_MAX_STOP_STRINGS` and its kind are read by vLLM's classes: who
//! reads a body says what it is read within.

/// The length of lists that [`RequestBounds::stop_strings`] limits, in schemas.
pub(crate) const STOP_STRINGS: usize = usize::MAX - 1;

/// Most of what one request may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestBounds {
    /// Choices (`VLLM_MAX_N_SEQUENCES`).
    pub n: i128,
    /// Prompts of a completion (`VLLM_MAX_COMPLETION_PROMPTS`).
    pub prompts: usize,
    /// Stop strings (`VLLM_MAX_STOP_STRINGS`).
    pub stop_strings: usize,
}

impl Default for RequestBounds {
    fn default() -> Self {
        Self {
            n: 16_384,
            prompts: 1024,
            stop_strings: 4,
        }
    }
}
