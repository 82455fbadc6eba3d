//! Configures engines as prefill or decode workers.

use std::time::Duration;

use super::outcome::PoolRole;
use super::route::RouterConfig;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::dynamo_mocker::DynamoMockerRole;

/// Order of prefill and of the KV block reservation on the decode worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrefillHandoffOrder {
    /// Prefill first, then KV block reservation on the decode worker (vLLM).
    SourceFirst,
    /// KV block reservation on the decode worker first, then prefill (SGLang).
    DestinationFirst,
}

/// Returns the handoff order of an engine, or `None` if its decode workers fetch the KV blocks
/// themselves.
pub(super) fn prefill_handoff_order(spec: &SchedulerSpec) -> Option<PrefillHandoffOrder> {
    match spec {
        SchedulerSpec::Mocker(_) => Some(PrefillHandoffOrder::SourceFirst),
        SchedulerSpec::Sglang(_) => Some(PrefillHandoffOrder::DestinationFirst),
        SchedulerSpec::Vllm(_) | SchedulerSpec::Pool(_) => None,
    }
}

pub(super) fn configure_decode_engine(spec: &mut SchedulerSpec) {
    match spec {
        SchedulerSpec::Mocker(config) => config.role = DynamoMockerRole::Decode,
        SchedulerSpec::Sglang(config) => (config.handoff, config.free_prompts) = (true, true),
        SchedulerSpec::Vllm(_) | SchedulerSpec::Pool(_) => {}
    }
}

pub(super) fn derive_worker_seed(spec: &mut SchedulerSpec, index: usize) {
    match spec {
        SchedulerSpec::Mocker(config) => config.seed = config.seed.wrapping_add(index as u64),
        SchedulerSpec::Sglang(config) => config.seed = config.seed.wrapping_add(index as u64),
        SchedulerSpec::Vllm(_) | SchedulerSpec::Pool(_) => {}
    }
}

/// Configures an engine to emit KV events if its router needs them, and, if it is in a prefill
/// pool, to hold the KV blocks of prompts for decode workers.
pub(super) fn set_kv_cache_event_options(
    spec: &mut SchedulerSpec,
    router: &RouterConfig,
    role: PoolRole,
) {
    let events = router.needs_kv_events();
    let lends = role == PoolRole::Prefill;
    match spec {
        SchedulerSpec::Pool(config) => {
            if let Some(kv) = &mut config.kv {
                kv.events = events;
            }
        }
        SchedulerSpec::Vllm(config) => {
            config.reporting.kv_events = events || config.reporting.step_log;
            // Blocks are held until they are fetched, without a time limit.
            config.transfer.lease = lends.then_some(Duration::MAX);
        }
        SchedulerSpec::Mocker(config) => {
            config.kv_events = events;
            if lends {
                config.role = DynamoMockerRole::Prefill;
            }
        }
        SchedulerSpec::Sglang(config) => {
            config.kv_events = events;
            config.handoff |= lends;
        }
    }
}
