//! Latency model of the draft model, and GPU memory of draft models and LoRA adapters.

use super::error::ConfigError;
use super::flags::api;
use super::latency_source::StepLatencySource;
use super::parallel::ParallelConfig;
use super::speculative::SpeculativeConfig;
use super::values::FlagValues;
use vllm_sim_engine::latency::{Drafter, ModelShape, WeightShardingRanks, lora_slot_bytes};

/// GPU memory of draft models and LoRA adapters, in bytes per GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReservedGpuMemory {
    /// Size of the draft model's weights, in bytes per GPU.
    pub drafts: f64,
    /// Size of the slots for LoRA adapters, in bytes per GPU.
    pub adapters: f64,
}

impl ReservedGpuMemory {
    /// Returns the memory of draft model and adapters together, in bytes per GPU.
    pub fn reserved_bytes_per_gpu(self) -> f64 {
        self.drafts + self.adapters
    }
}

pub(super) fn reserve_draft_and_lora_memory(
    v: &FlagValues,
    shape: &ModelShape,
    speculative: Option<&SpeculativeConfig>,
    parallel: &ParallelConfig,
    latency_source: &StepLatencySource,
) -> Result<(Option<Drafter>, ReservedGpuMemory), ConfigError> {
    let mut reserved = ReservedGpuMemory::default();
    // Draft tokens of Dynamo's mocker take no time.
    let drafts = speculative.filter(|drafts| drafts.is_named);
    let drafter = drafts.and_then(|drafts| {
        let (own, at_once) = (drafts.draft.as_ref(), drafts.parallel);
        Drafter::drafter_for_speculative_method(
            &drafts.method,
            shape,
            own,
            drafts.num_tokens,
            at_once,
        )
    });
    match (drafts, &drafter) {
        (Some(drafts), Some(drafter)) => {
            let tensor = drafts.tensor.unwrap_or(parallel.tensor);
            reserved.drafts =
                drafter.draft_weight_bytes(WeightShardingRanks::new(tensor, parallel.data));
        }
        // Without a GPU, step times do not depend on the drafter's size.
        (Some(drafts), None) if latency_source.step_times_depend_on_gpu() => {
            v.add_warning(format!(
                "--speculative-config: the size of this {} is unknown: drafts take no time and no \
             memory",
                drafts.method
            ))
        }
        _ => {}
    }
    if v.get(&api::ENABLE_LORA)? {
        let (slots, rank) = (v.get(&api::MAX_LORAS)?, v.get(&api::MAX_LORA_RANK)?);
        let stage = shape.largest_pipeline_stage(parallel.pipeline);
        reserved.adapters = lora_slot_bytes(&stage, parallel.tensor, slots, rank);
    }
    Ok((drafter, reserved))
}
