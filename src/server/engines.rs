//! Builds engines and their latency models from the configuration.

use std::time::{Duration, Instant};

use super::error::{StartError, engine_start_error};
use super::observers::ServerObservers;
use super::{setup, timing};
use vllm_sim_config::{Config, EngineConfig, MediaEncoderConfig, MetricsCompat, SchedulerKind};
use vllm_sim_engine::driver::{
    EngineObserver, EngineObservers, LiveEngine, LiveRankGroup, TimerThreadSettings,
};
use vllm_sim_engine::latency::{
    HostLinkBandwidth, MediaEncoderLatency, RooflineModelSetup, SimulationSpeedFactors, find_gpu,
};
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::pool::SlotSchedulerConfig;
use vllm_sim_engine::sched::sglang::SglangConfig;
use vllm_sim_engine::sched::vllm::{
    EncoderSchedulingConfig, LoraConfig, PrefillTransferConfig, SchedulerReportingConfig,
    SpeculativeDecodingConfig, VllmSchedulerConfig,
};

/// Starts one engine for each data-parallel rank of this process.
///
/// `epoch` is the start of the engines' clock and `port` the port of their server. `extra` observes
/// the first engine in addition to `observers`. With `ranks`, all engines run every step together.
pub(super) fn start_engine_of_each_rank(
    config: &Config,
    seed: u64,
    (epoch, port): (Instant, u16),
    observers: &ServerObservers,
    (mut extra, ranks): (Option<Box<dyn EngineObserver>>, Option<LiveRankGroup>),
) -> Result<Vec<LiveEngine>, StartError> {
    let (first, count) = config.engine.parallel.local_ranks;
    let mut live = Vec::new();
    for (index, rank) in (first..first + count).enumerate() {
        let mut observers =
            observers.event_observers_of_engine(config, (index, rank), epoch, port)?;
        observers.extend(extra.take());
        let mut spec = build_engine_spec(config, seed)?;
        if let SchedulerSpec::Vllm(engine) = &mut spec {
            engine.lock_step = ranks.is_some();
            if config.server.headless || config.engine.parallel.api_servers == 0 {
                engine.latency.remove_api_server();
            }
        }
        let scheduler = spec.build_scheduler().map_err(engine_start_error)?;
        let name = format!("engine-{rank}");
        // Avoids the indirection for a single observer.
        let observers: Box<dyn EngineObserver> = match observers.len() {
            1 => observers.remove(0),
            _ => Box::new(EngineObservers(observers)),
        };
        let tuning = TimerThreadSettings::default();
        live.push(match &ranks {
            Some(ranks) => ranks.add_engine_as_rank(scheduler, observers),
            None => LiveEngine::start_engine(&name, epoch, scheduler, observers, tuning)
                .map_err(StartError::Thread)?,
        });
    }
    Ok(live)
}

/// Creates the group of `count` data-parallel ranks of this process that run every step together;
/// `None` if they run independently.
pub(super) fn lockstep_rank_group(
    config: &Config,
    count: u32,
    epoch: Instant,
) -> Result<Option<LiveRankGroup>, StartError> {
    if !config.engine.lock_step || count < 2 {
        return Ok(None);
    }
    let ranks = LiveRankGroup::start_rank_group("engines", epoch, TimerThreadSettings::default());
    ranks.map(Some).map_err(StartError::Thread)
}

