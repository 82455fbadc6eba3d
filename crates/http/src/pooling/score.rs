//! `POST /score`, `POST /rerank` and their versioned paths.
//!
//! Source: vLLM 0.33 `entrypoints/pooling/scoring/{io_processor,utils,serving}.py`.

use axum::extract::State;
use serde_json::{Value, json};

use super::tokenize::{TokenizeParams, check_pooling_request, encode_text};
use super::{count_in_flight, pooling_request_id, usage_json, vector};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{HandlerResult, ok_json_response};
use vllm_sim_config::ModelTask;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::prompt::PromptTruncation;
use vllm_sim_service::run_blocking_if_large;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::body::unreadable_value_fault;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::pooling::{PoolingInput, PoolingRequest};

/// Handles `POST /score`: returns the similarity of one text to many, or of pairs of texts.
pub(crate) async fn create_score(State(app): AppState, mut received: RawRequest) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    const TEXT_MEMBERS: &[&str] =
        &["text_1", "text_2", "data_1", "data_2", "queries", "documents", "items"];
    let request = PoolingRequest::parse_score_request(&value)?;
    let model = check_pooling_request(&app, &received, &request, TEXT_MEMBERS)?;
    let [ones, twos] = queries_and_documents(&app, &request)?;
    let _guard = count_in_flight(&app, twos.len())?;
    let mut scorer = TextPairScorer::new(&app, &request, ones.len() + twos.len())?;
    let mut query = scorer.encode_query(&ones[0]).await?;
    let mut data = Vec::with_capacity(twos.len());
    for (index, two) in twos.iter().enumerate() {
        if let Some(one) = ones.get(index).filter(|_| index > 0) {
            query = scorer.encode_query(one).await?;
        }
        let score = scorer.score_document(&query, two).await?;
        data.push(json!({"index": index, "object": "score", "score": score}));
    }
    Ok(ok_json_response(&json!({
        "id": pooling_request_id("score-", &received.headers, request.request_id.as_deref()),
        "object": "list",
        "created": unix_now_secs() as u64,
        "model": &*model,
        "data": data,
        "usage": usage_json(scorer.tokens),
    })))
}

/// Handles `POST /rerank`: returns the documents sorted by descending score for a query.
pub(crate) async fn create_rerank(State(app): AppState, mut received: RawRequest) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = PoolingRequest::parse_rerank_request(&value)?;
    let model = check_pooling_request(&app, &received, &request, &["query", "documents"])?;
    let [queries, documents] = queries_and_documents(&app, &request)?;
    let _guard = count_in_flight(&app, documents.len())?;
    let mut scorer = TextPairScorer::new(&app, &request, 1 + documents.len())?;
    let query = scorer.encode_query(&queries[0]).await?;
    let mut ranked = Vec::with_capacity(documents.len());
    for (index, document) in documents.iter().enumerate() {
        let score = scorer.score_document(&query, document).await?;
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
                "document": documents[index].document_json(),
                "relevance_score": score,
            })
        })
        .collect();
    Ok(ok_json_response(&json!({
        "id": pooling_request_id("score-", &received.headers, request.request_id.as_deref()),
        "model": &*model,
        "usage": {"prompt_tokens": scorer.tokens, "total_tokens": scorer.tokens},
        "results": results,
    })))
}

/// Scoring method for a query and a document; the type of the model determines the method.
#[derive(Clone, Copy)]
enum ScoringModel {
    /// The scoring model embeds query and document separately; the score is the similarity of the
    /// two vectors.
    BiEncoder {
        /// Length of the scoring model's embedding vectors.
        dimensions: usize,
    },
    /// The scoring model reads query and document as one input, with special tokens between the
    /// texts.
    CrossEncoder,
    /// The scoring model reads query and document joined to one text, as a converted generation
    /// model does.
    ConcatenatedTexts,
}

