//! Builds the settings of the HTTP API from the configuration.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use vllm_sim_config::{CliMode, Config, SystemFingerprintForm};
use vllm_sim_http::serves_admin_config;
use vllm_sim_http::settings::{
    HttpSettings, ImageOutputSettings, KvCacheSettings, PoolingSettings, ResponseSettings,
    RuntimeSettings, ToolAndReasoningParserSettings,
};
use vllm_sim_service::generate::ReplyTextMode;

pub(super) fn http_api_settings(config: &Config) -> HttpSettings {
    let engine = &config.engine;
    let is_llmd_mode = config.model.cli_mode == CliMode::Llmd;
    let mut shown_config = engine_config(config);
    shown_config.insert("seed".to_owned(), json!(config.content.seed));
    HttpSettings {
        model: config.model.clone(),
        is_encoder: config.content.mode == ReplyTextMode::Encoder,
        fingerprint: system_fingerprint(config).map(Into::into),
        parsers: ToolAndReasoningParserSettings {
            tools: config.api.tool_call_parser.clone(),
            auto_tool_choice: config.api.enable_auto_tool_choice,
            hides_unchosen_tools: config.api.exclude_tools_when_tool_choice_none,
            reasoning: config.api.reasoning_parser.clone(),
            reasoning_ratio: config.api.reasoning_ratio,
        },
        answers: answer_settings(config),
        pooling: PoolingSettings {
            task: config.api.task,
            num_labels: config.api.num_labels,
            dimensions: config.content.default_embedding_dimensions,
            embeds_like_model: !is_llmd_mode,
            embeds_words: !is_llmd_mode,
        },
        speech: config.api.speech,
        lora: config.lora.clone(),
        parallel: engine.parallel.clone(),
        cache: KvCacheSettings {
            block_size: engine.block_size,
            finds_prefixes: config.engine.prefix_cache.is_enabled(),
            hit_threshold: engine.prefix_cache.cache_hit_threshold,
        },
        kv_transfer: config.kv_transfer.clone(),
        offloads_kv: engine.kv_offload.is_some(),
        kv_events: config.kv_events.clone(),
        server: config.server.clone(),
        is_administered: serves_admin_config(config),
        latency_factor: engine.timing.latency_factor,
        shown_config,
        has_lenient_sleep: is_llmd_mode,
        takes_any_audio: is_llmd_mode,
        takes_any_adapter: is_llmd_mode,
        transfers_unasked: is_llmd_mode,
        controls: initial_runtime_settings(config),
    }
}

/// Returns the initial values of the HTTP settings that can change at run time.
pub(super) fn initial_runtime_settings(config: &Config) -> RuntimeSettings {
    RuntimeSettings {
        has_images: config.content.omni,
        images: ImageOutputSettings::from_config(config),
        fake_metrics: config.metrics.fake.clone().unwrap_or_default(),
        finds_prefixes: config.engine.prefix_cache.is_enabled(),
    }
}

fn answer_settings(config: &Config) -> ResponseSettings {
    let api = &config.api;
    let speculative = config.engine.speculative.as_ref();
    ResponseSettings {
        force_include_usage: api.answers.force_include_usage,
        prompt_tokens_details: api.answers.enable_prompt_tokens_details,
        per_request_metrics: api.answers.per_request_metrics,
        per_request_drafts: api.answers.per_request_drafts,
        draft_tokens: speculative.map(|speculative| speculative.num_tokens),
        tokens_as_token_ids: api.answers.return_tokens_as_token_ids,
        max_logprobs: api.max_logprobs,
        max_choices: api.limits.n,
        stream_interval: api.stream_interval,
        incremental_output: api.incremental_streaming_output,
        sse_keep_alive_interval: config.server.sse_keep_alive_interval,
        responses_store: api.responses_store,
        legacy_guided: api.legacy_guided,
    }
}

/// Returns the configuration that `/server_info` returns, without seed and secrets.
fn engine_config(config: &Config) -> Map<String, Value> {
    let (model, engine, lora) = (&config.model, &config.engine, &config.lora);
    let value = json!({
        "model": model.name,
        "served_model_name": model.served_names,
        "tokenizer": model.tokenizer.name,
        "revision": model.revision,
        "max_model_len": model.max_model_len,
        "generation_config": model.generation_config,
        "tensor_parallel_size": engine.parallel.tensor,
        "pipeline_parallel_size": engine.parallel.pipeline,
        "data_parallel_size": engine.parallel.data,
        "max_num_seqs": engine.max_num_seqs,
        "block_size": engine.block_size,
        "gpu_memory_utilization": engine.memory.gpu_memory_utilization,
        "enable_prefix_caching": engine.prefix_cache.enable_prefix_caching,
        "kv_cache_dtype": engine.memory.kv_cache_dtype,
        "enable_lora": lora.enabled,
        "max_loras": lora.max_loras,
        "enable_kv_cache_events": config.kv_events.enabled,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Returns the `system_fingerprint`, `vllm-VERSION[-tpN][-ppN][-dpN][-ep]-HASH`, which is constant
/// for a server.
fn system_fingerprint(config: &Config) -> Option<String> {
    let parallel = &config.engine.parallel;
    match &config.api.fingerprint {
        SystemFingerprintForm::None => None,
        SystemFingerprintForm::Custom => config.api.fingerprint_value.clone(),
        SystemFingerprintForm::Hash => Some(config_hash(config)),
        SystemFingerprintForm::Full => {
            let mut text = format!("vllm-{}", config.model.vllm_version.as_str());
            for (name, degree) in
                [("tp", parallel.tensor), ("pp", parallel.pipeline), ("dp", parallel.data)]
            {
                if degree > 1 {
                    text.push_str(&format!("-{name}{degree}"));
                }
            }
            if parallel.expert {
                text.push_str("-ep");
            }
            Some(format!("{text}-{}", config_hash(config)))
        }
    }
}

/// Returns a hash of the configuration of `/server_info`, in eight hex digits.
fn config_hash(config: &Config) -> String {
    let shown = Value::Object(engine_config(config)).to_string();
    let digest = Sha256::digest(shown.as_bytes());
    let digits = digest.iter().take(4);
    digits.map(|byte| format!("{byte:02x}")).collect()
}
