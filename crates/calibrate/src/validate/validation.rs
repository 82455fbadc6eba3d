use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use vllm_sim_engine::latency::KvCacheMemory;

use super::RecordedRunReplay;
use super::report::{
    LatencyPrediction, RunLatencySummary, error_over_stages, latency_quantile_curves, mean,
    measured_summaries, percentile,
};

/// Name and version of the validation report's JSON schema.
pub const VALIDATION_REPORT_SCHEMA: &str = "vllm-sim/fidelity/1";

/// JSON key and table label of a latency metric, and the function that reads it from a summary.
type LatencyMetric = (&'static str, &'static str, fn(&RunLatencySummary) -> f64);
pub(super) const LATENCY_METRICS: [LatencyMetric; 3] = [
    ("ttft_mean", "TTFT", |latencies| latencies.ttft_mean),
    ("itl_mean", "ITL", |latencies| latencies.itl_mean),
    ("e2e_mean", "E2E", |latencies| latencies.e2e_mean),
];

/// Prediction errors in percent, by latency metric; metrics that were not measured are missing.
pub(super) type MetricErrorPercentages = BTreeMap<&'static str, f64>;

/// Recorded runs with the predictions of their latencies.
#[derive(Debug, Clone)]
pub struct ValidationReport {
    /// Validated runs, in the order of their files.
    pub runs: Vec<ValidatedRun>,
    /// Ids of the skipped runs, each with the error that made the validation skip the run.
    pub left_out: Vec<(String, String)>,
}

/// Recorded run with the prediction of its latencies.
#[derive(Debug, Clone, Serialize)]
pub struct ValidatedRun {
    /// Id of the recorded run.
    pub id: String,
    /// Origin of the recorded run, as free text.
    pub source: String,
    /// Name of the LLM that the servers of the recorded run served.
    pub model: String,
    /// Name of the GPU type of the recorded run.
    pub gpu: &'static str,
    /// Number of GPUs that share each layer (tensor-parallel size).
    pub tp: u32,
    /// Number of the run's data-parallel engines.
    pub dp: u32,
    /// Storage format of the weights of the run's model.
    pub weights: &'static str,
    /// Size of the weights on each GPU, in GB.
    pub weight_gb: f64,
    /// Whether the run's model is a mixture of experts.
    pub experts: bool,
    /// Load regime of the run: `stable`, `overload` or `mixed`.
    pub regime: String,
    /// Predicted latencies of the run, in milliseconds.
    pub predicted: LatencyPrediction,
    /// Measured latencies as in the run's file, in milliseconds.
    pub measured: Value,
    /// Signed prediction errors in percent; for a run with several stages, mean absolute errors
    /// over the stages.
    pub error_percent: MetricErrorPercentages,
    /// Published absolute errors of other simulators for this run, in percent.
    pub peer_error_percent: BTreeMap<String, MetricErrorPercentages>,
    /// Predicted distributions of TTFT, ITL and E2E latency: evenly spaced quantiles, in ms.
    #[serde(skip)]
    pub(super) curves: [Vec<f64>; 3],
}

/// Median and mean absolute prediction error of several runs, in percent.
#[derive(Debug, Clone, Serialize)]
pub(super) struct AbsoluteErrorSummary {
    pub(super) runs: usize,
    pub(super) median: f64,
    pub(super) mean: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ValidatedRunGroup {
    /// Name of the property by which the runs are grouped, such as `GPU` or `regime`.
    pub(super) by: &'static str,
    pub(super) name: String,
    pub(super) runs: usize,
    pub(super) error_percent: BTreeMap<&'static str, AbsoluteErrorSummary>,
}

/// Published prediction errors of another simulator, and vllm-sim's prediction errors on the same
/// runs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PeerSimulatorErrors {
    pub(super) name: String,
    pub(super) runs: usize,
    pub(super) error_percent: BTreeMap<&'static str, AbsoluteErrorSummary>,
    pub(super) ours_on_these: BTreeMap<&'static str, AbsoluteErrorSummary>,
}

