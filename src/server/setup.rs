//! Builds the settings of engines, tokenizer, metrics and middleware from the configuration.

use std::path::Path;
use std::time::Duration;

use super::cache_config::cache_config_fields;
#[cfg(feature = "grpc")]
use super::rules;
use super::timing;
use vllm_sim_config::{CliMode, Config, KvConnector, KvTransferConfig, ModelTask, SchedulerKind};
use vllm_sim_engine::KvLoadFailurePolicy;
use vllm_sim_engine::kv::{BlockHashAlgorithm, BlockHashConfig, BlockPoolConfig, OffloadConnector};
use vllm_sim_http::MiddlewareSettings;
use vllm_sim_observe::kv_events::KvEventHashFormat;
use vllm_sim_observe::metrics::{
    ApiServerCount, CpuOffloadInfo, EngineFeatures, FakeMetrics, LoraSlotCounts, MetricsSettings,
    NixlTransferMetricParams, cache_config_labels,
};
#[cfg(feature = "grpc")]
use vllm_sim_service::InferenceService;
use vllm_sim_service::NgramLookupSettings;
use vllm_sim_service::prompt::{MediaLimits, MediaSettings, PromptSettings};
use vllm_sim_tokenizer::{HuggingFaceHubSettings, MediaModality, TokenizerLocation};

/// Default number of KV cache blocks per data-parallel rank.
const DEFAULT_KV_BLOCKS: u32 = 16_384;

/// Returns the location of the model's tokenizer.
///
/// A model that is not on disk is downloaded only if the configuration requests it.
pub(super) fn tokenizer_location(
    config: &Config,
    env: &dyn Fn(&str) -> Option<String>,
) -> TokenizerLocation {
    let source = &config.model.tokenizer;
    if source.force_dummy {
        return TokenizerLocation::Simulated;
    }
    let path = Path::new(&source.name);
    if path.exists() {
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        return if file.exists() {
            TokenizerLocation::Folder(path.to_owned())
        } else {
            TokenizerLocation::Simulated
        };
    }
    let mut hub = HuggingFaceHubSettings::from_env(env);
    hub.cache = source.cache_dir.clone().unwrap_or(hub.cache);
    hub.token = source.hf_token.clone().or(hub.token);
    hub.endpoint = source.hf_endpoint.clone().or(hub.endpoint);
    let revision = source.revision.clone();
    TokenizerLocation::Hub { repo: source.name.clone(), revision, download: source.download, hub }
}

/// Returns whether a missing tokenizer is an error, because the tokenizer was named or should be
/// downloaded.
pub(super) fn needs_tokenizer(config: &Config) -> bool {
    let source = &config.model.tokenizer;
    source.download || source.name != config.model.name
}

/// Returns the number of KV cache blocks of one data-parallel rank, including vLLM's null block.
///
/// The number is the planned or configured one, the number that fits into memory, or a default.
pub(super) fn kv_block_count(config: &Config) -> u32 {
    let planned = config.engine.kv_cache.as_ref().map(|size| size.blocks);
    let told = planned.or(config.engine.memory.num_blocks);
    told.or_else(|| timing::kv_blocks_that_fit_in_memory(config)).unwrap_or(DEFAULT_KV_BLOCKS)
}

/// Returns the KV cache settings of the scheduler named `pool`; `None` without a KV cache.
pub(super) fn kv_block_pool_config(config: &Config) -> Option<BlockPoolConfig> {
    config.engine.has_prefix_cache().then(|| BlockPoolConfig {
        // vLLM's count includes a null block, llm-d's does not.
        num_blocks: kv_block_count(config)
            .saturating_add(u32::from(config.engine.prefix_cache.enable_kvcache)),
        block_size: config.engine.block_size,
        prefix_caching: true,
        events: config.kv_events.enabled || config.metrics.kv_cache,
    })
}

/// Returns the time for which KV blocks are kept for another server; `None` if no blocks are kept.
pub(super) fn kv_block_lease_duration(config: &Config) -> Option<Duration> {
    let transfer = config.kv_transfer.as_ref();
    transfer.and_then(KvTransferConfig::kv_block_lease_duration)
}

/// Returns whether other servers rely on the KV cache of prompts that this server computes.
///
/// **Source:** `requires_kv_delivery`, vLLM 0.33 `kv_connector/v1/base.py`; caches in host memory
/// do not require it.
pub(super) fn hands_off_prompt_kv_cache(config: &Config) -> bool {
    let transfer = config.kv_transfer.as_ref();
    transfer.is_some_and(|transfer| transfer.producer && transfer.connector.is_some())
}

