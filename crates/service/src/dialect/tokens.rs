//! Request checks of APIs that receive prompts as token ids.

use super::Dialect;
use vllm_sim_wire::{Fault, ServerLimits};

/// The request checks of vLLM's gRPC server and engine core.
///
/// Admission is checked only on submission, and texts are encoded without a prior length check.
#[derive(Debug)]
pub struct TokenIdDialect;

impl Dialect for TokenIdDialect {
    fn admits_on_arrival(&self) -> bool {
        false
    }

    fn check_text_length(&self, _: &ServerLimits, _: &str, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Accepts any requested output: these APIs shorten it.
    fn check_prompt_and_output(
        &self,
        _: &ServerLimits,
        _: usize,
        _: Option<i128>,
    ) -> Result<(), Fault> {
        Ok(())
    }

    fn check_encoded_length(&self, limits: &ServerLimits, tokens: usize) -> Result<(), Fault> {
        limits.check_prompt_tokens(tokens)
    }
}
