//! Drafter and the GPU memory of draft models and adapters.

use super::error::ConfigError;
use super::flags::api;
use super::latency_source::LatencySource;
use super::parallel::Parallel;
use super::speculative::Speculative;
use super::values::Values;
use vllm_sim_engine::latency::{Drafter, ModelShape, WeightRanks, lora_bytes};

/// GPU memory in addition to weights, activations and cache, in bytes per GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReservedMemory {
    /// Weights of the draft model, in bytes.
    pub drafts: f64,
    /// Slots of LoRA adapters, in bytes.
    pub adapters: f64,
}

impl ReservedMemory {
    /// Returns the sum.
    pub fn total(self) -> f64 {
        self.drafts + self.adapters
    }
}

pub(super) fn reserve(
    v: &Values,
    shape: &ModelShape,
    speculative: Option<&Speculative>,
    parallel: &Parallel,
    latency_source: &LatencySource,
) -> Result<(Option<Drafter>, ReservedMemory), ConfigError> {
    let mut reserved = ReservedMemory::default();
    // Draft tokens of Dynamo's mocker take no time.
    let drafts = speculative.filter(|drafts| drafts.is_named);
    let drafter = drafts.and_then(|drafts| {
        let (own, at_once) = (drafts.draft.as_ref(), drafts.parallel);
        Drafter::of(&drafts.method, shape, own, drafts.num_tokens, at_once)
    });
    match (drafts, &drafter) {
        (Some(drafts), Some(drafter)) => {
            let tensor = drafts.tensor.unwrap_or(parallel.tensor);
            reserved.drafts = drafter.weight_bytes(WeightRanks::new(tensor, parallel.data));
        }
        // Without a GPU, step times do not depend on the drafter's size.
        (Some(drafts), None) if latency_source.uses_gpu() => v.warn(format!(
            "--speculative-config: nothing is known of the size of this {}: drafts take no time and \
             no memory",
            drafts.method
        )),
        _ => {}
    }
    if v.get(&api::ENABLE_LORA)? {
        let (slots, rank) = (v.get(&api::MAX_LORAS)?, v.get(&api::MAX_LORA_RANK)?);
        let stage = shape.stage(parallel.pipeline);
        reserved.adapters = lora_bytes(&stage, parallel.tensor, slots, rank);
    }
    Ok((drafter, reserved))
}
