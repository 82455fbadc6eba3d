//! Request checks of APIs that receive prompts as token ids.

use super::Dialect;
use vllm_sim_wire::{Fault, Limits};

/// The request checks of vLLM's gRPC server and engine core.
///
/// Admission is checked only on submission, and texts are encoded without a prior length check.
#[derive(Debug)]
pub struct TokensApi;

impl Dialect for TokensApi {
    fn admits_on_arrival(&self) -> bool {
        false
    }

    fn check_text(&self, _: &Limits, _: &str, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn check_encoded(&self, limits: &Limits, tokens: usize) -> Result<(), Fault> {
        limits.prompt_tokens(tokens)
    }
}
