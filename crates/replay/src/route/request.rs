use std::sync::Arc;

use vllm_sim_engine::{BlockKey, BlockPlan, Stats};

/// A request that wants a worker.
#[derive(Debug, Clone)]
pub(in super::super) struct RouteRequest {
    /// Its place among the living.
    pub slot: u32,
    /// Its place in the order of dispatch, for draws.
    pub number: u64,
    /// Number of its session.
    pub session: u64,
    /// Adapter that it asks for.
    pub adapter: Option<u64>,
    /// Its blocks, if there is anything to know of them.
    pub plan: Option<Arc<BlockPlan>>,
    /// Prompt tokens.
    pub prompt: u32,
    pub priority: i32,
    pub strict_priority: u32,
}

impl RouteRequest {
    /// Full blocks of the prompt.
    pub(super) fn blocks(&self) -> &[BlockKey] {
        let Some(plan) = &self.plan else {
            return &[];
        };
        let full = self.prompt.checked_div(plan.block_size).unwrap_or(0);
        &plan.keys[..plan.keys.len().min(full as usize)]
    }

    /// Tokens of a block, at least one.
    pub(super) fn block_size(&self) -> u32 {
        self.plan.as_ref().map_or(1, |plan| plan.block_size.max(1))
    }
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct RouteChoice {
    pub worker: u32,
    /// Blocks of its prompt that the router believes to be there.
    pub overlap: u32,
    /// The same of the best worker, of routers that look for them.
    pub best: Option<u32>,
}

/// The gauges of a worker.
pub(in super::super) type Gauges<'a> = &'a dyn Fn(u32) -> Stats;
