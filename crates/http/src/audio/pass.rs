//! Runs sequences over audio that are not HTTP requests of their own: language detection, and
//! segments of a live stream.

use std::sync::Arc;

use crate::app::App;
use crate::generation::request_error_fault;
use vllm_sim_service::generate::request::TokenizedPrompt;
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_service::{GenerationRequest, OutputBudget, Reply, ResolvedModel, SubmissionChecks};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sampling::SamplingParams;

/// Starts a sequence over the audio prompt `prompt`, with greedy sampling.
///
/// # Errors
/// The error of a rejected request.
pub(super) async fn start_audio_sequence(
    app: &Arc<App>,
    resolved: ResolvedModel,
    request: GenerationRequest,
    prompt: TokenizedPrompt,
) -> Result<Reply, Fault> {
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let request = GenerationRequest {
        prompts: PromptSource::Ready(vec![prompt]),
        room: OutputBudget::Context,
        checks: SubmissionChecks::None,
        sampling: Ok(params.into()).into(),
        ..request
    };
    let generated = app.service.generate(&app.rules, resolved, Box::new(request)).await;
    match generated {
        Ok((reply, _)) => Ok(reply),
        Err(refused) => Err(request_error_fault(app, refused.into_error())),
    }
}
