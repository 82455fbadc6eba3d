//! Request of `POST /generative_scoring`.
//!
//! Source: `vllm/entrypoints/generate/generative_scoring/protocol.py`.

use serde_json::Value;

use crate::openai::shared_request_fields;
use crate::schema::{ANY_LENGTH, INT, STR, Schema, wire_model};

wire_model! {
    /// A generative scoring request: a query, items to append to it, and the labels to score.
    pub struct GenerativeScoringRequest: Wrapped "GenerativeScoringRequest"
        before [shared_request_fields::check_cache_salt_support]
    {
        /// Name of the served model or LoRA adapter that handles the request.
        model: Option<String> = None,
        /// Query before or after each item, as text or token ids.
        query: Value [Schema::Union(&[STR, Schema::List(&INT, ANY_LENGTH)])],
        /// Items to score, as texts or lists of token ids.
        items: Value [Schema::Union(&[
            Schema::List(&STR, ANY_LENGTH),
            Schema::List(&Schema::List(&INT, ANY_LENGTH), ANY_LENGTH),
        ])],
        /// Token ids of the labels; their probabilities are the scores.
        label_token_ids: Vec<i128>,
        /// Whether to normalize scores over the labels by softmax.
        apply_softmax: bool = true,
        /// Whether the prompt has the item before the query.
        item_first: bool = false,
        /// Whether the tokenizer adds special tokens to the text.
        add_special_tokens: bool = true,
        /// Scheduling priority of the request; lower values are scheduled first.
        priority: i64 = 0,
        /// Id of the request, returned in the response; generated when absent.
        request_id: Option<String> [STR] = None,
        /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
        /// blocks.
        cache_salt: Option<String> = None,
    }
}