/// Returns whether a KV connector may load blocks into the GPU: from other servers or host memory.
pub(super) fn may_load_external_kv_cache(config: &Config) -> bool {
    let transfer = config.kv_transfer.as_ref();
    config.engine.kv_offload.is_some() || transfer.is_some_and(|transfer| transfer.consumer)
}

/// Returns the policy for prompts whose KV cache cannot be loaded from another server.
pub(super) fn kv_load_failure_policy(config: &Config) -> KvLoadFailurePolicy {
    let transfer = config.kv_transfer.as_ref();
    transfer.map_or_else(Default::default, |t| t.load_failure_policy)
}

fn kv_connector(config: &Config) -> Option<KvConnector> {
    config.kv_transfer.as_ref()?.connector
}

/// Returns the settings of KV block hashes; `None` if no prefix is ever looked up.
pub(super) fn block_hash_config(config: &Config) -> Option<BlockHashConfig> {
    let engine = &config.engine;
    // KV events and `/debug/kv_cache` expose the hashes.
    let shown = config.kv_events.enabled || config.server.routes.dev_mode;
    let found = engine.prefix_cache.is_enabled() || engine.kv_offload.is_some();
    (engine.has_prefix_cache() && found).then(|| BlockHashConfig {
        algo: if shown { engine.prefix_cache.hash_algo } else { BlockHashAlgorithm::Internal },
        seed: engine.prefix_cache.hash_seed.clone(),
        block_size: engine.block_size,
        lookahead: match &engine.speculative {
            Some(drafts) if engine.scheduler == SchedulerKind::Vllm => drafts.lookahead,
            _ => 0,
        },
        keep_hashes: config.kv_events.enabled
            && matches!(config.kv_events.encoding.hashes, KvEventHashFormat::Bytes(_)),
        keep_tokens: config.kv_events.enabled,
    })
}

pub(super) fn prompt_settings(config: &Config) -> PromptSettings {
    let (model, api) = (&config.model, &config.api);
    PromptSettings {
        chat_template: model.chat_template.clone(),
        chat_template_kwargs: model.chat_template_kwargs.clone(),
        content_format: model.chat_template_content_format,
        skip_tokenizer_init: model.tokenizer.skip_init,
        media: MediaSettings {
            accepted: config.content.accepts_media,
            unchecked: model.cli_mode == CliMode::Llmd,
            rules: config.content.media,
            limits: MediaLimits {
                image: api.max_media_items_per_prompt(MediaModality::Image),
                audio: api.max_media_items_per_prompt(MediaModality::Audio),
                video: api.max_media_items_per_prompt(MediaModality::Video),
            },
            local_path: api.allowed_local_media_path.clone(),
        },
    }
}

/// Returns the settings of n-gram speculation, which takes draft tokens from the prompt and the
/// output.
pub(super) fn ngram_speculation_settings(config: &Config) -> Option<NgramLookupSettings> {
    let speculative = config.engine.speculative.as_ref();
    let speculative = speculative.filter(|_| config.engine.scheduler == SchedulerKind::Vllm)?;
    let (min, max) = speculative.prompt_lookup?;
    let tokens = speculative.num_tokens;
    Some(NgramLookupSettings { min, max, tokens })
}

/// Returns the engine features that metrics, KV events and traces depend on.
pub(super) fn engine_features(config: &Config) -> EngineFeatures {
    EngineFeatures {
        cache: config.engine.prefix_cache.is_enabled(),
        steps: config.engine.scheduler != SchedulerKind::Pool,
        connector: kv_connector(config).is_some() || config.engine.kv_offload.is_some(),
        transfer: uses_nixl(config).then(|| nixl_transfer(config)),
        adapter_slots: (config.lora.enabled && config.metrics.previews.resident_adapters)
            .then_some(LoraSlotCounts {
                gpu: config.lora.max_loras as usize,
                cpu: config.lora.max_cpu_loras as usize,
            }),
        tokens_per_block: config.metrics.previews.token_usage.then_some(config.engine.block_size),
    }
}

fn uses_nixl(config: &Config) -> bool {
    let nixl = [KvConnector::Nixl, KvConnector::NixlPush];
    kv_connector(config).is_some_and(|connector| nixl.contains(&connector))
}

/// Returns the size of a NIXL transfer of a prompt's KV cache from another engine.
fn nixl_transfer(config: &Config) -> NixlTransferMetricParams {
    let engine = &config.engine;
    let tensor = engine.parallel.tensor;
    let (layers, bytes) = timing::kv_regions_and_bytes_per_token(config).unwrap_or_default();
    let typed = engine.transfer.kv_bytes_per_token;
    let typed = typed.map(|bytes| bytes as f64 / f64::from(tensor));
    NixlTransferMetricParams {
        workers: tensor,
        block_size: engine.block_size,
        token_bytes: typed.unwrap_or(bytes),
        regions: layers,
    }
}

