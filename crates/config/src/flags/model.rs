//! Flags of the model and of the program itself.

use std::path::PathBuf;

use crate::cli_mode::CliMode;
use crate::flag::{Flag, FlagChoices};
use crate::group::FlagHelpGroup::{General, Model};
use crate::read::JsonMap;
use vllm_sim_observe::metrics::MetricsCompat;
use vllm_sim_tokenizer::ChatTemplateContentFormat;
use vllm_sim_wire::VllmVersion;

const STAGGER_DELAY_ERROR: &str =
    "stagger-delay must be -1 (by the number of replicas) or 0 to 3600 seconds";

flags! {
    CONFIG: Vec<PathBuf> = Flag::new("config", General, "YAML file of flags; a key is a flag name. Of several files, later ones override earlier ones.");
    STRICT_CONFIG: bool = Flag::new("strict-config", General, "Reject a YAML file with an unknown key. Without this flag, an unknown key is a warning.")
        .with_default("false");
    CLI_MODE: CliMode = Flag::choice("cli-mode", General, words![("llm-d", CliMode::Llmd), ("vllm", CliMode::Vllm)], "Selects the flag defaults: those of `vllm-sim …` (llm-d) or of `vllm-sim serve …` (vllm).")
        .with_aliases(&["door"]).with_env_names(&["VLLM_SIM_DOOR"]).hidden_from_help();
    COMPAT: MetricsCompat = Flag::choice("compat", General, FlagChoices { names: &MetricsCompat::NAMES, meanings: &MetricsCompat::ALL }, "Project to imitate in requests and responses: vLLM, llm-d-inference-sim where it contradicts vLLM, or the whole API of another server.")
        .with_default("vllm");
    VLLM_VERSION: VllmVersion = Flag::choice("vllm-version", General, words![("0.33.0", VllmVersion::V033), ("0.33", VllmVersion::V033), ("0.32.0", VllmVersion::V032), ("0.32", VllmVersion::V032), ("0.31.0", VllmVersion::V031), ("0.31", VllmVersion::V031), ("0.26.0", VllmVersion::V026), ("0.26", VllmVersion::V026)], "vLLM release to imitate: its flags, defaults, metrics, OpenAPI document, error texts and KV events.")
        .with_default("0.33.0");
    PREVIEW: Vec<String> = Flag::new("preview", General, "Behaviour of open pull requests of vLLM, separated by commas: remaining-copy-counts, removal-after-last-copy, kv-cache-token-usage, lora-adapter-loaded, readiness. See docs/versions.md.");
    REPLICAS: u32 = Flag::new("replicas", General, "Number of independent servers in one process, on consecutive ports.")
        .with_default("1").with_aliases(&["num-workers"]).with_integer_bounds(1, 1024, "replicas must be between 1 and 1024");
    STAGGER_DELAY: f64 = Flag::new("stagger-delay", General, "Delay between the starts of two replicas, in seconds, plus 2 s after every 32; -1: 0 up to 32 replicas, 0.1 up to 128, else 0.2.")
        .with_default("0").with_float_bounds(-1.0, 3600.0, STAGGER_DELAY_ERROR);
    MODEL: Option<String> = Flag::new("model", Model, "Model name, or a folder with config.json and tokenizer files. Required; with `serve` it is a positional argument.")
        .with_default_by_mode("", "Qwen/Qwen3-0.6B").with_aliases(&["model-path", "model-tag"]).with_env_names(&["SIM_MODEL"]);
    SERVED_MODEL_NAME: Vec<String> = Flag::new("served-model-name", Model, "Model names that requests may use; responses show the first. Default: the model. --lora-modules names adapters.")
        .with_aliases(&["model-name"]);
    MAX_MODEL_LEN: Option<i64> = Flag::new("max-model-len", Model, "Maximum prompt plus output, in tokens. Default of `serve`: the length in config.json, else that of the built-in model, else 32768. `auto`: the longest up to it that fits into the KV cache.")
        .with_default_by_mode("1024", "none").allow_size_suffixes();
    REVISION: Option<String> = Flag::new("revision", Model, "Model revision, shown in responses and used for downloads.");
    HF_CONFIG_PATH: Option<String> = Flag::new("hf-config-path", Model, "Folder or file of config.json, if it is not in the model's folder.");
    HF_OVERRIDES: Option<JsonMap> = Flag::new("hf-overrides", Model, "Values that override those of config.json, as a JSON object.");
    TOKENIZER: Option<String> = Flag::new("tokenizer", Model, "Tokenizer folder, tokenizer.json file, or name on the Hugging Face Hub. Default: the model.");
    TOKENIZER_REVISION: Option<String> = Flag::new("tokenizer-revision", Model, "Revision of a downloaded tokenizer. Default: the model's revision.");
    FORCE_DUMMY_TOKENIZER: bool = Flag::new("force-dummy-tokenizer", Model, "Use the simulated tokenizer even if a real one is available.")
        .with_default("false");
    DOWNLOAD_TOKENIZER: bool = Flag::new("download-tokenizer", Model, "Download a missing tokenizer from the Hugging Face Hub. Without this flag, the simulated tokenizer is used.")
        .with_default("false");
    DOWNLOAD_DIR: Option<PathBuf> = Flag::new("download-dir", Model, "Folder of downloads. Default: the Hugging Face cache.");
    SKIP_TOKENIZER_INIT: bool = Flag::new("skip-tokenizer-init", Model, "Use no tokenizer: prompts must be token ids, and responses contain token ids.")
        .with_default("false");
    HF_TOKEN: Option<String> = Flag::new("hf-token", Model, "Access token for the Hugging Face Hub.")
        .with_env_names(&["HF_TOKEN"]).with_secret_value();
    HF_ENDPOINT: Option<String> = Flag::new("hf-endpoint", Model, "URL of the Hugging Face Hub.")
        .with_env_names(&["HF_ENDPOINT"]).hidden_from_help();
    HF_HOME: Option<PathBuf> = Flag::new("hf-home", Model, "Directory of the Hugging Face cache.")
        .with_env_names(&["HF_HOME"]).hidden_from_help();
    HF_HUB_CACHE: Option<PathBuf> = Flag::new("hf-hub-cache", Model, "Directory of downloads in the Hugging Face cache. Default: `hub` in --hf-home.")
        .with_env_names(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).hidden_from_help();
    HF_HUB_OFFLINE: bool = Flag::new("hf-hub-offline", Model, "Do not contact the Hugging Face Hub.")
        .with_default("false").with_env_names(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]).hidden_from_help();
    CHAT_TEMPLATE: Option<String> = Flag::new("chat-template", Model, "Chat template: a file, or the template itself. Default: the tokenizer's template.");
    CHAT_TEMPLATE_CONTENT_FORMAT: Option<ChatTemplateContentFormat> = Flag::choice("chat-template-content-format", Model, words![("auto", None), ("string", Some(ChatTemplateContentFormat::String)), ("openai", Some(ChatTemplateContentFormat::Openai))], "Format in which the chat template receives message content; auto: detected from the template.")
        .with_default("auto");
    DEFAULT_CHAT_TEMPLATE_KWARGS: Option<JsonMap> = Flag::new("default-chat-template-kwargs", Model, "Arguments for every chat template call, as a JSON object; arguments of a request override them.");
    RESPONSE_ROLE: String = Flag::new("response-role", Model, "Role of messages in chat responses.").with_default("assistant");
    GENERATION_CONFIG: String = Flag::new("generation-config", Model, "Source of sampling defaults: `auto` (the model's generation_config.json), `vllm` (none) or a folder.")
        .with_default("auto");
    OVERRIDE_GENERATION_CONFIG: Option<JsonMap> = Flag::new("override-generation-config", Model, "Sampling defaults that override those of --generation-config, such as '{\"temperature\": 0.5}'.");
    QUANTIZATION: Option<String> = Flag::new("quantization", Model, "Quantization of the weights; affects step times and memory. Default: from config.json.")
        .with_short_names(&["q"]);
}
