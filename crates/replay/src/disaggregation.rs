//! Configures engines as prefill or decode workers.

use std::time::Duration;

use super::outcome::PoolRole;
use super::route::RouterConfig;
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_engine::sched::mocker::MockerRole;

/// Order of prefill and of the KV block reservation on the decode worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandoffOrder {
    /// Prefill first, then KV block reservation on the decode worker (vLLM).
    SourceFirst,
    /// KV block reservation on the decode worker first, then prefill (SGLang).
    DestinationFirst,
}

/// Returns the handoff order of an engine, or `None` if its decode workers fetch the KV blocks
/// themselves.
pub(super) fn handoff_order(spec: &EngineSpec) -> Option<HandoffOrder> {
    match spec {
        EngineSpec::Mocker(_) => Some(HandoffOrder::SourceFirst),
        EngineSpec::Sglang(_) => Some(HandoffOrder::DestinationFirst),
        EngineSpec::Vllm(_) | EngineSpec::Pool(_) => None,
    }
}

pub(super) fn make_decode(spec: &mut EngineSpec) {
    match spec {
        EngineSpec::Mocker(config) => config.role = MockerRole::Decode,
        EngineSpec::Sglang(config) => (config.handoff, config.free_prompts) = (true, true),
        EngineSpec::Vllm(_) | EngineSpec::Pool(_) => {}
    }
}

pub(super) fn reseed(spec: &mut EngineSpec, index: usize) {
    match spec {
        EngineSpec::Mocker(config) => config.seed = config.seed.wrapping_add(index as u64),
        EngineSpec::Sglang(config) => config.seed = config.seed.wrapping_add(index as u64),
        EngineSpec::Vllm(_) | EngineSpec::Pool(_) => {}
    }
}

/// Sets whether the engine emits KV events, as its router needs, and whether it holds prompts for
/// decode workers, as those of a prefill pool do.
pub(super) fn set_cache_duties(spec: &mut EngineSpec, router: &RouterConfig, role: PoolRole) {
    let events = router.wants_events();
    let lends = role == PoolRole::Prefill;
    match spec {
        EngineSpec::Pool(config) => {
            if let Some(kv) = &mut config.kv {
                kv.events = events;
            }
        }
        EngineSpec::Vllm(config) => {
            config.reporting.kv_events = events;
            // Blocks are held until they are fetched, without a time limit.
            config.transfer.lease = lends.then_some(Duration::MAX);
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
