//! Flags of the model and of the program itself.

use std::path::PathBuf;

use crate::cli_mode::CliMode;
use crate::flag::Flag;
use crate::group::FlagGroup::{General, Model};
use crate::read::JsonMap;
use vllm_sim_observe::metrics::Compat;
use vllm_sim_tokenizer::ContentFormat;

const STAGGER: &str = "stagger-delay must be -1 (by the number of replicas) or 0 to 3600 seconds";

flags! {
    CONFIG: Vec<PathBuf> = Flag::new("config", General, "YAML file of flags; a key is a flag name. Files are laid over each other in the order they are named.");
    STRICT_CONFIG: bool = Flag::new("strict-config", General, "Refuse a YAML file with a key that no flag has, instead of a warning.")
        .or("false");
    CLI_MODE: CliMode = Flag::choice("cli-mode", General, words![("llm-d", CliMode::Llmd), ("vllm", CliMode::Vllm)], "Whose defaults apply: those of `vllm-sim …` (llm-d) or of `vllm-sim serve …` (vllm).")
        .also(&["door"]).env(&["VLLM_SIM_DOOR"]).hide();
    COMPAT: Compat = Flag::choice("compat", General, words![("vllm", Compat::Vllm), ("llm-d", Compat::Llmd)], "Whose wire, where vLLM and llm-d-inference-sim contradict each other.")
        .or("vllm");
    VLLM_VERSION: String = Flag::new("vllm-version", General, "The vLLM release to imitate.")
        .or("0.33.0");
    REPLICAS: u32 = Flag::new("replicas", General, "Independent servers in one process, on ports that follow each other.")
        .or("1").also(&["num-workers"]).range(1, 1024, "replicas must be between 1 and 1024");
    STAGGER_DELAY: f64 = Flag::new("stagger-delay", General, "Seconds between the starts of replicas, and 2 more after every 32; -1: 0 up to 32 replicas, 0.1 up to 128, else 0.2.")
        .or("0").within(-1.0, 3600.0, STAGGER);
    MODEL: Option<String> = Flag::new("model", Model, "Model name, or a folder with config.json and tokenizer files. Required; `serve` takes it as a word of its own.")
        .by_mode("", "Qwen/Qwen3-0.6B").also(&["model-path", "model-tag"]).env(&["SIM_MODEL"]);
    SERVED_MODEL_NAME: Vec<String> = Flag::new("served-model-name", Model, "Names that requests may use; the first is shown in answers [the model]. Adapters are named by --lora-modules.")
        .also(&["model-name"]);
    MAX_MODEL_LEN: Option<i64> = Flag::new("max-model-len", Model, "Longest prompt plus output, in tokens. `auto`: from the model's config.json, else 32768.")
        .by_mode("1024", "auto").suffixed();
    REVISION: Option<String> = Flag::new("revision", Model, "Model revision; shown, and used for downloads.");
    HF_CONFIG_PATH: Option<String> = Flag::new("hf-config-path", Model, "Folder or file of config.json, when it does not lie in the model's folder.");
    HF_OVERRIDES: Option<JsonMap> = Flag::new("hf-overrides", Model, "Values laid over config.json.");
    TOKENIZER: Option<String> = Flag::new("tokenizer", Model, "Tokenizer folder, tokenizer.json, or name [the model].");
    TOKENIZER_REVISION: Option<String> = Flag::new("tokenizer-revision", Model, "Revision of a downloaded tokenizer [that of the model].");
    FORCE_DUMMY_TOKENIZER: bool = Flag::new("force-dummy-tokenizer", Model, "Use the simulated tokenizer even when a real one is at hand.")
        .or("false");
    DOWNLOAD_TOKENIZER: bool = Flag::new("download-tokenizer", Model, "Fetch a tokenizer that is not on this machine from the model hub; otherwise the simulated one stands in.")
        .or("false");
    DOWNLOAD_DIR: Option<PathBuf> = Flag::new("download-dir", Model, "Folder of downloads [the hub's cache].");
    SKIP_TOKENIZER_INIT: bool = Flag::new("skip-tokenizer-init", Model, "No tokenizer at all: token ids in, token ids out.")
        .or("false");
    HF_TOKEN: Option<String> = Flag::new("hf-token", Model, "Token for the model hub.")
        .env(&["HF_TOKEN"]).secret();
    HF_ENDPOINT: Option<String> = Flag::new("hf-endpoint", Model, "Address of the model hub.")
        .env(&["HF_ENDPOINT"]).hide();
    HF_HOME: Option<PathBuf> = Flag::new("hf-home", Model, "Where the hub's cache lies.")
        .env(&["HF_HOME"]).hide();
    HF_HUB_CACHE: Option<PathBuf> = Flag::new("hf-hub-cache", Model, "The hub's cache itself [hub/ in hf-home].")
        .env(&["HF_HUB_CACHE"]).hide();
    HF_HUB_OFFLINE: bool = Flag::new("hf-hub-offline", Model, "Never reach for the hub.")
        .or("false").env(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]).hide();
    CHAT_TEMPLATE: Option<String> = Flag::new("chat-template", Model, "Chat template: a file, or the template itself [the tokenizer's].");
    CHAT_TEMPLATE_CONTENT_FORMAT: Option<ContentFormat> = Flag::choice("chat-template-content-format", Model, words![("auto", None), ("string", Some(ContentFormat::String)), ("openai", Some(ContentFormat::Openai))], "How message content reaches the template.")
        .or("auto");
    DEFAULT_CHAT_TEMPLATE_KWARGS: Option<JsonMap> = Flag::new("default-chat-template-kwargs", Model, "Arguments of every chat template call; a request's own win.");
    RESPONSE_ROLE: String = Flag::new("response-role", Model, "Role of answers.").or("assistant");
    GENERATION_CONFIG: String = Flag::new("generation-config", Model, "Sampling defaults: `auto` (the model's generation_config.json), `vllm` (none) or a folder.")
        .or("auto");
    OVERRIDE_GENERATION_CONFIG: Option<JsonMap> = Flag::new("override-generation-config", Model, "Sampling defaults laid over those, such as '{\"temperature\": 0.5}'.");
    QUANTIZATION: Option<String> = Flag::new("quantization", Model, "Quantisation of the weights, for step times and memory [config.json's].")
        .short(&["q"]);
}
