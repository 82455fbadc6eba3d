//! `POST /generative_scoring`: the request.
//!
//! Source: `vllm/entrypoints/generate/generative_scoring/protocol.py`.

use serde_json::Value;

use crate::check;
use crate::fault::Fault;
use crate::schema::{ANY_LENGTH, INT, STR, Schema, wire_model};

wire_model! {
    /// A query, items to append to it, and the tokens whose probability is wanted.
    pub struct GenerativeScoringRequest: Wrapped "GenerativeScoringRequest" {
        /// Served name.
        model: Option<String> = None,
        /// The question: text or token ids.
        query: Value [Schema::Union(&[STR, Schema::List(&INT, ANY_LENGTH)])],
        /// What is scored: texts or lists of token ids.
        items: Value [Schema::Union(&[
            Schema::List(&STR, ANY_LENGTH),
            Schema::List(&Schema::List(&INT, ANY_LENGTH), ANY_LENGTH),
        ])],
        /// Tokens whose probability is the score.
        label_token_ids: Vec<i128>,
        /// Whether scores are a distribution over the labels.
        apply_softmax: bool = true,
        /// Whether the item stands before the query.
        item_first: bool = false,
        /// Whether the tokenizer adds special tokens.
        add_special_tokens: bool = true,
        /// Lower goes first.
        priority: i64 = 0,
        /// Id in the answer.
        request_id: Option<String> [STR] = None,
        /// Keeps the prefix cache apart.
        cache_salt: Option<String> = None,
    }
}

impl GenerativeScoringRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}
