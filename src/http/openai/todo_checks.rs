use crate::wire::fault::Fault;
use crate::wire::openai::chat::ChatRequest;
use crate::wire::openai::completion::CompletionRequest;
pub(in crate::http) struct Limits;
impl crate::http::App {
    pub(in crate::http) fn limits(&self) -> Limits {
        Limits
    }
}
impl ChatRequest {
    pub(in crate::http) fn validate_early(&self, _: &Limits) -> Result<(), Fault> {
        Ok(())
    }
    pub(in crate::http) fn validate_sampling(&self, _: &Limits, _: u32) -> Result<(), Fault> {
        Ok(())
    }
    pub(in crate::http) fn validate_engine(&self, _: &Limits) -> Result<(), Fault> {
        Ok(())
    }
}
impl CompletionRequest {
    pub(in crate::http) fn validate_early(&self, _: &Limits) -> Result<(), Fault> {
        Ok(())
    }
    pub(in crate::http) fn validate_sampling(&self, _: &Limits, _: u32) -> Result<(), Fault> {
        Ok(())
    }
    pub(in crate::http) fn validate_engine(&self, _: &Limits, _: &[&[u32]]) -> Result<(), Fault> {
        Ok(())
    }
}
