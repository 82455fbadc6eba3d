//! Settings of KV cache offloading to CPU memory.

use std::time::Duration;

use serde_json::{Map, Value};

use super::choices::{OffloadBackend, SchedulerKind};
use super::engine::Engine;
use super::error::ConfigError;
use super::flags::{self, kv};
use super::kv_cache;
use super::kv_transfer::KvTransfer;
use super::model::Model;
use super::values::Values;
use vllm_sim_engine::kv::{HostEviction, HostRules, HostTierConfig, SparseLayerKind};
use vllm_sim_engine::latency::{HostLink, KvCachePlan, gpu, kv_width};
use vllm_sim_observe::kv_events::HostDetail;

const GIB: f64 = (1_u64 << 30) as f64;
const COPY_LATENCY: Duration = Duration::from_micros(20);
const SIMPLE_BYTES: f64 = 8.0 * GIB;
/// Defaults of LMCache: GiB per GPU (`max_local_cpu_size`), tokens per chunk (`chunk_size`).
const LMCACHE_GIB: f64 = 5.0;
const LMCACHE_TOKENS: f64 = 256.0;
/// Maximum number of chunks in CPU memory, which limits bookkeeping to a few gigabytes.
const MAX_CHUNKS: f64 = 67_108_864.0;

/// Settings of a KV cache in CPU memory (`--kv-offloading-size`, `OffloadingConnector`,
/// `SimpleCPUOffloadConnector`).
///
/// **Source:** vLLM 0.33 `vllm/config/vllm.py` (`_post_init_kv_transfer_config`),
/// `vllm/v1/kv_offload/cpu/spec.py`, `vllm/distributed/kv_transfer/kv_connector/v1/
/// simple_cpu_offload_connector.py`.
#[derive(Debug, Clone, PartialEq)]
pub struct KvOffload {
    /// Value of `--kv-offloading-size`, in GiB, if set.
    pub size_gib: Option<f64>,
    /// Size of the CPU cache for all GPUs of an engine together, in bytes.
    pub bytes: u64,
    /// Capacity of the CPU cache in tokens, for requests of `max_model_len` tokens.
    pub tokens: u64,
    /// Configuration of the simulated cache in CPU memory.
    pub tier: HostTierConfig,
    /// Number of GPUs that copy blocks to and from CPU memory.
    pub workers: u32,
    /// Bandwidth of the link between a GPU and CPU memory.
    pub link: HostLink,
    /// Level of detail of KV events about blocks in CPU memory.
    pub detail: HostDetail,
    /// Whether LMCache manages the KV cache in CPU memory; LMCache has metrics of its own.
    pub is_lmcache: bool,
}

struct Offloader {
    rules: HostRules,
    is_lmcache: bool,
    extra: Map<String, Value>,
    size_gib: Option<f64>,
}

/// KV cache size of one token in one group of layers, in bytes.
#[derive(Clone, Copy)]
struct TokenBytes {
    part: f64,
    whole: f64,
}

/// Returns the KV cache plan if the model has several groups of layers, each of which stores its
/// own blocks.
fn groups(engine: &Engine) -> Option<KvCachePlan> {
    let plan = engine.kv_cache.as_ref().map(|cache| cache.plan);
    plan.filter(|plan| plan.sparse_groups > 0)
}

impl KvOffload {
    pub(super) fn from_values(
        v: &Values,
        model: &Model,
        engine: &Engine,
        transfer: Option<&mut KvTransfer>,
    ) -> Result<Option<Self>, ConfigError> {
        let bandwidth = v.get(&kv::KV_OFFLOADING_BANDWIDTH)?;
        let Some(offloader) = Offloader::from_values(v, transfer)? else {
            if bandwidth.is_some() {
                v.warn("--kv-offloading-bandwidth has no effect: nothing is offloaded");
            }
            return Ok(None);
        };
        offloader.check(v)?;
        let name = offloader.name();
        if engine.scheduler != SchedulerKind::Vllm {
            v.warn(format!("{name} has no effect: it needs --scheduler vllm"));
            return Ok(None);
        }
        if offloader.rules == HostRules::Simple && !engine.prefix_cache.enable_prefix_caching {
            v.warn(format!("{name} has no effect: it needs prefix caching"));
            return Ok(None);
        }
        let Some(token) = TokenBytes::of(model, engine) else {
            v.warn(format!(
                "{name} has no effect: the KV cache size of a token is unknown; set a model whose \
                 config.json is known (--{}), or --{}",
                flags::model::HF_CONFIG_PATH.name,
                kv::KV_BYTES_PER_TOKEN.name
            ));
            return Ok(None);
        };
        let sized = offloader.sized(v, engine, token, bandwidth)?;
        Ok(sized.map(|host| {
            let context = model.max_model_len;
            let request = host.request_chunks(engine, context);
            let tokens = u64::from(host.tier.chunks) * u64::from(context) / request.max(1);
            Self { tokens, ..host }
        }))
    }

