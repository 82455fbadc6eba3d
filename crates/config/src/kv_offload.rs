//! Settings of KV cache offloading to CPU memory.

use std::time::Duration;

use serde_json::{Map, Value};

use super::choices::{KvOffloadBackend, SchedulerKind};
use super::engine::EngineConfig;
use super::error::{ConfigError, bail};
use super::flag::value_to_flag_text;
use super::flags::{self, kv};
use super::kv_cache;
use super::kv_transfer::{KvTransferConfig, transfer_field_error};
use super::model::ModelConfig;
use super::values::FlagValues;
use vllm_sim_engine::kv::{
    HostCacheConfig, HostCacheEvictionPolicy, OffloadConnector, SparseLayerKind,
};
use vllm_sim_engine::latency::{HostLinkBandwidth, KvCachePlan, find_gpu, kv_bytes_per_value};
use vllm_sim_observe::kv_events::HostKvEventDetail;

const BYTES_PER_GIB: f64 = (1_u64 << 30) as f64;
const COPY_LATENCY: Duration = Duration::from_micros(20);
const SIMPLE_CONNECTOR_DEFAULT_BYTES: f64 = 8.0 * BYTES_PER_GIB;
/// Defaults of LMCache: GiB per GPU (`max_local_cpu_size`), tokens per chunk (`chunk_size`).
const LMCACHE_DEFAULT_GIB_PER_GPU: f64 = 5.0;
const LMCACHE_DEFAULT_CHUNK_TOKENS: f64 = 256.0;
/// Maximum number of offload chunks in CPU memory, which limits bookkeeping to a few gigabytes.
const MAX_CHUNKS: f64 = 67_108_864.0;

/// Settings of a KV cache in CPU memory (`--kv-offloading-size`, `OffloadingConnector`,
/// `SimpleCPUOffloadConnector`).
///
/// **Source:** vLLM 0.33 `vllm/config/vllm.py` (`_post_init_kv_transfer_config`),
/// `vllm/v1/kv_offload/cpu/spec.py`, `vllm/distributed/kv_transfer/kv_connector/v1/
/// simple_cpu_offload_connector.py`.
#[derive(Debug, Clone, PartialEq)]
pub struct KvOffloadConfig {
    /// Value of `--kv-offloading-size`, in GiB, if set.
    pub size_gib: Option<f64>,
    /// Size of the KV cache in CPU memory for all GPUs of an engine together, in bytes.
    pub bytes: u64,
    /// Capacity of the KV cache in CPU memory in tokens, for requests of `max_model_len` tokens.
    pub tokens: u64,
    /// Configuration of the simulated KV cache in CPU memory.
    pub tier: HostCacheConfig,
    /// Number of GPUs of an engine that copy KV blocks to and from CPU memory.
    pub workers: u32,
    /// Bandwidth of the link between a GPU and CPU memory.
    pub link: HostLinkBandwidth,
    /// Level of detail of KV events about KV blocks in CPU memory.
    pub detail: HostKvEventDetail,
    /// Whether LMCache manages the KV cache in CPU memory; LMCache has metrics of its own.
    pub is_lmcache: bool,
}

struct OffloadConnectorSettings {
    rules: OffloadConnector,
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
fn sparse_kv_cache_plan(engine: &EngineConfig) -> Option<KvCachePlan> {
    let plan = engine.kv_cache.as_ref().map(|cache| cache.plan);
    plan.filter(|plan| plan.sparse_groups > 0)
}

impl KvOffloadConfig {
    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &ModelConfig,
        engine: &EngineConfig,
        transfer: Option<&mut KvTransferConfig>,
    ) -> Result<Option<Self>, ConfigError> {
        let bandwidth = v.get(&kv::KV_OFFLOADING_BANDWIDTH)?;
        let Some(offloader) = OffloadConnectorSettings::from_values(v, transfer)? else {
            if bandwidth.is_some() {
                v.add_warning("--kv-offloading-bandwidth has no effect: nothing is offloaded");
            }
            return Ok(None);
        };
        offloader.check_extra_config(v)?;
        let name = offloader.connector_name();
        if engine.scheduler != SchedulerKind::Vllm {
            v.add_no_effect_warning(format!("{name} has no effect: it needs --scheduler vllm"));
            return Ok(None);
        }
        if offloader.rules == OffloadConnector::Simple && !engine.prefix_cache.enable_prefix_caching
        {
            v.add_warning(format!("{name} has no effect: it needs prefix caching"));
            return Ok(None);
        }
        let Some(token) = TokenBytes::of_model(model, engine) else {
            v.add_warning(format!(
                "{name} has no effect: the KV cache size of a token is unknown; set a model whose \
                 config.json is known (--{}), or --{}",
                flags::model::HF_CONFIG_PATH.name,
                kv::KV_BYTES_PER_TOKEN.name
            ));
            return Ok(None);
        };
        let sized = offloader.build_kv_offload(v, engine, token, bandwidth)?;
        Ok(sized.map(|host| {
            let context = model.max_model_len;
            let request = host.request_chunks(engine, context);
            let tokens = u64::from(host.tier.chunks) * u64::from(context) / request.max(1);
            Self { tokens, ..host }
        }))
    }

