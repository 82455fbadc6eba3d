//! Finds the recorded deployment nearest to the explained one, to report its prediction errors.

use std::fmt::{self, Write as _};

use vllm_sim_engine::latency::{Gpu, KvCacheMemory, RooflineModelSetup, find_gpu};

/// Table of public recorded runs by deployment, written by `tests/python/fidelity_page.py` together
/// with `docs/fidelity.md`.
const RECORDED_DEPLOYMENTS_CSV: &str = include_str!("recorded_deployments.csv");

/// Recorded runs of one deployment, with the median absolute errors of their predictions, in
/// percent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct RecordedDeployment {
    judge: &'static str,
    model: &'static str,
    gpu: &'static str,
    weights: &'static str,
    tp: u32,
    experts: bool,
    prompts: PromptCacheUse,
    /// Number of data-parallel engines that share the experts; 1: experts are not shared.
    ranks: u32,
    weight_gb: f64,
    /// Minimum and maximum number of sequences in progress per engine during the recorded runs.
    sequences: (u32, u32),
    runs: u32,
    regime: &'static str,
    /// Text for whether the roofline coefficients were fitted to the recorded runs: `with` or
    /// `without`.
    basis: &'static str,
    /// Median absolute error of TTFT in percent; `None` for InferenceX, of which only inter-token
    /// latency is compared.
    ttft: Option<f64>,
    itl: f64,
    e2e: Option<f64>,
}

/// Source of most prompt tokens of a run: the prefix cache or computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptCacheUse {
    /// Nearly all prompt tokens come from the prefix cache.
    Cached,
    /// Nearly all prompt tokens are computed.
    #[default]
    Computed,
    /// Prompt tokens come partly from the prefix cache and partly from computation.
    Mixed,
}

/// Minimum ratio of cached to all prompt tokens of a run whose prompts count as cached.
const MOSTLY_CACHED: f64 = 0.8;
/// Maximum ratio of cached to all prompt tokens of a run whose prompts count as computed.
const MOSTLY_COMPUTED: f64 = 0.2;

impl PromptCacheUse {
    /// Classifies the prompts of a run as cached, computed or mixed, by the ratio of cached to all
    /// prompt tokens (0 to 1).
    pub fn from_reused_prompt_ratio(reused: f64) -> Self {
        match reused {
            _ if reused >= MOSTLY_CACHED => Self::Cached,
            _ if reused <= MOSTLY_COMPUTED => Self::Computed,
            _ => Self::Mixed,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Computed => "computed",
            Self::Mixed => "partly cached",
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
                "cached" => PromptCacheUse::Cached,
                _ => PromptCacheUse::Computed,
            },
            ranks: next()?.parse().ok()?,
            weight_gb: next()?.parse().ok()?,
            sequences: (next()?.parse().ok()?, next()?.parse().ok()?),
            runs: next()?.parse().ok()?,
            regime: next()?,
            basis: next()?,
            ttft: next()?.parse().ok(),
            itl: next()?.parse().ok()?,
            e2e: next()?.parse().ok(),
        })
    }

    /// Returns whether the prediction errors of this recorded deployment apply to the deployment
    /// `asked`, because the two are similar enough.
    fn is_comparable_to(&self, asked: &RecordedDeployment) -> bool {
        self.gpu == asked.gpu
            && self.weights == asked.weights
            && self.experts == asked.experts
            && self.prompts == asked.prompts
            && (self.ranks > 1) == (asked.ranks > 1)
    }

    /// Returns the properties in which this recorded deployment differs from the deployment
    /// `asked`.
    fn differing_properties(&self, asked: &RecordedDeployment) -> Vec<&'static str> {
        let size = (self.weight_gb * f64::from(self.tp)) / (asked.weight_gb * f64::from(asked.tp));
        [
            (self.tp != asked.tp, "tensor parallelism"),
            (self.ranks != asked.ranks, "expert-parallel ranks"),
            ((size - 1.0).abs() > SAME_MODEL_SIZE_TOLERANCE, "size of the model"),
        ]
        .into_iter()
        .filter_map(|(differs, what)| differs.then_some(what))
        .collect()
    }

    /// Returns the distance of this recorded deployment from the deployment `asked`, in doublings
    /// of the work per GPU.
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
pub struct KnownPredictionErrors {
    /// Description of the nearest recorded deployment, or a statement that there is none.
    pub recorded: String,
    /// Median prediction errors of the nearest recorded deployment, with its number of runs; `None`
    /// if there is no such deployment.
    pub errors: Option<String>,
    /// Short form of the prediction errors, such as `TTFT 1.3 %, ITL 2.6 %`; in brackets if the
    /// recorded deployment differs from the deployment in question, or has not all its settings.
    pub short: String,
}