impl ValidatedRun {
    /// Compares the replays of a recorded run, at least one, with the measurements of the run.
    pub(super) fn new(recorded_run_json: &Value, replays: &[RecordedRunReplay]) -> Self {
        let predicted = LatencyPrediction::median_over_replays(replays);
        let (run, done) = &replays[0];
        let setup = &run.setup;
        let block = (run.engine.block_size, setup.kv_bytes);
        let (batched, seqs) = (run.engine.max_num_batched_tokens, run.engine.max_num_seqs);
        let memory = KvCacheMemory::new(
            &setup.shape,
            &setup.gpu,
            setup.weight_ranks(),
            1.0,
            block,
            &setup.profile_run(batched, seqs),
        );
        let text = |key: &str| recorded_run_json[key].as_str().unwrap_or_default().to_owned();
        let regime = text("regime");
        let regime = regime.split([' ', ':']).next().unwrap_or_default();
        Self {
            id: run.id.clone(),
            source: text("source"),
            model: text("model"),
            gpu: setup.gpu.name,
            tp: setup.tp,
            dp: run.ranks,
            weights: setup.shape.quantization.scheme.weight_dtype_name(),
            weight_gb: memory.weight_bytes / 1e9,
            experts: setup.shape.moe.is_some(),
            regime: regime.to_owned(),
            error_percent: prediction_errors(recorded_run_json, &predicted),
            peer_error_percent: published_peer_errors(recorded_run_json),
            measured: recorded_run_json["actual"].clone(),
            predicted,
            curves: latency_quantile_curves(run, done),
        }
    }
}

fn percent_error(predicted: f64, measured: Option<f64>) -> Option<f64> {
    let measured = measured.filter(|measured| *measured != 0.0)?;
    Some((predicted / measured - 1.0) * 100.0)
}

fn prediction_errors(json: &Value, prediction: &LatencyPrediction) -> MetricErrorPercentages {
    let measured = measured_summaries(json);
    let error = |(key, _, of): LatencyMetric| {
        let errors = measured.iter().filter_map(|(stage, measured)| {
            percent_error(of(prediction.summary_of_stage(*stage)?), measured[key].as_f64())
        });
        Some((key, error_over_stages(errors)?))
    };
    LATENCY_METRICS.into_iter().filter_map(error).collect()
}

/// Returns the prediction errors that other simulators published for a run. The errors are relative
/// to the measurements of the part of the run that these simulators used.
fn published_peer_errors(json: &Value) -> BTreeMap<String, MetricErrorPercentages> {
    let peers = json["peers"].as_object().into_iter().flatten();
    let peers = peers.map(|(name, said)| {
        let own = &said["own_actual"];
        let measured = match own.is_object() {
            true => own,
            false => &json["actual"]["summary"],
        };
        let error = |(key, ..): LatencyMetric| {
            Some((key, percent_error(said[key].as_f64()?, measured[key].as_f64())?.abs()))
        };
        let errors: MetricErrorPercentages =
            LATENCY_METRICS.into_iter().filter_map(error).collect();
        (name.clone(), errors)
    });
    peers.filter(|(_, errors)| !errors.is_empty()).collect()
}

fn error_spread<'a>(
    errors: impl Iterator<Item = &'a MetricErrorPercentages>,
) -> BTreeMap<&'static str, AbsoluteErrorSummary> {
    let errors: Vec<&MetricErrorPercentages> = errors.collect();
    let of = |(key, ..): LatencyMetric| {
        let sizes = errors.iter().filter_map(|errors| errors.get(key));
        let mut sizes: Vec<f64> = sizes.map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let spread = AbsoluteErrorSummary {
            runs: sizes.len(),
            median: percentile(&sizes, 0.5),
            mean: mean(&sizes),
        };
        (!sizes.is_empty()).then_some((key, spread))
    };
    LATENCY_METRICS.into_iter().filter_map(of).collect()
}

