//! Parses flags into a validated [`Config`].
//!
//! A YAML key is a flag name. File, environment and command line become layers of settings. They
//! are merged (a later layer replaces a flag's whole value) and parsed once. [`load_config`]
//! depends only on its arguments and on the files that they name.

mod api;
mod batch_limits;
mod block_size;
mod choices;
mod cli_command;
mod cli_mode;
mod command_line;
mod content;
mod cuda_graphs;
mod delay_limit;
mod did_you_mean;
mod dynamo;
mod encoder;
mod engine;
mod engine_flags;
mod error;
mod fake;
mod faults;
mod fitted_profile;
mod flag;
mod flags;
mod group;
mod help;
mod ignored;
mod imitated_engine;
mod kv_cache;
mod kv_events;
mod kv_offload;
mod kv_transfer;
mod latency_source;
mod layers;
mod loaded;
mod lora;
mod metrics;
mod model;
mod parallel;
mod parsers;
mod preview;
mod profiler;
mod read;
mod reserved_memory;
mod server;
mod show;
mod speculative;
mod speculative_keys;
mod speech;
mod speedup;
mod values;
mod vllm_names;
mod vllm_refusals;
mod without_effect;
mod yaml;

pub use api::{
    ApiConfig, DisaggregatedServingRouteSwitches, RequestParameterLimits, ResponseFieldSettings,
    list_parsers,
};
pub use choices::{
    LogFormat, LogLevel, ModelTask, PerRequestDraftStats, SchedulerKind, SystemFingerprintForm,
};
pub use cli_command::TOOL_COMMANDS;
pub use cli_mode::CliMode;
pub use content::{ReplyContentConfig, ReplyDatasetConfig};
pub use did_you_mean::closest_known_name;
pub use encoder::MediaEncoderConfig;
pub use engine::{
    EngineConfig, KvCacheMemoryConfig, KvTransferCostConfig, PrefixCachingConfig, SchedulingConfig,
    ServerReplicaConfig, SglangSchedulerConfig, StepAndQueueLimits, StepTimingConfig,
};
pub use engine_flags::{load_single_engine_config, nearest_engine_flag_name};
pub use error::ConfigError;
pub use faults::FaultInjectionConfig;
pub use flag::{FlagKind, FlagSpec, FlagValueBounds, RuntimeChangeScope};
pub use flags::{all_effective_flags, find_runtime_changeable_flag};
pub use group::FlagHelpGroup;
pub use help::{clap_command, flags_markdown, program_help_page as program_help};
pub use ignored::{IgnoredFlagArity, all_ignored_flags, is_vllm_serve_flag};
pub use imitated_engine::DisaggregationConfig;
pub use kv_cache::KvCacheCapacity;
pub use kv_events::KvEventsConfig;
pub use kv_offload::KvOffloadConfig;
pub use kv_transfer::{KvConnector, KvReadNotificationAddress, KvTransferConfig};
pub use latency_source::{KernelTableSource, StepLatencySource};
pub use layers::FlagValueSource;
pub use loaded::{
    LoadedConfig, ParsedCommand, ResolvedFlag, load_config, load_config_and_unknown_args,
};
pub use lora::{LoraConfig, LoraModuleConfig};
pub use metrics::MetricsConfig;
pub use model::{ModelConfig, TokenizerSource};
pub use parallel::{DataParallelLoadBalancing, ParallelConfig};
pub use preview::PreviewedPullRequest;
pub use reserved_memory::ReservedGpuMemory;
pub use server::{
    ClientCertificatePolicy, CorsConfig, DashboardConfig, HttpServerConfig, HttpServerTimeouts,
    KubernetesPodIdentity, LogConfig, OptionalRouteSwitches, OtlpConfig, ReadinessCheckTimeouts,
    RequestHistoryLimits, TlsCertificateSource, TlsConfig,
};
pub use show::mask_url_passwords;
pub use speculative::SpeculativeConfig;
pub use speech::{SpeechConfig, SpeechModelCapabilities};
pub use speedup::SimulationSpeedupRatios;
pub use vllm_sim_observe::metrics::MetricsCompat;
pub use without_effect::warnings_of_unknown_env_variables;

use self::flags::kv;
use crate::error::bail;
use values::FlagValues;
use vllm_sim_engine::kv::BlockHashAlgorithm;
use vllm_sim_engine::latency::ModelShape;
use vllm_sim_observe::kv_events::{KvEventFormat, KvEventHashFormat};
use vllm_sim_service::ServingRole;

