//! What prefill and decode workers change in the settings of their engines.

use std::time::Duration;

use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_engine::sched::mocker::MockerRole;

/// Who is ready first when a prompt moves from one pool to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandoffOrder {
    /// The prompt is computed, then the other side finds room (vLLM).
    SourceFirst,
    /// The other side finds room, then the prompt is computed (SGLang).
    DestinationFirst,
}

/// How prompts get from engines like this one to those that make output, if somebody has to look
/// after it; else they fetch them.
pub(super) fn handoff_order(spec: &EngineSpec) -> Option<HandoffOrder> {
    match spec {
        EngineSpec::Mocker(_) => Some(HandoffOrder::SourceFirst),
        EngineSpec::Sglang(_) => Some(HandoffOrder::DestinationFirst),
        EngineSpec::Vllm(_) | EngineSpec::Pool(_) => None,
    }
}

/// Makes it an engine that makes output for prompts that others computed.
pub(super) fn make_decode(spec: &mut EngineSpec) {
    match spec {
        EngineSpec::Mocker(config) => config.role = MockerRole::Decode,
        EngineSpec::Sglang(config) => (config.handoff, config.free_prompts) = (true, true),
        EngineSpec::Vllm(_) | EngineSpec::Pool(_) => {}
    }
}

/// The worker at this index draws by itself.
pub(super) fn reseed(spec: &mut EngineSpec, index: usize) {
    match spec {
        EngineSpec::Mocker(config) => config.seed = config.seed.wrapping_add(index as u64),
        EngineSpec::Sglang(config) => config.seed = config.seed.wrapping_add(index as u64),
        EngineSpec::Vllm(_) | EngineSpec::Pool(_) => {}
    }
}

/// Reports its blocks, or does not; keeps those of prompts that others fetch, or does not.
pub(super) fn set_cache_duties(spec: &mut EngineSpec, events: bool, lends: bool) {
    match spec {
        EngineSpec::Pool(config) => {
            if let Some(kv) = &mut config.kv {
                kv.events = events;
            }
        }
        EngineSpec::Vllm(config) => {
            config.kv_events = events;
            // Until they are fetched, however long that takes.
            config.lease = lends.then_some(Duration::MAX);
        }
        EngineSpec::Mocker(config) => {
            config.kv_events = events;
            if lends {
                config.role = MockerRole::Prefill;
            }
        }
        EngineSpec::Sglang(config) => {
            config.kv_events = events;
            config.handoff |= lends;
        }
    }
}
