//! Reads the inputs of SGLang's routes of embedding models as token ids.

use std::sync::Arc;

use serde_json::{Value, json};

use super::request::conversation_token_ids;
use crate::app::App;
use crate::pooling::encode_text;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;

/// Maximum number of inputs of a request (SGLang has no limit).
const MAX_INPUTS: usize = 65_536;

/// Token ids of each input of a pooling request.
pub(super) struct PoolingInputs {
    pub(super) lists: Vec<Vec<u32>>,
    /// Whether the pooling request gives a single input instead of a list of inputs.
    pub(super) is_single: bool,
}

impl PoolingInputs {
    /// Returns the total number of tokens in the inputs of the pooling request.
    pub(super) fn input_token_count(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }
}

/// Reads the inputs of a pooling request: texts, token ids, pairs of texts, or objects with a text.
///
/// # Errors
/// SGLang's 400 for an input that exceeds the context; ours for media and for too many inputs.
pub(super) async fn read_pooling_inputs(
    app: &Arc<App>,
    input: &Value,
) -> Result<PoolingInputs, Fault> {
    let items = match input {
        Value::Array(items) if !items.iter().all(Value::is_number) => items,
        single => {
            let lists = vec![read_input(app, single).await?];
            return Ok(PoolingInputs { lists, is_single: true });
        }
    };
    if items.len() > MAX_INPUTS {
        return Err(Fault::bad_request(format!(
            "The request has {} inputs; at most {MAX_INPUTS} are allowed.",
            items.len()
        )));
    }
    let mut lists = Vec::with_capacity(items.len());
    for item in items {
        lists.push(read_input(app, item).await?);
    }
    Ok(PoolingInputs { lists, is_single: false })
}

async fn read_input(app: &Arc<App>, input: &Value) -> Result<Vec<u32>, Fault> {
    app.service.check_tokenizer_available()?;
    let ids = match input {
        Value::String(text) => encode_text(app, text, SpecialTokenHandling::With).await,
        Value::Object(parts) => {
            let media = ["image", "video"].into_iter();
            let given = |name: &&str| parts.get(*name).is_some_and(|value| !value.is_null());
            if let Some(name) = media.into_iter().find(given) {
                return Err(Fault::bad_request(format!("input.{name} is not simulated")));
            }
            let text = parts.get("text").and_then(Value::as_str).unwrap_or_default();
            message_ids(app, text).await?
        }
        Value::Array(items) if items.iter().any(Value::is_string) => {
            let texts = items.iter().filter_map(Value::as_str);
            let mut ids = Vec::new();
            for text in texts {
                ids.extend(encode_text(app, text, SpecialTokenHandling::With).await);
            }
            ids
        }
        ids => {
            let ids = ids.as_array().into_iter().flatten().filter_map(Value::as_i64);
            ids.map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect()
        }
    };
    app.rules.dialect.check_encoded_length(&app.rules.limits, ids.len())?;
    Ok(ids)
}

/// Returns the token ids of a text as the only message of a conversation.
async fn message_ids(app: &Arc<App>, text: &str) -> Result<Vec<u32>, Fault> {
    let body = json!({"messages": [{"role": "user", "content": text}]});
    let chat = ChatRequest::parse_chat_request(&body, &app.rules.defaults.bounds)?;
    // The rendered text is encoded once more, with the tokens that begin every text.
    let mut ids = app.service.generator.tokenizer().encode("", SpecialTokenHandling::With);
    ids.extend(conversation_token_ids(app, chat).await?);
    Ok(ids)
}