impl std::fmt::Display for KnownPredictionErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.errors {
            Some(errors) => write!(f, "{}; {errors}", self.recorded),
            None => f.write_str(&self.recorded),
        }
    }
}

/// Known prediction errors of a deployment, for cached, computed and mixed prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentPredictionEvidence([KnownPredictionErrors; 3]);

impl DeploymentPredictionEvidence {
    pub(super) fn new(setup: &RooflineModelSetup) -> Self {
        let uses = [PromptCacheUse::Cached, PromptCacheUse::Computed, PromptCacheUse::Mixed];
        Self(uses.map(|prompts| prediction_accuracy(setup, prompts)))
    }

    /// Adds the names of settings that no recorded run has to the description of the nearest one.
    pub fn with_unmeasured_settings(mut self, flags: &[&str]) -> Self {
        let known = self.0.iter_mut().filter(|known| known.errors.is_some() && !flags.is_empty());
        for known in known {
            known.recorded.push_str(&format!("; not measured with {}", flags.join(", ")));
            if !known.short.starts_with('(') {
                known.short = format!("({})", known.short);
            }
        }
        self
    }

    /// Returns the known prediction errors for cached, computed or mixed prompts.
    pub fn known_errors_for_prompts(&self, prompts: PromptCacheUse) -> &KnownPredictionErrors {
        &self.0[prompts as usize]
    }
}

/// Creates the description of a deployment and prompts for which no run was recorded.
fn not_validated(asked: &RecordedDeployment) -> KnownPredictionErrors {
    let kind = match asked.experts {
        true => "a model with experts",
        false => "a dense model",
    };
    KnownPredictionErrors {
        recorded: format!(
            "not validated: none was recorded of {kind} with {} weights and {} prompts on {}{}",
            asked.weights,
            asked.prompts.name(),
            asked.gpu,
            spread(asked.ranks)
        ),
        errors: None,
        short: "not validated".to_owned(),
    }
}

fn prediction_accuracy(
    setup: &RooflineModelSetup,
    prompts: PromptCacheUse,
) -> KnownPredictionErrors {
    let shape = &setup.shape;
    let memory = KvCacheMemory::new(
        shape,
        &setup.gpu,
        setup.weight_ranks(),
        1.0,
        (16, 2),
        &setup.profile_run(1, 1),
    );
    let asked = RecordedDeployment {
        gpu: setup.gpu.name,
        weights: shape.quantization.scheme.weight_dtype_name(),
        tp: setup.tp,
        experts: shape.moe.is_some(),
        prompts,
        ranks: setup.expert_ranks,
        weight_gb: memory.weight_bytes / 1e9,
        ..RecordedDeployment::default()
    };
    let load = prompts.name();
    let Some(found) = nearest_deployment(&asked) else {
        return not_validated(&asked);
    };
    let RecordedDeployment { model, gpu, weights, tp, .. } = found;
    let differences = found.differing_properties(&asked);
    let recorded = match differences[..] {
        [] => format!(
            "{tp} x {gpu} with {weights} weights of this size and {load} prompts{} was recorded \
             ({model})",
            spread(found.ranks)
        ),
        _ => format!(
            "not recorded; the nearest is {model}, {weights}, {load} prompts, on {tp} x {gpu}{}; \
             other: {}",
            spread(found.ranks),
            differences.join(", ")
        ),
    };
    let error = |name: &str, value: Option<f64>| {
        value.map_or(String::new(), |value| format!("{name} {value:.1} %, "))
    };
    let ttft = error("TTFT", found.ttft);
    let itl = format!("ITL {:.1} %", found.itl);
    // Cached prompts leave little work to the kernels that differ.
    let is_older = prompts != PromptCacheUse::Cached && has_newer_kernels(&setup.gpu);
    let errors = format!(
        "median error of its {} {} runs{} with {} to {} sequences ({}; constants fitted {} them): \
         {ttft}{}{itl}",
        found.runs,
        found.regime,
        if is_older { " of vLLM <= 0.19" } else { "" },
        found.sequences.0,
        found.sequences.1,
        found.judge,
        found.basis,
        error("E2E", found.e2e),
    );
    let short = match differences.is_empty() {
        true => format!("{ttft}{itl}"),
        false => format!("({ttft}{itl})"),
    };
    KnownPredictionErrors { recorded, errors: Some(errors), short }
}