pub(super) fn build_engine_spec(config: &Config, seed: u64) -> Result<SchedulerSpec, StartError> {
    let engine = &config.engine;
    if engine.scheduler == SchedulerKind::Pool {
        return Ok(SchedulerSpec::Pool(Box::new(SlotSchedulerConfig {
            slots: engine.max_num_seqs as usize,
            queue: engine.queue.max_waiting_queue_length.map(|n| n as usize),
            delays: engine.timing.delays.clone(),
            seed,
            max_loras: config.lora.enabled.then_some(config.lora.max_loras as usize),
            lora_load: config.lora.load_time,
            kv: setup::kv_block_pool_config(config),
            caches_whole_prompts: engine.prefix_cache.enable_kvcache,
            prompt_blocks_only: config.model.compat == MetricsCompat::Llmd,
            delays_at_start: config.model.compat == MetricsCompat::Llmd,
            lease: setup::kv_block_lease_duration(config),
        })));
    }
    let (vllm, _) = batching_engine_config(config, seed)?;
    Ok(match engine.scheduler {
        SchedulerKind::Sglang => SchedulerSpec::Sglang(Box::new(sglang_config(config, vllm))),
        _ => SchedulerSpec::Vllm(Box::new(vllm)),
    })
}

/// Returns the configuration of the SGLang scheduler; `shared` has the settings that it shares with
/// that of vLLM.
///
/// A setting that is not used here has flags of which `without_effect.rs` in `crates/config` or the
/// reader of the flag warns.
fn sglang_config(config: &Config, shared: VllmSchedulerConfig) -> SglangConfig {
    let VllmSchedulerConfig {
        latency,
        speed,
        num_gpu_blocks: num_pages,
        block_size: page_size,
        max_num_seqs,
        max_model_len,
        enable_prefix_caching,
        max_waiting,
        transfer,
        reporting,
        max_num_batched_tokens: _,
        prefill: _,
        layer_groups: _,
        policy: _,
        // The latency model has its effect.
        async_scheduling: _,
        victim: _,
        watermark: _,
        speculation: _,
        drafting: _,
        weights_from_host: _,
        loras: _,
        encoder: _,
        lock_step: _,
        host_tier: _,
        seed: _,
    } = shared;
    let chosen = &config.engine.sglang;
    SglangConfig {
        latency,
        speed,
        num_pages,
        page_size,
        max_num_seqs,
        max_model_len,
        enable_prefix_caching,
        schedule_policy: chosen.schedule_policy,
        max_prefill_tokens: chosen.max_prefill_tokens,
        chunked_prefill_size: chosen.chunked_prefill_size,
        clip_max_new_tokens: chosen.clip_max_new_tokens,
        schedule_conservativeness: chosen.schedule_conservativeness,
        handoff: config.disaggregation.is_some(),
        fetch: config.disaggregation.as_ref().map(|_| transfer.fetch),
        max_waiting,
        kv_events: reporting.kv_events,
        ..SglangConfig::default()
    }
}

