//! Finds the recorded deployment nearest to the explained one, to report its prediction errors.

use std::fmt::{self, Write as _};

use vllm_sim_engine::latency::{KvCacheMemory, RooflineSetup};

/// Table of public recorded runs by deployment, written by `tests/python/fidelity_page.py` together
/// with `docs/fidelity.md`.
const RECORDED_DEPLOYMENTS_CSV: &str = include_str!("recorded_deployments.csv");

/// Recorded runs of one deployment, with the median absolute errors of their predictions, in
/// percent.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RecordedDeployment {
    judge: &'static str,
    model: &'static str,
    gpu: &'static str,
    weights: &'static str,
    tp: u32,
    experts: bool,
    prompts: PromptLoad,
    weight_gb: f64,
    runs: u32,
    regime: &'static str,
    /// Use of these runs in the fit of the roofline coefficients: `with` or `without` them.
    basis: &'static str,
    /// Median absolute error of TTFT in percent; `None` for InferenceX, of which only inter-token
    /// latency is compared.
    ttft: Option<f64>,
    itl: f64,
    e2e: Option<f64>,
}

/// Source of most prompt tokens of a workload: the prefix cache or computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptLoad {
    /// Most prompt tokens come from the prefix cache.
    Cached,
    /// Most prompt tokens are computed.
    Computed,
}

impl PromptLoad {
    /// Returns the prompt load of a run with the ratio `reused` of cached to all prompt tokens (0
    /// to 1).
    pub fn from_reused_ratio(reused: f64) -> Self {
        match reused >= 0.5 {
            true => Self::Cached,
            false => Self::Computed,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Computed => "computed",
        }
    }
}

/// Relative difference below which two weight sizes count as the same model.
const SAME_MODEL_SIZE_TOLERANCE: f64 = 0.01;

impl RecordedDeployment {
    /// Parses a line of the table of recorded deployments; returns `None` for an invalid one.
    fn parse_csv_line(line: &'static str) -> Option<Self> {
        let mut cells = line.split(',');
        let mut next = || cells.next();
        Some(Self {
            judge: next()?,
            model: next()?,
            gpu: next()?,
            weights: next()?,
            tp: next()?.parse().ok()?,
            experts: next()? == "experts",
            prompts: match next()? {
                "cached" => PromptLoad::Cached,
                _ => PromptLoad::Computed,
            },
            weight_gb: next()?.parse().ok()?,
            runs: next()?.parse().ok()?,
            regime: next()?,
            basis: next()?,
            ttft: next()?.parse().ok(),
            itl: next()?.parse().ok()?,
            e2e: next()?.parse().ok(),
        })
    }

    /// Returns whether the prediction errors of this deployment apply to `asked`.
    fn is_comparable_to(&self, asked: &RecordedDeployment) -> bool {
        self.gpu == asked.gpu
            && self.weights == asked.weights
            && self.experts == asked.experts
            && self.prompts == asked.prompts
    }

    /// Returns the properties in which this deployment differs from `asked`.
    fn differing_properties(&self, asked: &RecordedDeployment) -> Vec<&'static str> {
        let size = (self.weight_gb * f64::from(self.tp)) / (asked.weight_gb * f64::from(asked.tp));
        [
            (self.tp != asked.tp, "tensor parallelism"),
            ((size - 1.0).abs() > SAME_MODEL_SIZE_TOLERANCE, "size of the model"),
        ]
        .into_iter()
        .filter_map(|(differs, what)| differs.then_some(what))
        .collect()
    }

    /// Returns the distance of this deployment from `asked`, in doublings of the work per GPU.
    fn distance_doublings(&self, asked: &RecordedDeployment) -> f64 {
        let doublings = |a: f64, b: f64| (a / b).log2().abs();
        let other = |differs: bool, far: f64| if differs { far } else { 0.0 };
        other(self.regime != "stable", 0.5)
            + doublings(self.tp.into(), asked.tp.into())
            + doublings(self.weight_gb, asked.weight_gb)
    }
}

fn nearest_deployment(asked: &RecordedDeployment) -> Option<RecordedDeployment> {
    let known = RECORDED_DEPLOYMENTS_CSV.lines().filter_map(RecordedDeployment::parse_csv_line);
    let known = known.filter(|known| known.is_comparable_to(asked));
    known.min_by(|a, b| a.distance_doublings(asked).total_cmp(&b.distance_doublings(asked)))
}

/// Known errors of a latency prediction, from the nearest recorded deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictionAccuracy {
    /// Description of the nearest recorded deployment, or a statement that there is none.
    pub recorded: String,
    /// Median prediction errors of the recorded deployment, with the number of runs; `None` without
    /// one.
    pub errors: Option<String>,
    /// Short form of the prediction errors, such as `TTFT 1.3 %, ITL 2.6 %`; in brackets for
    /// another deployment.
    pub short: String,
}

impl std::fmt::Display for PredictionAccuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.errors {
            Some(errors) => write!(f, "{}; {errors}", self.recorded),
            None => f.write_str(&self.recorded),
        }
    }
}

/// Known prediction errors of a deployment, by prompt load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentEvidence {
    cached: PredictionAccuracy,
    computed: PredictionAccuracy,
}

