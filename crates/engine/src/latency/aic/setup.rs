//! Describes a deployment for lookups in AIConfigurator's kernel-time tables, and finds installed
//! tables.

use std::path::{Path, PathBuf};

use super::error::AiConfiguratorError;
use crate::latency::{ModelShape, RooflineModelSetup, StepOverhead};

const AIC_SYSTEM_BY_GPU: [(&str, &str); 9] = [
    ("A100-SXM-80GB", "a100_sxm"),
    ("B200-SXM-180GB", "b200_sxm"),
    ("B300-SXM-288GB", "b300_sxm"),
    ("GB200-186GB", "gb200"),
    ("GB300-288GB", "gb300"),
    ("H100-SXM-80GB", "h100_sxm"),
    ("H200-SXM-141GB", "h200_sxm"),
    ("L40S-48GB", "l40s"),
    ("RTX-PRO-6000-96GB", "rtx_pro_6000_server"),
];

/// Describes the deployment whose step times are looked up in AIConfigurator's kernel-time tables.
#[derive(Debug, Clone, PartialEq)]
pub struct AiConfiguratorSetup {
    /// Layer sizes of the model.
    pub shape: ModelShape,
    /// Name of the GPU in AIConfigurator's tables, like `h100_sxm`.
    pub system: String,
    /// Name of the inference engine in the tables: `vllm`, `sglang` or `trtllm`.
    pub backend: String,
    /// Version of the inference engine; `None`: the newest in the tables.
    pub version: Option<String>,
    /// Number of GPUs that share each layer (tensor-parallel size).
    pub tp: u32,
    /// Expert-parallel size; 1: each expert is split over all tensor-parallel GPUs.
    pub moe_ep: u32,
    /// Bytes per number in the KV cache: 2, or 1 with fp8.
    pub kv_bytes: u32,
    /// Whether separate kernels normalize queries and keys (Qwen3).
    pub qk_norm: bool,
    /// Cost rule for steps with both prompts and decodes.
    pub mixed: MixedStepTiming,
    /// Time of a step outside of its kernels, which the tables do not include.
    pub overhead: StepOverhead,
}

/// Selects the cost of a step with both prefill and decode work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MixedStepTiming {
    /// Cost of a step as one forward pass over all tokens, with separate prefill and decode
    /// attention, as in servers.
    #[default]
    Combined,
    /// Cost of a step as the sum of a prefill pass and a decode pass, as in the mocker of NVIDIA
    /// Dynamo.
    Sum,
}

impl AiConfiguratorSetup {
    /// Converts a roofline model's deployment to one for AIConfigurator's tables. Prefill and
    /// decode work of a step are one forward pass; `beside` is the step's time outside of kernels.
    ///
    /// # Errors
    /// [`AiConfiguratorError::Gpu`] for a GPU that was not measured.
    pub fn new(
        setup: &RooflineModelSetup,
        beside: StepOverhead,
    ) -> Result<Self, AiConfiguratorError> {
        let name = setup.gpu.name;
        let system = AIC_SYSTEM_BY_GPU.iter().find(|(gpu, _)| *gpu == name);
        let (_, system) = system.ok_or_else(|| AiConfiguratorError::Gpu {
            gpu: name,
            known: AIC_SYSTEM_BY_GPU.map(|(gpu, _)| gpu).join(", "),
        })?;
        Ok(Self {
            shape: setup.shape.clone(),
            system: (*system).to_owned(),
            backend: "vllm".to_owned(),
            version: None,
            tp: setup.tp,
            moe_ep: 1,
            kv_bytes: setup.kv_bytes,
            qk_norm: setup.shape.qk_norm,
            mixed: MixedStepTiming::Combined,
            overhead: beside,
        })
    }
}

/// Returns the folder of the newest AIConfigurator tables in a Python environment (`$VIRTUAL_ENV`,
/// `$CONDA_PREFIX`).
pub fn find_installed_kernel_tables(environment: &Path) -> Option<PathBuf> {
    let python = std::fs::read_dir(environment.join("lib")).ok()?;
    let mut found: Vec<PathBuf> = python
        .flatten()
        .map(|entry| entry.path().join("site-packages"))
        .flat_map(|packages| {
            ["aisimulate_core", "aiconfigurator_core"].map(|name| packages.join(name))
        })
        .filter(|package| package.join("systems/query_versions.yaml").is_file())
        .map(|package| package.join("systems"))
        .collect();
    found.sort();
    found.pop()
}