/// Complete validated configuration of a server and its engines.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Settings of sockets, TLS, headers and logs.
    pub server: HttpServerConfig,
    /// Settings of model, tokenizer and command-line mode.
    pub model: ModelConfig,
    /// Settings of API behavior and limits.
    pub api: ApiConfig,
    /// Settings of the content of replies.
    pub content: ReplyContentConfig,
    /// Settings of scheduler, step times and KV cache.
    pub engine: EngineConfig,
    /// Settings of LoRA adapters.
    pub lora: LoraConfig,
    /// Settings of KV event publishing.
    pub kv_events: KvEventsConfig,
    /// Settings of disaggregated prefill; `None` without a KV connector.
    pub kv_transfer: Option<KvTransferConfig>,
    /// Settings of a prefill/decode pair with a bootstrap server; `None` for other servers.
    pub disaggregation: Option<DisaggregationConfig>,
    /// Settings of injected faults.
    pub faults: FaultInjectionConfig,
    /// Settings of `/metrics`.
    pub metrics: MetricsConfig,
}

fn warn_of_missing_effects(v: &FlagValues, engine: &EngineConfig) {
    let uses_gpu = engine.timing.latency_source.step_times_depend_on_gpu();
    if engine.memory.cpu_offload_gib > 0.0 && !(engine.kv_cache.is_some() && uses_gpu) {
        v.add_warning(
            "--cpu-offload-gb has no effect: it needs `serve`, --gpu and a model whose shape is known",
        );
    }
    let (data, local) = (engine.parallel.data, engine.parallel.local_ranks.1);
    if engine.lock_step && local < data {
        v.add_warning(format!(
            "--data-parallel-size: in vLLM, all {data} ranks of a mixture-of-experts model run in \
             lockstep; here, ranks of other processes are not waited for"
        ));
    }
}

/// Returns whether data-parallel ranks run every step together: the model has experts, and a
/// latency model is used.
fn runs_in_lock_step(model: &ModelConfig, engine: &EngineConfig) -> bool {
    let has_steps = engine.scheduler == SchedulerKind::Vllm
        && engine.timing.latency_source != StepLatencySource::Delays;
    // vLLM rejects expert parallelism for models without experts.
    let has_experts = || {
        let shape = kv_cache::model_shape_with_engine_settings(model, engine);
        shape.map_or(engine.parallel.expert, |shape| shape.moe.is_some())
    };
    engine.parallel.data > 1 && has_steps && has_experts()
}

impl Config {
    fn from_values(v: &FlagValues) -> Result<Self, ConfigError> {
        let mut model = ModelConfig::from_flag_values(v)?;
        vllm_names::check_vllm_names(v)?;
        let mut engine = EngineConfig::from_flag_values(v, &model)?;
        if let Some(shape) = kv_cache::model_shape_with_engine_settings(&model, &engine) {
            (engine.drafter, engine.memory.reserved) =
                reserved_memory::reserve_draft_and_lora_memory(
                    v,
                    &shape,
                    engine.speculative.as_ref(),
                    &engine.parallel,
                    &engine.timing.latency_source,
                )?;
        }
        model::record_kv_cache_dtype(v, &engine.memory.kv_cache_dtype)?;
        engine.kv_cache = KvCacheCapacity::from_flag_values(v, &mut model, &engine)?;
        engine.lock_step = runs_in_lock_step(&model, &engine);
        warn_of_missing_effects(v, &engine);
        let mut kv_transfer = KvTransferConfig::from_flag_values(v, &engine.parallel)?;
        engine.kv_offload =
            KvOffloadConfig::from_flag_values(v, &model, &engine, kv_transfer.as_mut())?;
        let mut kv_events = KvEventsConfig::from_flag_values(v, &engine)?;
        if let Some(own) = imitated_engine::imitated_engine_command_line(Some(model.compat))
            && kv_events.encoding.format == KvEventFormat::Vllm
        {
            kv_events.encoding.format = own.kv_event_format;
            if !v.is_flag_set(&kv::PREFIX_CACHING_HASH_ALGO) {
                engine.prefix_cache.hash_algo = own.block_hash_algorithm;
            }
        }
        // A decode worker's blocks are useless for other prompts, so it publishes no events.
        kv_events.enabled &= engine.role != ServingRole::Decode;
        let vllm_format = kv_events.encoding.format == KvEventFormat::Vllm;
        if kv_events.enabled && vllm_format {
            // vLLM's event format implies vLLM's defaults: prefix caching on, and its hash
            // algorithm.
            engine.prefix_cache.enable_prefix_caching |= !v.is_flag_set(&kv::ENABLE_PREFIX_CACHING);
            if !v.is_flag_set(&kv::PREFIX_CACHING_HASH_ALGO) {
                engine.prefix_cache.hash_algo = BlockHashAlgorithm::Sha256;
            }
        }
        if !v.get(&kv::KV_EVENTS_INT_HASHES)? && vllm_format {
            kv_events.encoding.hashes =
                KvEventHashFormat::Bytes(engine.prefix_cache.hash_algo.hash_len_bytes());
        }
        let api = ApiConfig::from_flag_values(v, &model)?;
        let content = ReplyContentConfig::from_flag_values(v, &model)?;
        let is_vllm = engine.scheduler == SchedulerKind::Vllm;
        let tokens = is_vllm.then_some(engine.max_num_batched_tokens);
        let encoded = content.accepts_media.then_some(content.media).zip(tokens);
        engine.encoder = MediaEncoderConfig::from_flag_values(
            v,
            &model,
            &api,
            encoded,
            &engine.timing.latency_source,
        )?;
        let config = Self {
            server: HttpServerConfig::from_flag_values(v)?,
            api,
            content,
            lora: LoraConfig::from_flag_values(v, &model)?,
            kv_events,
            kv_transfer,
            disaggregation: DisaggregationConfig::from_flag_values(v, model.compat, engine.role)?,
            faults: FaultInjectionConfig::from_flag_values(v)?,
            metrics: MetricsConfig::from_flag_values(v)?,
            model,
            engine,
        };
        config.check_cross_setting_rules(v)?;
        Ok(config)
    }

