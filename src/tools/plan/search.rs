use anyhow::Result;
use serde_json::{Map, Value};

use crate::tools::progress::is_stopped;
use crate::tools::replay::{Pools, ReportArgs, WorkloadArgs, limit, open, play};

/// What is asked of every combination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    /// Share of all requests that must be good.
    pub(super) attainment: f64,
    pub(super) max_gpus: u32,
    /// Look for the highest traffic of so many workers.
    pub(super) fixed_workers: Option<u32>,
}

/// A combination of flags.
pub(super) struct Candidate {
    /// The value of each axis.
    pub(super) values: Vec<String>,
    pub(super) workload: WorkloadArgs,
    pub(super) report: ReportArgs,
    /// One worker, or the prefill and decode workers of one group; or why the model does not fit.
    pub(super) pools: Result<Pools, String>,
    /// Of a GPU for an hour.
    pub(super) price: f64,
}

/// A run.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    /// Workers, or groups of prefill and decode workers.
    pub(super) workers: u32,
    pub(super) gpus: u32,
    /// Traffic, in times of what was asked.
    pub(super) traffic: f64,
    /// Share of all requests that were good.
    pub(super) attainment: f64,
    /// The keys of a replay's summary.
    pub(super) summary: Map<String, Value>,
}

impl Trial {
    /// A number of the summary; 0 where there is none.
    pub(super) fn number(&self, key: &str) -> f64 {
        self.summary.get(key).and_then(Value::as_f64).unwrap_or(0.0)
    }
}

/// What came of a combination.
pub(super) struct Answer {
    /// The run that is good enough, with the fewest workers or the highest traffic.
    pub(super) found: Option<Trial>,
    /// Every run, the one that was found too.
    pub(super) trials: Vec<Trial>,
    /// Why nothing was found.
    pub(super) why: Option<String>,
}

/// Looks for the fewest workers, or the highest traffic, of a combination.
///
/// # Errors
/// Of a run.
pub(super) fn answer(candidate: &Candidate, question: &Question) -> Result<Answer> {
    if is_stopped() {
        return Ok(nothing("stopped".to_owned()));
    }
    let mut player = match Player::new(candidate, question) {
        Ok(player) => player,
        Err(why) => return Ok(nothing(why.clone())),
    };
    if let Some(workers) = question.fixed_workers {
        let found = player.most_traffic(workers)?;
        let why = "no request is good however little the traffic is".to_owned();
        return Ok(finish(found, player.trials, why));
    }
    if player.most_workers == 0 {
        let (gpus, most) = (gpus(player.pools, 1), question.max_gpus);
        let why = format!("one worker takes {gpus} GPUs, --max-gpus is {most}");
        return Ok(nothing(why));
    }
    let found = player.fewest_workers(1.0)?;
    let why = player.trials.last().map(|last| too_slow(last, candidate));
    Ok(finish(found, player.trials, why.unwrap_or_default()))
}

/// The fewest workers of a combination that fits, for traffic that is so many times what was asked.
///
/// # Errors
/// Of a run.
pub(super) fn fewest_workers(
    candidate: &Candidate,
    question: &Question,
    traffic: f64,
) -> Result<Option<Trial>> {
    match Player::new(candidate, question) {
        Ok(mut player) => player.fewest_workers(traffic),
        Err(_) => Ok(None),
    }
}

/// The highest traffic that so many workers of a combination serve.
///
/// # Errors
/// Of a run.
pub(super) fn most_traffic(
    candidate: &Candidate,
    question: &Question,
    workers: u32,
) -> Result<Option<Trial>> {
    match Player::new(candidate, question) {
        Ok(mut player) => player.most_traffic(workers),
        Err(_) => Ok(None),
    }
}

/// Nothing was found, and why.
pub(super) fn nothing(why: String) -> Answer {
    Answer {
        found: None,
        trials: Vec::new(),
        why: Some(why),
    }
}

fn finish(found: Option<Trial>, trials: Vec<Trial>, why: String) -> Answer {
    let why = found.is_none().then_some(why);
    Answer { found, trials, why }
}

/// GPUs of so many workers, or groups.
fn gpus(pools: &Pools, workers: u32) -> u32 {
    let (prefill, serving) = pools.gpus;
    let of = |engines: usize, gpus: u32| engines as u32 * gpus;
    let prefills = pools.prefill.as_ref().map_or(0, |pool| pool.engines.len());
    (of(prefills, prefill) + of(pools.serving.engines.len(), serving)) * workers
}

