//! Searches the fewest workers, or the highest traffic, of one flag combination by simulated runs.

mod queue;
mod split;

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use vllm_sim_replay::outcome::RequestOutcome;
use vllm_sim_replay::report::{LatencySlo, ReplayReport};

use super::bound::LatencyPercentileBound;
use super::context::ContextRefusals;
use super::idle_worker;
use super::layout::ParallelLayout;
use super::prices::HourlyGpuPrices;
use super::worker_count::{WorkerCountByKind, gpus_of_workers, repeat_worker_pools};
use crate::trend::LatencyTrend;
use vllm_sim_command_line::progress::is_job_stop_requested;
use vllm_sim_replay_cli::{
    ReportArgs, WeightsDoNotFitError, WorkerPools, WorkloadArgs, open_workload,
    parse_workload_text, replay_pools, simulated_time_limit,
};

/// Maximum factor of the requested traffic in the search for the highest traffic that a fixed
/// number of workers serves.
pub(super) const MAX_TRAFFIC_FACTOR: f64 = 1024.0;

/// Command-line flags with the requirements on a deployment.
#[derive(Debug, Clone, Args)]
pub(super) struct PlanRequirements {
    /// Fraction of all requests that must be good, above 0 up to 1.
    #[arg(long, default_value_t = 0.95, help_heading = "Plan")]
    pub(super) attainment: f64,
    /// Maximum number of GPUs of a deployment.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Plan")]
    pub(super) max_gpus: u32,
    /// YAML file of GPU prices: `date`, `currency` and `gpu_hour: {H100: 2.5}`. With it the answer
    /// has costs per hour, month and million tokens; without it GPUs are counted.
    #[arg(long, value_name = "FILE", help_heading = "Plan")]
    pub(super) prices: Option<PathBuf>,
    /// Maximum cost of a deployment per hour, in the currency of --prices.
    #[arg(long, value_name = "MONEY", requires = "prices", help_heading = "Plan")]
    pub(super) max_cost: Option<f64>,
    /// Upper bound of a percentile: METRIC-pPERCENT=MS with METRIC ttft, itl (single gaps between
    /// tokens), tpot (the mean gap of a request) or e2e, such as ttft-p99=500. Rounded up to a
    /// quarter of a percent. Repeat it for several bounds.
    #[arg(long = "bound", value_name = "BOUND", help_heading = "Plan")]
    pub(super) bounds: Vec<LatencyPercentileBound>,
    /// Find the highest traffic that this number of workers serves, instead of the fewest workers.
    /// --max-gpus and --max-cost are refused with it, because it sets GPUs and cost.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=65_536),
        conflicts_with_all = ["max_gpus", "max_cost"],
        help_heading = "Plan"
    )]
    pub(super) fixed_workers: Option<u32>,
}

pub(super) struct DeploymentCandidate {
    pub(super) values: Vec<String>,
    /// Parallel layout chosen by the search for the candidate; `None` if the command line describes
    /// it.
    pub(super) layout: Option<ParallelLayout>,
    pub(super) workload: WorkloadArgs,
    pub(super) report: ReportArgs,
    /// Engines of one worker or one prefill/decode group; `Err` if the model does not fit.
    pub(super) pools: Result<WorkerPools, WeightsDoNotFitError>,
    pub(super) prices: HourlyGpuPrices,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SimulatedDeploymentTrial {
    pub(super) workers: WorkerCountByKind,
    pub(super) gpus: u32,
    /// Rates of generated tokens, and of prompt and generated tokens together, per second.
    ///
    /// With a request rate they are those of the traffic, else those of the run, which includes its
    /// end with few requests.
    pub(super) output_rate: f64,
    pub(super) token_rate: f64,
    /// Traffic of the run, as a factor of the requested traffic.
    pub(super) traffic: f64,
    pub(super) attainment: f64,
    /// Reasons why the run does not meet the requirements, except that too few requests were within
    /// their latency bounds.
    pub(super) missed: Vec<String>,
    /// Reason why the run does not show whether the queue grows, if it does not.
    pub(super) untested_queue: Option<String>,
    /// Whether the run was stopped early because too many requests had missed their bounds.
    ///
    /// Attainment and summary then cover only the simulated part.
    pub(super) stopped: bool,
    pub(super) summary: Map<String, Value>,
}

impl SimulatedDeploymentTrial {
    /// Returns whether requests have latency bounds; without them, every request counts as within
    /// its bounds.
    pub(super) fn has_latency_bounds(&self) -> bool {
        self.summary.contains_key("slo_attainment")
    }

