//! `POST /score`, `POST /rerank` and their versioned paths.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::{
    count_in_flight, pooling_model_name, pooling_request_id, truncation, usage_json, vector,
};
use crate::app::App;
use crate::body::JsonRequest;
use crate::error::HandlerResult;
use crate::vllm::ok_json;
use vllm_sim_config::ModelTask;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::prompt::PromptTruncation;
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::pooling::{PoolingInput, PoolingRequest};

/// Handles `POST /score`: the similarity of one text to many, or of pairs of texts.
pub(crate) async fn create_score(
    State(app): State<Arc<App>>,
    JsonRequest { head, value }: JsonRequest,
) -> HandlerResult {
    let request = PoolingRequest::parse_score(&value)?;
    let model = pooling_model_name(&app, request.model.as_deref())?;
    let (ones, twos) = queries_and_documents(&request);
    if ones.is_empty() {
        return Err(Fault::bad_request("At least one text element must be given"));
    }
    if twos.is_empty() {
        return Err(Fault::bad_request("At least one text_pair element must be given"));
    }
    if ones.len() != 1 && ones.len() != twos.len() {
        return Err(Fault::bad_request("Input lengths must be either 1:1, 1:N or N:N"));
    }
    let _guard = count_in_flight(&app, twos.len())?;
    let pairs = twos.iter().enumerate().map(|(at, two)| (ones.get(at).unwrap_or(&ones[0]), two));
    let mut scorer = TextPairScorer::new(&app, &request)?;
    let mut data = Vec::with_capacity(twos.len());
    for (index, (one, two)) in pairs.enumerate() {
        let score = scorer.score_pair(one, two, ones.len() == 1 && index > 0)?;
        data.push(json!({"index": index, "object": "score", "score": score}));
    }
    Ok(ok_json(&json!({
        "id": pooling_request_id("score-", &head.headers, request.request_id.as_deref()),
        "object": "list",
        "created": unix_now_secs() as u64,
        "model": &*model,
        "data": data,
        "usage": usage_json(scorer.tokens),
    })))
}

/// Handles `POST /rerank`: returns the documents sorted by descending score for a query.
pub(crate) async fn create_rerank(
    State(app): State<Arc<App>>,
    JsonRequest { head, value }: JsonRequest,
) -> HandlerResult {
    let request = PoolingRequest::parse_rerank(&value)?;
    let model = pooling_model_name(&app, request.model.as_deref())?;
    let (query, documents) = queries_and_documents(&request);
    let query = query.into_iter().next().unwrap_or_default();
    if documents.is_empty() {
        return Err(Fault::bad_request("At least one text_pair element must be given"));
    }
    let _guard = count_in_flight(&app, documents.len())?;
    let mut scorer = TextPairScorer::new(&app, &request)?;
    let mut ranked = Vec::with_capacity(documents.len());
    for (index, document) in documents.iter().enumerate() {
        let score = scorer.score_pair(&query, document, index > 0)?;
        ranked.push((index, score));
    }
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = Some(request.top_n).filter(|n| *n > 0);
    let results: Vec<Value> = ranked
        .into_iter()
        .take(most.unwrap_or(usize::MAX))
        .map(|(index, score)| {
            json!({
                "index": index,
                "document": {"text": documents[index], "multi_modal": null},
                "relevance_score": score,
            })
        })
        .collect();
    Ok(ok_json(&json!({
        "id": pooling_request_id("score-", &head.headers, request.request_id.as_deref()),
        "model": &*model,
        "usage": {"prompt_tokens": scorer.tokens, "total_tokens": scorer.tokens},
        "results": results,
    })))
}

struct TextPairScorer<'a> {
    app: &'a App,
    /// Vector length of an embedding model; `None` for a cross-encoder, which reads both texts
    /// together.
    dimensions: Option<usize>,
    /// Truncation of the texts to score.
    truncation: PromptTruncation,
    /// Number of prompt tokens, for `usage`.
    tokens: usize,
}

impl<'a> TextPairScorer<'a> {
    fn new(app: &'a App, request: &PoolingRequest) -> Result<Self, Fault> {
        let embeds =
            app.settings.pooling.task == ModelTask::Embed && app.settings.pooling.embeds_words;
        Ok(Self {
            app,
            dimensions: match embeds {
                true => Some(vector::vector_dimensions(app, None)?),
                false => None,
            },
            truncation: PromptTruncation { special: true, ..truncation(app, request)? },
            tokens: 0,
        })
    }

    /// Returns the score of two texts. With an embedding model, usage counts the tokens of a
    /// repeated first text only once.
    fn score_pair(&mut self, one: &str, two: &str, again: bool) -> Result<f64, Fault> {
        let tokenizer = self.app.service.generator.tokenizer();
        let pair = [one, two].map(|text| tokenizer.encode(text, SpecialTokens::With));
        let [one, two] = self.truncate_pair(pair);
        for side in [&one, &two] {
            let rules = &self.app.rules;
            rules.dialect.check_encoded_length(&rules.limits, side.len())?;
        }
        let read_before = again && self.dimensions.is_some();
        self.tokens += two.len() + if read_before { 0 } else { one.len() };
        Ok(match self.dimensions {
            Some(dimensions) => vector::cosine_similarity(&one, &two, dimensions),
            None => vector::relevance(&one, &two),
        })
    }
}

impl TextPairScorer<'_> {
    /// Truncates the tokens of two texts as requested: each alone for a model that embeds them, else
    /// the longer one first until the pair fits.
    ///
    /// Source: vLLM 0.33 `entrypoints/pooling/scoring/io_processor.py`; `TruncationStrategy` of
    /// Hugging Face's tokenizers.
    fn truncate_pair(&self, pair: [Vec<u32>; 2]) -> [Vec<u32>; 2] {
        let Some(keep) = self.truncation.keep else {
            return pair;
        };
        let kept = match self.app.settings.pooling.task {
            ModelTask::Embed => [keep; 2],
            _ => longest_first(pair.each_ref().map(|tokens| tokens.len() as i64), keep),
        };
        let [one, two] = pair;
        [(one, kept[0]), (two, kept[1])].map(|(tokens, keep)| {
            let truncation = PromptTruncation { keep: Some(keep), ..self.truncation };
            let tokenizer = self.app.service.generator.tokenizer();
            truncation.truncate_tokens(tokenizer, &self.app.rules.limits, tokens)
        })
    }
}

/// Returns the lengths to which a pair of texts is truncated, the longer text first, so that their
/// sum is at most `keep` tokens.
fn longest_first(lengths: [i64; 2], keep: i64) -> [i64; 2] {
    let (short, long) = (lengths[0].min(lengths[1]), lengths[0].max(lengths[1]));
    let (short, long) = match short + long <= keep {
        true => (short, long),
        false if 2 * short <= keep => (short, keep - short),
        false => (keep / 2, keep - keep / 2),
    };
    match lengths[0] <= lengths[1] {
        true => [short, long],
        false => [long, short],
    }
}

fn queries_and_documents(request: &PoolingRequest) -> (Vec<String>, Vec<String>) {
    match &request.input {
        PoolingInput::Pair(one, two) => (texts_to_score(one), texts_to_score(two)),
        _ => (Vec::new(), Vec::new()),
    }
}

fn texts_to_score(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().map(text_to_score).collect(),
        one => vec![text_to_score(one)],
    }
}

/// Returns a text to score: a string, or the joined text parts of an object with `content`.
fn text_to_score(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(object) => {
            let parts = object.get("content").and_then(Value::as_array);
            let texts = parts.into_iter().flatten();
            let texts = texts.filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}