    /// Returns the number of chunks in CPU memory for a request with `context` tokens.
    ///
    /// **Source:** vLLM 0.33 `vllm/v1/kv_offload/cpu/common.py`, `_kv_cache_size_tokens`.
    fn request_chunks(&self, engine: &Engine, context: u32) -> u64 {
        let chunk = self.tier.blocks_per_chunk.saturating_mul(engine.block_size);
        let all = context.div_ceil(chunk.max(1));
        let Some(plan) = groups(engine) else {
            return all.into();
        };
        let end = match plan.sparse {
            SparseLayerKind::Window(tokens) => tokens.div_ceil(chunk.max(1)),
            SparseLayerKind::State(_) => 1,
        };
        let of = |groups: u32, each: u32| u64::from(groups) * u64::from(each);
        of(plan.full_groups, all) + of(plan.sparse_groups, end.min(all))
    }
}

impl TokenBytes {
    fn of(model: &Model, engine: &Engine) -> Option<Self> {
        let (tensor, pipeline) = (engine.parallel.tensor, engine.parallel.pipeline);
        let workers = f64::from(tensor) * f64::from(pipeline);
        let groups = groups(engine);
        if let Some(typed) = engine.transfer.kv_bytes_per_token {
            let each = groups.map_or(1, |plan| plan.full_groups + plan.sparse_groups);
            let whole = typed as f64 / f64::from(each);
            let part = whole / workers;
            return Some(Self { part, whole });
        }
        let shape = kv_cache::shape(model, engine)?;
        let width = kv_width(&engine.memory.kv_cache_dtype, shape.head_dim)?;
        let stage = shape.stage(pipeline);
        let part = match groups {
            Some(plan) => plan.block_bytes / f64::from(plan.block_size),
            None => KvCachePlan::new(&stage, tensor, 1, width, false).token_bytes(),
        };
        // GPUs with the same latent cache (MLA) share one copy of it.
        let copies = match shape.mla {
            Some(_) => f64::from(pipeline),
            None => workers,
        };
        let whole = part * copies;
        (part > 0.0).then_some(Self { part, whole })
    }
}