/// Returns the description of the host-memory KV cache for `/metrics`; `None` without one, or with
/// LMCache.
fn offload_info(config: &Config) -> Option<CpuOffloadInfo> {
    // LMCache exports its own metrics.
    let host = config.engine.kv_offload.as_ref().filter(|host| !host.is_lmcache)?;
    Some(CpuOffloadInfo {
        simple: host.tier.rules == OffloadConnector::Simple,
        workers: host.workers,
        chunks: host.tier.chunks,
        blocks_per_chunk: host.tier.blocks_per_chunk,
        bytes: host.bytes,
        tokens: host.tokens,
    })
}

/// Returns the settings of the HTTP middleware of a server on `port`.
pub(super) fn http_middleware_settings(config: &Config, port: u16) -> MiddlewareSettings {
    let server = &config.server;
    MiddlewareSettings {
        root_path: server.root_path.clone(),
        api_keys: server.api_keys.clone(),
        cors: server.cors.clone(),
        pod: server.pod.name.clone().map(|name| (name, port)),
        namespace: server.pod.namespace.clone(),
        request_id_headers: server.request_id_headers,
        max_body_bytes: server.max_body_bytes,
        log: server.log.clone(),
    }
}

#[cfg(feature = "grpc")]
pub(super) fn grpc_settings(
    config: &Config,
    service: &InferenceService,
) -> vllm_sim_grpc::GrpcSettings {
    let hf_config = config.model.hf_config.as_deref();
    vllm_sim_grpc::GrpcSettings {
        rules: rules::grpc_request_rules(config, service),
        model: config.model.name.clone(),
        supports_vision: hf_config.is_some_and(|config| config.get("vision_config").is_some()),
        embedding_dim: config.content.default_embedding_dimensions,
        max_message_bytes: config.server.max_body_bytes,
        logs_messages: config.server.log.http,
        startup_duration: config.server.timeouts.startup,
    }
}

pub(super) fn metrics_settings(config: &Config, routes: Vec<String>) -> MetricsSettings {
    let engine = &config.engine;
    let (first, count) = engine.parallel.local_ranks;
    let fake = config
        .metrics
        .fake
        .as_ref()
        .and_then(|value| serde_json::from_value::<FakeMetrics>(value.clone()).ok());
    MetricsSettings {
        model_name: config.model.served_names.first().cloned().unwrap_or_default(),
        engines: (first..first + count).map(|rank| rank.to_string()).collect(),
        max_model_len: config.model.max_model_len,
        previews: config.metrics.previews,
        lora: config.lora.enabled.then_some(config.lora.max_loras),
        compat: config.model.compat,
        version: config.model.vllm_version,
        legacy: config.metrics.legacy,
        tool_parser: config.api.tool_call_parser.is_some(),
        // A render-only server has no engine.
        engine_stats: !config.metrics.disable_log_stats && !config.api.scale_out.render_only,
        kv_cache_metrics: config.metrics.kv_cache,
        // llm-d serves every route, so these series would only add noise.
        sockets: config.api.speech.realtime && config.api.task != ModelTask::All,
        spec_positions: engine.speculative.as_ref().map_or(0, |s| s.num_tokens),
        cache_config: cache_config_labels(cache_config_fields(config), config.model.vllm_version),
        nixl: uses_nixl(config),
        kv_consumer: engine.kv_offload.is_some()
            || config.kv_transfer.as_ref().is_some_and(|transfer| {
                transfer.consumer && transfer.raw.get("kv_connector").is_some()
            }),
        offload: offload_info(config),
        api_servers: match engine.parallel.api_servers {
            0 | 1 => ApiServerCount::One,
            _ => ApiServerCount::Several,
        },
        routes,
        fake: fake.map(|fake| (fake, config.metrics.fake_refresh_interval)),
        ..MetricsSettings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_config::LoadedConfig;

    #[test]
    fn tokenizers_are_downloaded_to_the_configured_folder() {
        let cache = |args: &[&str]| {
            let args = [&["--model", "org/m"], args].concat();
            let loaded =
                LoadedConfig::from_flags(CliMode::Vllm, &args).expect("flags that are right");
            match tokenizer_location(&loaded.config, &|name| (name == "HOME").then(|| "/me".into()))
            {
                TokenizerLocation::Hub { hub, .. } => hub.cache,
                other => panic!("not on the hub: {other:?}"),
            }
        };
        assert_eq!(cache(&[]), Path::new("/me/.cache/huggingface/hub"));
        assert_eq!(cache(&["--hf-home", "/hf"]), Path::new("/hf/hub"));
        assert_eq!(cache(&["--hf-home", "/hf", "--download-dir", "/models"]), Path::new("/models"));
    }
}
