//! Request of `POST /generative_scoring`.
//!
//! Source: `vllm/entrypoints/generate/generative_scoring/protocol.py`.

use serde_json::Value;

use crate::check;
use crate::fault::Fault;
use crate::schema::{ANY_LENGTH, INT, STR, Schema, wire_model};

wire_model! {
    /// A query, items to append to it, and the labels to score.
    pub struct GenerativeScoringRequest: Wrapped "GenerativeScoringRequest" {
        /// Served model name.
        model: Option<String> = None,
        /// Query as text or token ids.
        query: Value [Schema::Union(&[STR, Schema::List(&INT, ANY_LENGTH)])],
        /// Items to score, as texts or lists of token ids.
        items: Value [Schema::Union(&[
            Schema::List(&STR, ANY_LENGTH),
            Schema::List(&Schema::List(&INT, ANY_LENGTH), ANY_LENGTH),
        ])],
        /// Token ids whose probability is the score.
        label_token_ids: Vec<i128>,
        /// Whether to normalize scores over the labels.
        apply_softmax: bool = true,
        /// Whether the item precedes the query.
        item_first: bool = false,
        /// Whether the tokenizer adds special tokens.
        add_special_tokens: bool = true,
        /// Scheduling priority; lower values are scheduled first.
        priority: i64 = 0,
        /// Request id to return; generated when absent.
        request_id: Option<String> [STR] = None,
        /// Salt of the block hashes; only equal salts share prefix-cache blocks.
        cache_salt: Option<String> = None,
    }
}

impl GenerativeScoringRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}