    /// Returns the number of offload chunks that a request with `context` tokens has in CPU memory.
    ///
    /// **Source:** vLLM 0.33 `vllm/v1/kv_offload/cpu/common.py`, `_kv_cache_size_tokens`.
    fn request_chunks(&self, engine: &EngineConfig, context: u32) -> u64 {
        let chunk = self.tier.blocks_per_chunk.saturating_mul(engine.block_size);
        let all = context.div_ceil(chunk.max(1));
        let Some(plan) = sparse_kv_cache_plan(engine) else {
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
    fn of_model(model: &ModelConfig, engine: &EngineConfig) -> Option<Self> {
        let (tensor, pipeline) = (engine.parallel.tensor, engine.parallel.pipeline);
        let workers = f64::from(tensor) * f64::from(pipeline);
        let groups = sparse_kv_cache_plan(engine);
        if let Some(typed) = engine.transfer.kv_bytes_per_token {
            let each = groups.map_or(1, |plan| plan.full_groups + plan.sparse_groups);
            let whole = typed as f64 / f64::from(each);
            let part = whole / workers;
            return Some(Self { part, whole });
        }
        let shape = kv_cache::configured_model_shape(model, engine).ok()?;
        let width = kv_bytes_per_value(&engine.memory.kv_cache_dtype, shape.head_dim)?;
        let stage = shape.largest_pipeline_stage(pipeline);
        let part = match groups {
            Some(plan) => plan.block_bytes / f64::from(plan.block_size),
            None => KvCachePlan::new(&stage, tensor, 1, width, false).kv_bytes_per_token(),
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

impl OffloadConnectorSettings {
    fn connector_name(&self) -> &'static str {
        match (self.size_gib, self.rules) {
            (None, _) if self.is_lmcache => "LMCacheConnectorV1",
            (Some(_), _) => "--kv-offloading-size",
            (None, OffloadConnector::Native) => "OffloadingConnector",
            (None, OffloadConnector::Simple) => "SimpleCPUOffloadConnector",
        }
    }

    fn from_values(
        v: &FlagValues,
        transfer: Option<&mut KvTransferConfig>,
    ) -> Result<Option<Self>, ConfigError> {
        let size_gib = v.get(&kv::KV_OFFLOADING_SIZE)?;
        let backend = v.get_choice(&kv::KV_OFFLOADING_BACKEND)?.unwrap_or_default();
        let simple = v.get(&kv::SIMPLE_KV_OFFLOAD)?;
        let typed =
            transfer.as_ref().and_then(|transfer| Self::from_connector_name(v, &transfer.raw));
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
                v.add_warning(format!(
                    "--kv-offloading-size replaces kv_connector {name}, as in vLLM"
                ));
            }
            (transfer.connector, transfer.producer, transfer.consumer) = (None, true, true);
            transfer.bootstrap_port = None;
        }
        if backend == KvOffloadBackend::LmCache {
            v.add_warning(
                "--kv-offloading-size has no effect: with --kv-offloading-backend lmcache, the \
                 memory belongs to an LMCache server, which is not simulated",
            );
            return Ok(None);
        }
        extra.insert("cpu_bytes_to_use".to_owned(), (gib * BYTES_PER_GIB).into());
        let rules = match simple {
            true => OffloadConnector::Simple,
            false => OffloadConnector::Native,
        };
        Ok(Some(Self { rules, is_lmcache: false, extra, size_gib }))
    }

    fn from_connector_name(v: &FlagValues, config: &Value) -> Option<Self> {
        let extra = match config.get("kv_connector_extra_config") {
            Some(Value::Object(extra)) => extra.clone(),
            _ => Map::new(),
        };
        let name = config.get("kv_connector")?.as_str()?;
        let rules = match name {
            "OffloadingConnector" => OffloadConnector::Native,
            "SimpleCPUOffloadConnector" => OffloadConnector::Simple,
            // Other roles move prompts between engines and keep no cache.
            "LMCacheConnectorV1" if config.get("kv_role")? == "kv_both" => OffloadConnector::Native,
            "LMCacheMPConnector" => {
                v.add_warning(
                    "LMCacheMPConnector has no effect: its memory belongs to an LMCache server, \
                     which is not simulated",
                );
                return None;
            }
            "MultiConnector" => {
                let all = extra.get("connectors").and_then(Value::as_array)?;
                let mut stores = all.iter().filter_map(|child| Self::from_connector_name(v, child));
                let first = stores.next();
                for other in stores {
                    let name = other.connector_name();
                    v.add_warning(format!(
                        "{name} has no effect: another connector already offloads the KV cache"
                    ));
                }
                return first;
            }
            _ => return None,
        };
        Some(Self { rules, is_lmcache: name == "LMCacheConnectorV1", extra, size_gib: None })
    }

    fn wrong_value_error(&self, v: &FlagValues, key: &str, expected: &str) -> ConfigError {
        let value = value_to_flag_text(self.extra.get(key).unwrap_or(&Value::Null));
        let key = format!("kv_connector_extra_config.{key}");
        transfer_field_error(v, &key, &value, expected)
    }

    fn get_bool(&self, v: &FlagValues, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.extra.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(on)) => Ok(Some(*on)),
            Some(_) => Err(self.wrong_value_error(v, key, "true or false")),
        }
    }

