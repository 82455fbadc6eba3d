//! Tests whether a deployment keeps up with the traffic of a run.

use std::ops::ControlFlow;

use anyhow::Result;

use super::{MAX_SCALED_REQUESTS, TrialRunner};
use crate::trend::{LatencyTrend, QueueGrowth};
use vllm_sim_replay::outcome::RequestOutcome;
use vllm_sim_replay_cli::{
    WorkerPools, WorkloadArgs, open_workload, replay_pools, simulated_time_limit,
};

impl TrialRunner<'_> {
    /// Returns whether the queue grows in a run of `workload`, whose latencies are in `trend`.
    ///
    /// The minute of a `--workload` text may be too short to show it. Then a longer workload of the
    /// same rate runs for this test alone.
    pub(super) fn queue_growth(
        &self,
        trend: LatencyTrend,
        pools: &WorkerPools,
        workload: &WorkloadArgs,
    ) -> Result<QueueGrowth> {
        let factor = trend.lengthening_factor();
        let growth = trend.queue_growth();
        let typed = &self.candidate.workload;
        let is_text = typed.workload.is_some() && typed.request_count.is_none();
        let (Some(factor), Some(count), true) = (factor, workload.request_count, is_text) else {
            return Ok(growth);
        };
        if matches!(growth, QueueGrowth::Grows(_)) || simulated_time_limit(workload)?.is_some() {
            return Ok(growth);
        }
        let longer = WorkloadArgs {
            request_count: Some(((count as f64 * factor).ceil() as u64).min(MAX_SCALED_REQUESTS)),
            ..workload.clone()
        };
        let (mut source, pace) = open_workload(&longer, pools.serving.engines[0].block_size())?;
        let mut trend = LatencyTrend::default();
        let mut watch = |outcome: &RequestOutcome<'_>| {
            trend.add_request_outcome(outcome);
            ControlFlow::Continue(())
        };
        let args = &self.candidate.report;
        replay_pools(pools, source.as_mut(), (pace, None, 1), args, Some(&mut watch))?;
        Ok(trend.queue_growth())
    }
}