impl ScoringModel {
    fn new(app: &App) -> Result<Self, Fault> {
        let settings = &app.settings.pooling;
        if settings.task == ModelTask::Embed && settings.embeds_words {
            return Ok(Self::BiEncoder { dimensions: vector::vector_dimensions(app, None)? });
        }
        let config = app.settings.model.hf_config.as_deref();
        let separates = config.and_then(|config| config.get("use_sep_token")?.as_bool());
        // Source: `model_executor/models/adapters.py`, for generation models that are converted.
        let converted = config.is_some_and(|config| config.get("method").is_some());
        Ok(match separates.unwrap_or(!converted) {
            true => Self::CrossEncoder,
            false => Self::ConcatenatedTexts,
        })
    }
}

const WITH_SPECIAL: SpecialTokenHandling = SpecialTokenHandling::With;

/// A query to score documents for, truncated and tokenized.
struct EncodedQuery<'t> {
    text: &'t str,
    tokens: Vec<u32>,
}

struct TextPairScorer<'a> {
    app: &'a App,
    model: ScoringModel,
    params: TokenizeParams,
    /// Maximum numbers of tokens of the query and of each document to score; 0 for no limit.
    most: [usize; 2],
    /// Number of prompt tokens of all scored texts so far, for `usage` in the response.
    tokens: usize,
}

impl<'a> TextPairScorer<'a> {
    /// Creates a scorer for a request with `texts` queries and documents.
    fn new(app: &'a App, request: &PoolingRequest, texts: usize) -> Result<Self, Fault> {
        let limit = |name: &str, most: i128| {
            let context = app.rules.limits.max_model_len;
            if most < 0 {
                return Err(Fault::bad_request(format!("{name} must be a non-negative integer")));
            }
            if most >= i128::from(context) && most > 0 {
                return Err(Fault::bad_request(format!(
                    "{name} ({most}) must be less than max_model_len ({context})."
                )));
            }
            Ok(usize::try_from(most).unwrap_or(usize::MAX))
        };
        let most = [
            limit("max_tokens_per_query", request.max_tokens_per_query)?,
            limit("max_tokens_per_doc", request.max_tokens_per_doc)?,
        ];
        let params = TokenizeParams::from_pooling_request(app, request, texts)?;
        Ok(Self { app, model: ScoringModel::new(app)?, params, most, tokens: 0 })
    }

    /// Tokenizes a query once, for all documents that are compared with it.
    async fn encode_query<'t>(
        &mut self,
        query: &'t TextToScore,
    ) -> Result<EncodedQuery<'t>, Fault> {
        let text = self.truncate_text(query, self.most[0]).await;
        let tokens = match self.model {
            ScoringModel::BiEncoder { .. } => {
                let tokens = self.params.encode_text(self.app, text, WITH_SPECIAL).await?;
                self.tokens += tokens.len();
                tokens
            }
            ScoringModel::ConcatenatedTexts | ScoringModel::CrossEncoder => {
                encode_text(self.app, text, WITH_SPECIAL).await
            }
        };
        Ok(EncodedQuery { text, tokens })
    }

    async fn score_document(
        &mut self,
        query: &EncodedQuery<'_>,
        document: &TextToScore,
    ) -> Result<f64, Fault> {
        // The scores of many short texts must not hold the thread.
        tokio::task::yield_now().await;
        let text = self.truncate_text(document, self.most[1]).await;
        match self.model {
            ScoringModel::BiEncoder { dimensions } => {
                let tokens = self.params.encode_text(self.app, text, WITH_SPECIAL).await?;
                self.tokens += tokens.len();
                Ok(vector::cosine_similarity(&query.tokens, &tokens, dimensions))
            }
            ScoringModel::ConcatenatedTexts => {
                let both = [query.text, text].concat();
                self.tokens += self.params.encode_text(self.app, &both, WITH_SPECIAL).await?.len();
                let tokens = encode_text(self.app, text, WITH_SPECIAL).await;
                Ok(vector::relevance_score(&query.tokens, &tokens))
            }
            ScoringModel::CrossEncoder => {
                // Hugging Face's tokenizers take an empty second text for none.
                let tokens = match text.is_empty() {
                    true => Vec::new(),
                    false => encode_text(self.app, text, WITH_SPECIAL).await,
                };
                let [one, two] = self.truncate_pair([query.tokens.clone(), tokens]);
                let both = [&one[..], &two].concat();
                self.tokens +=
                    self.params.truncate_and_pad_tokens(self.app, both, WITH_SPECIAL)?.len();
                Ok(vector::relevance_score(&one, &two))
            }
        }
    }

    /// Returns the beginning of a text, cut to `most` tokens. Returns the whole text if `most` is 0
    /// or the text consists of content parts.
    async fn truncate_text<'t>(&self, text: &'t TextToScore, most: usize) -> &'t str {
        let text_only = text.parts.is_none();
        let text = text.text.as_str();
        if !text_only || most == 0 {
            return text;
        }
        let tokenizer = self.app.service.generator.tokenizer().clone();
        let owned = text.to_owned();
        let truncate = move || tokenizer.truncate_text(&owned, most).len();
        &text[..run_blocking_if_large(text.len(), truncate).await]
    }

    /// Truncates the tokens of a pair of texts until the pair fits; tokens are removed from the
    /// longer text first.
    ///
    /// Source: `TruncationStrategy` of Hugging Face's tokenizers.
    fn truncate_pair(&self, pair: [Vec<u32>; 2]) -> [Vec<u32>; 2] {
        let Some(keep) = self.params.truncation.keep else {
            return pair;
        };
        let kept = longest_first(pair.each_ref().map(|tokens| tokens.len() as i64), keep);
        let [one, two] = pair;
        [(one, kept[0]), (two, kept[1])].map(|(tokens, keep)| {
            let truncation =
                PromptTruncation { keep: Some(keep), special: true, ..self.params.truncation };
            let tokenizer = self.app.service.generator.tokenizer();
            truncation.truncate_tokens(tokenizer, &self.app.rules.limits, tokens)
        })
    }
}