    pub(super) fn report_summary_number(&self, key: &str) -> f64 {
        self.summary.get(key).and_then(Value::as_f64).unwrap_or(0.0)
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct CandidateSearchResult {
    /// Successful run with the fewest workers, or with the highest traffic; `None` if there is
    /// none.
    pub(super) found: Option<SimulatedDeploymentTrial>,
    pub(super) trials: Vec<SimulatedDeploymentTrial>,
    pub(super) why: Option<String>,
}

/// Finds the fewest workers, or the highest traffic, for one flag combination.
///
/// # Errors
/// Returns the errors of the simulated runs.
pub(super) fn search_deployment_candidate(
    candidate: &DeploymentCandidate,
    question: &PlanRequirements,
) -> Result<CandidateSearchResult> {
    if is_job_stop_requested() {
        return Ok(empty_search_result("stopped".to_owned()));
    }
    let mut runner = match TrialRunner::new(candidate, question) {
        Ok(runner) => runner,
        Err(misfit) => return Ok(empty_search_result(misfit.why.clone())),
    };
    let refusals = runner.context_refusals()?;
    if let Some(refusals) = refusals.filter(ContextRefusals::refuses_all) {
        return Ok(empty_search_result(format!("not simulated: {refusals}")));
    }
    if let Some(workers) = question.fixed_workers {
        let workers = WorkerCountByKind::Groups(workers);
        let found = runner.bisect_most_traffic(workers, MAX_TRAFFIC_FACTOR)?;
        let why = "no request is good, however low the traffic is".to_owned();
        return Ok(finish_search(found, runner.trials, append_refusals(why, refusals)));
    }
    if runner.most_groups() == 0 {
        let one = gpus_of_workers(runner.pools, WorkerCountByKind::Groups(1));
        let (gpus, most) = (one, question.max_gpus);
        let why = match question.max_cost {
            Some(cost) if gpus <= most => {
                let each = runner.cost_of_one_group();
                format!("one worker costs {each:.2}, --max-cost is {cost}")
            }
            _ => format!("one worker takes {gpus} GPUs, --max-gpus is {most}"),
        };
        return Ok(empty_search_result(why));
    }
    if let Some(why) = runner.infeasible_reason()? {
        return Ok(empty_search_result(append_refusals(why, refusals)));
    }
    let found = runner.fewest(1.0)?;
    let why = runner.trials.last().map(|last| missed_bounds_description(last, candidate));
    Ok(finish_search(found, runner.trials, append_refusals(why.unwrap_or_default(), refusals)))
}

/// Adds the requests that the context length refuses to the reason why a search found nothing.
fn append_refusals(why: String, refusals: Option<ContextRefusals>) -> String {
    match refusals {
        Some(refusals) => format!("{why}; {refusals}"),
        None => why,
    }
}

/// Returns the number of units that `cost` buys at `price`, tolerant of binary rounding: 3 for a
/// cost of 3.3 and a price of 1.1.
fn affordable_units(cost: f64, price: f64) -> u32 {
    // The cast saturates.
    (cost * (1.0 + 1e-9) / price) as u32
}

pub(super) fn empty_search_result(why: String) -> CandidateSearchResult {
    CandidateSearchResult { found: None, trials: Vec::new(), why: Some(why) }
}

fn finish_search(
    found: Option<SimulatedDeploymentTrial>,
    trials: Vec<SimulatedDeploymentTrial>,
    why: String,
) -> CandidateSearchResult {
    let why = found.is_none().then_some(why);
    CandidateSearchResult { found, trials, why }
}

/// Describes the latency bounds that the largest deployment within the budget misses.
fn missed_bounds_description(
    trial: &SimulatedDeploymentTrial,
    candidate: &DeploymentCandidate,
) -> String {
    let report = &candidate.report;
    let bounds = [
        ("TTFT", "p99_ttft_ms", report.slo_ttft_ms),
        // `--slo-itl-ms` bounds the mean gap of a request.
        ("ITL", "p99_tpot_ms", report.slo_itl_ms),
        ("E2E", "p99_e2e_latency_ms", report.slo_e2e_ms),
    ];
    let missed = bounds.iter().filter_map(|(name, key, bound)| {
        let (bound, value) = ((*bound)?, trial.report_summary_number(key));
        (value > bound).then(|| format!("{name} p99 {value:.1} ms, bound {bound} ms"))
    });
    let missed = missed.chain(trial.missed.iter().cloned()).chain(trial.workload_reason());
    let missed: Vec<String> = missed.collect();
    let (gpus, good) = (trial.gpus, 100.0 * trial.attainment);
    match missed.is_empty() {
        true => format!("with {gpus} GPUs {good:.1} % of the requests are good"),
        false => {
            format!("with {gpus} GPUs {good:.1} % of the requests are good ({})", missed.join("; "))
        }
    }
}

pub(super) struct TrialRunner<'c> {
    candidate: &'c DeploymentCandidate,
    pools: &'c WorkerPools,
    question: &'c PlanRequirements,
    /// Maximum number of GPUs that the GPU and cost budgets allow.
    most_gpus: u32,
    trials: Vec<SimulatedDeploymentTrial>,
}

impl<'c> TrialRunner<'c> {
    /// Creates a runner of trial simulations for one flag combination.
    ///
    /// # Errors
    /// [`WeightsDoNotFitError`] if the model does not fit.
    pub(super) fn new(
        candidate: &'c DeploymentCandidate,
        question: &'c PlanRequirements,
    ) -> Result<Self, &'c WeightsDoNotFitError> {
        let pools = candidate.pools.as_ref()?;
        let most_gpus = question.max_gpus;
        let mut runner = Self { candidate, pools, question, most_gpus, trials: Vec::new() };
        if let Some(cost) = question.max_cost {
            runner.most_gpus = most_gpus.min(runner.affordable_gpus(cost));
        }
        Ok(runner)
    }