    fn get_number(&self, v: &FlagValues, key: &str) -> Result<Option<f64>, ConfigError> {
        match self.extra.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|n| *n >= 0.0) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong_value_error(v, key, "a number of at least 0")),
            },
        }
    }

    fn check_extra_config(&self, v: &FlagValues) -> Result<(), ConfigError> {
        let allowed: &[(&str, &[&str])] = match self.rules {
            OffloadConnector::Native => &[
                ("spec_name", &["CPUOffloadingSpec"]),
                // LMCache has no `eviction_policy` of vLLM.
                ("eviction_policy", if self.is_lmcache { &["lru"] } else { &["lru", "arc"] }),
            ],
            OffloadConnector::Simple => &[("kv_offload_backend", &["cpu"])],
        };
        for (key, values) in allowed {
            if let Some(typed) = self.extra.get(*key)
                && !values.iter().any(|value| typed == value)
            {
                let expected = format!("{} (other values are not simulated)", values.join(" or "));
                return Err(self.wrong_value_error(v, key, &expected));
            }
        }
        for (key, reason) in [
            ("cache_policy_module_path", "code that is loaded from a module"),
            ("spec_module_path", "code that is loaded from a module"),
            ("secondary_tiers", "a tier behind CPU memory"),
        ] {
            if self.extra.contains_key(key) {
                let words = format!("kv_connector_extra_config.{key}: {reason} is not simulated");
                return Err(v.unsupported_value_error(words, &kv::KV_TRANSFER_CONFIG));
            }
        }
        if self.get_bool(v, "lazy_offload")?.unwrap_or(false) {
            return Err(self.wrong_value_error(
                v,
                "lazy_offload",
                "false: blocks are stored when they are computed",
            ));
        }
        if self.get_number(v, "sync_load_budget_bytes")?.is_some_and(|n| n > 0.0) {
            v.add_warning("sync_load_budget_bytes has no effect: all loads are between steps");
        }
        Ok(())
    }

    /// Returns two numbers: how many requests must ask to store an offload chunk before the chunk
    /// is copied to CPU memory, and for how many chunks these requests are counted.
    fn read_store_threshold(&self, v: &FlagValues) -> Result<Option<(u32, usize)>, ConfigError> {
        let least = self.get_number(v, "store_threshold")?.unwrap_or(0.0);
        let most = self.get_number(v, "max_tracker_size")?.unwrap_or(64_000.0);
        let counts = self.rules == OffloadConnector::Native && !self.is_lmcache && least >= 2.0;
        Ok(counts.then_some((least as u32, (most as usize).max(1))))
    }

    fn host_capacity_bytes(
        &self,
        v: &FlagValues,
        workers: f64,
        block: f64,
    ) -> Result<f64, ConfigError> {
        if self.is_lmcache {
            let each = self.get_number(v, "lmcache.max_local_cpu_size")?;
            return Ok(each.unwrap_or(LMCACHE_DEFAULT_GIB_PER_GPU) * BYTES_PER_GIB * workers);
        }
        let total = self.get_number(v, "cpu_bytes_to_use")?;
        if self.rules == OffloadConnector::Native {
            return total.ok_or_else(|| {
                let words = "cpu_bytes_to_use must be specified in kv_connector_extra_config";
                ConfigError::Invalid(words.to_owned())
            });
        }
        if let Some(blocks) = self.get_number(v, "num_cpu_blocks")? {
            return Ok(blocks * block);
        }
        let each = self.get_number(v, "cpu_bytes_to_use_per_rank")?;
        Ok(each.map_or(total.unwrap_or(SIMPLE_CONNECTOR_DEFAULT_BYTES), |each| each * workers))
    }

    fn blocks_per_chunk(&self, v: &FlagValues, block_size: u32) -> Result<u32, ConfigError> {
        if self.is_lmcache {
            let tokens = self.get_number(v, "lmcache.chunk_size")?;
            let blocks =
                tokens.unwrap_or(LMCACHE_DEFAULT_CHUNK_TOKENS) / f64::from(block_size.max(1));
            return Ok(blocks.clamp(1.0, 65_536.0) as u32);
        }
        let blocks = self.get_number(v, "blocks_per_chunk")?;
        let tokens = self.get_number(v, "block_size")?;
        let (key, chunk) = match (blocks, tokens) {
            (Some(_), Some(_)) => {
                return Err(self.wrong_value_error(
                    v,
                    "block_size",
                    "left out if blocks_per_chunk is set",
                ));
            }
            (Some(blocks), None) => ("blocks_per_chunk", blocks),
            (None, Some(tokens)) => ("block_size", tokens / f64::from(block_size.max(1))),
            (None, None) => return Ok(1),
        };
        if chunk.fract() != 0.0 || !(1.0..=65_536.0).contains(&chunk) {
            return Err(self.wrong_value_error(v, key, "a whole number of blocks, 1 to 65536"));
        }
        Ok(chunk as u32)
    }

    fn host_event_detail(&self, v: &FlagValues) -> Result<HostKvEventDetail, ConfigError> {
        let described = self.get_bool(v, "self_describing_kv_events");
        Ok(match self.is_lmcache || described?.unwrap_or(false) {
            true => HostKvEventDetail::Tokens,
            false => HostKvEventDetail::Names,
        })
    }

    fn build_kv_offload(
        &self,
        v: &FlagValues,
        engine: &EngineConfig,
        token: TokenBytes,
        bandwidth: Option<f64>,
    ) -> Result<Option<KvOffloadConfig>, ConfigError> {
        let workers = engine.parallel.tensor * engine.parallel.pipeline;
        let size = f64::from(engine.block_size);
        let bytes = self.host_capacity_bytes(v, f64::from(workers), token.whole * size)?;
        let (blocks_per_chunk, outputs, detail) = match self.rules {
            OffloadConnector::Native => (
                self.blocks_per_chunk(v, engine.block_size)?,
                !self.get_bool(v, "offload_prompt_only")?.unwrap_or(true),
                self.host_event_detail(v)?,
            ),
            OffloadConnector::Simple => (1, true, HostKvEventDetail::Local),
        };
        if blocks_per_chunk > 1 && sparse_kv_cache_plan(engine).is_some() {
            bail!(
                "{}: chunks of {blocks_per_chunk} blocks are not simulated for models with \
                 sliding-window or state layers",
                self.connector_name()
            );
        }
        let chunk = size * f64::from(blocks_per_chunk);
        let chunks = (bytes / (token.whole * chunk)).floor();
        if chunks < 1.0 {
            v.add_warning(format!(
                "{} has no effect: smaller than one block",
                self.connector_name()
            ));
            return Ok(None);
        }
        if chunks > MAX_CHUNKS {
            bail!(
                "{}: {chunks} blocks are too many, at most {MAX_CHUNKS} are simulated",
                self.connector_name()
            );
        }
        let link = host_link(engine, bandwidth);
        let speed = engine.total_step_speedup_ratio();
        let takes = |rate: f64| {
            let seconds = token.part * chunk / (rate * 1e9) / speed;
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        };
        Ok(Some(KvOffloadConfig {
            size_gib: self.size_gib,
            bytes: bytes as u64,
            tokens: 0,
            tier: HostCacheConfig {
                rules: self.rules,
                eviction: match self.extra.get("eviction_policy") {
                    Some(policy) if policy == "arc" => HostCacheEvictionPolicy::Arc,
                    _ => HostCacheEvictionPolicy::Lru,
                },
                chunks: chunks as u32,
                blocks_per_chunk,
                chunk_bytes: (token.whole * chunk) as u64,
                outputs,
                threshold: self.read_store_threshold(v)?,
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

fn host_link(engine: &EngineConfig, bandwidth: Option<f64>) -> HostLinkBandwidth {
    let known = engine.gpu.as_deref().and_then(find_gpu);
    match bandwidth {
        Some(typed) => HostLinkBandwidth {
            name: "--kv-offloading-bandwidth",
            to_host: typed,
            to_device: typed,
        },
        None => known.map_or(HostLinkBandwidth::PCIE_5, HostLinkBandwidth::host_link_of_gpu),
    }
}
