//! Engines and who listens to them, from the configuration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{StartError, setup, timing};
use vllm_sim_config::{Config, SchedulerKind};
use vllm_sim_engine::Scheduler;
use vllm_sim_engine::driver::{LiveEngine, Observer, Observers, TimerTuning, unix_at};
use vllm_sim_engine::latency::{Setup, Speed};
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_engine::sched::pool::PoolConfig;
use vllm_sim_engine::sched::sglang::SglangConfig;
use vllm_sim_engine::sched::vllm::{Speculation, VllmConfig};
use vllm_sim_observe::kv_events::{
    Batching, Form, KvObserver, Publisher, PublisherConfig, Topic, for_rank,
};
use vllm_sim_observe::kv_transfer::Reader;
use vllm_sim_observe::metrics::{
    BlockLifetime, Metrics, Observer as MetricsObserver, WorkObserver,
};
use vllm_sim_observe::otel::Spans;

/// Starts one engine for each rank of this process.
pub(super) fn start(
    config: &Config,
    seed: u64,
    epoch: Instant,
    metrics: &Arc<Metrics>,
    port: u16,
    spans: Option<&Spans>,
) -> Result<Vec<LiveEngine>, StartError> {
    let (first, count) = config.engine.parallel.local_ranks;
    let reads = config.kv_transfer.as_ref().is_some_and(|t| t.consumer);
    let reader = match reads {
        true => Some(Reader::start().map_err(StartError::Thread)?),
        false => None,
    };
    let mut live = Vec::new();
    for (index, rank) in (first..first + count).enumerate() {
        let hearing = setup::hearing(config);
        let series = metrics.engine(index);
        let mut observers: Vec<Box<dyn Observer>> =
            vec![Box::new(MetricsObserver::new(series.clone(), hearing))];
        if config.metrics.kv_cache {
            let share = config.metrics.kv_cache_sample;
            observers.push(Box::new(BlockLifetime::new(series.clone(), share)));
        }
        if let Some(model) = timing::work(config) {
            observers.push(Box::new(WorkObserver::new(series, model, hearing.steps)));
        }
        if config.kv_events.enabled && setup::has_cache(config) {
            let publisher = publisher(config, rank, port)?;
            observers.push(Box::new(KvObserver::new(publisher, hearing.steps)));
        }
        if let Some(reader) = &reader {
            observers.push(Box::new(reader.clone()));
        }
        if let Some(spans) = spans {
            observers.push(Box::new(spans.observer(unix_at(epoch))));
        }
        let scheduler = scheduler(config, seed)?;
        let name = format!("engine-{rank}");
        let observers = Box::new(Observers(observers));
        let started = LiveEngine::start(&name, epoch, scheduler, observers, TimerTuning::default());
        live.push(started.map_err(StartError::Thread)?);
    }
    Ok(live)
}

pub(super) fn wrong(problem: impl ToString) -> StartError {
    StartError::Engine(problem.to_string())
}

fn scheduler(config: &Config, seed: u64) -> Result<Box<dyn Scheduler + Send>, StartError> {
    spec(config, seed)?.scheduler().map_err(wrong)
}

/// The settings of the engine of one rank.
pub(super) fn spec(config: &Config, seed: u64) -> Result<EngineSpec, StartError> {
    let engine = &config.engine;
    if engine.scheduler == SchedulerKind::Pool {
        return Ok(EngineSpec::Pool(Box::new(PoolConfig {
            slots: engine.max_num_seqs as usize,
            queue: engine.max_waiting_queue_length.map(|n| n as usize),
            delays: engine.delays.clone(),
            seed,
            max_loras: config
                .lora
                .enabled
                .then_some(config.lora.max_loras as usize),
            lora_load: config.lora.load_time,
            kv: setup::kv(config),
            caches_whole_prompts: engine.enable_kvcache,
            lease: setup::lease(config),
        })));
    }
    let (vllm, _) = modelled(config, seed)?;
    Ok(match engine.scheduler {
        SchedulerKind::Sglang => EngineSpec::Sglang(Box::new(sglang(config, vllm))),
        _ => EngineSpec::Vllm(Box::new(vllm)),
    })
}

