//! Requests of `POST /tokenize` and `POST /detokenize` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/protocol.py`, `TokenizeRequest`,
//! `DetokenizeRequest`.

use serde_json::{Map, Value};

use crate::schema::{ANY_LENGTH, INT, Schema, ValidatorError, wire_model};

wire_model! {
    /// A request for the token ids of texts or of a conversation.
    pub struct SglangTokenizeRequest: Plain "TokenizeRequest" after check_one_input {
        /// Texts to convert to token ids.
        prompt: Option<Value> [super::chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Conversation to convert to token ids, by the chat template.
        messages: Option<Vec<Value>> = None,
        /// Whether the tokenizer adds special tokens to the texts.
        add_special_tokens: bool = true,
    }
}

wire_model! {
    /// A request for the texts of token ids.
    pub struct SglangDetokenizeRequest: Plain "DetokenizeRequest" {
        /// Token ids to convert to text, of one text or of several.
        tokens: Value [Schema::Union(&[
            Schema::List(&INT, ANY_LENGTH),
            Schema::List(&Schema::List(&INT, ANY_LENGTH), ANY_LENGTH),
        ])],
        /// Whether the returned text omits special tokens.
        skip_special_tokens: bool = true,
    }
}

/// Checks that a request has either `prompt` or `messages`, as SGLang's `validate_tokenize_input`
/// does.
fn check_one_input(body: &Map<String, Value>) -> Result<(), ValidatorError> {
    let given = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    match given("prompt") == given("messages") {
        true => Err(ValidatorError::ValueError(
            "Exactly one of 'prompt' or 'messages' must be provided.".to_owned(),
        )),
        false => Ok(()),
    }
}
