//! Flags of the API and of LoRA adapters.

use std::path::PathBuf;
use std::time::Duration;

use crate::choices::{Fingerprint, RequestDrafts, Runner, Task};
use crate::flag::{Flag, MANY};
use crate::group::FlagGroup::{Api, Lora};
use crate::read::JsonMap;

const LIMIT: &str = "limits cannot be less than 1";

flags! {
    TASK: Option<Task> = Flag::choice("task", Api, words![("auto", None), ("generate", Some(Task::Generate)), ("embed", Some(Task::Embed)), ("embedding", Some(Task::Embed)), ("classify", Some(Task::Classify)), ("score", Some(Task::Score)), ("reward", Some(Task::Reward)), ("transcription", Some(Task::Transcription)), ("realtime", Some(Task::Realtime)), ("draft", Some(Task::Generate))], "Which family of routes exists [all; with `serve` generate].")
        .or("auto");
    RUNNER: Runner = Flag::choice("runner", Api, words![("auto", Runner::Auto), ("generate", Runner::Generate), ("pooling", Runner::Pooling), ("draft", Runner::Auto)], "vLLM's newer spelling: `pooling` serves embeddings.")
        .or("auto");
    CONVERT: Option<Task> = Flag::choice("convert", Api, words![("auto", None), ("none", None), ("embed", Some(Task::Embed)), ("classify", Some(Task::Classify)), ("reward", Some(Task::Reward))], "With --runner pooling: which pooling task.")
        .or("auto");
    NUM_LABELS: u32 = Flag::new("num-labels", Api, "Classes of the simulated classifier.")
        .or("2").range(1, 100_000, "num-labels cannot be less than 1");
    MAX_LOGPROBS: i64 = Flag::new("max-logprobs", Api, "Most log probabilities that a request may ask for; -1: the vocabulary.")
        .or("20").range(-1, 1_000_000, "max-logprobs must be -1 or more");
    ENABLE_AUTO_TOOL_CHOICE: bool = Flag::new("enable-auto-tool-choice", Api, "Let `tool_choice: auto` call tools.")
        .by_mode("true", "false");
    TOOL_CALL_PARSER: Option<String> = Flag::new("tool-call-parser", Api, "vLLM's name of the tool call parser.");
    TOOL_PARSER_PLUGIN: Option<PathBuf> = Flag::new("tool-parser-plugin", Api, "Where vLLM would find further tool call parsers: their names are accepted.")
        .hide();
    REASONING_PARSER_PLUGIN: Option<PathBuf> = Flag::new("reasoning-parser-plugin", Api, "Where vLLM would find further reasoning parsers: their names are accepted.")
        .hide();
    TOOL_STRICT_LEVEL: () = Flag::choice("tool-strict-level", Api, words![("auto", ()), ("function", ()), ("parameter", ())], "How far forced tool calls are bound to their schema.")
        .or("auto");
    EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE: bool = Flag::new("exclude-tools-when-tool-choice-none", Api, "Keep tools out of the prompt when tool_choice is none.")
        .or("false");
    REASONING_PARSER: Option<String> = Flag::new("reasoning-parser", Api, "vLLM's name of the reasoning parser; replies then reason first.");
    REASONING_RATIO: f64 = Flag::new("reasoning-ratio", Api, "Share of output tokens that is reasoning, 0 to 1.")
        .or("0.4").within(0.0, 1.0, "reasoning-ratio must be between 0 and 1");
    ENABLE_PROMPT_TOKENS_DETAILS: bool = Flag::new("enable-prompt-tokens-details", Api, "usage has prompt_tokens_details [also with --compat llm-d].")
        .or("false");
    ENABLE_FORCE_INCLUDE_USAGE: bool = Flag::new("enable-force-include-usage", Api, "usage in every stream.")
        .or("false");
    ENABLE_PER_REQUEST_METRICS: bool = Flag::new("enable-per-request-metrics", Api, "Responses carry their own timing.")
        .or("false");
    PER_REQUEST_SPEC_DECODE_METRICS: RequestDrafts = Flag::choice("per-request-spec-decode-metrics", Api, words![("none", RequestDrafts::None), ("summary", RequestDrafts::Summary), ("detailed", RequestDrafts::Detailed)], "Responses of one choice say what became of their draft tokens; detailed: step by step.")
        .or("none");
    RETURN_TOKENS_AS_TOKEN_IDS: bool = Flag::new("return-tokens-as-token-ids", Api, "token_id:N instead of text in log probabilities.")
        .or("false");
    ENABLE_SCALE_OUT: bool = Flag::new("enable-scale-out", Api, "render, derender and /inference/v1/generate answer.")
        .by_mode("true", "false");
    TOKENS_ONLY: bool = Flag::new("tokens-only", Api, "Only token ids in, token ids out.")
        .or("false");
    RENDER_ONLY: bool = Flag::new("render-only", Api, "Only tokenising and rendering (`vllm launch render`).")
        .or("false");
    TRUST_REQUEST_CHAT_TEMPLATE: bool = Flag::new("trust-request-chat-template", Api, "A request may bring its own chat template.")
        .or("false");
    FINGERPRINT_MODE: Fingerprint = Flag::choice("fingerprint-mode", Api, words![("full", Fingerprint::Full), ("hash", Fingerprint::Hash), ("custom", Fingerprint::Custom), ("none", Fingerprint::None)], "What system_fingerprint says.")
        .or("full");
    FINGERPRINT_VALUE: Option<String> = Flag::new("fingerprint-value", Api, "The text with --fingerprint-mode custom.");
    STREAM_INTERVAL: u32 = Flag::new("stream-interval", Api, "Tokens per stream chunk.")
        .or("1").range(1, 1_000_000, "stream-interval cannot be less than 1");
    ENABLE_TOKENIZER_INFO_ENDPOINT: bool = Flag::new("enable-tokenizer-info-endpoint", Api, "/tokenizer_info exists.")
        .or("false");
    RESPONSES_STORE: bool = Flag::new("responses-store", Api, "Stored responses can be fetched again.")
        .or("false").env(&["VLLM_ENABLE_RESPONSES_API_STORE"]);
    LEGACY_GUIDED_FIELDS: bool = Flag::new("legacy-guided-fields", Api, "The guided_* request fields of older releases act.")
        .also(&["legacy-guided"]).or("false");
    SKIP_MODEL_NAME_VALIDATION: bool = Flag::new("skip-model-name-validation", Api, "Accept any model name.")
        .or("false").env(&["VLLM_SKIP_MODEL_NAME_VALIDATION"]);
    PROFILER_CONFIG: Option<JsonMap> = Flag::new("profiler-config", Api, "{\"profiler\": \"torch\", \"torch_profiler_dir\": \"…\"}: /start_profile and /stop_profile answer; nothing is profiled.");
    ENABLE_FAULT_TOLERANCE: bool = Flag::new("enable-fault-tolerance", Api, "/fault_tolerance/apply and /fault_tolerance/status answer.")
        .or("false");
    FAULT_TOLERANCE_CONFIG: Option<JsonMap> = Flag::new("fault-tolerance-config", Api, "vLLM's settings of fault tolerance; turns it on.")
        .hide();
    MAX_N_SEQUENCES: u32 = Flag::new("max-n-sequences", Api, "Greatest n of a request.")
        .or("16384").env(&["VLLM_MAX_N_SEQUENCES"]).hide().range(1, MANY, LIMIT);
    MAX_COMPLETION_PROMPTS: u32 = Flag::new("max-completion-prompts", Api, "Most prompts of a completion request.")
        .or("1024").env(&["VLLM_MAX_COMPLETION_PROMPTS"]).hide().range(1, MANY, LIMIT);
    MAX_STOP_STRINGS: u32 = Flag::new("max-stop-strings", Api, "Most stop strings of a request.")
        .or("4").env(&["VLLM_MAX_STOP_STRINGS"]).hide().range(1, MANY, LIMIT);
    MAX_NUM_BAD_WORDS: u32 = Flag::new("max-num-bad-words", Api, "Most bad words of a request.")
        .or("128").env(&["VLLM_MAX_NUM_BAD_WORDS"]).hide().range(1, MANY, LIMIT);
    MAX_AUDIO_CLIP_FILESIZE_MB: u64 = Flag::new("max-audio-clip-filesize-mb", Api, "Largest sound that is taken, in MiB.")
        .or("25").env(&["VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"]).hide().range(1, MANY, LIMIT);
    MAX_AUDIO_DECODE_DURATION_S: u32 = Flag::new("max-audio-decode-duration-s", Api, "Longest sound that is taken, in seconds.")
        .or("600").env(&["VLLM_MAX_AUDIO_DECODE_DURATION_S"]).hide().range(1, MANY, LIMIT);
    MAX_AUDIO_DECODE_BYTES: u64 = Flag::new("max-audio-decode-bytes", Api, "Most bytes of a sound as 32-bit samples.")
        .or("268435456").env(&["VLLM_MAX_AUDIO_DECODE_BYTES"]).hide().range(1, i64::MAX, LIMIT);
    LIMIT_MM_PER_PROMPT: Option<JsonMap> = Flag::new("limit-mm-per-prompt", Api, "Items of each modality that a prompt may have, such as '{\"image\": 2}'.");
    ALLOWED_LOCAL_MEDIA_PATH: Option<PathBuf> = Flag::new("allowed-local-media-path", Api, "Folder from which file:// media may be named.");
    ENABLE_LORA: bool = Flag::new("enable-lora", Lora, "Adapters can be served.")
        .by_mode("true", "false");
    LORA_MODULES: Vec<String> = Flag::new("lora-modules", Lora, "Adapters loaded at start: name=path, or JSON {\"name\", \"path\", \"base_model_name\"}.")
        .also(&["lora"]);
    MAX_LORAS: u32 = Flag::new("max-loras", Lora, "Adapters that run at once.")
        .or("1").range(1, MANY, "max LoRAs cannot be less than 1");
    MAX_CPU_LORAS: Option<i64> = Flag::new("max-cpu-loras", Lora, "Adapters kept at hand [max-loras].");
    MAX_LORA_RANK: u32 = Flag::new("max-lora-rank", Lora, "Greatest rank of an adapter.")
        .or("16").range(1, 4096, "max-lora-rank must be between 1 and 4096");
    LORA_LOAD_TIME: Duration = Flag::new("lora-load-time", Lora, "How long a slot takes to load an adapter.")
        .or("0").refusal("lora-load-time cannot be negative");
    ALLOW_RUNTIME_LORA_UPDATING: bool = Flag::new("allow-runtime-lora-updating", Lora, "Adapters can be loaded and unloaded while running.")
        .by_mode("true", "false").env(&["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]);
}