impl Offloader {
    fn name(&self) -> &'static str {
        match (self.size_gib, self.rules) {
            (None, _) if self.is_lmcache => "LMCacheConnectorV1",
            (Some(_), _) => "--kv-offloading-size",
            (None, HostRules::Native) => "OffloadingConnector",
            (None, HostRules::Simple) => "SimpleCPUOffloadConnector",
        }
    }

    fn from_values(
        v: &Values,
        transfer: Option<&mut KvTransfer>,
    ) -> Result<Option<Self>, ConfigError> {
        let size_gib = v.get(&kv::KV_OFFLOADING_SIZE)?;
        let backend = v.choice(&kv::KV_OFFLOADING_BACKEND)?.unwrap_or_default();
        let simple = v.get(&kv::SIMPLE_KV_OFFLOAD)?;
        let typed = transfer
            .as_ref()
            .and_then(|transfer| Self::named(v, &transfer.raw));
        // Size 0 disables the cache, for sweeps over the size.
        let Some(gib) = size_gib.filter(|gib| *gib > 0.0) else {
            return Ok(typed);
        };
        let mut extra = Map::new();
        if let Some(transfer) = transfer {
            if let Some(Value::Object(more)) = transfer.raw.get("kv_connector_extra_config") {
                extra.clone_from(more);
            }
            if let Some(name) = transfer.raw.get("kv_connector").and_then(Value::as_str) {
                v.warn(format!(
                    "--kv-offloading-size replaces kv_connector {name}, as in vLLM"
                ));
            }
            (transfer.connector, transfer.producer, transfer.consumer) = (None, true, true);
            transfer.bootstrap_port = None;
        }
        if backend == OffloadBackend::LmCache {
            v.warn(
                "--kv-offloading-size has no effect: with --kv-offloading-backend lmcache, the \
                 memory belongs to an LMCache server, which is not simulated",
            );
            return Ok(None);
        }
        extra.insert("cpu_bytes_to_use".to_owned(), (gib * GIB).into());
        let rules = match simple {
            true => HostRules::Simple,
            false => HostRules::Native,
        };
        Ok(Some(Self {
            rules,
            is_lmcache: false,
            extra,
            size_gib,
        }))
    }

    fn named(v: &Values, config: &Value) -> Option<Self> {
        let extra = match config.get("kv_connector_extra_config") {
            Some(Value::Object(extra)) => extra.clone(),
            _ => Map::new(),
        };
        let name = config.get("kv_connector")?.as_str()?;
        let rules = match name {
            "OffloadingConnector" => HostRules::Native,
            "SimpleCPUOffloadConnector" => HostRules::Simple,
            // Other roles move prompts between engines and keep no cache.
            "LMCacheConnectorV1" if config.get("kv_role")? == "kv_both" => HostRules::Native,
            "LMCacheMPConnector" => {
                v.warn(
                    "LMCacheMPConnector has no effect: its memory belongs to an LMCache server, \
                     which is not simulated",
                );
                return None;
            }
            "MultiConnector" => {
                let all = extra.get("connectors").and_then(Value::as_array)?;
                let mut stores = all.iter().filter_map(|child| Self::named(v, child));
                let first = stores.next();
                for other in stores {
                    let name = other.name();
                    v.warn(format!(
                        "{name} has no effect: another connector already offloads the KV cache"
                    ));
                }
                return first;
            }
            _ => return None,
        };
        Some(Self {
            rules,
            is_lmcache: name == "LMCacheConnectorV1",
            extra,
            size_gib: None,
        })
    }

    fn bad(&self, v: &Values, key: &str, expected: &str) -> ConfigError {
        let value = match self.extra.get(key) {
            Some(Value::String(text)) => text.clone(),
            other => other.unwrap_or(&Value::Null).to_string(),
        };
        let key = format!("kv_connector_extra_config.{key}");
        v.key_error(&kv::KV_TRANSFER_CONFIG, &key, &value, expected)
    }

    fn switch(&self, v: &Values, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.extra.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(on)) => Ok(Some(*on)),
            Some(_) => Err(self.bad(v, key, "true or false")),
        }
    }

    fn number(&self, v: &Values, key: &str) -> Result<Option<f64>, ConfigError> {
        match self.extra.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|n| *n >= 0.0) {
                Some(number) => Ok(Some(number)),
                None => Err(self.bad(v, key, "a number of at least 0")),
            },
        }
    }

    fn check(&self, v: &Values) -> Result<(), ConfigError> {
        let allowed: &[(&str, &[&str])] = match self.rules {
            HostRules::Native => &[
                ("spec_name", &["CPUOffloadingSpec"]),
                // LMCache has no `eviction_policy` of vLLM.
                (
                    "eviction_policy",
                    if self.is_lmcache {
                        &["lru"]
                    } else {
                        &["lru", "arc"]
                    },
                ),
            ],
            HostRules::Simple => &[("kv_offload_backend", &["cpu"])],
        };
        for (key, values) in allowed {
            if let Some(typed) = self.extra.get(*key)
                && !values.iter().any(|value| typed == value)
            {
                let expected = format!("{} (other values are not simulated)", values.join(" or "));
                return Err(self.bad(v, key, &expected));
            }
        }
        for (key, reason) in [
            (
                "cache_policy_module_path",
                "code that is loaded from a module",
            ),
            ("spec_module_path", "code that is loaded from a module"),
            ("secondary_tiers", "a tier behind CPU memory"),
        ] {
            if self.extra.contains_key(key) {
                let words = format!("kv_connector_extra_config.{key}: {reason} is not simulated");
                return Err(v.wrong(words, &kv::KV_TRANSFER_CONFIG));
            }
        }
        if self.switch(v, "lazy_offload")?.unwrap_or(false) {
            return Err(self.bad(
                v,
                "lazy_offload",
                "false: blocks are stored when they are computed",
            ));
        }
        if self
            .number(v, "sync_load_budget_bytes")?
            .is_some_and(|n| n > 0.0)
        {
            v.warn("sync_load_budget_bytes has no effect: all loads are between steps");
        }
        Ok(())
    }

    /// Returns how often a chunk must be offered before it is stored, and the number of tracked
    /// chunks.
    fn threshold(&self, v: &Values) -> Result<Option<(u32, usize)>, ConfigError> {
        let least = self.number(v, "store_threshold")?.unwrap_or(0.0);
        let most = self.number(v, "max_tracker_size")?.unwrap_or(64_000.0);
        let counts = self.rules == HostRules::Native && !self.is_lmcache && least >= 2.0;
        Ok(counts.then_some((least as u32, (most as usize).max(1))))
    }

    fn bytes(&self, v: &Values, workers: f64, block: f64) -> Result<f64, ConfigError> {
        if self.is_lmcache {
            let each = self.number(v, "lmcache.max_local_cpu_size")?;
            return Ok(each.unwrap_or(LMCACHE_GIB) * GIB * workers);
        }
        let total = self.number(v, "cpu_bytes_to_use")?;
        if self.rules == HostRules::Native {
            return total.ok_or_else(|| {
                let words = "cpu_bytes_to_use must be specified in kv_connector_extra_config";
                ConfigError::Invalid(words.to_owned())
            });
        }
        if let Some(blocks) = self.number(v, "num_cpu_blocks")? {
            return Ok(blocks * block);
        }
        let each = self.number(v, "cpu_bytes_to_use_per_rank")?;
        Ok(each.map_or(total.unwrap_or(SIMPLE_BYTES), |each| each * workers))
    }

    fn blocks_per_chunk(&self, v: &Values, block_size: u32) -> Result<u32, ConfigError> {
        if self.is_lmcache {
            let tokens = self.number(v, "lmcache.chunk_size")?;
            let blocks = tokens.unwrap_or(LMCACHE_TOKENS) / f64::from(block_size.max(1));
            return Ok(blocks.clamp(1.0, 65_536.0) as u32);
        }
        let blocks = self.number(v, "blocks_per_chunk")?;
        let tokens = self.number(v, "block_size")?;
        let (key, chunk) = match (blocks, tokens) {
            (Some(_), Some(_)) => {
                return Err(self.bad(v, "block_size", "left out if blocks_per_chunk is set"));
            }
            (Some(blocks), None) => ("blocks_per_chunk", blocks),
            (None, Some(tokens)) => ("block_size", tokens / f64::from(block_size.max(1))),
            (None, None) => return Ok(1),
        };
        if chunk.fract() != 0.0 || !(1.0..=65_536.0).contains(&chunk) {
            return Err(self.bad(v, key, "a whole number of blocks, 1 to 65536"));
        }
        Ok(chunk as u32)
    }

    fn detail(&self, v: &Values) -> Result<HostDetail, ConfigError> {
        let described = self.switch(v, "self_describing_kv_events");
        Ok(match self.is_lmcache || described?.unwrap_or(false) {
            true => HostDetail::Tokens,
            false => HostDetail::Names,
        })
    }

    fn sized(
        &self,
        v: &Values,
        engine: &Engine,
        token: TokenBytes,
        bandwidth: Option<f64>,
    ) -> Result<Option<KvOffload>, ConfigError> {
        let workers = engine.parallel.tensor * engine.parallel.pipeline;
        let size = f64::from(engine.block_size);
        let bytes = self.bytes(v, f64::from(workers), token.whole * size)?;
        let (blocks_per_chunk, outputs, detail) = match self.rules {
            HostRules::Native => (
                self.blocks_per_chunk(v, engine.block_size)?,
                !self.switch(v, "offload_prompt_only")?.unwrap_or(true),
                self.detail(v)?,
            ),
            HostRules::Simple => (1, true, HostDetail::Local),
        };
        if blocks_per_chunk > 1 && groups(engine).is_some() {
            return Err(ConfigError::Invalid(format!(
                "{}: chunks of {blocks_per_chunk} blocks are not simulated for models with \
                 sliding-window or state layers",
                self.name()
            )));
        }
        let chunk = size * f64::from(blocks_per_chunk);
        let chunks = (bytes / (token.whole * chunk)).floor();
        if chunks < 1.0 {
            v.warn(format!(
                "{} has no effect: smaller than one block",
                self.name()
            ));
            return Ok(None);
        }
        if chunks > MAX_CHUNKS {
            return Err(ConfigError::Invalid(format!(
                "{}: {chunks} blocks are too many, at most {MAX_CHUNKS} are simulated",
                self.name()
            )));
        }
        let link = link(engine, bandwidth);
        let speed = engine.step_speedup();
        let takes = |rate: f64| {
            let seconds = token.part * chunk / (rate * 1e9) / speed;
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        };
        Ok(Some(KvOffload {
            size_gib: self.size_gib,
            bytes: bytes as u64,
            tokens: 0,
            tier: HostTierConfig {
                rules: self.rules,
                eviction: match self.extra.get("eviction_policy") {
                    Some(policy) if policy == "arc" => HostEviction::Arc,
                    _ => HostEviction::Lru,
                },
                chunks: chunks as u32,
                blocks_per_chunk,
                chunk_bytes: (token.whole * chunk) as u64,
                outputs,
                threshold: self.threshold(v)?,
                latency: COPY_LATENCY.div_f64(speed),
                chunk_time: (takes(link.to_host), takes(link.to_device)),
            },
            workers,
            link,
            detail,
            is_lmcache: self.is_lmcache,
        }))
    }
}

fn link(engine: &Engine, bandwidth: Option<f64>) -> HostLink {
    let known = engine.gpu.as_deref().and_then(gpu);
    match bandwidth {
        Some(typed) => HostLink {
            name: "--kv-offloading-bandwidth",
            to_host: typed,
            to_device: typed,
        },
        None => known.map_or(HostLink::PCIE_5, HostLink::of),
    }
}
