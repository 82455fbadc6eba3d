use vllm_sim_engine::SimTime;
use vllm_sim_replay::outcome::{ReplaySink, RequestOutcome, RequestStatus};
use vllm_sim_replay::report::{
    KeptRequestRecords, PerUserRateSamples, ReplayReport, ReplayRunTotals, ReportCollector,
    ReportOptions,
};
use vllm_sim_replay::workload::WorkloadSource;
use vllm_sim_replay::{ArrivalPacing, PoolSpec, ReplaySettings, RouterConfig};

use super::args::{DynamoRunSetup, DynamoWorkerGroup};
use super::error::DynamoRunError;

/// Simulates a Dynamo deployment until its workload ends; `seed` breaks the router's ties between
/// equal workers.
pub(super) fn simulate_deployment(
    setup: &DynamoRunSetup,
    seed: u64,
    source: &mut dyn WorkloadSource,
) -> Result<ReplayReport, DynamoRunError> {
    let pool = |workers: &DynamoWorkerGroup, router: RouterConfig| {
        let worker = &workers.worker;
        let places = workers.count.saturating_mul(worker.ranks);
        PoolSpec {
            ranks: worker.ranks,
            transfer: worker.transfer,
            ..PoolSpec::new(worker.engine.clone(), places, router)
        }
    };
    let (before, after) = setup.router.prefill_and_decode_routers();
    let settings = ReplaySettings {
        pool: pool(
            &setup.serving,
            match setup.prefill {
                Some(_) => after,
                None => setup.router.clone(),
            },
        ),
        prefill: setup.prefill.as_ref().map(|workers| pool(workers, before)),
        pace: ArrivalPacing {
            concurrency: setup.concurrency,
            plays: setup.plays,
            speedup: setup.speedup,
        },
        limit: setup.max_ms.map(sim_time_from_ms),
        seed,
        sample_every: None,
        threads: 1,
        without_tokens: RequestStatus::Completed,
    };
    let mut collector = ReportCollector::new(ReportOptions {
        slo: setup.sla,
        records: match setup.capture {
            true => KeptRequestRecords::All,
            false => KeptRequestRecords::None,
        },
        user_rate: PerUserRateSamples::PerGap,
        ..ReportOptions::default()
    });
    let totals =
        vllm_sim_replay::run_replay(&settings, source, &mut FinishedRequestSink(&mut collector))?;
    Ok(collector.into_report(&ReplayRunTotals {
        requests: totals.requests,
        prefill_worker_seconds: totals.prefill_worker_seconds,
        decode_worker_seconds: Some(
            totals.worker_seconds / f64::from(setup.serving.worker.ranks.max(1)),
        ),
        workers: setup.serving.count,
        gpus: (
            setup.prefill.as_ref().map_or(0, |workers| workers.worker.gpus),
            setup.serving.worker.gpus,
        ),
        prefill_tokens: totals.prefill_tokens,
    }))
}

/// Drops requests from the report if they are unfinished at the time limit, as Dynamo does.
struct FinishedRequestSink<'a>(&'a mut ReportCollector);

impl ReplaySink for FinishedRequestSink<'_> {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        if outcome.status != RequestStatus::Incomplete {
            self.0.on_request_finished(outcome);
        }
    }

    fn on_token_gaps(&mut self, nanos: u64, times: u64) {
        self.0.on_token_gaps(nanos, times);
    }
}

fn sim_time_from_ms(ms: f64) -> SimTime {
    SimTime::from_nanos((ms * 1e6).round() as u64)
}
