//! Limits and defaults of request fields, for each API.

use serde_json::{Map, Value};

use vllm_sim_config::{CliMode, Config, MetricsCompat};
use vllm_sim_http::api_rules;
use vllm_sim_service::dialect::{GrpcAndEngineCoreDialect, LlmdDialect};
use vllm_sim_service::{AllowedToolSchemas, InferenceService, RequestRules};
use vllm_sim_tokenizer::Tokenizer;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::{SamplingDefaults, ServerLimits};

pub(super) fn http_request_rules(config: &Config, service: &InferenceService) -> RequestRules {
    let (api, tools) = (&config.api, &config.content.tools);
    let is_llmd_mode = config.model.cli_mode == CliMode::Llmd;
    let is_llmd = config.model.compat == MetricsCompat::Llmd;
    let max_logprobs = max_logprobs(config);
    let limits = ServerLimits {
        max_logprobs: match is_llmd {
            true => max_logprobs.max(LlmdDialect::LLMD_MAX_TOP_LOGPROBS),
            false => max_logprobs,
        },
        // llm-d calls tools without knowing the model's tool format.
        has_tool_parser: api.tool_call_parser.is_some() || is_llmd_mode,
        auto_tool_choice: api.enable_auto_tool_choice || is_llmd_mode,
        reasoning_parser: api.reasoning_parser.is_some(),
        trust_request_chat_template: api.trust_request_chat_template,
        trust_request_mm_kwargs: is_llmd_mode,
        data_parallel_ranks: service.rank_engines().len() as u32,
        served_name: service.models.displayed_model_name().to_string(),
        ..shared_request_limits(config, service)
    };
    RequestRules {
        limits,
        defaults: sampling_parameter_defaults(config, service),
        tool_schemas: match (is_llmd || tools.strict_whitelist)
            && !config.content.skip_tool_validation
        {
            true => AllowedToolSchemas::Whitelisted,
            false => AllowedToolSchemas::Any,
        },
        dialect: api_rules(config.model.compat).service_dialect(),
        ..tokens_api_request_rules(config, service)
    }
}

/// Returns the request limits and defaults of vLLM's gRPC server.
///
/// That server has no model name and no generation config, and checks admission only when the
/// request is submitted.
#[cfg(feature = "grpc")]
pub(super) fn grpc_request_rules(config: &Config, service: &InferenceService) -> RequestRules {
    let rules = tokens_api_request_rules(config, service);
    RequestRules {
        limits: ServerLimits {
            max_logprobs: max_logprobs(config),
            data_parallel_ranks: service.rank_engines().len() as u32,
            ..rules.limits
        },
        defaults: SamplingDefaults {
            bounds: RequestBounds { n: config.api.limits.n.into(), ..RequestBounds::default() },
            ..SamplingDefaults::default()
        },
        ..rules
    }
}

/// Returns the request limits and defaults of a headless engine.
///
/// vLLM's front end has resolved the model, applied its defaults and checked what it can, including
/// the reasoning budget.
#[cfg(feature = "zmq")]
pub(super) fn engine_core_request_rules(
    config: &Config,
    service: &InferenceService,
) -> RequestRules {
    let rules = tokens_api_request_rules(config, service);
    RequestRules { limits: ServerLimits { reasoning_parser: true, ..rules.limits }, ..rules }
}

fn tokens_api_request_rules(config: &Config, service: &InferenceService) -> RequestRules {
    RequestRules {
        limits: shared_request_limits(config, service),
        defaults: SamplingDefaults::default(),
        max_bad_words: config.api.limits.bad_words as usize,
        tool_schemas: AllowedToolSchemas::Any,
        dialect: &GrpcAndEngineCoreDialect,
    }
}

/// Returns the limits of requests that all APIs share.
fn shared_request_limits(config: &Config, service: &InferenceService) -> ServerLimits {
    let tokenizer = service.generator.tokenizer();
    ServerLimits {
        max_model_len: config.model.max_model_len,
        max_logprobs: -1,
        // The simulated tokenizer accepts every id.
        vocab_size: matches!(**tokenizer, Tokenizer::Hf(_)).then(|| tokenizer.vocab_size()),
        speculative: config.engine.speculative.is_some(),
        version: config.model.vllm_version,
        ..ServerLimits::default()
    }
}

fn max_logprobs(config: &Config) -> i64 {
    config.api.max_logprobs.map_or(-1, i64::from)
}

/// Returns the defaults of request fields: the model's generation config and its overrides.
fn sampling_parameter_defaults(config: &Config, service: &InferenceService) -> SamplingDefaults {
    let model = &config.model;
    let mut map = match (&model.generation_config_file, &**service.generator.tokenizer()) {
        (Some(file), _) => file.clone(),
        // A downloaded model: the name is no folder.
        (None, Tokenizer::Hf(hf)) if model.generation_config == "auto" => {
            hf.generation_config().clone()
        }
        _ => Map::new(),
    };
    map.extend(model.generation_config_overrides.clone());
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let count = |key: &str| map.get(key).and_then(Value::as_i64).map(i128::from);
    let limits = &config.api.limits;
    SamplingDefaults {
        temperature: number("temperature"),
        top_p: number("top_p"),
        top_k: count("top_k"),
        min_p: number("min_p"),
        repetition_penalty: number("repetition_penalty"),
        presence_penalty: number("presence_penalty"),
        frequency_penalty: number("frequency_penalty"),
        max_tokens: count("max_new_tokens"),
        skip_special_tokens: None,
        stop_token_ids: Vec::new(),
        bounds: RequestBounds {
            n: limits.n.into(),
            prompts: limits.prompts as usize,
            stop_strings: limits.stop_strings as usize,
        },
    }
}
