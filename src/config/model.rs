use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

/// Which model is imitated, and how the program was called.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Name or folder, as typed; never empty.
    pub name: String,
    /// Names that requests may use; at least one, the first is shown in answers.
    pub served_names: Vec<String>,
    /// Longest prompt plus output, in tokens [1024; behind `serve` config.json's, else 32768].
    pub max_model_len: u32,
    /// The model's `config.json`, when `name` is a folder that has one.
    pub hf_config: Option<Arc<Value>>,
    /// Which revision is named.
    pub revision: Option<String>,
    /// Where tokens come from.
    pub tokenizer: TokenizerSource,
    /// A template file, or the template itself.
    pub chat_template: Option<String>,
    /// How message content reaches the template: `auto`, `string` or `openai`.
    pub chat_template_content_format: String,
    /// Arguments of every chat template call.
    pub chat_template_kwargs: Map<String, Value>,
    /// Role of answers [assistant].
    pub response_role: String,
    /// Sampling defaults: `auto` (the model's), `vllm` (none), or a folder.
    pub generation_config: String,
    /// Sampling defaults laid over those.
    pub generation_config_overrides: Map<String, Value>,
    /// The imitated release [0.33.0].
    pub vllm_version: String,
    /// Whose wire where the two projects contradict each other.
    pub compat: Compat,
    /// Whose command line, and so whose defaults.
    pub door: Door,
}

/// Where tokens come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerSource {
    /// Folder, file or hub name [the model's].
    pub name: String,
    /// Revision on the hub.
    pub revision: Option<String>,
    /// Whether to use the simulated tokenizer whatever exists.
    pub force_dummy: bool,
    /// Whether a hub name may be downloaded [no: the simulated tokenizer stands in].
    pub download: bool,
    /// Folder for downloads.
    pub download_dir: Option<PathBuf>,
    /// `HF_TOKEN`.
    pub hf_token: Option<String>,
    /// `HF_ENDPOINT`.
    pub hf_endpoint: Option<String>,
    /// `HF_HOME` (or `HF_HUB_CACHE`): where earlier downloads lie.
    pub hf_home: Option<PathBuf>,
    /// Neither tokenizer nor detokenizer: token ids only (`--skip-tokenizer-init`).
    pub skip_init: bool,
}

/// Whose wire, where the two projects contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// vLLM's.
    #[default]
    Vllm,
    /// llm-d-inference-sim's.
    Llmd,
}

/// Whose command line, and so whose defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Door {
    /// `vllm-sim --model X`: llm-d-inference-sim's.
    #[default]
    Llmd,
    /// `vllm-sim serve X`: vLLM's.
    Vllm,
}
