//! Prepares one measured benchmark run for repeated simulation.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::validate::{
    LatencyPrediction, RecordedRequest, RecordedRun, RunLatencySummary, SimulatedBenchClient,
    error_over_stages, measured_summaries,
};
use vllm_sim_engine::SimTime;
use vllm_sim_engine::latency::{
    LatencyModel, RooflineCoefficients, RooflineModel, RooflineModelSetup,
};
use vllm_sim_engine::sched::vllm::{VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{BlockKey, PlannedKvBlocks};
use vllm_sim_random::mix_u64_pair;
use vllm_sim_replay::load::{BenchRun, LatencyStats, MeasuredRequest, OfferedLoad};

use super::parameters::RooflineParameter;
use super::{CalibrateError, CalibrateOptions};

pub(super) struct CalibrationCase {
    pub(super) name: String,
    pub(super) held_out: bool,
    /// Reason why only the run's inter-token latencies are fitted; `None` if its other latencies
    /// are fitted too.
    pub(super) warning: Option<&'static str>,
    pub(super) targets: Vec<CalibrationFitTarget>,
    /// Model, GPU and tensor-parallel size of the run, for the report.
    pub(super) label: String,
    pub(super) run: RecordedRun,
    /// First requests of a long run, which suffice to compute the derivatives of the run's
    /// latencies with respect to the fitted parameters.
    start: Option<RecordedRun>,
    /// Whether the API server time of the run is fitted; false for in-process runs, which have no
    /// API server, and if the user gave a measured time.
    has_front_end: bool,
    /// API server time of the run's deployment minus the default API server time, in us.
    front_end_offset_us: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPartToSimulate {
    Whole,
    /// The simulation covers only the first requests of a run, which suffice to compute
    /// derivatives.
    Start,
}

pub(super) struct CalibrationFitTarget {
    pub(super) stage: Option<usize>,
    kind: LatencyStatistic,
    measured: f64,
    /// Weight of the latency statistic in the fit; 0 if the statistic is only reported.
    pub(super) weight: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LatencyStatistic {
    Ttft,
    TtftMedian,
    TtftTail,
    Itl,
    E2e,
}

impl LatencyStatistic {
    fn is_first_token(self) -> bool {
        matches!(self, Self::Ttft | Self::TtftMedian | Self::TtftTail)
    }

    fn value_in(self, latencies: &RunLatencySummary) -> f64 {
        match self {
            Self::Ttft => latencies.ttft_mean,
            Self::TtftMedian => latencies.ttft_p50,
            Self::TtftTail => latencies.ttft_p90,
            Self::Itl => latencies.itl_mean,
            Self::E2e => latencies.e2e_mean,
        }
    }
}

/// Properties of a measured run, which determine the set of parameters that can be fitted to it.
pub(super) struct CalibrationRunProperties {
    pub(super) load: f64,
    pub(super) prompt: f64,
    pub(super) context: f64,
    pub(super) hidden: u32,
    pub(super) tp: u32,
    pub(super) moe: bool,
    pub(super) stages: usize,
}

/// Weights of the latency statistics in the fit; most parameters hardly affect TTFT.
const TTFT_WEIGHT: f64 = 0.5;
const ITL_WEIGHT: f64 = 1.0;
/// Factor for the weight of the inter-token latencies of an overloaded run, in which the memory for
/// KV blocks determines batch size and recomputation.
const OVERLOADED_ITL_FACTOR: f64 = 0.3;
/// Ratio of achieved to requested request rate below which a run counts as overloaded.
const MIN_ACHIEVED_RATE_RATIO: f64 = 0.97;
/// Number of requests per stage of a run that suffice to compute the derivatives of the run's
/// latencies with respect to the fitted parameters.
const SLOPE_REQUESTS_PER_STAGE: usize = 500;
/// Minimum ratio of the mean TTFT in the last third of a run to that in the first third for the run
/// to count as overloaded.
const OVERLOAD_TTFT_GROWTH: f64 = 3.0;

impl CalibrationCase {
    /// Prepares a load generator's run for the fit; its deployment is given as `(engine, setup)`.
    pub(super) fn from_bench_run(
        bench: &BenchRun,
        (engine, setup): (&VllmSchedulerConfig, &RooflineModelSetup),
        options: &CalibrateOptions,
    ) -> Result<Self, CalibrateError> {
        if bench.requests.is_empty() {
            let problem = format!("{}: contains no successful request", bench.name);
            return Err(CalibrateError::Other(problem));
        }
        let block = engine.block_size;
        let starts = bench.send_times_ms(0);
        let most = options.max_requests.unwrap_or(usize::MAX);
        let requests = bench.requests.iter().zip(starts).enumerate().take(most);
        let requests = requests.map(|(i, (request, start))| RecordedRequest {
            at: SimTime::from_nanos((start * 1e6) as u64),
            stage: 0,
            prompt: request.input.max(1),
            output: request.output.max(1),
            plan: prompt_block_plan(request, i as u64, block),
        });
        let cap = match bench.load {
            OfferedLoad::Closed(n) => Some(n),
            OfferedLoad::Times | OfferedLoad::AtOnce | OfferedLoad::Drawn(_) => bench.cap,
        };
        let run = RecordedRun {
            id: bench.name.clone(),
            setup: measured_front_end(setup, options),
            engine: engine.clone(),
            ranks: 1,
            requests: requests.collect(),
            drains: false,
            stages: 1,
            timeout: None,
            first_use_stall: Duration::ZERO,
            max_in_flight: cap.map_or(usize::MAX, |n| n as usize),
            random_arrivals: false,
        };
        let warning = overload_warning(bench);
        let targets = fit_targets(None, &bench.stats, 1, warning);
        Self {
            held_out: is_held_out(&bench.name, options),
            name: bench.name.clone(),
            label: deployment_label("", setup),
            warning,
            targets,
            has_front_end: options.front_end_us.is_none(),
            front_end_offset_us: 0.0,
            start: None,
            run,
        }
        .require_targets()
    }

    /// Prepares a recorded run for the fit; the run's JSON describes its deployment.
    pub(super) fn from_recorded_run(
        json: &Value,
        options: &CalibrateOptions,
    ) -> Result<Self, CalibrateError> {
        let mut run = RecordedRun::parse_recorded_run(json, &RooflineCoefficients::default(), 0)?;
        let regime = json["regime"].as_str().unwrap_or_default();
        let warning = regime
            .starts_with("overload")
            .then_some("overloaded: only inter-token latencies are fitted");
        let measured = measured_summaries(json);
        let mut found = Vec::new();
        for (stage, value) in &measured {
            let ms = |key: &str| value[key].as_f64();
            let stats = LatencyStats {
                ttft_mean: ms("ttft_mean"),
                ttft_p50: ms("ttft_p50"),
                ttft_p90: ms("ttft_p90"),
                itl_mean: ms("itl_mean"),
                e2e_mean: ms("e2e_mean"),
                ..LatencyStats::default()
            };
            found.extend(fit_targets(*stage, &stats, measured.len(), warning));
        }
        if let Some(most) = options.max_requests {
            run.requests = first_requests_per_stage(&run, most);
        }
        let front_end = run.setup.coefficients.front_end_us;
        if front_end > 0.0 {
            run.setup = measured_front_end(&run.setup, options);
        }
        Self {
            held_out: is_held_out(&run.id, options),
            name: run.id.clone(),
            label: deployment_label(json["model"].as_str().unwrap_or_default(), &run.setup),
            warning,
            targets: found,
            has_front_end: front_end > 0.0 && options.front_end_us.is_none(),
            front_end_offset_us: front_end - RooflineCoefficients::default().front_end_us,
            start: None,
            run,
        }
        .require_targets()
    }

    fn require_targets(mut self) -> Result<Self, CalibrateError> {
        if self.targets.is_empty() {
            let problem = format!("{}: contains no measured latency", self.name);
            return Err(CalibrateError::Other(problem));
        }
        let measured = |kind, stage| {
            let target = self.targets.iter().find(|of| of.kind == kind && of.stage == stage);
            target.map(|target| target.measured)
        };
        for target in self.targets.iter().filter(|of| of.kind == LatencyStatistic::E2e) {
            let (e2e, ttft) = (target.measured, measured(LatencyStatistic::Ttft, target.stage));
            if let Some(ttft) = ttft.filter(|ttft| *ttft > e2e) {
                return Err(CalibrateError::Other(format!(
                    "{}: the measured mean TTFT ({ttft} ms) must not be above the mean E2E latency \
                     ({e2e} ms)",
                    self.name
                )));
            }
        }
        // A run without overload is stationary; a queue builds up over a whole run.
        if self.warning.is_none() && self.measured_stage_count() == 1 {
            self.start = start_of_run(&self.run);
        }
        Ok(self)
    }

    pub(super) fn calibration_run_properties(&self) -> CalibrationRunProperties {
        let n = self.run.requests.len().max(1) as f64;
        let sum = |of: &dyn Fn(&RecordedRequest) -> f64| {
            self.run.requests.iter().map(of).sum::<f64>() / n
        };
        let last = self.run.requests.last().map_or(0.0, |r| r.at.as_secs_f64());
        let rate = n / last.max(1e-3);
        let load = match self.run.max_in_flight {
            usize::MAX => rate,
            n => n as f64,
        };
        CalibrationRunProperties {
            load,
            prompt: sum(&|r| r.prompt.into()),
            context: sum(&|r| f64::from(r.prompt) + f64::from(r.output) / 2.0),
            hidden: self.run.setup.shape.hidden,
            tp: self.run.setup.tp,
            moe: self.run.setup.shape.moe.is_some(),
            stages: self.measured_stage_count(),
        }
    }

    pub(super) fn predict_latencies(
        &self,
        values: &[(RooflineParameter, f64)],
        part: RunPartToSimulate,
    ) -> Result<LatencyPrediction, CalibrateError> {
        let run = match part {
            RunPartToSimulate::Whole => &self.run,
            RunPartToSimulate::Start => self.start.as_ref().unwrap_or(&self.run),
        };
        let mut setup = self.run.setup.clone();
        for &(parameter, value) in values {
            let value = match parameter {
                RooflineParameter::FrontEnd if !self.has_front_end => continue,
                RooflineParameter::FrontEnd => (value + self.front_end_offset_us).max(0.0),
                _ => value,
            };
            parameter.set_coefficient_value(value, &mut setup.coefficients);
        }
        let other = |error: &dyn std::fmt::Display| CalibrateError::Other(error.to_string());
        let roofline = RooflineModel::new(&setup).map_err(|error| other(&error))?;
        let mut engines = Vec::new();
        for _ in 0..self.run.ranks {
            let mut config = self.run.engine.clone();
            config.latency = LatencyModel::Roofline(Box::new(roofline.clone()));
            engines.push(VllmScheduler::new(config).map_err(|error| other(&error))?);
        }
        let done = SimulatedBenchClient::new(run, engines, &roofline).simulate_to_end();
        Ok(LatencyPrediction::new(run, &done))
    }

    /// Returns the API server time of the deployment before the fit, in us, or `None` if it is not
    /// fitted.
    pub(super) fn front_end_time_before_fit_us(&self) -> Option<f64> {
        let default = RooflineCoefficients::default().front_end_us;
        self.has_front_end.then_some(default + self.front_end_offset_us)
    }

    /// Returns how much each fitted latency statistic changes if the parameter changes by the scale
    /// of its prior; `None` if only a simulation can determine this.
    ///
    /// These are means over all positions within a step at which requests arrive. In a simulation
    /// of requests at equal gaps, all arrive at the same position, so that a small move changes
    /// nothing or a whole step.
    pub(super) fn analytic_latency_slopes(&self, parameter: RooflineParameter) -> Vec<Option<f64>> {
        let scale = parameter.parameter_prior().scale;
        let front_end_ms = self.run.setup.coefficients.front_end_us / 1e3;
        let slopes = self.targets.iter().map(|target| match parameter {
            RooflineParameter::FrontEnd
                if target.kind == LatencyStatistic::Itl || !self.has_front_end =>
            {
                Some(0.0)
            }
            RooflineParameter::FrontEnd => Some(scale / 1e3 / target.measured),
            RooflineParameter::StepScale if target.kind.is_first_token() => {
                Some(scale * (1.0 - front_end_ms / target.measured).max(0.0))
            }
            _ => None,
        });
        slopes.collect()
    }

    pub(super) fn measured_stage_count(&self) -> usize {
        let mut stages: Vec<_> = self.targets.iter().map(|target| target.stage).collect();
        stages.dedup();
        stages.len()
    }

    /// Returns the logarithm of predicted / measured latency for every latency statistic of the
    /// fit.
    pub(super) fn log_latency_residuals(&self, prediction: &LatencyPrediction) -> Vec<f64> {
        let residuals = self.targets.iter().map(|target| {
            let latencies = prediction.summary_of_stage(target.stage);
            let predicted = latencies.map_or(0.0, |latencies| target.kind.value_in(latencies));
            (predicted.max(1e-6) / target.measured).ln()
        });
        residuals.collect()
    }

    /// Returns the prediction errors of TTFT, ITL and E2E latency in percent; for a run with
    /// stages, the mean absolute errors over the stages.
    pub(super) fn latency_error_percentages(
        &self,
        prediction: &LatencyPrediction,
    ) -> [Option<f64>; 3] {
        [LatencyStatistic::Ttft, LatencyStatistic::Itl, LatencyStatistic::E2e].map(|kind| {
            let of_kind = self.targets.iter().filter(|target| target.kind == kind);
            let errors = of_kind.filter_map(|target| {
                let latencies = prediction.summary_of_stage(target.stage)?;
                Some((kind.value_in(latencies) / target.measured - 1.0) * 100.0)
            });
            error_over_stages(errors)
        })
    }
}

fn first_requests_per_stage(run: &RecordedRun, most: usize) -> Vec<RecordedRequest> {
    let mut seen = vec![0usize; run.stages];
    let requests = run.requests.iter().filter(|request| {
        seen[request.stage] += 1;
        seen[request.stage] <= most
    });
    requests.cloned().collect()
}

fn start_of_run(run: &RecordedRun) -> Option<RecordedRun> {
    (run.requests.len() >= 2 * SLOPE_REQUESTS_PER_STAGE * run.stages.max(1)).then(|| RecordedRun {
        requests: first_requests_per_stage(run, SLOPE_REQUESTS_PER_STAGE),
        ..run.clone()
    })
}

/// Returns the deployment of a run; if the options of the fit contain a measured API server time,
/// the deployment has that time.
fn measured_front_end(
    setup: &RooflineModelSetup,
    options: &CalibrateOptions,
) -> RooflineModelSetup {
    let mut setup = setup.clone();
    if let Some(us) = options.front_end_us {
        setup.coefficients.front_end_us = us;
    }
    setup
}

fn deployment_label(model: &str, setup: &RooflineModelSetup) -> String {
    let model = model.rsplit('/').next().unwrap_or(model);
    let tp = match setup.tp {
        1 => String::new(),
        n => format!(" x {n}"),
    };
    format!("{model} on {}{tp}", setup.gpu.name)
}

/// Returns the latency statistics to which the parameters are fitted: those of a run, or of one of
/// its `stages`.
///
/// A run has one target for the first token and one for gaps, because the errors of its statistics
/// are correlated. E2E is their sum, and is only reported.
fn fit_targets(
    stage: Option<usize>,
    stats: &LatencyStats,
    stages: usize,
    overload: Option<&str>,
) -> Vec<CalibrationFitTarget> {
    let overloaded = overload.is_some();
    let known = |measured: Option<f64>| measured.filter(|ms| ms.is_finite() && *ms > 0.0);
    let (mean, median) = (known(stats.ttft_mean), known(stats.ttft_p50));
    let tail = known(stats.ttft_p90);
    // A mean above the 90th percentile is dominated by a few requests, such as those that waited
    // for the compilation of kernels.
    let few = mean.zip(tail).is_some_and(|(mean, tail)| mean > tail);
    let first = match (mean, median, tail) {
        (Some(_), ..) if !few => LatencyStatistic::Ttft,
        (_, Some(_), _) => LatencyStatistic::TtftMedian,
        _ => LatencyStatistic::TtftTail,
    };
    let found = [
        (LatencyStatistic::Ttft, mean, TTFT_WEIGHT),
        (LatencyStatistic::TtftMedian, median, TTFT_WEIGHT),
        (LatencyStatistic::TtftTail, tail, TTFT_WEIGHT),
        (LatencyStatistic::Itl, known(stats.itl_mean), ITL_WEIGHT),
        (LatencyStatistic::E2e, known(stats.e2e_mean), 0.0),
    ];
    let found = found.into_iter().filter_map(|(kind, measured, weight)| {
        // Queueing amplifies errors of step times, so queued requests have little information about
        // them.
        let counts = match (kind, overloaded) {
            (LatencyStatistic::Itl, true) => OVERLOADED_ITL_FACTOR,
            (LatencyStatistic::Itl, false) => 1.0,
            (_, overloaded) if kind == first && !overloaded => 1.0,
            _ => 0.0,
        };
        Some(CalibrationFitTarget {
            stage,
            kind,
            measured: measured?,
            weight: counts * weight / stages as f64,
        })
    });
    found.collect()
}

fn is_held_out(name: &str, options: &CalibrateOptions) -> bool {
    options.hold_out.iter().any(|held| is_name_of_run(held, name))
}

/// Returns whether a name on the command line is the name of the run `name`, or its file name with
/// or without `.json`.
fn is_name_of_run(typed: &str, name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    name == typed || file.trim_end_matches(".json") == typed || file == typed
}

/// Refuses names of `--hold-out` that no run has.
pub(super) fn check_hold_out_names(
    cases: &[CalibrationCase],
    options: &CalibrateOptions,
) -> Result<(), CalibrateError> {
    let is_unknown = |held: &&String| cases.iter().all(|case| !is_name_of_run(held, &case.name));
    match options.hold_out.iter().find(is_unknown) {
        Some(name) => Err(unknown_run_error("--hold-out", name, cases)),
        None => Ok(()),
    }
}

/// Returns the error for a name on the command line that no run has.
pub(super) fn unknown_run_error(
    flag: &str,
    name: &str,
    cases: &[CalibrationCase],
) -> CalibrateError {
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    let names = names.join(", ");
    CalibrateError::Other(format!("{flag}: no run has the name {name:?}; the runs are {names}"))
}

/// Returns a warning if the run shows that the server could not keep up with the load.
fn overload_warning(bench: &BenchRun) -> Option<&'static str> {
    if bench.rates.is_some_and(|(asked, reached)| reached < MIN_ACHIEVED_RATE_RATIO * asked)
        && matches!(bench.load, OfferedLoad::Drawn(_))
        && bench.requests.len() >= 200
    {
        return Some(
            "overloaded (less than 97 % of the requested rate): only inter-token \
             latencies are fitted",
        );
    }
    let ttft: Vec<f64> = bench.requests.iter().filter_map(|r| r.ttft_ms).collect();
    let third = ttft.len() / 3;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let open = matches!(bench.load, OfferedLoad::Times | OfferedLoad::Drawn(_));
    let grows = third >= 30
        && mean(&ttft[2 * third..]) > OVERLOAD_TTFT_GROWTH * mean(&ttft[..third])
        && mean(&ttft[2 * third..]) > 1000.0;
    (open && grows).then_some(
        "overloaded (TTFT grows during the run): only inter-token latencies \
         are fitted",
    )
}

/// Returns the KV block keys of a request's prompt; requests with the same prefix share the keys of
/// cached blocks.
fn prompt_block_plan(request: &MeasuredRequest, number: u64, block: u32) -> Arc<PlannedKvBlocks> {
    let shared = match (&request.prefix, request.cached) {
        (Some(_), Some(cached)) => cached,
        // The cached tokens come from an unknown request, so all such requests share one prefix.
        (None, Some(cached)) => cached,
        _ => 0,
    };
    let name = request.prefix.as_deref().unwrap_or_default();
    let prefix = name.bytes().fold(1, |id, byte| mix_u64_pair(id, byte.into()));
    let total = request.input.saturating_add(request.output);
    let keys = (0..total / block.max(1)).map(|i| {
        let owner = if (i + 1) * block <= shared { prefix } else { mix_u64_pair(3, number) };
        BlockKey(mix_u64_pair(owner, i.into()))
    });
    Arc::new(PlannedKvBlocks {
        keys: keys.collect(),
        block_size: block,
        ..PlannedKvBlocks::default()
    })
}
