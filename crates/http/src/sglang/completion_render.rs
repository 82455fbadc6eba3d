//! Renders completion replies as SGLang does.
//!
//! Source: SGLang 0.5.23 `openai/serving_completions.py`, `openai/utils.py`
//! (`to_openai_style_logprobs`), `openai/protocol.py`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::errors;
use super::meta::{
    MetaInfoSettings, finish_type_and_matched_stop, most_likely_tokens, sglang_finish_reason_json,
};
use super::usage::{EndedRequestCounter, UsageSettings, without_nulls};
use crate::openai::logprobs::{LogprobFormat, TokenLogprob, for_each_prompt_token, token_logprobs};
use crate::openai::response_settings::end_reason_of_choice;
use crate::output_piece::OutputPiece;
use crate::stream::StreamRenderer;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::sglang::completion::SglangCompletionRequest;

/// Ids and options for the JSON of an SGLang completion response.
pub(super) struct CompletionFormat {
    id: Arc<str>,
    model: String,
    meta: MetaInfoSettings,
    usage: UsageSettings,
    /// Texts of the prompts, which the response repeats before the outputs (`echo`).
    echo: Vec<String>,
    shows_ids: bool,
}

impl CompletionFormat {
    pub(super) fn new(
        request: &SglangCompletionRequest,
        id: Arc<str>,
        meta: MetaInfoSettings,
        usage: UsageSettings,
        echo: Vec<String>,
    ) -> Self {
        let shows_ids = request.return_token_ids;
        Self { id, model: request.model.clone(), meta, usage, echo, shows_ids }
    }

    /// Returns the JSON of the completion response for an ended reply.
    pub(super) fn completion_body_json(&self, reply: &Reply) -> Value {
        let choices = reply.choices.iter().enumerate().map(|(index, choice)| {
            let piece = OutputPiece::released_output(choice);
            self.choice(index, choice, &piece, Some(end_reason_of_choice(choice)))
        });
        json!({
            "id": *self.id,
            "object": "text_completion",
            "created": self.meta.shape.created,
            "model": self.model,
            "choices": choices.collect::<Vec<_>>(),
            "usage": self.usage.reply_usage_json(reply),
            "metadata": self.meta.weight_version_metadata(reply.choices.first().map_or(0, ReplyChoice::released_tokens)),
        })
    }

    fn choice(
        &self,
        index: usize,
        choice: &ReplyChoice,
        piece: &OutputPiece,
        end: Option<SequenceEndReason>,
    ) -> Value {
        let echo = self.echo.get(choice.prompt).filter(|_| piece.from == 0);
        let text = format!("{}{}", echo.map_or("", String::as_str), piece.text);
        let reason =
            end.map(|end| sglang_finish_reason_json(choice, end, &self.meta.shape.tokenizer));
        let (kind, matched) = reason.as_ref().map(finish_type_and_matched_stop).unwrap_or_default();
        let mut json = json!({
            "index": index,
            "text": text,
            "logprobs": self.logprobs(choice, piece),
            "finish_reason": kind,
            "matched_stop": matched,
        });
        if self.shows_ids {
            json["token_ids"] = json!(piece.ids);
            if piece.from == 0 {
                json["prompt_token_ids"] = json!(self.meta.prompt_token_ids(choice.prompt));
            }
        }
        json
    }

    /// Returns the log probabilities of a part of a completion's output; the first part also has
    /// those of the prompt.
    fn logprobs(&self, choice: &ReplyChoice, piece: &OutputPiece) -> Value {
        let Some(top) = self.meta.logprobs.top else {
            return Value::Null;
        };
        let mut lists = Lists { top, ..Lists::default() };
        if let Some(start) = self.meta.logprobs.start.filter(|_| piece.from == 0) {
            let shape = &self.meta.shape;
            let style = LogprobFormat {
                top,
                as_ids: false,
                distribution: shape.distribution.logprob_source_for_prompt_tokens(),
            };
            for_each_prompt_token(self.meta.prompt_token_ids(choice.prompt), |id, place| {
                if place.position >= start {
                    let entries = token_logprobs(&shape.tokenizer, id, place, style);
                    match place.position {
                        0 => lists.push_without_value(&entries),
                        _ => lists.push(&entries),
                    }
                }
            });
        }
        for (at, id) in piece.ids.iter().enumerate() {
            let entries = self.meta.shape.token_logprobs_at(choice, piece.from + at, *id, top);
            lists.push(&entries);
        }
        lists.into_json()
    }
}

/// The lists of log probabilities of a completion choice, each with one element per token.
#[derive(Default)]
struct Lists {
    top: u32,
    tokens: Vec<Value>,
    values: Vec<Value>,
    tops: Vec<Value>,
}

impl Lists {
    fn push_without_value(&mut self, entries: &[TokenLogprob]) {
        self.tokens.push(entries[0].text.as_str().into());
        self.values.push(Value::Null);
        if self.top > 0 {
            self.tops.push(Value::Null);
        }
    }

    fn push(&mut self, entries: &[TokenLogprob]) {
        self.tokens.push(entries[0].text.as_str().into());
        self.values.push(entries[0].logprob.into());
        if self.top == 0 {
            return;
        }
        let row = most_likely_tokens(entries, self.top).into_iter();
        self.tops.push(row.map(|entry| (entry.text.clone(), entry.logprob)).collect());
    }

    fn into_json(self) -> Value {
        json!({
            "text_offset": vec![-1; self.tokens.len()],
            "token_logprobs": self.values,
            "tokens": self.tokens,
            "top_logprobs": self.tops,
        })
    }
}

/// Renders a streamed completion reply as SGLang's chunks.
pub(super) struct CompletionStream {
    format: CompletionFormat,
    counter: EndedRequestCounter,
    prompts: Vec<u32>,
    /// Number of output tokens that the completion stream has sent for each choice.
    sent: Vec<u32>,
}

impl CompletionStream {
    pub(super) fn new(
        format: CompletionFormat,
        counter: EndedRequestCounter,
        reply: &Reply,
    ) -> Self {
        let sent = vec![0; reply.choices.len()];
        Self { format, counter, prompts: reply.prompts.clone(), sent }
    }

    fn write_chunk(&self, out: &mut String, choices: Value, usage: Value) {
        let chunk = json!({
            "id": *self.format.id,
            "object": "text_completion",
            "created": self.format.meta.shape.created,
            "model": self.format.model,
            "choices": choices,
            "usage": usage,
        });
        out.push_str(&format!("data: {chunk}\n\n"));
    }
}

impl StreamRenderer for CompletionStream {
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let from = self.sent[choice.index] as usize;
        let mut piece = OutputPiece { from, ..OutputPiece::default() };
        piece.push_step(choice, tokens);
        self.sent[choice.index] += piece.ids.len() as u32;
        let usage = self.format.usage;
        let prompt = self.prompts.get(choice.prompt).copied().unwrap_or(0);
        let shown = || UsageSettings::choice_usage_json(prompt, self.sent[choice.index], 0);
        let usage = usage.continuous.then(shown).unwrap_or_default();
        let choice = self.format.choice(choice.index, choice, &piece, choice.sent_end);
        self.write_chunk(out, json!([choice]), usage);
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        if self.format.usage.include {
            let usage = without_nulls(self.format.usage.reply_usage_json(reply));
            self.write_chunk(out, Value::Array(Vec::new()), usage);
        }
        self.counter.count_ended_reply(reply);
        out.push_str("data: [DONE]\n\n");
    }

    fn write_failure(&mut self, out: &mut String) -> bool {
        out.push_str(&errors::engine_failure_events());
        true
    }
}
