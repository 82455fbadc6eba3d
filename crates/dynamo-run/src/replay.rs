use vllm_sim_engine::SimTime;
use vllm_sim_replay::outcome::{Outcome, Sink, Status};
use vllm_sim_replay::report::{Collector, KeptRecords, Report, ReportOptions, RunTotals, UserRate};
use vllm_sim_replay::workload::WorkloadSource;
use vllm_sim_replay::{ArrivalPacing, PoolSpec, RouterConfig, Settings};

use super::args::{RooflineSetup, Workers};
use super::error::DynamoError;

/// Simulates a Dynamo deployment until its workload ends; `seed` breaks the router's ties between
/// equal workers.
pub(super) fn play(
    setup: &RooflineSetup,
    seed: u64,
    source: &mut dyn WorkloadSource,
) -> Result<Report, DynamoError> {
    let pool = |workers: &Workers, router: RouterConfig| {
        let worker = &workers.worker;
        let places = workers.count.saturating_mul(worker.ranks);
        PoolSpec {
            ranks: worker.ranks,
            transfer: worker.transfer,
            ..PoolSpec::new(worker.engine.clone(), places, router)
        }
    };
    let (before, after) = setup.router.split();
    let settings = Settings {
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
        limit: setup.max_ms.map(millis),
        seed,
        sample_every: None,
        threads: 1,
        without_tokens: Status::Completed,
    };
    let mut collector = Collector::new(ReportOptions {
        slo: setup.sla,
        records: match setup.capture {
            true => KeptRecords::All,
            false => KeptRecords::None,
        },
        user_rate: UserRate::PerGap,
        ..ReportOptions::default()
    });
    let totals = vllm_sim_replay::run(&settings, source, &mut Finished(&mut collector))?;
    Ok(collector.finish(&RunTotals {
        requests: totals.requests,
        prefill_worker_seconds: totals.prefill_worker_seconds,
        decode_worker_seconds: Some(
            totals.worker_seconds / f64::from(setup.serving.worker.ranks.max(1)),
        ),
        workers: setup.serving.count,
        gpus: (
            setup
                .prefill
                .as_ref()
                .map_or(0, |workers| workers.worker.gpus),
            setup.serving.worker.gpus,
        ),
        prefill_tokens: totals.prefill_tokens,
    }))
}

/// Drops requests from the report if they are unfinished at the time limit, as Dynamo does.
struct Finished<'a>(&'a mut Collector);

impl Sink for Finished<'_> {
    fn request(&mut self, outcome: &Outcome<'_>) {
        if outcome.status != Status::Incomplete {
            self.0.request(outcome);
        }
    }

    fn gaps(&mut self, nanos: u64, times: u64) {
        self.0.gaps(nanos, times);
    }
}

fn millis(ms: f64) -> SimTime {
    SimTime::from_nanos((ms * 1e6).round() as u64)
}