impl ValidationReport {
    /// Returns the median and mean absolute error of each latency metric, in percent, over the runs
    /// for which `of` returns true.
    pub(super) fn error_summary_of_runs(
        &self,
        of: impl Fn(&ValidatedRun) -> bool,
    ) -> BTreeMap<&'static str, AbsoluteErrorSummary> {
        let runs = self.runs.iter().filter(|run| of(run));
        error_spread(runs.map(|run| &run.error_percent))
    }

    pub(super) fn validated_run_groups(&self) -> Vec<ValidatedRunGroup> {
        type GroupKey = (&'static str, fn(&ValidatedRun) -> String);
        let keys: [GroupKey; 6] = [
            ("regime", |run| run.regime.clone()),
            ("GPU", |run| run.gpu.to_owned()),
            ("model", |run| {
                let kind = if run.experts { "mixture of experts" } else { "dense" };
                kind.to_owned()
            }),
            ("weights", |run| run.weights.to_owned()),
            ("tensor parallelism", |run| format!("TP {}", run.tp)),
            ("source", |run| run.source.clone()),
        ];
        let mut groups = Vec::new();
        for (by, key) in keys {
            let mut names: Vec<String> = self.runs.iter().map(key).collect();
            names.sort();
            names.dedup();
            groups.extend(names.into_iter().map(|name| ValidatedRunGroup {
                by,
                runs: self.runs.iter().filter(|run| key(run) == name).count(),
                error_percent: self.error_summary_of_runs(|run| key(run) == name),
                name,
            }));
        }
        groups
    }

    /// Returns the published errors of the other simulators, the simulator with the most runs
    /// first.
    pub(super) fn peer_simulator_errors(&self) -> Vec<PeerSimulatorErrors> {
        let names = self.runs.iter().flat_map(|run| run.peer_error_percent.keys());
        let mut names: Vec<&String> = names.collect();
        names.sort();
        names.dedup();
        let peer = |name: &String| {
            let theirs = |run: &'_ ValidatedRun| run.peer_error_percent.contains_key(name);
            let runs = self.runs.iter();
            PeerSimulatorErrors {
                name: name.clone(),
                runs: runs.clone().filter(|run| theirs(run)).count(),
                error_percent: error_spread(
                    runs.filter_map(|run| run.peer_error_percent.get(name)),
                ),
                ours_on_these: self.error_summary_of_runs(theirs),
            }
        };
        let mut peers: Vec<PeerSimulatorErrors> = names.into_iter().map(peer).collect();
        peers.sort_by_key(|peer| std::cmp::Reverse(peer.runs));
        peers
    }

    /// Returns the prediction errors of all runs and groups of runs, and those of the other
    /// simulators, as JSON with a schema version.
    pub fn validation_report_json(&self) -> Value {
        serde_json::json!({
            "schema": VALIDATION_REPORT_SCHEMA,
            "vllm_sim_version": env!("CARGO_PKG_VERSION"),
            "summary": {
                "stable": self.error_summary_of_runs(|run| run.regime == "stable"),
                "all": self.error_summary_of_runs(|_| true),
            },
            "groups": self.validated_run_groups(),
            "peers": self.peer_simulator_errors(),
            "runs": self.runs,
        })
    }

    /// Renders a text table of the prediction errors per run, with medians and means over the
    /// stable runs and all runs.
    pub fn render_prediction_error_table(&self) -> String {
        let width = self.runs.iter().map(|run| run.id.len()).max();
        let width = width.unwrap_or(0).max(24);
        let mut text = String::new();
        let mut line = |name: &str, regime: &str, cell: &dyn Fn(&str) -> Option<f64>| {
            let cells = LATENCY_METRICS.map(|(key, ..)| match cell(key) {
                Some(percent) => format!(" {percent:>8.1}"),
                None => format!(" {:>8}", "-"),
            });
            let _ = writeln!(text, "{name:<width$}  {regime:<9}{}", cells.concat());
        };
        for run in &self.runs {
            line(&run.id, &run.regime, &|key| run.error_percent.get(key).copied());
        }
        let mut sum_up =
            |name: &str, count: usize, errors: BTreeMap<&'static str, AbsoluteErrorSummary>| {
                let median = |key: &str| Some(errors.get(key)?.median);
                line(&format!("median of {count} {name}"), "", &median);
                let mean = |key: &str| Some(errors.get(key)?.mean);
                line(&format!("mean of {count} {name}"), "", &mean);
            };
        let stable = |run: &ValidatedRun| run.regime == "stable";
        let count = self.runs.iter().filter(|run| stable(run)).count();
        if count > 0 {
            sum_up("stable runs", count, self.error_summary_of_runs(stable));
        }
        sum_up("runs", self.runs.len(), self.error_summary_of_runs(|_| true));
        for (run, why) in &self.left_out {
            let _ = writeln!(text, "left out: {run}: {why}");
        }
        let head = format!(
            "{:<width$}  {:<9} {:>8} {:>8} {:>8}\n",
            "run (errors in percent)", "regime", "TTFT", "ITL", "E2E"
        );
        head + &text
    }
}