    /// Returns the cost per hour of one worker, or of one prefill/decode group.
    fn cost_of_one_group(&self) -> f64 {
        self.candidate.prices.cost_per_hour(self.pools, WorkerCountByKind::Groups(1))
    }

    /// Returns the maximum number of GPUs with a cost per hour of at most `cost`.
    fn affordable_gpus(&self, cost: f64) -> u32 {
        let gpus = gpus_of_workers(self.pools, WorkerCountByKind::Groups(1)).max(1);
        let each = self.cost_of_one_group();
        match self.candidate.layout.is_some_and(|layout| layout.split) {
            // Prefill and decode workers have the same GPU, and their numbers are independent.
            true => affordable_units(cost, each / f64::from(gpus)),
            false => affordable_units(cost, each).saturating_mul(gpus),
        }
    }

    /// Returns the reason why no number of workers can keep the latency bounds, if that is certain
    /// without a simulation.
    fn infeasible_reason(&self) -> Result<Option<String>> {
        let workload = &self.candidate.workload;
        if simulated_time_limit(workload)?.is_some() {
            return Ok(None);
        }
        let block_size = self.pools.serving.engines[0].block_size();
        let open = || Ok(open_workload(workload, block_size)?.0);
        let asked = (self.candidate.report.latency_slo()?, self.question.attainment);
        idle_worker::infeasible_latency_bounds_reason(self.pools, asked, &open)
    }

    /// Returns the requests of the workload that the context length refuses; `None` without any,
    /// and for a run of limited duration.
    fn context_refusals(&self) -> Result<Option<ContextRefusals>> {
        let workload = &self.candidate.workload;
        if simulated_time_limit(workload)?.is_some() {
            return Ok(None);
        }
        let block_size = self.pools.serving.engines[0].block_size();
        let (mut source, _) = open_workload(workload, block_size)?;
        ContextRefusals::count(self.pools, source.as_mut())
    }

    /// Returns the maximum number of workers, or of prefill/decode groups, within the budget.
    fn most_groups(&self) -> u32 {
        self.most_gpus / gpus_of_workers(self.pools, WorkerCountByKind::Groups(1)).max(1)
    }

    /// Finds the fewest workers that serve `traffic` times the requested traffic; `None` if they
    /// exceed the GPU or cost budget.
    pub(super) fn fewest(&mut self, traffic: f64) -> Result<Option<SimulatedDeploymentTrial>> {
        if self.candidate.layout.is_some_and(|layout| layout.split) {
            return self.search_fewest_prefill_decode_workers(traffic);
        }
        let bounds = (0, self.most_groups());
        let found = self.fewest_between(bounds, traffic, WorkerCountByKind::Groups)?;
        Ok(found.map(|(_, trial)| trial))
    }