/// Returns whether a prediction is for newer kernels than the kernels of the recorded deployments.
fn has_newer_kernels(gpu: &Gpu) -> bool {
    const NEWEST_RECORDED_VERSION: (u32, u32) = (0, 19);
    find_gpu(gpu.name)
        .is_some_and(|known| known.with_kernels_of_vllm_version(NEWEST_RECORDED_VERSION) != *gpu)
}

/// Returns the last words of a deployment's description: the number of engines over which its
/// experts are spread.
fn spread(ranks: u32) -> String {
    match ranks {
        0 | 1 => String::new(),
        _ => format!(", experts spread over {ranks} engines"),
    }
}

pub(super) fn write_nearest_recorded_runs(
    text: &mut String,
    setup: &RooflineModelSetup,
) -> fmt::Result {
    let known = DeploymentPredictionEvidence::new(setup);
    for (head, prompts) in
        [("Evidence    ", PromptCacheUse::Computed), ("            ", PromptCacheUse::Cached)]
    {
        let found = known.known_errors_for_prompts(prompts);
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
            let mut setup = RooflineModelSetup::new(
                known_model_shape(name).unwrap(),
                find_gpu(on).unwrap().clone(),
            );
            setup.tp = tp;
            let mut text = String::new();
            write_nearest_recorded_runs(&mut text, &setup).unwrap();
            text
        };
        let known = said("meta-llama/Llama-3.1-8B", "H100", 1);
        assert!(
            known.contains("was recorded (meta-llama/Llama-3.1-8B")
                && known.contains("(public runs; constants fitted with them)"),
            "{known}"
        );
        let wide = said("meta-llama/Llama-3.1-8B", "H100", 4);
        assert!(wide.contains("not recorded"), "{wide}");
        assert!(wide.contains("other: tensor parallelism\n"), "{wide}");
        // Errors for another GPU, other weights or another load do not apply.
        let elsewhere = said("meta-llama/Llama-3.1-8B", "L4", 1);
        for load in ["computed", "cached"] {
            let none = format!(
                "not validated: none was recorded of a dense model with bf16 weights and {load} \
                 prompts on L4"
            );
            assert!(elsewhere.contains(&none), "{elsewhere}");
        }
        assert!(!elsewhere.contains("median error"), "{elsewhere}");
        let sold = said("meta-llama/Llama-3.1-8B", "L40S", 1);
        assert_eq!(sold.matches("median error").count(), 1, "{sold}");
    }

    #[test]
    fn settings_that_no_run_has_are_named() {
        let setup = RooflineModelSetup::new(
            known_model_shape("meta-llama/Llama-3.1-8B").unwrap(),
            find_gpu("H100").unwrap().clone(),
        );
        let known = DeploymentPredictionEvidence::new(&setup);
        assert_eq!(known.clone().with_unmeasured_settings(&[]), known);
        let told = known.clone().with_unmeasured_settings(&["--enforce-eager", "--cpu-offload-gb"]);
        let [known, told] =
            [&known, &told].map(|it| it.known_errors_for_prompts(PromptCacheUse::Cached).clone());
        let flags = "; not measured with --enforce-eager, --cpu-offload-gb";
        assert_eq!(told.recorded, known.recorded + flags);
        assert_eq!(told.short, format!("({})", known.short));
        assert_eq!(told.errors, known.errors);
    }

    #[test]
    fn errors_apply_only_to_the_same_kind_of_load() {
        let mut setup = RooflineModelSetup::new(
            known_model_shape("meta-llama/Llama-3.1-8B").unwrap(),
            find_gpu("H100").unwrap().clone(),
        );
        let known = DeploymentPredictionEvidence::new(&setup);
        let cached = known.known_errors_for_prompts(PromptCacheUse::from_reused_prompt_ratio(0.9));
        assert!(cached.to_string().contains(" sequences ("), "{cached}");
        let mixed = known.known_errors_for_prompts(PromptCacheUse::from_reused_prompt_ratio(0.5));
        assert_eq!(mixed.short, "not validated");
        assert!(mixed.recorded.contains("partly cached prompts"), "{mixed}");
        // Experts spread over engines are another kind of deployment.
        setup.shape = known_model_shape("Qwen/Qwen3-30B-A3B").unwrap();
        setup.expert_ranks = 8;
        let spread = prediction_accuracy(&setup, PromptCacheUse::Computed);
        assert_eq!(spread.errors, None);
        assert!(spread.recorded.ends_with("experts spread over 8 engines"), "{spread}");
    }
}
