//! Finds the recorded deployment nearest to the explained one, with its prediction errors.

use std::fmt::{self, Write as _};

use vllm_sim_engine::latency::{Memory, RooflineSetup};

/// Public runs by deployment, written by `tests/python/fidelity_page.py` together with
/// `docs/fidelity.md`.
const DEPLOYMENTS: &str = include_str!("recorded_deployments.csv");

/// Runs of one deployment, with the median absolute errors of their predictions, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Deployment {
    judge: &'static str,
    model: &'static str,
    gpu: &'static str,
    weights: &'static str,
    tp: u32,
    experts: bool,
    weight_gb: f64,
    runs: u32,
    regime: &'static str,
    /// Use of these runs in the fit of the coefficients: `with` or `without`.
    basis: &'static str,
    /// `None` for InferenceX, of which only the gap between tokens is compared.
    ttft: Option<f64>,
    itl: f64,
    e2e: Option<f64>,
}

/// Relative difference below which two sizes count as one model.
const SAME_SIZE: f64 = 0.01;

impl Deployment {
    /// Parses a line of the table; returns `None` for an invalid one.
    fn read(line: &'static str) -> Option<Self> {
        let mut cells = line.split(',');
        let mut next = || cells.next();
        Some(Self {
            judge: next()?,
            model: next()?,
            gpu: next()?,
            weights: next()?,
            tp: next()?.parse().ok()?,
            experts: next()? == "experts",
            weight_gb: next()?.parse().ok()?,
            runs: next()?.parse().ok()?,
            regime: next()?,
            basis: next()?,
            ttft: next()?.parse().ok(),
            itl: next()?.parse().ok()?,
            e2e: next()?.parse().ok(),
        })
    }

    /// Returns the properties in which the deployments differ.
    fn differences(&self, asked: &Deployment) -> Vec<&'static str> {
        let size = (self.weight_gb * f64::from(self.tp)) / (asked.weight_gb * f64::from(asked.tp));
        let same_weights = self.weights == asked.weights;
        [
            (self.gpu != asked.gpu, "GPU"),
            (!same_weights, "weights"),
            (self.experts != asked.experts, "kind of model"),
            (self.tp != asked.tp, "tensor parallelism"),
            // Other weight formats change the size of the same model.
            (
                same_weights && (size - 1.0).abs() > SAME_SIZE,
                "size of the model",
            ),
        ]
        .into_iter()
        .filter_map(|(differs, what)| differs.then_some(what))
        .collect()
    }

    /// Returns the distance in doublings of the work per GPU; another GPU or kernel counts as
    /// several.
    fn distance(&self, asked: &Deployment) -> f64 {
        let doublings = |a: f64, b: f64| (a / b).log2().abs();
        let other = |differs: bool, far: f64| if differs { far } else { 0.0 };
        other(self.gpu != asked.gpu, 4.0)
            + other(self.weights != asked.weights, 3.0)
            + other(self.experts != asked.experts, 3.0)
            + other(self.regime != "stable", 0.5)
            + doublings(self.tp.into(), asked.tp.into())
            + doublings(self.weight_gb, asked.weight_gb)
    }
}

fn nearest(asked: &Deployment) -> Option<Deployment> {
    let known = DEPLOYMENTS.lines().filter_map(Deployment::read);
    known.min_by(|a, b| a.distance(asked).total_cmp(&b.distance(asked)))
}

/// Known errors of a prediction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictionAccuracy {
    /// Description of the nearest recorded deployment.
    pub recorded: String,
    /// Median errors of its predictions, with the number of runs.
    pub errors: String,
    /// Short form, such as `TTFT 1.3 %, ITL 2.6 %`; in brackets for another deployment.
    pub short: String,
}

pub(super) fn evidence(setup: &RooflineSetup) -> Option<PredictionAccuracy> {
    let shape = &setup.shape;
    let memory = Memory::new(shape, &setup.gpu, setup.ranks(), 1.0, (16, 2), 1, None);
    let asked = Deployment {
        judge: "",
        model: "",
        gpu: setup.gpu.name,
        weights: shape.quantization.scheme.weights_name(),
        tp: setup.tp,
        experts: shape.moe.is_some(),
        weight_gb: memory.weight_bytes / 1e9,
        runs: 0,
        regime: "stable",
        basis: "",
        ttft: None,
        itl: 0.0,
        e2e: None,
    };
    let found = nearest(&asked)?;
    let Deployment {
        model,
        gpu,
        weights,
        tp,
        ..
    } = found;
    let differences = found.differences(&asked);
    let recorded = match differences[..] {
        [] => format!("{tp} x {gpu} with {weights} weights of this size was recorded ({model})"),
        _ => format!(
            "not recorded; the nearest is {model}, {weights}, on {tp} x {gpu}; other: {}",
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
    Some(PredictionAccuracy {
        recorded,
        errors,
        short,
    })
}

pub(super) fn write(text: &mut String, setup: &RooflineSetup) -> fmt::Result {
    match evidence(setup) {
        Some(found) => writeln!(
            text,
            "Evidence    {}\n            {} (docs/fidelity.md)",
            found.recorded, found.errors
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use vllm_sim_engine::latency::{gpu, model};

    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        let lines = DEPLOYMENTS.lines().skip(1);
        let wrong: Vec<&str> = lines
            .filter(|line| Deployment::read(line).is_none())
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(DEPLOYMENTS.lines().count() > 20);
    }

    #[test]
    fn differences_from_the_nearest_run_are_named() {
        let said = |name: &str, on: &str, tp: u32| {
            let mut setup = RooflineSetup::new(model(name).unwrap(), gpu(on).unwrap().clone());
            setup.tp = tp;
            let mut text = String::new();
            write(&mut text, &setup).unwrap();
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
        let elsewhere = said("meta-llama/Llama-3.1-8B", "L4", 1);
        assert!(elsewhere.contains("other: GPU\n"), "{elsewhere}");
    }
}