/// Returns the time per step to read the weights that `--cpu-offload-gb` keeps in host memory.
///
/// Pipeline stages run one after the other, on one GPU each. vLLM's kernels read the weights over
/// the bus without overlap.
fn host_weight_read_time(engine: &EngineConfig) -> Duration {
    let link = engine.gpu.as_deref().and_then(find_gpu).map(HostLinkBandwidth::host_link_of_gpu);
    let link = link.filter(|_| engine.timing.latency_source.step_times_depend_on_gpu());
    let bytes = engine.kv_cache.as_ref().map(|cache| cache.offloaded_bytes);
    let Some((link, bytes)) = link.zip(bytes) else {
        return Duration::ZERO;
    };
    let stages = f64::from(engine.parallel.pipeline);
    let seconds = stages * bytes / (link.to_device * 1e9) / engine.total_step_speedup_ratio();
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Returns the configuration of the batching engine, and the deployment that its roofline latency
/// model describes.
pub(super) fn batching_engine_config(
    config: &Config,
    seed: u64,
) -> Result<(VllmSchedulerConfig, Option<RooflineModelSetup>), StartError> {
    let engine = &config.engine;
    let (latency, setup) = timing::build_latency_model(config)?;
    let encoder = engine.encoder.as_ref();
    let encoder = encoder.map(|chosen| self::encoder_limits_and_latency(chosen, setup.as_ref()));
    let drafting = setup.as_ref().map(|setup| timing::build_drafter_latency(config, setup));
    let vllm = VllmSchedulerConfig {
        drafting: drafting.transpose()?.flatten(),
        weights_from_host: host_weight_read_time(engine),
        latency,
        speed: SimulationSpeedFactors {
            all: engine.total_step_speedup_ratio(),
            decode: engine.speedup.decode_speedup_ratio,
        },
        // vLLM's count includes a null block that is never used.
        num_gpu_blocks: setup::kv_block_count(config).saturating_sub(1),
        block_size: engine.block_size,
        layer_groups: engine.kv_cache.as_ref().and_then(|cache| {
            cache.plan.kv_cache_layer_groups(engine.prefix_cache.retention_interval)
        }),
        max_num_seqs: engine.max_num_seqs,
        max_num_batched_tokens: engine.max_num_batched_tokens,
        max_model_len: config.model.max_model_len,
        prefill: engine.prefill,
        enable_prefix_caching: engine.prefix_cache.is_enabled(),
        policy: engine.scheduling.policy,
        async_scheduling: engine.scheduling.async_scheduling,
        victim: engine.scheduling.victim,
        watermark: engine.scheduling.watermark,
        speculation: engine.speculative.as_ref().map(|s| SpeculativeDecodingConfig {
            accept: s.acceptance.clone(),
            drops_last_block: s.drops_last_block,
            lookahead_slots: s.lookahead_kv_slots(),
            input_slots: s.max_new_slots_for_drafting(),
        }),
        loras: LoraConfig {
            max_loras: if config.lora.enabled { config.lora.max_loras } else { 0 },
            max_cpu_loras: config.lora.max_cpu_loras,
            load_time: config.lora.load_time,
        },
        encoder: encoder.transpose()?,
        max_waiting: engine.queue.max_waiting_queue_length.map(|n| n as usize),
        transfer: PrefillTransferConfig {
            fetch: kv_fetch_times(config),
            lease: setup::kv_block_lease_duration(config),
            is_producer: setup::hands_off_prompt_kv_cache(config),
            is_consumer: setup::may_load_external_kv_cache(config),
            ..PrefillTransferConfig::default()
        },
        lock_step: engine.lock_step,
        host_tier: engine.kv_offload.as_ref().map(|host| host.tier.clone()),
        reporting: SchedulerReportingConfig {
            kv_events: config.kv_events.enabled || config.metrics.kv_cache,
            ..SchedulerReportingConfig::default()
        },
        seed,
    };
    Ok((vllm, setup))
}

/// Returns the limits of the media encoder, and its latency if model and GPU are known.
fn encoder_limits_and_latency(
    chosen: &MediaEncoderConfig,
    setup: Option<&RooflineModelSetup>,
) -> Result<Box<EncoderSchedulingConfig>, StartError> {
    let latency =
        setup.map(|setup| MediaEncoderLatency::new(chosen.shapes, setup, chosen.spreads_items));
    Ok(Box::new(EncoderSchedulingConfig {
        budget: chosen.budget,
        cache_size: chosen.budget,
        chunked_input: chosen.chunked_input,
        latency: latency.transpose().map_err(engine_start_error)?.map(Box::new),
    }))
}

/// Returns the time to fetch the KV cache of a prompt from another server: a fixed time, and a time
/// per token.
pub(super) fn kv_fetch_times(config: &Config) -> (Duration, Duration) {
    let delays = &config.engine.timing.delays;
    let transfer = &config.engine.transfer;
    let typed = transfer.kv_bytes_per_token.map(|bytes| bytes as f64);
    let bytes = typed.or_else(|| timing::kv_bytes_per_prompt_token(config));
    let per_token = match (bytes, transfer.kv_transfer_bandwidth) {
        // The pool scheduler has delays only.
        _ if config.engine.scheduler == SchedulerKind::Pool => delays.kv_transfer_per_token,
        (Some(bytes), Some(bandwidth)) => {
            Duration::try_from_secs_f64(bytes / (bandwidth * 1e9)).unwrap_or(Duration::MAX)
        }
        _ => delays.kv_transfer_per_token,
    };
    (delays.kv_transfer.0, per_token)
}
