//! Limits that vLLM reads from environment variables while it checks a request's schema.
//!
//! Schemas are constants, but vLLM's classes read `VLLM_MAX_STOP_STRINGS` and similar variables.
//! The caller that parses a body passes the limits.

/// Placeholder in a schema for the maximum number of stop strings, replaced by
/// [`RequestBounds::stop_strings`].
pub(crate) const MAX_STOP_STRINGS_PLACEHOLDER: usize = usize::MAX - 1;

/// Limits of one request, from vLLM's environment variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestBounds {
    /// Maximum number of outputs per prompt (`VLLM_MAX_N_SEQUENCES`).
    pub n: i128,
    /// Maximum number of prompts of a completion request (`VLLM_MAX_COMPLETION_PROMPTS`).
    pub prompts: usize,
    /// Maximum number of stop strings of a request (`VLLM_MAX_STOP_STRINGS`).
    pub stop_strings: usize,
}

impl Default for RequestBounds {
    fn default() -> Self {
        Self { n: 16_384, prompts: 1024, stop_strings: 4 }
    }
}
