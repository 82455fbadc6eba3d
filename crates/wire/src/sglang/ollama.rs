//! Requests of the routes of Ollama that an SGLang server has.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/ollama/protocol.py`, `serving.py`.

use serde_json::{Map, Value, json};

use crate::schema::{ANY_LENGTH, STR, Schema, wire_model};

wire_model! {
    /// A chat message of a request to an Ollama route.
    pub struct OllamaMessage: Plain "OllamaMessage" {
        /// Role of the message's author.
        role: String,
        /// Text of the chat message.
        content: String,
        /// Images of the chat message, which SGLang ignores.
        images: Option<Vec<String>> = None,
    }
}

wire_model! {
    /// A request of `POST /api/chat`.
    pub struct OllamaChatRequest: Plain "OllamaChatRequest" {
        /// Name of the model, which SGLang ignores.
        model: String,
        /// Messages of the conversation, oldest first.
        messages: Vec<OllamaMessage>,
        /// Whether to stream the reply as lines of JSON.
        stream: bool = true,
        /// Sampling options under Ollama's names, such as `num_predict`.
        options: Option<Map<String, Value>> = None,
    }
}

wire_model! {
    /// A request of `POST /api/generate`.
    pub struct OllamaGenerateRequest: Plain "OllamaGenerateRequest" {
        /// Name of the model, which SGLang ignores.
        model: String,
        /// Prompt text of the request.
        prompt: String,
        /// Text before the prompt (system prompt).
        system: Option<String> = None,
        /// Whether to stream the reply as lines of JSON.
        stream: bool = true,
        /// Sampling options under Ollama's names, such as `num_predict`.
        options: Option<Map<String, Value>> = None,
        /// Images of the prompt, which SGLang ignores.
        images: Option<Value> [Schema::Nullable(&Schema::List(&STR, ANY_LENGTH))] = None,
    }
}

wire_model! {
    /// A request of `POST /api/show`.
    pub struct OllamaShowRequest: Plain "OllamaShowRequest" {
        /// Name of the model.
        model: String,
    }
}

/// Options of Ollama and the sampling parameters of SGLang that they set.
const OPTIONS: [(&str, &str); 8] = [
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("num_predict", "max_new_tokens"),
    ("stop", "stop"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    // SGLang passes it on under a name that its own parameters do not have.
    ("seed", "sampling_seed"),
];

/// Maximum number of output tokens without the option `num_predict`.
const DEFAULT_OUTPUT_TOKENS: u32 = 2048;

/// Returns SGLang's sampling parameters for the Ollama options of a request.
pub fn ollama_sampling_params(options: Option<&Map<String, Value>>) -> Value {
    let mut params = json!({"max_new_tokens": DEFAULT_OUTPUT_TOKENS});
    for (option, param) in OPTIONS {
        if let Some(value) = options.and_then(|options| options.get(option)) {
            params[param] = value.clone();
        }
    }
    params
}
