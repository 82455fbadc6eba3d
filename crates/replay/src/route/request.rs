use std::sync::Arc;

use vllm_sim_engine::{BlockKey, EngineStats, PlannedKvBlocks};

#[derive(Debug, Clone)]
pub(in super::super) struct RouteRequest {
    pub slot: u32,
    /// Index of the request in dispatch order; selects its random stream.
    pub number: u64,
    pub session: u64,
    pub adapter: Option<u64>,
    /// KV block keys of the prompt; `None` if routing does not depend on the prompt's tokens.
    pub plan: Option<Arc<PlannedKvBlocks>>,
    pub prompt: u32,
    pub priority: i32,
    pub strict_priority: u32,
}

impl RouteRequest {
    pub(super) fn full_prompt_block_keys(&self) -> &[BlockKey] {
        let Some(plan) = &self.plan else {
            return &[];
        };
        let full = self.prompt.checked_div(plan.block_size).unwrap_or(0);
        &plan.keys[..plan.keys.len().min(full as usize)]
    }

    pub(super) fn prompt_block_size_tokens(&self) -> u32 {
        self.plan.as_ref().map_or(1, |plan| plan.block_size.max(1))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct RouteChoice {
    pub worker: u32,
    /// Number of the prompt's KV blocks that the router assumes to be cached on the chosen worker.
    pub overlap: u32,
    /// Maximum number of the prompt's blocks cached on any worker; `None` if the router does not
    /// use prefix caches.
    pub best: Option<u32>,
}

pub(in super::super) type WorkerGauges<'a> = &'a dyn Fn(u32) -> EngineStats;
