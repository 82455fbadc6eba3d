use crate::replay::report::{Collector, Facts, Options, Report};
use crate::replay::workload::Source;
use crate::replay::{Pace, PoolSpec, Settings};
use crate::sim::SimTime;

use super::DynamoError;
use super::args::Setup;

/// Plays a run to its end.
pub(super) fn play(setup: &Setup, source: &mut dyn Source) -> Result<Report, DynamoError> {
    let settings = Settings {
        pool: PoolSpec::new(setup.engine.clone(), setup.workers, setup.router.clone()),
        prefill: None,
        pace: Pace {
            concurrency: setup.concurrency,
            speedup: setup.speedup,
        },
        limit: setup.max_ms.map(millis),
        seed: 0,
        sample_every: None,
    };
    let mut collector = Collector::new(Options {
        slo: setup.sla,
        per_request: setup.capture,
    });
    let totals = crate::replay::run(&settings, source, &mut collector)?;
    Ok(collector.finish(&Facts {
        requests: totals.requests,
        prefill_worker_seconds: 0.0,
        decode_worker_seconds: None,
        workers: setup.workers,
        gpus: (0, setup.gpus),
    }))
}

/// Milliseconds as an instant, to the nearest nanosecond.
fn millis(ms: f64) -> SimTime {
    SimTime::from_nanos((ms * 1e6).round() as u64)
}
