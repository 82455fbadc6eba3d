use std::sync::Once;
use std::time::Duration;

use anyhow::Result;

use serde_json::{Value, json};

use vllm_sim_explain::DeploymentPredictionEvidence;

use vllm_sim_engine::sched::SchedulerSpec;

/// Simulated engine described by flags of `vllm-sim serve`.
#[derive(Debug, Clone)]
pub struct EngineDeployment {
    /// Specification of each worker's simulated engine.
    pub engine: SchedulerSpec,
    /// Number of GPUs per data-parallel rank.
    pub gpus: u32,
    /// Number of data-parallel ranks per worker; each is an engine, and all step together.
    pub ranks: u32,
    /// Duration of the KV cache transfer of a prompt to a decode worker: fixed, and per token.
    pub kv_transfer: (Duration, Duration),
    /// Flags of the engine, including those that this program adds.
    pub flags: Vec<String>,
    /// Measured errors of the latencies that the engine's latency model predicts, or the reason why
    /// none are known.
    pub evidence: Result<DeploymentPredictionEvidence, &'static str>,
    /// Origin of the engine's step times: flags or defaults.
    pub step_times: StepTimeSettingSource,
    /// Seed of all random draws of the engine.
    pub seed: u64,
    /// Names and values that describe the engine in a report.
    pub about: Vec<(String, String)>,
    /// Warnings about the engine's settings: without effect, refused by vLLM, or fitted for another
    /// deployment.
    pub warnings: Vec<String>,
    /// Names of the LLM and the GPU of the engine, and source of its step times.
    pub provenance: ResultProvenance,
}

/// Model, GPU and source of the step times of a result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResultProvenance {
    /// Name of the LLM; `None` if it is unknown, as for real servers.
    pub model: Option<String>,
    /// Name of the GPU; `None` if no flag names one.
    pub gpu: Option<String>,
    /// Source of the engine's step times, as a text for the user.
    pub step_times: String,
    /// Version of vLLM whose engine the run simulates; `None` if it is unknown.
    pub vllm_version: Option<String>,
    /// Duration of KV cache transfers from prefill to decode workers, as a text for the user; `None`
    /// without such workers.
    pub kv_transfers: Option<String>,
}

impl ResultProvenance {
    /// Creates the provenance of a result whose step times come from `step_time_source` alone.
    pub fn from_step_time_source(step_time_source: &str) -> Self {
        Self { step_times: step_time_source.to_owned(), ..Self::default() }
    }

    /// Combines the provenance of several deployments; where their values differ, these are joined
    /// by commas.
    pub fn combine_provenances<'p>(provenances: impl Iterator<Item = &'p Self> + Clone) -> Self {
        let join = |of: fn(&Self) -> Option<&str>| {
            let mut values: Vec<&str> = provenances.clone().filter_map(of).collect();
            let mut seen = std::collections::BTreeSet::new();
            values.retain(|value| seen.insert(*value));
            (!values.is_empty()).then(|| values.join(", "))
        };
        Self {
            model: join(|one| one.model.as_deref()),
            gpu: join(|one| one.gpu.as_deref()),
            step_times: join(|one| Some(&one.step_times)).unwrap_or_default(),
            vllm_version: join(|one| one.vllm_version.as_deref()),
            kv_transfers: join(|one| one.kv_transfers.as_deref()),
        }
    }

    /// Returns the JSON object that describes a run in reports; `command` is its command line.
    pub fn provenance_json(&self, command: &str) -> Value {
        let mut run = json!({
            "command": command,
            "version": env!("CARGO_PKG_VERSION"),
            "vllm_version": self.vllm_version,
            "model": self.model,
            "gpu": self.gpu,
            "step_times": self.step_times,
        });
        if let Some(transfers) = &self.kv_transfers {
            run["kv_transfers"] = json!(transfers);
        }
        run
    }

    /// Returns pairs of name and value that describe a run on an HTML page or in a text.
    pub fn provenance_rows(&self) -> Vec<(String, String)> {
        let none = || Some("none".to_owned());
        let version = format!("vllm-sim {}", env!("CARGO_PKG_VERSION"));
        let rows = [
            ("Version", Some(version)),
            ("Simulated vLLM", self.vllm_version.clone()),
            ("Model", self.model.clone()),
            ("GPU", self.gpu.clone().or_else(none)),
            ("Step times", Some(self.step_times.clone())),
            ("KV transfers", self.kv_transfers.clone()),
        ];
        let rows = rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        rows.collect()
    }
}

/// Source of the step times of an engine: flags, or the defaults of Dynamo's mocker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepTimeSettingSource {
    /// Step times follow from flags, which name a GPU, a latency model or delays.
    Configured,
    /// No flag sets step times, so the step times of Dynamo's mocker apply.
    Default,
}

impl StepTimeSettingSource {
    /// Logs a warning, once per process, that the default step times are those of no real GPU.
    pub(super) fn warn_if_default_step_times(self) {
        static WARNED: Once = Once::new();
        if self == Self::Default {
            WARNED.call_once(|| {
                tracing::warn!(
                    "no --gpu, latency model or delay: step times are the polynomial of Dynamo's \
                     mocker, whatever the model"
                );
            });
        }
    }
}

/// Error for model weights that leave no GPU memory for a KV cache.
#[derive(Debug, Clone, thiserror::Error)]
#[error("engine: {why}")]
pub struct WeightsDoNotFitError {
    /// Reason why there is no memory for a KV cache, as a text for the user.
    pub why: String,
    /// Names and values of the flags that describe the engine.
    pub about: Vec<(String, String)>,
    /// Model and GPU of the engine, and source of its step times.
    pub provenance: ResultProvenance,
}

/// Builder of an engine from flags of `vllm-sim serve`; rejects unknown flags.
pub type DeploymentFactory<'a> = &'a dyn Fn(&[String]) -> Result<EngineDeployment>;

/// Separates flags of `vllm-sim serve` from positional arguments, and returns (flags, positional
/// arguments).
pub type ServeFlagSplitter<'a> = &'a dyn Fn(&[String]) -> Result<(Vec<String>, Vec<String>)>;