    /// Finds the fewest workers, more than `too_few`, that suffice for `traffic`: doubles their
    /// number, then bisects. `count` converts such a number to a number of workers of each kind.
    fn fewest_between(
        &mut self,
        (mut too_few, most): (u32, u32),
        traffic: f64,
        count: impl Fn(u32) -> WorkerCountByKind,
    ) -> Result<Option<(u32, SimulatedDeploymentTrial)>> {
        let mut workers = too_few.saturating_add(1);
        let (mut enough, mut found) = loop {
            // The largest deployment runs to its end, so that the report can name what it misses.
            let extent = match workers >= most {
                true => RunExtent::Whole,
                false => RunExtent::UntilMissed,
            };
            let trial = self.simulate_trial(count(workers), traffic, extent)?;
            if self.meets_requirements(&trial) {
                break (workers, trial);
            }
            if workers >= most {
                return Ok(None);
            }
            too_few = workers;
            workers = workers.saturating_mul(2).min(most);
        };
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            let trial = self.simulate_trial(count(middle), traffic, RunExtent::UntilMissed)?;
            if self.meets_requirements(&trial) {
                (enough, found) = (middle, trial);
            } else {
                too_few = middle;
            }
        }
        Ok(Some((enough, found)))
    }

    /// Doubles or halves the traffic until it brackets the capacity of `workers` workers, then
    /// bisects to 1 %.
    ///
    /// The search ends at `max_factor` times the requested traffic, and at its inverse.
    pub(super) fn bisect_most_traffic(
        &mut self,
        workers: WorkerCountByKind,
        max_factor: f64,
    ) -> Result<Option<SimulatedDeploymentTrial>> {
        let first = self.simulate_trial(workers, 1.0, RunExtent::UntilMissed)?;
        let (mut found, mut too_much) = if self.meets_requirements(&first) {
            let mut found = first;
            loop {
                let trial =
                    self.simulate_trial(workers, 2.0 * found.traffic, RunExtent::UntilMissed)?;
                if !self.meets_requirements(&trial) {
                    break (found, trial.traffic);
                }
                if trial.traffic >= max_factor {
                    return Ok(Some(trial));
                }
                found = trial;
            }
        } else {
            let mut too_much = first.traffic;
            loop {
                let trial = self.simulate_trial(workers, too_much / 2.0, RunExtent::UntilMissed)?;
                if self.meets_requirements(&trial) {
                    break (trial, too_much);
                }
                too_much = trial.traffic;
                if too_much <= 1.0 / max_factor {
                    return Ok(None);
                }
            }
        };
        while too_much / found.traffic > 1.01 {
            let trial = self.simulate_trial(
                workers,
                (found.traffic * too_much).sqrt(),
                RunExtent::UntilMissed,
            )?;
            if self.meets_requirements(&trial) {
                found = trial;
            } else {
                too_much = trial.traffic;
            }
        }
        Ok(Some(found))
    }

    /// Returns whether enough requests are within their latency bounds and the run fulfils every
    /// other requirement.
    fn meets_requirements(&self, trial: &SimulatedDeploymentTrial) -> bool {
        trial.attainment >= self.question.attainment && trial.missed.is_empty()
    }

    fn simulate_trial(
        &mut self,
        workers: WorkerCountByKind,
        traffic: f64,
        extent: RunExtent,
    ) -> Result<SimulatedDeploymentTrial> {
        let is_same = |trial: &&SimulatedDeploymentTrial| {
            let is_whole = !trial.stopped || extent == RunExtent::UntilMissed;
            trial.workers == workers && trial.traffic == traffic && is_whole
        };
        if let Some(known) = self.trials.iter().find(is_same) {
            return Ok(known.clone());
        }
        let pools = repeat_worker_pools(self.pools, workers);
        let workload = scale_traffic(&self.candidate.workload, traffic)?;
        let (mut source, pace) = open_workload(&workload, pools.serving.engines[0].block_size())?;
        let limit = simulated_time_limit(&workload)?;
        let mut trend = LatencyTrend::default();
        let args = &self.candidate.report;
        let mut tracker = AttainmentTracker {
            slo: args.latency_slo()?,
            attainment: self.question.attainment,
            requests: source.facts().max_requests.filter(|_| extent == RunExtent::UntilMissed),
            bad: 0,
        };
        let mut watch = |outcome: &RequestOutcome<'_>| {
            trend.add_request_outcome(outcome);
            tracker.add_outcome(outcome)
        };
        let is_open = pace.concurrency_limit().is_none();
        let report =
            replay_pools(&pools, source.as_mut(), (pace, limit, 1), args, Some(&mut watch))?;
        let stopped = tracker.is_attainment_lost();
        let bounds = self.question.bounds.iter().filter(|_| !stopped);
        let mut missed: Vec<String> =
            bounds.filter_map(|bound| bound.missed_bound_message(&report)).collect();
        let mut untested_queue = None;
        if stopped {
            missed.push(format!(
                "stopped after {} requests that are not good, which is too many",
                tracker.bad
            ));
        } else if is_open {
            use crate::trend::QueueGrowth;
            match self.queue_growth(trend, &pools, &workload)? {
                QueueGrowth::None => {}
                QueueGrowth::Grows(growth) => missed.push(format!("the queue grows: {growth}")),
                QueueGrowth::Untested(why) => untested_queue = Some(why),
            }
        }
        let mut summary = report.summary.clone();
        for bound in &self.question.bounds {
            if let Some(value) = bound.percentile_ms(&report) {
                summary.entry(bound.report_summary_key()).or_insert_with(|| value.into());
            }
        }
        let completed = report.summary_number("completed_requests");
        let (output_rate, token_rate) = token_rates(&workload, &report);
        let trial = SimulatedDeploymentTrial {
            workers,
            gpus: gpus_of_workers(self.pools, workers),
            output_rate,
            token_rate,
            traffic,
            attainment: match report.summary.contains_key("slo_attainment") {
                true => report.summary_number("slo_attainment"),
                false => completed / report.summary_number("num_requests").max(1.0),
            },
            missed,
            untested_queue,
            stopped,
            summary,
        };
        self.trials.push(trial.clone());
        Ok(trial)
    }
}