/// What the largest deployment within the budget is too slow at.
fn too_slow(trial: &Trial, candidate: &Candidate) -> String {
    let report = &candidate.report;
    let bounds = [
        ("TTFT", "p99_ttft_ms", report.slo_ttft_ms),
        // The bound of gaps holds for their mean.
        ("TPOT", "p99_tpot_ms", report.slo_itl_ms),
        ("E2E", "p99_e2e_latency_ms", report.slo_e2e_ms),
    ];
    let missed = bounds.iter().filter_map(|(name, key, bound)| {
        let (bound, value) = ((*bound)?, trial.number(key));
        (value > bound).then(|| format!("{name} p99 {value:.1} ms, bound {bound} ms"))
    });
    let missed: Vec<String> = missed.collect();
    let (gpus, good) = (trial.gpus, 100.0 * trial.attainment);
    match missed.is_empty() {
        true => format!("with {gpus} GPUs {good:.1} % of the requests are good"),
        false => format!(
            "with {gpus} GPUs {good:.1} % of the requests are good ({})",
            missed.join("; ")
        ),
    }
}

/// Plays a combination again and again.
struct Player<'c> {
    candidate: &'c Candidate,
    pools: &'c Pools,
    /// Share of all requests that must be good.
    needed: f64,
    /// Within the budget.
    most_workers: u32,
    trials: Vec<Trial>,
}

impl<'c> Player<'c> {
    /// Or why the model does not fit.
    fn new(candidate: &'c Candidate, question: &Question) -> Result<Self, &'c String> {
        let pools = candidate.pools.as_ref()?;
        Ok(Self {
            candidate,
            pools,
            needed: question.attainment,
            most_workers: question.max_gpus / gpus(pools, 1).max(1),
            trials: Vec::new(),
        })
    }

    /// Doubles the workers until they suffice, then halves the interval.
    fn fewest_workers(&mut self, traffic: f64) -> Result<Option<Trial>> {
        let (mut too_few, mut workers) = (0, 1);
        let mut found = loop {
            let trial = self.play(workers, traffic)?;
            if trial.attainment >= self.needed {
                break trial;
            }
            if workers >= self.most_workers {
                return Ok(None);
            }
            too_few = workers;
            workers = (2 * workers).min(self.most_workers);
        };
        while found.workers - too_few > 1 {
            let trial = self.play(too_few + (found.workers - too_few) / 2, traffic)?;
            if trial.attainment >= self.needed {
                found = trial;
            } else {
                too_few = trial.workers;
            }
        }
        Ok(Some(found))
    }

    /// Doubles or halves the traffic, then narrows it down to 1 %.
    fn most_traffic(&mut self, workers: u32) -> Result<Option<Trial>> {
        /// Times of the traffic that was asked; also its inverse.
        const FARTHEST: f64 = 1024.0;
        let first = self.play(workers, 1.0)?;
        let (mut found, mut too_much) = if first.attainment >= self.needed {
            let mut found = first;
            loop {
                let trial = self.play(workers, 2.0 * found.traffic)?;
                if trial.attainment < self.needed {
                    break (found, trial.traffic);
                }
                if trial.traffic >= FARTHEST {
                    return Ok(Some(trial));
                }
                found = trial;
            }
        } else {
            let mut too_much = first.traffic;
            loop {
                let trial = self.play(workers, too_much / 2.0)?;
                if trial.attainment >= self.needed {
                    break (trial, too_much);
                }
                too_much = trial.traffic;
                if too_much <= 1.0 / FARTHEST {
                    return Ok(None);
                }
            }
        };
        while too_much / found.traffic > 1.01 {
            let trial = self.play(workers, (found.traffic * too_much).sqrt())?;
            if trial.attainment >= self.needed {
                found = trial;
            } else {
                too_much = trial.traffic;
            }
        }
        Ok(Some(found))
    }

    fn play(&mut self, workers: u32, traffic: f64) -> Result<Trial> {
        let mut pools = self.pools.clone();
        let all = [Some(&mut pools.serving), pools.prefill.as_mut()];
        for pool in all.into_iter().flatten() {
            let engines = std::mem::take(&mut pool.engines);
            let group = engines.iter().cycle().cloned();
            pool.engines = group.take(engines.len() * workers as usize).collect();
        }
        let mut workload = self.candidate.workload.clone();
        workload.arrival_speedup_ratio *= traffic;
        let (mut source, pace) = open(&workload, pools.serving.engines[0].block_size())?;
        let limit = limit(&workload)?;
        let report = play(&pools, source.as_mut(), pace, limit, &self.candidate.report)?;
        let trial = Trial {
            workers,
            gpus: gpus(self.pools, workers),
            traffic,
            attainment: report.number("slo_attainment"),
            summary: report.summary,
        };
        self.trials.push(trial.clone());
        Ok(trial)
    }
}
