use super::{
    Flag,
    Group::{Api, Lora},
    Kind::{Choice, Duration, Float, Int, Json, List, Path, Switch, Text},
};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "task",
        Api,
        Choice(&[
            "auto",
            "generate",
            "embed",
            "embedding",
            "classify",
            "score",
            "reward",
            "transcription",
            "realtime",
            "draft",
        ]),
        "Which family of routes exists [all; behind `serve` generate].",
    )
    .or("auto"),
    Flag::new(
        "runner",
        Api,
        Choice(&["auto", "generate", "pooling", "draft"]),
        "vLLM's newer spelling: `pooling` serves embeddings.",
    )
    .or("auto"),
    Flag::new(
        "convert",
        Api,
        Choice(&["auto", "none", "embed", "classify", "reward"]),
        "With --runner pooling: which pooling task.",
    )
    .or("auto"),
    Flag::new(
        "num-labels",
        Api,
        Int,
        "Classes of the simulated classifier.",
    )
    .or("2"),
    Flag::new(
        "max-logprobs",
        Api,
        Int,
        "Most log probabilities that a request may ask for; -1: the vocabulary.",
    )
    .or("20"),
    Flag::new(
        "enable-auto-tool-choice",
        Api,
        Switch,
        "Let `tool_choice: auto` call tools.",
    )
    .doors("true", "false"),
    Flag::new(
        "tool-call-parser",
        Api,
        Text,
        "vLLM's name of the tool call parser.",
    ),
    Flag::new(
        "tool-parser-plugin",
        Api,
        Path,
        "Where vLLM would find further tool call parsers: their names are accepted.",
    )
    .hide(),
    Flag::new(
        "reasoning-parser-plugin",
        Api,
        Path,
        "Where vLLM would find further reasoning parsers: their names are accepted.",
    )
    .hide(),
    Flag::new(
        "tool-strict-level",
        Api,
        Choice(&["auto", "function", "parameter"]),
        "How far forced tool calls are bound to their schema.",
    )
    .or("auto"),
    Flag::new(
        "exclude-tools-when-tool-choice-none",
        Api,
        Switch,
        "Keep tools out of the prompt when tool_choice is none.",
    )
    .or("false"),
    Flag::new(
        "reasoning-parser",
        Api,
        Text,
        "vLLM's name of the reasoning parser; replies then reason first.",
    ),
    Flag::new(
        "reasoning-ratio",
        Api,
        Float,
        "Share of output tokens that is reasoning, 0 to 1.",
    )
    .or("0.4"),
    Flag::new(
        "enable-prompt-tokens-details",
        Api,
        Switch,
        "usage has prompt_tokens_details [also with --compat llm-d].",
    )
    .or("false"),
    Flag::new(
        "enable-force-include-usage",
        Api,
        Switch,
        "usage in every stream.",
    )
    .or("false"),
    Flag::new(
        "enable-per-request-metrics",
        Api,
        Switch,
        "Responses carry their own timing.",
    )
    .or("false"),
    Flag::new(
        "return-tokens-as-token-ids",
        Api,
        Switch,
        "token_id:N instead of text in log probabilities.",
    )
    .or("false"),
    Flag::new(
        "enable-scale-out",
        Api,
        Switch,
        "render, derender and /inference/v1/generate answer.",
    )
    .doors("true", "false"),
    Flag::new(
        "tokens-only",
        Api,
        Switch,
        "Only token ids in, token ids out.",
    )
    .or("false"),
    Flag::new(
        "render-only",
        Api,
        Switch,
        "Only tokenising and rendering (`vllm launch render`).",
    )
    .or("false"),
    Flag::new(
        "trust-request-chat-template",
        Api,
        Switch,
        "A request may bring its own chat template.",
    )
    .or("false"),
    Flag::new(
        "fingerprint-mode",
        Api,
        Choice(&["full", "hash", "custom", "none"]),
        "What system_fingerprint says.",
    )
    .or("full"),
    Flag::new(
        "fingerprint-value",
        Api,
        Text,
        "The text with --fingerprint-mode custom.",
    ),
    Flag::new("stream-interval", Api, Int, "Tokens per stream chunk.").or("1"),
    Flag::new(
        "enable-tokenizer-info-endpoint",
        Api,
        Switch,
        "/tokenizer_info exists.",
    )
    .or("false"),
    Flag::new(
        "responses-store",
        Api,
        Switch,
        "Stored responses can be fetched again.",
    )
    .or("false")
    .env(&["VLLM_ENABLE_RESPONSES_API_STORE"]),
    Flag::new(
        "legacy-guided-fields",
        Api,
        Switch,
        "The guided_* request fields of older releases act.",
    )
    .also(&["legacy-guided"])
    .or("false"),
    Flag::new(
        "skip-model-name-validation",
        Api,
        Switch,
        "Accept any model name.",
    )
    .or("false")
    .env(&["VLLM_SKIP_MODEL_NAME_VALIDATION"]),
    Flag::new(
        "profiler-config",
        Api,
        Json,
        "{\"profiler\": \"torch\", \"torch_profiler_dir\": \"…\"}: /start_profile and /stop_profile answer; nothing is profiled.",
    ),
    Flag::new(
        "enable-fault-tolerance",
        Api,
        Switch,
        "/fault_tolerance/apply and /fault_tolerance/status answer.",
    )
    .or("false"),
    Flag::new(
        "fault-tolerance-config",
        Api,
        Json,
        "vLLM's settings of fault tolerance; turns it on.",
    )
    .hide(),
    Flag::new("max-n-sequences", Api, Int, "Greatest n of a request.")
        .or("16384")
        .env(&["VLLM_MAX_N_SEQUENCES"])
        .hide(),
    Flag::new(
        "max-completion-prompts",
        Api,
        Int,
        "Most prompts of a completion request.",
    )
    .or("1024")
    .env(&["VLLM_MAX_COMPLETION_PROMPTS"])
    .hide(),
    Flag::new(
        "max-stop-strings",
        Api,
        Int,
        "Most stop strings of a request.",
    )
    .or("4")
    .env(&["VLLM_MAX_STOP_STRINGS"])
    .hide(),
    Flag::new(
        "max-num-bad-words",
        Api,
        Int,
        "Most bad words of a request.",
    )
    .or("128")
    .env(&["VLLM_MAX_NUM_BAD_WORDS"])
    .hide(),
    Flag::new(
        "max-audio-clip-filesize-mb",
        Api,
        Int,
        "Largest sound that is taken, in MiB.",
    )
    .or("25")
    .env(&["VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"])
    .hide(),
    Flag::new(
        "max-audio-decode-duration-s",
        Api,
        Int,
        "Longest sound that is taken, in seconds.",
    )
    .or("600")
    .env(&["VLLM_MAX_AUDIO_DECODE_DURATION_S"])
    .hide(),
    Flag::new(
        "max-audio-decode-bytes",
        Api,
        Int,
        "Most bytes of a sound as 32-bit samples.",
    )
    .or("268435456")
    .env(&["VLLM_MAX_AUDIO_DECODE_BYTES"])
    .hide(),
    Flag::new(
        "limit-mm-per-prompt",
        Api,
        Json,
        "Items of each modality that a prompt may have, such as '{\"image\": 2}'.",
    ),
    Flag::new(
        "allowed-local-media-path",
        Api,
        Path,
        "Folder from which file:// media may be named.",
    ),
    Flag::new("enable-lora", Lora, Switch, "Adapters can be served.").doors("true", "false"),
    Flag::new(
        "lora-modules",
        Lora,
        List,
        "Adapters loaded at start: name=path, or JSON {\"name\", \"path\", \"base_model_name\"}.",
    )
    .also(&["lora"]),
    Flag::new("max-loras", Lora, Int, "Adapters that run at once.").or("1"),
    Flag::new(
        "max-cpu-loras",
        Lora,
        Int,
        "Adapters kept at hand [max-loras].",
    ),
    Flag::new("max-lora-rank", Lora, Int, "Greatest rank of an adapter.").or("16"),
    Flag::new(
        "lora-load-time",
        Lora,
        Duration,
        "How long a slot takes to load an adapter.",
    )
    .or("0"),
    Flag::new(
        "allow-runtime-lora-updating",
        Lora,
        Switch,
        "Adapters can be loaded and unloaded while running.",
    )
    .doors("true", "false")
    .env(&["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]),
];