/// Returns the rates of generated tokens and of all tokens per second, as in
/// [`SimulatedDeploymentTrial`].
fn token_rates(workload: &WorkloadArgs, report: &ReplayReport) -> (f64, f64) {
    let rate = workload.request_rate.filter(|rate| rate.is_finite());
    let turns = workload.synthetic.turns_per_session.as_ref();
    let is_plain = workload.rate_curve.is_none()
        && turns.is_none_or(|turns| turns.constant_tokens() == Some(1));
    let seconds = match rate.filter(|_| is_plain) {
        Some(rate) => {
            report.summary_number("completed_requests") / (rate * workload.arrival_speedup_ratio)
        }
        None => report.summary_number("duration_ms") / 1e3,
    };
    let per_second = |tokens: f64| if seconds > 0.0 { tokens / seconds } else { 0.0 };
    let output = report.summary_number("total_output_tokens");
    let input = report.summary_number("total_input_tokens");
    (per_second(output), per_second(output + input))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunExtent {
    Whole,
    /// The simulation stops as soon as too many requests have missed their latency bounds.
    UntilMissed,
}

/// Tracks whether enough requests of a run can still be within their latency bounds.
struct AttainmentTracker {
    slo: LatencySlo,
    attainment: f64,
    /// Upper bound of the run's number of requests; `None` if unknown.
    requests: Option<u64>,
    bad: u64,
}

impl AttainmentTracker {
    fn add_outcome(&mut self, outcome: &RequestOutcome<'_>) -> ControlFlow<()> {
        if !self.slo.has_any_latency_bound() || self.is_attainment_lost() {
            return ControlFlow::Continue(());
        }
        self.bad += u64::from(!self.slo.is_slo_met_by(outcome));
        match self.is_attainment_lost() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn is_attainment_lost(&self) -> bool {
        // Same division as in the final attainment, which rounding cannot put above this value.
        self.requests.is_some_and(|requests| {
            let most = requests.saturating_sub(self.bad) as f64;
            most / (requests.max(1) as f64) < self.attainment
        })
    }
}

/// Maximum number of requests to which a synthetic workload is scaled up.
const MAX_SCALED_REQUESTS: u64 = 200_000;

/// Scales the traffic of a workload by a factor.
///
/// A synthetic workload changes its rate and keeps its duration; a trace runs faster or slower.
fn scale_traffic(workload: &WorkloadArgs, traffic: f64) -> Result<WorkloadArgs> {
    let mut workload = match &workload.workload {
        Some(words) => parse_workload_text(words, workload)?,
        None => workload.clone(),
    };
    match (workload.request_rate, workload.request_count) {
        (Some(rate), Some(count)) if workload.files.is_empty() => {
            let more = (count as f64 * traffic).ceil() as u64;
            workload.request_rate = Some(rate * traffic);
            workload.request_count = Some(more.min(MAX_SCALED_REQUESTS).max(count));
        }
        _ => workload.arrival_speedup_ratio *= traffic,
    }
    Ok(workload)
}

#[cfg(test)]
mod tests {
    use super::affordable_units;

    #[test]
    fn affordable_gpus_tolerate_float_rounding() {
        for cents in 1..2_000_u32 {
            let price = f64::from(cents) / 100.0;
            for workers in 1..65_u32 {
                let cost = f64::from(cents * workers) / 100.0;
                assert_eq!(
                    affordable_units(cost, price),
                    workers,
                    "{workers} of {price} for {cost}"
                );
                assert_eq!(affordable_units(cost - 0.0001, price), workers - 1);
            }
        }
    }
}