/// SGLang's scheduler with the settings that both batching schedulers share.
fn sglang(config: &Config, shared: VllmConfig) -> SglangConfig {
    let chosen = &config.engine.sglang;
    SglangConfig {
        latency: shared.latency,
        speed: shared.speed,
        num_pages: shared.num_gpu_blocks,
        page_size: shared.block_size,
        max_num_seqs: shared.max_num_seqs,
        max_model_len: shared.max_model_len,
        enable_prefix_caching: shared.enable_prefix_caching,
        schedule_policy: chosen.schedule_policy,
        max_prefill_tokens: chosen.max_prefill_tokens,
        chunked_prefill_size: chosen.chunked_prefill_size,
        clip_max_new_tokens: chosen.clip_max_new_tokens,
        schedule_conservativeness: chosen.schedule_conservativeness,
        max_waiting: shared.max_waiting,
        kv_events: shared.kv_events,
        ..SglangConfig::default()
    }
}

/// The batching engine of a configuration, and the deployment that its roofline describes.
pub(super) fn modelled(
    config: &Config,
    seed: u64,
) -> Result<(VllmConfig, Option<Setup>), StartError> {
    let engine = &config.engine;
    let (latency, setup) = timing::latency(config)?;
    let vllm = VllmConfig {
        latency,
        speed: Speed {
            all: engine.speed(),
            decode: engine.decode_speedup_ratio,
        },
        // vLLM's own count has a null block that cannot be used.
        num_gpu_blocks: setup::blocks(config).saturating_sub(1),
        block_size: engine.block_size,
        max_num_seqs: engine.max_num_seqs,
        max_num_batched_tokens: engine.max_num_batched_tokens,
        max_model_len: config.model.max_model_len,
        enable_chunked_prefill: engine.enable_chunked_prefill,
        enable_prefix_caching: engine.enable_prefix_caching || engine.enable_kvcache,
        long_prefill_token_threshold: engine.long_prefill_token_threshold,
        policy: engine.policy,
        async_scheduling: engine.async_scheduling,
        victim: engine.victim,
        watermark: engine.watermark,
        speculation: engine.speculative.as_ref().map(|s| Speculation {
            accept: s.acceptance.clone(),
            free: false,
        }),
        max_loras: if config.lora.enabled {
            config.lora.max_loras
        } else {
            0
        },
        max_cpu_loras: config.lora.max_cpu_loras,
        lora_load: config.lora.load_time,
        max_waiting: engine.max_waiting_queue_length.map(|n| n as usize),
        fetch: fetch(config),
        lease: setup::lease(config),
        kv_events: config.kv_events.enabled || config.metrics.kv_cache,
        seed,
        ..VllmConfig::default()
    };
    Ok((vllm, setup))
}

/// Time to fetch a remote prompt: fixed, and per token.
fn fetch(config: &Config) -> (Duration, Duration) {
    let delays = &config.engine.delays;
    let per_token = match (
        config.engine.kv_bytes_per_token,
        config.engine.kv_transfer_bandwidth,
    ) {
        (Some(bytes), Some(bandwidth)) if bandwidth > 0.0 => {
            Duration::from_secs_f64(bytes as f64 / (bandwidth * 1e9))
        }
        _ => delays.kv_transfer_per_token,
    };
    (delays.kv_transfer.0, per_token)
}

fn publisher(config: &Config, rank: u32, port: u16) -> Result<Publisher, StartError> {
    let events = &config.kv_events;
    let vllm = events.encoding.form == Form::Vllm;
    let topic = Topic {
        pod_ip: config
            .server
            .pod
            .ip
            .clone()
            .unwrap_or_else(|| "localhost".to_owned()),
        host: config
            .server
            .pod
            .name
            .clone()
            .unwrap_or_else(|| "localhost".to_owned()),
        port,
        model: config.model.name.clone(),
        rank,
    };
    let replay = events.replay_endpoint.as_deref();
    Publisher::start(PublisherConfig {
        endpoint: for_rank(&events.endpoint, rank).map_err(wrong)?,
        replay_endpoint: replay
            .map(|at| for_rank(at, rank))
            .transpose()
            .map_err(wrong)?,
        buffer_steps: events.buffer_steps,
        hwm: i32::try_from(events.hwm).unwrap_or(i32::MAX),
        max_queue_size: events.max_queue_size,
        topic: topic.render(&events.topic).map_err(wrong)?,
        first_sequence: u64::from(!vllm),
        rank,
        encoding: events.encoding,
        batching: if vllm {
            Batching::PerCall
        } else {
            Batching::Sized {
                events: events.batch_size,
                every: Duration::from_secs(1),
            }
        },
    })
    .map_err(wrong)
}
