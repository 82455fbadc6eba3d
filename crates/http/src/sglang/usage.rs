//! Token usage in responses of the OpenAI routes of SGLang, and the counts of ended requests.
//!
//! Source: SGLang 0.5.23 `openai/usage_processor.py`, `openai/protocol.py` (`UsageInfo`).

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::session_store::SessionTurn;
use crate::app::App;
use crate::openai::response_settings::{TokenCounts, end_reason_of_choice};
use vllm_sim_engine::{SequenceEndReason, SimTime};
use vllm_sim_observe::metrics::{FinishedRequest, Metrics};
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::openai::shared_request_fields::StreamOptions;

/// Settings for the token usage in a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsageSettings {
    /// Whether a stream ends with a chunk that contains usage.
    pub(super) include: bool,
    /// Whether every chunk of a stream contains usage.
    pub(super) continuous: bool,
    /// Whether usage contains the number of cached tokens (`--enable-cache-report`).
    cached: bool,
}

impl UsageSettings {
    pub(super) fn new(app: &App, options: Option<&StreamOptions>) -> Self {
        let answers = &app.settings.answers;
        let wants = |flag: Option<bool>| flag.unwrap_or(false);
        let include = options.is_some_and(|options| wants(options.include_usage));
        Self {
            include: include || answers.force_include_usage,
            continuous: options.is_some_and(|options| wants(options.continuous_usage_stats)),
            cached: answers.prompt_tokens_details,
        }
    }

    /// Returns the `usage` object over all choices of a reply.
    pub(super) fn reply_usage_json(self, reply: &Reply) -> Value {
        let mut counts = TokenCounts::count_reply_tokens(reply);
        // Each prompt counts once, whatever the number of its choices.
        let choices = reply.choices.len() / reply.prompts.len().max(1);
        let first = reply.choices.iter().step_by(choices.max(1)).zip(&reply.prompts);
        counts.cached = first.map(|(choice, prompt)| cached_tokens(choice, *prompt)).sum();
        of_counts(counts, self.cached.then_some(counts.cached))
    }

    /// Returns the number of a reply's prompt tokens that came from the prefix cache, if usage
    /// reports this number.
    pub(super) fn reported_cached_tokens(self, reply: &Reply) -> Option<u32> {
        let choice = reply.choices.first().filter(|_| self.cached)?;
        Some(cached_tokens(choice, reply.prompt_token_count()))
    }

    /// Returns the `usage` object of one choice with its token counts so far.
    pub(super) fn choice_usage_json(
        prompt_tokens: u32,
        completion_tokens: u32,
        reasoning_tokens: u32,
    ) -> Value {
        let counts = TokenCounts {
            prompt_tokens,
            completion: completion_tokens,
            reasoning: reasoning_tokens,
            ..TokenCounts::default()
        };
        of_counts(counts, None)
    }
}

/// Returns the `usage` object of a request without output, such as an embedding request.
pub(super) fn prompt_only_usage_json(prompt_tokens: usize) -> Value {
    let prompt = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
    of_counts(TokenCounts { prompt_tokens: prompt, ..TokenCounts::default() }, None)
}

fn of_counts(counts: TokenCounts, cached: Option<u32>) -> Value {
    let details = cached.map(|cached| json!({"cached_tokens": cached}));
    let reasoning = (counts.reasoning > 0).then(|| json!({"reasoning_tokens": counts.reasoning}));
    json!({
        "prompt_tokens": counts.prompt_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion,
        "completion_tokens": counts.completion,
        "prompt_tokens_details": details,
        "reasoning_tokens": counts.reasoning,
        "completion_tokens_details": reasoning,
    })
}

/// Removes all null members of a JSON object.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// Returns the number of a choice's prompt tokens that came from the prefix cache.
pub(super) fn cached_tokens(choice: &ReplyChoice, prompt_tokens: u32) -> u32 {
    choice.sequence_progress().reused_prompt_tokens(prompt_tokens)
}

/// Counts the choices of an ended response in the metrics, and stores the response's tokens in the
/// request's session.
#[derive(Clone)]
pub(super) struct EndedRequestCounter {
    pub(super) metrics: Arc<Metrics>,
    pub(super) streaming: bool,
    /// Whether the request asks for structured output.
    pub(super) structured: bool,
    /// The request's session, which stores the request's tokens at its end; `None` without a
    /// session.
    pub(super) session: Option<SessionTurn>,
}

impl EndedRequestCounter {
    /// Counts every choice of an ended reply as a request in the metrics, and stores its tokens in
    /// the request's session.
    pub(super) fn count_ended_reply(&self, reply: &Reply) {
        if let Some(turn) = &self.session {
            turn.store_reply(reply);
        }
        let Some(metrics) = self.metrics.imitated() else { return };
        for choice in &reply.choices {
            let prompt_tokens = reply.prompts.get(choice.prompt).copied().unwrap_or(0);
            let output_tokens = choice.released_tokens();
            let progress = choice.sequence_progress();
            let [_, first, last] = progress.admission_first_latest_token_times();
            let latency = |until: SimTime| (until - progress.arrived).as_secs_f64();
            metrics.on_finished(&FinishedRequest {
                streaming: self.streaming,
                structured: self.structured,
                aborted: end_reason_of_choice(choice) != SequenceEndReason::Finished,
                prompt_tokens,
                cached_tokens: cached_tokens(choice, prompt_tokens),
                output_tokens,
                ttft_s: (output_tokens > 0).then(|| latency(first)),
                e2e_s: if output_tokens > 0 { latency(last) } else { 0.0 },
            });
        }
    }
}