impl DeploymentEvidence {
    pub(super) fn new(setup: &RooflineSetup) -> Self {
        let [cached, computed] = [PromptLoad::Cached, PromptLoad::Computed]
            .map(|prompts| prediction_accuracy(setup, prompts));
        Self { cached, computed }
    }

    /// Returns the prediction errors under this prompt load.
    pub fn accuracy_under(&self, prompts: PromptLoad) -> &PredictionAccuracy {
        match prompts {
            PromptLoad::Cached => &self.cached,
            PromptLoad::Computed => &self.computed,
        }
    }
}

fn prediction_accuracy(setup: &RooflineSetup, prompts: PromptLoad) -> PredictionAccuracy {
    let shape = &setup.shape;
    let memory = KvCacheMemory::new(shape, &setup.gpu, setup.weight_ranks(), 1.0, (16, 2), 1, None);
    let asked = RecordedDeployment {
        judge: "",
        model: "",
        gpu: setup.gpu.name,
        weights: shape.quantization.scheme.weight_dtype_name(),
        tp: setup.tp,
        experts: shape.moe.is_some(),
        prompts,
        weight_gb: memory.weight_bytes / 1e9,
        runs: 0,
        regime: "stable",
        basis: "",
        ttft: None,
        itl: 0.0,
        e2e: None,
    };
    let load = prompts.name();
    let Some(found) = nearest_deployment(&asked) else {
        let kind = match asked.experts {
            true => "a model with experts",
            false => "a dense model",
        };
        return PredictionAccuracy {
            recorded: format!(
                "none was recorded of {kind} with {} weights and {load} prompts on {}",
                asked.weights, asked.gpu
            ),
            errors: None,
            short: "none".to_owned(),
        };
    };
    let RecordedDeployment { model, gpu, weights, tp, .. } = found;
    let differences = found.differing_properties(&asked);
    let recorded = match differences[..] {
        [] => format!(
            "{tp} x {gpu} with {weights} weights of this size and {load} prompts was recorded \
             ({model})"
        ),
        _ => format!(
            "not recorded; the nearest is {model}, {weights}, {load} prompts, on {tp} x {gpu}; \
             other: {}",
            differences.join(", ")
        ),
    };
    let error = |name: &str, value: Option<f64>| {
        value.map_or(String::new(), |value| format!("{name} {value:.1} %, "))
    };
    let ttft = error("TTFT", found.ttft);
    let itl = format!("ITL {:.1} %", found.itl);
    let errors = format!(
        "median error of its {} {} runs ({}; constants fitted {} them): {ttft}{}{itl}",
        found.runs,
        found.regime,
        found.judge,
        found.basis,
        error("E2E", found.e2e),
    );
    let short = match differences.is_empty() {
        true => format!("{ttft}{itl}"),
        false => format!("({ttft}{itl})"),
    };
    PredictionAccuracy { recorded, errors: Some(errors), short }
}

pub(super) fn write_nearest_runs(text: &mut String, setup: &RooflineSetup) -> fmt::Result {
    let known = DeploymentEvidence::new(setup);
    for (head, prompts) in
        [("Evidence    ", PromptLoad::Computed), ("            ", PromptLoad::Cached)]
    {
        let found = known.accuracy_under(prompts);
        writeln!(text, "{head}{}", found.recorded)?;
        if let Some(errors) = &found.errors {
            writeln!(text, "            {errors} (docs/fidelity.md)")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use vllm_sim_engine::latency::{find_gpu, known_model_shape};

    use super::*;

    #[test]
    fn every_recorded_deployment_line_is_parsed() {
        let lines = RECORDED_DEPLOYMENTS_CSV.lines().skip(1);
        let wrong: Vec<&str> =
            lines.filter(|line| RecordedDeployment::parse_csv_line(line).is_none()).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(RECORDED_DEPLOYMENTS_CSV.lines().count() > 20);
    }

    #[test]
    fn differences_from_the_nearest_run_are_named() {
        let said = |name: &str, on: &str, tp: u32| {
            let mut setup =
                RooflineSetup::new(known_model_shape(name).unwrap(), find_gpu(on).unwrap().clone());
            setup.tp = tp;
            let mut text = String::new();
            write_nearest_runs(&mut text, &setup).unwrap();
            text
        };
        let known = said("meta-llama/Llama-3.1-8B", "H100", 1);
        assert!(
            known.contains("was recorded (meta-llama/Llama-3.1-8B")
                && known.contains("(public runs; constants fitted without them)"),
            "{known}"
        );
        let wide = said("meta-llama/Llama-3.1-8B", "H100", 4);
        assert!(wide.contains("not recorded"), "{wide}");
        assert!(wide.contains("other: tensor parallelism\n"), "{wide}");
        // Errors for another GPU, other weights or another load do not apply.
        let elsewhere = said("meta-llama/Llama-3.1-8B", "L4", 1);
        for load in ["computed", "cached"] {
            let none = format!(
                "none was recorded of a dense model with bf16 weights and {load} prompts on L4"
            );
            assert!(elsewhere.contains(&none), "{elsewhere}");
        }
        assert!(!elsewhere.contains("median error"), "{elsewhere}");
        let sold = said("meta-llama/Llama-3.1-8B", "L40S", 1);
        assert_eq!(sold.matches("median error").count(), 1, "{sold}");
    }
}
