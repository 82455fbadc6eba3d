use crate::replay::workload::{Session, Source, WorkloadError};
use crate::replay::{Pace, PoolSpec, RouterConfig, Settings};
use crate::sim::SimTime;

use super::DynamoError;
use super::args::Setup;
use super::report::{Recorder, Report};

/// Sessions in a list.
struct Listed(std::vec::IntoIter<Session>);

impl Source for Listed {
    fn next(&mut self) -> Result<Option<Session>, WorkloadError> {
        Ok(self.0.next())
    }
}

/// Plays a run to its end.
pub(super) fn play(mut setup: Setup) -> Result<Report, DynamoError> {
    let mut sessions = std::mem::take(&mut setup.sessions);
    if setup.concurrency.is_none() {
        sessions.sort_by_key(|session| session.start);
    }
    let settings = Settings {
        pool: PoolSpec::new(
            setup.engine.clone(),
            setup.workers,
            RouterConfig::RoundRobin,
        ),
        prefill: None,
        pace: Pace {
            concurrency: setup.concurrency,
            // The workload is sped up already.
            speedup: 1.0,
        },
        limit: setup.max_ms.map(millis),
        seed: 0,
        sample_every: None,
    };
    let mut recorder = Recorder::default();
    let totals = crate::replay::run(&settings, &mut Listed(sessions.into_iter()), &mut recorder)?;
    Ok(Report::new(&setup, recorder, &totals))
}

/// Milliseconds as an instant, to the nearest nanosecond.
fn millis(ms: f64) -> SimTime {
    SimTime::from_nanos((ms * 1e6).round() as u64)
}
