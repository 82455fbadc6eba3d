//! Flags of the API and of LoRA adapters.

use std::path::PathBuf;
use std::time::Duration;

use crate::choices::{ModelRunner, ModelTask, PerRequestDraftStats, SystemFingerprintForm};
use crate::flag::{Flag, MAX_COUNT_FLAG_VALUE};
use crate::group::FlagHelpGroup::{Api, Lora};
use crate::read::JsonMap;

/// Maximum number of classes of the simulated classifier.
pub(crate) const MAX_CLASSES: u32 = 100_000;

const LIMIT_BELOW_ONE_ERROR: &str = "limits cannot be less than 1";

flags! {
    TASK: Option<ModelTask> = Flag::choice("task", Api, words![("auto", None), ("generate", Some(ModelTask::Generate)), ("embed", Some(ModelTask::Embed)), ("embedding", Some(ModelTask::Embed)), ("classify", Some(ModelTask::Classify)), ("score", Some(ModelTask::Score)), ("reward", Some(ModelTask::Reward)), ("transcription", Some(ModelTask::Transcription)), ("realtime", Some(ModelTask::Realtime)), ("draft", Some(ModelTask::Generate))], "Task of the model, which selects the routes. Default: all routes; with `serve`: generate.")
        .with_default("auto");
    RUNNER: ModelRunner = Flag::choice("runner", Api, words![("auto", ModelRunner::Auto), ("generate", ModelRunner::Generate), ("pooling", ModelRunner::Pooling), ("draft", ModelRunner::Auto)], "Runner type of newer vLLM releases; `pooling` serves embeddings and scores instead of generation.")
        .with_default("auto");
    CONVERT: Option<ModelTask> = Flag::choice("convert", Api, words![("auto", None), ("none", None), ("embed", Some(ModelTask::Embed)), ("classify", Some(ModelTask::Classify)), ("reward", Some(ModelTask::Reward))], "Pooling task with --runner pooling.")
        .with_default("auto");
    NUM_LABELS: u32 = Flag::new("num-labels", Api, "Number of classes of the simulated classifier. A model with a `config.json` has its own number, unless this flag is set.")
        .with_default("2").with_integer_bounds(1, MAX_CLASSES as i64, "num-labels cannot be less than 1");
    MAX_LOGPROBS: i64 = Flag::new("max-logprobs", Api, "Maximum number of log probabilities per token in a request; -1: vocabulary size.")
        .with_default("20").with_integer_bounds(-1, 1_000_000, "max-logprobs must be -1 or more");
    ENABLE_AUTO_TOOL_CHOICE: bool = Flag::new("enable-auto-tool-choice", Api, "Allow `tool_choice: auto` to generate tool calls.")
        .with_default_by_mode("true", "false");
    TOOL_CALL_PARSER: Option<String> = Flag::new("tool-call-parser", Api, "Name of vLLM's tool call parser. With `serve`, `tool_choice: auto` requires one.");
    TOOL_PARSER_PLUGIN: Option<PathBuf> = Flag::new("tool-parser-plugin", Api, "Python file of further tool call parsers. It is not loaded; any parser name is accepted.")
        .hidden_from_help();
    REASONING_PARSER_PLUGIN: Option<PathBuf> = Flag::new("reasoning-parser-plugin", Api, "Python file of further reasoning parsers. It is not loaded; any parser name is accepted.")
        .hidden_from_help();
    TOOL_STRICT_LEVEL: () = Flag::choice("tool-strict-level", Api, words![("auto", ()), ("function", ()), ("parameter", ())], "Strictness of forced tool calls. No effect: generated calls always follow their schema.")
        .with_default("auto");
    EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE: bool = Flag::new("exclude-tools-when-tool-choice-none", Api, "Leave tools out of the prompt if `tool_choice` is none.")
        .with_default("false");
    REASONING_PARSER: Option<String> = Flag::new("reasoning-parser", Api, "Name of vLLM's reasoning parser; replies then start with reasoning.");
    REASONING_RATIO: f64 = Flag::new("reasoning-ratio", Api, "Fraction of output tokens that is reasoning, 0 to 1; requires --reasoning-parser.")
        .with_default("0.4").with_float_bounds(0.0, 1.0, "reasoning-ratio must be between 0 and 1");
    ENABLE_PROMPT_TOKENS_DETAILS: bool = Flag::new("enable-prompt-tokens-details", Api, "Include prompt_tokens_details in usage. Default with --compat llm-d: true.")
        .with_default("false");
    ENABLE_FORCE_INCLUDE_USAGE: bool = Flag::new("enable-force-include-usage", Api, "Report usage in every stream, even if the request does not ask for it.")
        .with_default("false");
    ENABLE_PER_REQUEST_METRICS: bool = Flag::new("enable-per-request-metrics", Api, "Include the timing of the request in responses.")
        .with_default("false");
    PER_REQUEST_SPEC_DECODE_METRICS: PerRequestDraftStats = Flag::choice("per-request-spec-decode-metrics", Api, words![("none", PerRequestDraftStats::None), ("summary", PerRequestDraftStats::Summary), ("detailed", PerRequestDraftStats::Detailed)], "Report draft tokens in responses with one choice; summary: totals, detailed: also each step.")
        .with_default("none");
    RETURN_TOKENS_AS_TOKEN_IDS: bool = Flag::new("return-tokens-as-token-ids", Api, "Show `token_id:N` instead of text in log probabilities.")
        .with_default("false");
    ENABLE_SCALE_OUT: bool = Flag::new("enable-scale-out", Api, "Enable render, derender and /inference/v1/generate; they return HTTP 403 otherwise.")
        .with_default_by_mode("true", "false");
    TOKENS_ONLY: bool = Flag::new("tokens-only", Api, "Accept and return token ids only; implies --skip-tokenizer-init.")
        .with_default("false");
    RENDER_ONLY: bool = Flag::new("render-only", Api, "Serve tokenization and rendering only, as `vllm launch render`.")
        .with_default("false");
    TRUST_REQUEST_CHAT_TEMPLATE: bool = Flag::new("trust-request-chat-template", Api, "Allow requests to contain their own chat template.")
        .with_default("false");
    FINGERPRINT_MODE: SystemFingerprintForm = Flag::choice("fingerprint-mode", Api, words![("full", SystemFingerprintForm::Full), ("hash", SystemFingerprintForm::Hash), ("custom", SystemFingerprintForm::Custom), ("none", SystemFingerprintForm::None)], "Form of system_fingerprint; full: version and configuration hash, hash: hash only, custom: --fingerprint-value.")
        .with_default("full");
    FINGERPRINT_VALUE: Option<String> = Flag::new("fingerprint-value", Api, "Text of system_fingerprint with --fingerprint-mode custom.");
    STREAM_INTERVAL: u32 = Flag::new("stream-interval", Api, "Number of tokens per stream chunk.")
        .with_default("1").with_integer_bounds(1, 1_000_000, "stream-interval cannot be less than 1");
    INCREMENTAL_STREAMING_OUTPUT: bool = Flag::new("incremental-streaming-output", Api, "Events of the route /generate contain only the new tokens.")
        .with_default("false");
    ENABLE_TOKENIZER_INFO_ENDPOINT: bool = Flag::new("enable-tokenizer-info-endpoint", Api, "Enable the route /tokenizer_info.")
        .with_default("false");
    RESPONSES_STORE: bool = Flag::new("responses-store", Api, "Store responses of /v1/responses so that they can be fetched again.")
        .with_default("false").with_env_names(&["VLLM_ENABLE_RESPONSES_API_STORE"]);
    LEGACY_GUIDED_FIELDS: bool = Flag::new("legacy-guided-fields", Api, "Apply the guided_* request fields of older vLLM releases, which are ignored otherwise.")
        .with_aliases(&["legacy-guided"]).with_default("false");
    SKIP_MODEL_NAME_VALIDATION: bool = Flag::new("skip-model-name-validation", Api, "Accept any model name in requests.")
        .with_default("false").with_env_names(&["VLLM_SKIP_MODEL_NAME_VALIDATION"]);
    PROFILER_CONFIG: Option<JsonMap> = Flag::new("profiler-config", Api, "Enables /start_profile and /stop_profile: {\"profiler\": \"torch\", \"torch_profiler_dir\": \"…\"}. Nothing is profiled.");
    ENABLE_FAULT_TOLERANCE: bool = Flag::new("enable-fault-tolerance", Api, "Enable /fault_tolerance/apply and /fault_tolerance/status.")
        .with_default("false");
    FAULT_TOLERANCE_CONFIG: Option<JsonMap> = Flag::new("fault-tolerance-config", Api, "Settings of vLLM's fault tolerance, as a JSON object; implies --enable-fault-tolerance.")
        .hidden_from_help();
    MAX_N_SEQUENCES: u32 = Flag::new("max-n-sequences", Api, "Maximum `n` in one request.")
        .with_default("16384").with_env_names(&["VLLM_MAX_N_SEQUENCES"]).hidden_from_help().with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, LIMIT_BELOW_ONE_ERROR);
    MAX_COMPLETION_PROMPTS: u32 = Flag::new("max-completion-prompts", Api, "Maximum number of prompts in one completion request.")
        .with_default("1024").with_env_names(&["VLLM_MAX_COMPLETION_PROMPTS"]).hidden_from_help().with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, LIMIT_BELOW_ONE_ERROR);
    MAX_STOP_STRINGS: u32 = Flag::new("max-stop-strings", Api, "Maximum number of stop strings in one request.")
        .with_default("4").with_env_names(&["VLLM_MAX_STOP_STRINGS"]).hidden_from_help().with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, LIMIT_BELOW_ONE_ERROR);
    MAX_NUM_BAD_WORDS: u32 = Flag::new("max-num-bad-words", Api, "Maximum number of bad words in one request.")
        .with_default("128").with_env_names(&["VLLM_MAX_NUM_BAD_WORDS"]).hidden_from_help().with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, LIMIT_BELOW_ONE_ERROR);
    MAX_AUDIO_CLIP_FILESIZE_MB: u64 = Flag::new("max-audio-clip-filesize-mb", Api, "Maximum size of an uploaded audio file, in MiB.")
        .with_default("25").with_env_names(&["VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"]).hidden_from_help().with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, LIMIT_BELOW_ONE_ERROR);
    MAX_AUDIO_DECODE_DURATION_S: u32 = Flag::new("max-audio-decode-duration-s", Api, "Maximum duration of uploaded audio, in seconds.")
        .with_default("600").with_env_names(&["VLLM_MAX_AUDIO_DECODE_DURATION_S"]).hidden_from_help().with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, LIMIT_BELOW_ONE_ERROR);
    MAX_AUDIO_DECODE_BYTES: u64 = Flag::new("max-audio-decode-bytes", Api, "Maximum size of decoded audio as 32-bit samples, in bytes.")
        .with_default("268435456").with_env_names(&["VLLM_MAX_AUDIO_DECODE_BYTES"]).hidden_from_help().with_integer_bounds(1, i64::MAX, LIMIT_BELOW_ONE_ERROR);
    LIMIT_MM_PER_PROMPT: Option<JsonMap> = Flag::new("limit-mm-per-prompt", Api, "Maximum number of items per modality in a prompt, such as '{\"image\": 2}'. Default: 999.");
    ALLOWED_LOCAL_MEDIA_PATH: Option<PathBuf> = Flag::new("allowed-local-media-path", Api, "Folder from which requests may read media with file:// URLs. Default: file:// URLs are rejected.");
    ENABLE_LORA: bool = Flag::new("enable-lora", Lora, "Enable LoRA adapters.")
        .with_default_by_mode("true", "false");
    LORA_MODULES: Vec<String> = Flag::new("lora-modules", Lora, "LoRA adapters to load at start: name=path, or JSON {\"name\", \"path\", \"base_model_name\"}.")
        .with_aliases(&["lora"]);
    MAX_LORAS: u32 = Flag::new("max-loras", Lora, "Maximum number of LoRA adapters that run at the same time.")
        .with_default("1").with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "max LoRAs cannot be less than 1");
    MAX_CPU_LORAS: Option<i64> = Flag::new("max-cpu-loras", Lora, "Maximum number of LoRA adapters in CPU memory. Default: --max-loras.");
    MAX_LORA_RANK: u32 = Flag::new("max-lora-rank", Lora, "Maximum rank of a LoRA adapter.")
        .with_default("16").with_integer_bounds(1, 4096, "max-lora-rank must be between 1 and 4096");
    LORA_LOAD_TIME: Duration = Flag::new("lora-load-time", Lora, "Time to load a LoRA adapter into a slot.")
        .with_default("0").with_bounds_error("lora-load-time cannot be negative");
    ALLOW_RUNTIME_LORA_UPDATING: bool = Flag::new("allow-runtime-lora-updating", Lora, "Enable routes that load and unload LoRA adapters.")
        .with_default_by_mode("true", "false").with_env_names(&["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]);
    LORA_RESOLVER_CACHE_DIR: Option<PathBuf> = Flag::new("lora-resolver-cache-dir", Lora, "Folder of LoRA adapters: a request that names one loads it, as with vLLM's filesystem resolver. Requires --allow-runtime-lora-updating.")
        .with_env_names(&["VLLM_LORA_RESOLVER_CACHE_DIR"]);
}
