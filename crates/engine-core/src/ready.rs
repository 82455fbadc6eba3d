//! The ready response, by which an engine core reports its configuration to front ends.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/__init__.py`, `EngineCoreReadyResponse`;
//! `rust/src/engine-core-client` marks the required keys.

use rmpv::Value;

use super::parts::EngineCoreDependencies;
use vllm_sim_config::SchedulerKind;

pub(crate) fn encode_msgpack_map(entries: Vec<(&str, Value)>) -> Vec<u8> {
    let entries = entries.into_iter().map(|(key, value)| (key.into(), value));
    let mut bytes = Vec::new();
    let _ = rmpv::encode::write_value(&mut bytes, &Value::Map(entries.collect()));
    bytes
}

/// Encodes the ready response, the first message on every input socket.
pub(crate) fn encode_ready_response(
    parts: &EngineCoreDependencies,
    stats: &Option<String>,
    coordinator: &Option<(String, String)>,
) -> Vec<u8> {
    let config = &parts.config;
    let (engine, parallel) = (&config.engine, &config.engine.parallel);
    let live = parts.service.rank_engines().first();
    let blocks = live.map_or(0, |live| live.stats().total_blocks);
    // vLLM's count includes its null block.
    let blocks = match engine.scheduler {
        _ if blocks == 0 => engine.memory.num_blocks.unwrap_or(16_384),
        SchedulerKind::Pool if !engine.prefix_cache.enable_kvcache => blocks,
        _ => blocks + 1,
    };
    let kv_tokens = u64::from(blocks) * u64::from(engine.block_size);
    let concurrency = kv_tokens as f64 / f64::from(config.model.max_model_len.max(1));
    let instance = uuid::Uuid::new_v4().simple().to_string();
    // `vllm-rs` rejects a positive count if adapters are not supported.
    let loras = match config.lora.enabled {
        true => config.lora.max_loras,
        false => 0,
    };
    let world = parallel.world_size();
    let text = |text: Option<&String>| text.map_or(Value::Nil, |text| text.as_str().into());
    encode_msgpack_map(vec![
        ("max_model_len", config.model.max_model_len.into()),
        ("num_gpu_blocks", blocks.into()),
        ("block_size", engine.block_size.into()),
        ("dp_stats_address", text(stats.as_ref())),
        ("dtype", model_dtype(parts).into()),
        ("vllm_version", config.model.vllm_version.as_str().into()),
        ("world_size", world.into()),
        ("data_parallel_size", parallel.data.into()),
        ("data_parallel_rank", parts.rank.into()),
        ("tensor_parallel_size", parallel.tensor.into()),
        ("pipeline_parallel_size", parallel.pipeline.into()),
        ("decode_context_parallel_size", 1.into()),
        ("max_num_seqs", engine.max_num_seqs.into()),
        ("max_num_batched_tokens", engine.max_num_batched_tokens.into()),
        ("instance_id", instance[..5].into()),
        ("supports_lora", config.lora.enabled.into()),
        ("max_loras", loras.into()),
        ("mamba_block_size", Value::Nil),
        ("kv_cache_size_tokens", kv_tokens.into()),
        ("kv_cache_max_concurrency", concurrency.into()),
        ("kv_events_config", kv_events_config(parts)),
        ("weight_transfer_backend", Value::Nil),
        ("enable_sleep_mode", config.server.routes.enable_sleep_mode.into()),
        ("supports_draft_weight_updates", false.into()),
        ("effective_attention_block_size", engine.block_size.into()),
        ("coord_store_port", 0.into()),
        ("coordinator_input_address", text(coordinator.as_ref().map(|(input, _)| input))),
        ("coordinator_output_address", text(coordinator.as_ref().map(|(_, output)| output))),
    ])
}

fn kv_events_config(parts: &EngineCoreDependencies) -> Value {
    let events = &parts.config.kv_events;
    if !events.enabled {
        return Value::Nil;
    }
    let (endpoint, replay) = events.kv_event_endpoints_of_rank(parts.rank);
    let entries = [
        ("enable_kv_cache_events", Value::from(true)),
        ("publisher", "zmq".into()),
        ("endpoint", endpoint.into()),
        ("replay_endpoint", replay.map_or(Value::Nil, Value::from)),
        ("buffer_steps", events.buffer_steps.into()),
        ("hwm", events.hwm.into()),
        ("max_queue_size", events.max_queue_size.into()),
        ("topic", events.topic.as_str().into()),
    ];
    Value::Map(entries.map(|(key, value)| (key.into(), value)).to_vec())
}

fn model_dtype(parts: &EngineCoreDependencies) -> &str {
    let hf_config = parts.config.model.hf_config.as_deref();
    let named = hf_config.and_then(|config| {
        let dtype = config.get("dtype").or_else(|| config.get("torch_dtype"));
        dtype?.as_str()
    });
    match named {
        Some("float16") => "float16",
        Some("float32") => "float32",
        _ => "bfloat16",
    }
}
