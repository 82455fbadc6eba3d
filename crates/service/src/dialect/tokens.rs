//! The dialect of APIs between programs, which send prompts as token ids.

use super::Dialect;
use vllm_sim_wire::{Fault, Limits};

/// vLLM's gRPC server and engine core: admission with the job alone, and texts are counted whole.
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
