//! What is asked of the tables, and where they may lie.

use std::path::{Path, PathBuf};

use super::error::AicError;
use crate::latency::{ModelShape, Overhead, Setup};

/// Names of GPUs in the tables.
const SYSTEMS: [(&str, &str); 9] = [
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

/// What is asked of the tables.
#[derive(Debug, Clone, PartialEq)]
pub struct AicSetup {
    /// The model.
    pub shape: ModelShape,
    /// Name of the GPU there: `h100_sxm`.
    pub system: String,
    /// `vllm`, `sglang` or `trtllm`.
    pub backend: String,
    /// Of the backend; `None`: the newest that the tables answer for.
    pub version: Option<String>,
    /// Tensor-parallel size.
    pub tp: u32,
    /// Ranks over which experts are split whole; 1: each is split over all GPUs.
    pub moe_ep: u32,
    /// Bytes per number in the KV cache: 2, or 1 with fp8.
    pub kv_bytes: u32,
    /// A norm on queries and keys (Qwen3).
    pub qk_norm: bool,
    /// How a step with both prompts and decodes is counted.
    pub mixed: MixedStep,
    /// What a step takes beside its kernels, which the tables do not have.
    pub overhead: Overhead,
}

/// How a step with both kinds of work is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MixedStep {
    /// Everything but attention once, for all tokens: as servers do it.
    #[default]
    Combined,
    /// A pass of the prompts and a pass of the decodes: as Dynamo's mocker counts.
    Sum,
}

impl AicSetup {
    /// The same deployment as a roofline's, each step computed as one, with what it takes `beside`
    /// its kernels.
    ///
    /// # Errors
    /// [`AicError::Gpu`] for a GPU that was not measured.
    pub fn new(setup: &Setup, beside: Overhead) -> Result<Self, AicError> {
        let name = setup.gpu.name;
        let system = SYSTEMS.iter().find(|(gpu, _)| *gpu == name);
        let (_, system) = system.ok_or_else(|| AicError::Gpu {
            gpu: name,
            known: SYSTEMS.map(|(gpu, _)| gpu).join(", "),
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
            mixed: MixedStep::Combined,
            overhead: beside,
        })
    }
}

/// The newest tables that a Python environment holds (`$VIRTUAL_ENV`, `$CONDA_PREFIX`).
pub fn installed_tables(environment: &Path) -> Option<PathBuf> {
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
