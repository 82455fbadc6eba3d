//! `POST /generative_scoring`: the request.
//!
//! Source: `vllm/entrypoints/generate/generative_scoring/serving.py`.

use serde_json::Value;

use crate::check;
use crate::fault::Fault;
use crate::openai::validators;
use crate::schema::{ANY_LENGTH, INT, STR, Schema, wire_model};

const IDS: Schema = Schema::List(&INT, ANY_LENGTH);

wire_model! {
    /// A query, items to append to it, and the tokens whose probability is wanted.
    pub struct GenerativeScoringRequest: Wrapped "GenerativeScoringRequest"
        before [validators::cache_salt]
    {
        /// Served name; null or empty for the base model.
        model: Option<String> = None,
        /// A text or token ids, as sent.
        query: Value [Schema::Union(&[STR, IDS])],
        /// Texts or lists of token ids, as sent.
        items: Value [Schema::Union(&[
            Schema::List(&STR, ANY_LENGTH),
            Schema::List(&IDS, ANY_LENGTH),
        ])],
        /// The tokens.
        label_token_ids: Vec<i128>,
        /// Whether probabilities are relative to those tokens.
        apply_softmax: bool = true,
        /// Whether items come before the query.
        item_first: bool = false,
        /// Whether the tokenizer adds special tokens.
        add_special_tokens: bool = true,
        /// Keeps the prefix cache apart.
        cache_salt: Option<String> = None,
        /// Lower goes first.
        priority: i64 = 0,
        /// Id in the answer; a fresh one when absent.
        request_id: Option<String> [STR] = None,
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
