//! A pass over audio that answers no request of its own: a language is found out, a segment of a
//! live stream is written down.

use std::sync::Arc;

use crate::app::App;
use crate::generation::refusal_fault;
use vllm_sim_service::generate::request::{Prompt, Target};
use vllm_sim_service::{GenerationRequest, Prepared, Protocol, Refusal, Reply, Transfer};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sampling::SamplingParams;

/// What the road asks of a pass.
struct Pass {
    prompts: Vec<Prompt>,
    params: SamplingParams,
}

impl Protocol for Pass {
    type View = ();

    async fn prompts(&mut self, _: &Target) -> Result<Vec<Prompt>, Refusal> {
        Ok(std::mem::take(&mut self.prompts))
    }

    fn sampling_params(&mut self, _budget: i128) -> Result<Box<SamplingParams>, Fault> {
        Ok(Box::new(self.params.clone()))
    }

    fn view(&mut self, _ready: &Prepared) -> ((), Transfer) {
        ((), Transfer::Local)
    }
}

/// Starts a pass of at most `max_tokens` tokens over `prompt`.
///
/// # Errors
/// Why there is no room for it.
pub(super) async fn start(
    app: &Arc<App>,
    mut request: GenerationRequest<'_>,
    prompt: Prompt,
    max_tokens: Option<i128>,
) -> Result<Reply, Fault> {
    let mut pass = Pass {
        prompts: vec![prompt],
        params: SamplingParams {
            temperature: 0.0,
            max_tokens,
            ..SamplingParams::default()
        },
    };
    let served = app
        .service
        .serve(&app.policy.generation, &mut request, &mut pass);
    let served = served
        .await
        .map_err(|refused| refusal_fault(app, refused.into_refusal()))?;
    Ok(served.reply)
}
