use std::time::Duration;

/// Adapters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lora {
    /// Whether adapters exist at all [yes; behind `serve` with `--enable-lora`].
    pub enabled: bool,
    /// Adapters that run at once [1]; at least 1.
    pub max_loras: u32,
    /// Adapters kept at hand [`max_loras`]; at least that many.
    pub max_cpu_loras: u32,
    /// Greatest rank [16].
    pub max_rank: u32,
    /// Adapters loaded at start.
    pub modules: Vec<LoraModule>,
    /// How long loading takes [0].
    pub load_time: Duration,
    /// Whether `/v1/load_lora_adapter` exists [yes; behind `serve` by environment].
    pub runtime_updating: bool,
}

/// One adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraModule {
    /// The name requests use; never empty.
    pub name: String,
    /// Where it lies, as typed.
    pub path: String,
    /// The model it belongs to, when named.
    pub base_model_name: Option<String>,
}