    /// Rejects a tensor-parallel size that does not divide the model's attention heads.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/model.py`, `verify_with_parallel_config`.
    fn check_heads(&self, v: &FlagValues) -> Result<(), ConfigError> {
        let shape = match &self.model.hf_config {
            Some(config) => ModelShape::from_hf_config(config).ok(),
            None => vllm_sim_engine::latency::known_model_shape(&self.model.name),
        };
        let tensor = self.engine.parallel.tensor;
        let heads = shape.map_or(tensor, |shape| shape.heads);
        if v.cli_mode == CliMode::Llmd || heads.is_multiple_of(tensor) {
            return Ok(());
        }
        Err(ConfigError::UndividedHeads { heads, tensor })
    }

    fn check_cross_setting_rules(&self, v: &FlagValues) -> Result<(), ConfigError> {
        let ports = match self.engine.parallel.balance {
            DataParallelLoadBalancing::PortPerRank => self.engine.parallel.local_ranks.1,
            DataParallelLoadBalancing::Internal
            | DataParallelLoadBalancing::External
            | DataParallelLoadBalancing::Hybrid => 1,
        };
        let last = u64::from(self.server.port) + u64::from(ports * self.engine.replicas.count) - 1;
        if last > u64::from(u16::MAX) {
            bail!(
                "invalid port: {} ranks and replicas from port {} on reach {last}, beyond 65535",
                ports * self.engine.replicas.count,
                self.server.port
            );
        }
        let roofline = self.engine.timing.latency_source.step_times_depend_on_gpu();
        let shaped = self.model.hf_config.is_some()
            || vllm_sim_engine::latency::known_model_shape(&self.model.name).is_some();
        if roofline && !shaped {
            bail!(
                "--gpu needs the model's config.json, which {:?} does not have; name one with --hf-config-path",
                self.model.name
            );
        }
        self.check_heads(v)?;
        without_effect::warn_of_settings_without_effect(self, v);
        if imitated_engine::imitated_engine_command_line(Some(self.model.compat)).is_none() {
            kv_cache::warn_of_too_few_blocks(v, &self.model, &self.engine);
            vllm_refusals::warn_of_settings_vllm_refuses(v, &self.model, &self.engine);
        }
        for module in self.lora.modules.iter().filter(|_| v.cli_mode == CliMode::Vllm) {
            if let Some(text) = self.lora.lora_rank_limit_error(&module.path) {
                return Err(ConfigError::Invalid(text));
            }
        }
        for (name, is_set) in [
            ("lose-kv-events", self.faults.lose_kv_events),
            ("kv-event-gaps", self.faults.kv_event_gaps.is_some()),
        ] {
            if is_set && !self.kv_events.enabled {
                v.add_warning(format!("--{name} has no effect: there are no KV events"));
            }
        }
        if self.kv_events.enabled
            && self.kv_events.encoding.format.is_llmd_format()
            && self.kv_events.topic.contains("{pod_ip}")
            && self.server.pod.ip.is_none()
        {
            v.add_warning("POD_IP is not set: the topic of KV events contains localhost instead");
        }
        Ok(())
    }
}