/// Returns the lengths of a pair of texts after truncation to at most `keep` tokens in total;
/// tokens are removed from the longer text first.
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

/// A query or document: a text, or content parts of which only texts are used.
struct TextToScore {
    text: String,
    parts: Option<Value>,
}

impl TextToScore {
    fn new(value: &Value) -> Self {
        match value {
            Value::Object(object) => {
                let parts = object.get("content").cloned().unwrap_or_else(|| json!([]));
                let items = parts.as_array().into_iter().flatten();
                let texts = items.filter_map(|part| part.get("text")?.as_str());
                Self { text: texts.collect::<Vec<_>>().join("\n"), parts: Some(parts) }
            }
            text => Self { text: text.as_str().unwrap_or_default().to_owned(), parts: None },
        }
    }

    fn document_json(&self) -> Value {
        match &self.parts {
            Some(parts) => json!({"text": null, "multi_modal": parts}),
            None => json!({"text": self.text, "multi_modal": null}),
        }
    }
}

/// Returns the queries and documents of a request; there is one query for all documents, or one
/// query per document.
///
/// # Errors
/// vLLM's 400 for other numbers of texts, and for content parts if the model reads texts only.
fn queries_and_documents(
    app: &App,
    request: &PoolingRequest,
) -> Result<[Vec<TextToScore>; 2], Fault> {
    let PoolingInput::Pair(ones, twos) = &request.input else {
        return Err(unreadable_value_fault());
    };
    let [ones, twos] = [ones, twos].map(|side| match side {
        Value::Array(items) => items.iter().map(TextToScore::new).collect(),
        one => vec![TextToScore::new(one)],
    });
    if let Some(name) = architecture(app).filter(|_| !app.service.accepts_media())
        && ones.iter().chain(&twos).any(|text| text.parts.is_some())
    {
        return Err(Fault::bad_request(format!("MultiModalParam is not supported for {name}")));
    }
    if ones.len() > 1 && ones.len() != twos.len() {
        return Err(Fault::bad_request("Input lengths must be either 1:1, 1:N or N:N"));
    }
    if ones.is_empty() {
        return Err(Fault::bad_request("At least one text element must be given"));
    }
    if twos.is_empty() {
        return Err(Fault::bad_request("At least one text_pair element must be given"));
    }
    Ok([ones, twos])
}

fn architecture(app: &App) -> Option<&str> {
    app.settings.model.hf_config.as_deref()?.get("architectures")?.get(0)?.as_str()
}
