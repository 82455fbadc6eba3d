//! Renders chat replies as SGLang does.
//!
//! Source: SGLang 0.5.23 `openai/serving_chat.py` (`_build_chat_response`,
//! `_generate_chat_stream`), `openai/sse_utils.py`, `openai/protocol.py`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::errors;
use super::meta::{
    MetaInfoSettings, finish_type_and_matched_stop, most_likely_tokens, sglang_finish_reason_json,
};
use super::usage::{EndedRequestCounter, UsageSettings, prompt_only_usage_json};
use crate::openai::logprobs::TokenLogprob;
use crate::openai::response_settings::end_reason_of_choice;
use crate::stream::StreamRenderer;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::sglang::chat::SglangChatRequest;

/// Ids and options for the JSON of an SGLang chat response.
pub(super) struct SglangChatFormat {
    id: Arc<str>,
    model: String,
    meta: MetaInfoSettings,
    usage: UsageSettings,
    separate_reasoning: bool,
    shows_prompt_ids: bool,
    shows_output_ids: bool,
    shows_meta: bool,
    /// Whether a tool parser reads the reply, which changes the chunks of a stream.
    pub(super) parses_calls: bool,
    /// Whether the response hides the output, because the request asks for zero output tokens.
    pub(super) hides_output: bool,
    /// Random part of the ids of tool calls.
    call_base: u64,
}

impl SglangChatFormat {
    pub(super) fn new(
        request: &SglangChatRequest,
        id: Arc<str>,
        meta: MetaInfoSettings,
        usage: UsageSettings,
    ) -> Self {
        Self {
            id,
            model: request.model.clone(),
            meta,
            usage,
            separate_reasoning: request.separate_reasoning,
            shows_prompt_ids: request.return_prompt_token_ids || request.return_token_ids,
            shows_output_ids: request.return_token_ids,
            shows_meta: request.return_meta_info,
            parses_calls: false,
            hides_output: false,
            call_base: uuid::Uuid::new_v4().as_u64_pair().1,
        }
    }

    /// Returns the model name that chat responses report.
    pub(super) fn model_name(&self) -> &str {
        &self.model
    }

    /// Returns the Unix time that the chat response reports as its creation time.
    pub(super) fn created_unix_seconds(&self) -> u64 {
        self.meta.shape.created
    }

    /// Returns the number of a reply's cached prompt tokens, if responses report it
    /// (`--enable-cache-report`).
    pub(super) fn cached_tokens(&self, reply: &Reply) -> Option<u32> {
        self.usage.reported_cached_tokens(reply)
    }

    /// Returns the JSON of the chat response for an ended reply.
    pub(super) fn chat_completion_body_json(&self, reply: &Reply) -> Value {
        let choices = reply.choices.iter().enumerate();
        let choices: Vec<Value> =
            choices.map(|(index, choice)| self.choice(reply, index, choice)).collect();
        json!({
            "id": *self.id,
            "object": "chat.completion",
            "created": self.meta.shape.created,
            "model": self.model,
            "choices": choices,
            "usage": self.reply_usage(reply),
            "metadata": self.meta.weight_version_metadata(reply.choices.first().map_or(0, |c| self.shown_tokens(c))),
        })
    }

    /// Returns the number of output tokens in a choice of the chat response; 0 if the response
    /// hides the output.
    fn shown_tokens(&self, choice: &ReplyChoice) -> u32 {
        if self.hides_output { 0 } else { choice.released_tokens() }
    }

    /// Returns the `usage` object over all choices of a reply.
    fn reply_usage(&self, reply: &Reply) -> Value {
        match self.hides_output {
            true => prompt_only_usage_json(reply.prompt_token_count() as usize),
            false => self.usage.reply_usage_json(reply),
        }
    }

    fn choice(&self, reply: &Reply, index: usize, choice: &ReplyChoice) -> Value {
        let released = self.shown_tokens(choice);
        let script = &choice.script;
        let mut content = script.channel_text(OutputChannel::Content, released);
        let mut reasoning = script.channel_text(OutputChannel::Reasoning, released);
        if !self.separate_reasoning && !reasoning.is_empty() {
            content = format!("{reasoning}</think>{content}");
            reasoning.clear();
        }
        let reasoning = (!reasoning.is_empty()).then_some(reasoning);
        let calls = self.tool_calls(index, choice);
        let end = end_reason_of_choice(choice);
        let (reason, matched) = self.finish_reason_and_matched_stop(choice, end, calls.len());
        let mut message =
            json!({"role": "assistant", "content": content, "reasoning_content": reasoning});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let mut json = json!({
            "index": index,
            "message": message,
            "logprobs": self.choice_logprobs_json(choice, 0, released),
            "finish_reason": reason,
            "matched_stop": matched,
        });
        if self.shows_prompt_ids {
            json["prompt_token_ids"] = json!(self.meta.prompt_token_ids(choice.prompt));
        }
        if self.shows_output_ids {
            let ids = script.output_tokens().take(released as usize).map(|token| token.id);
            json["response_token_ids"] = ids.collect();
        }
        if self.shows_meta {
            let counts = (reply.prompt_token_count(), released);
            json["meta_info"] = self.meta.choice_meta_info(&self.id, counts, choice, Some(end));
        }
        json
    }

    /// Returns the finish reason and the matched stop condition of an ended choice.
    pub(super) fn finish_reason_and_matched_stop(
        &self,
        choice: &ReplyChoice,
        end: SequenceEndReason,
        calls: usize,
    ) -> (Value, Value) {
        let reason = sglang_finish_reason_json(choice, end, &self.meta.shape.tokenizer);
        match finish_type_and_matched_stop(&reason) {
            (kind, _) if kind == "stop" && calls > 0 => ("tool_calls".into(), Value::Null),
            shown => shown,
        }
    }

    pub(super) fn tool_call_id(&self, choice: usize, call: usize) -> String {
        let number = |part: u64| {
            let place = ((choice as u64) << 32 | call as u64) << 1 | part;
            vllm_sim_random::mix_u64_pair(self.call_base, place)
        };
        let digits = format!("{:016x}{:016x}", number(0), number(1));
        format!("call_{}", &digits[..24])
    }

    pub(super) fn tool_calls(&self, index: usize, choice: &ReplyChoice) -> Vec<Value> {
        let released = choice.released_tokens();
        let calls = choice.script.calls.iter().enumerate().map(|(at, name)| {
            let channel = OutputChannel::Call(at as u16);
            (at, name, choice.script.channel_text(channel, released))
        });
        calls
            .filter(|(.., arguments)| !arguments.is_empty())
            .map(|(at, name, arguments)| {
                json!({
                    "id": self.tool_call_id(index, at),
                    "index": at,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                })
            })
            .collect()
    }

    /// Returns the log probabilities of a choice's output tokens at the positions `from..to`.
    pub(super) fn choice_logprobs_json(
        &self,
        choice: &ReplyChoice,
        start_token: u32,
        end_token: u32,
    ) -> Value {
        let Some(top) = self.meta.logprobs.top else {
            return Value::Null;
        };
        let entry = |entry: &TokenLogprob| json!({"token": entry.text, "bytes": entry.text.as_bytes(), "logprob": entry.logprob});
        let (from, to) = (start_token as usize, end_token as usize);
        let tokens = choice.script.output_tokens().enumerate().take(to).skip(from);
        let content = tokens.map(|(position, token)| {
            let entries = self.meta.shape.token_logprobs_at(choice, position, token.id, top);
            let mut shown = entry(&entries[0]);
            shown["top_logprobs"] =
                most_likely_tokens(&entries, top).into_iter().map(entry).collect();
            shown
        });
        json!({"content": content.collect::<Vec<_>>()})
    }
}

/// Renders a streamed chat reply as SGLang's chunks.
pub(super) struct ChatStream {
    format: SglangChatFormat,
    counter: EndedRequestCounter,
    prompt: u32,
    choices: Vec<ChoiceProgress>,
}

/// Numbers of tokens and tool calls of a choice that the stream has sent, and the finish reason of
/// an ended choice.
#[derive(Default)]
struct ChoiceProgress {
    tokens: u32,
    reasoning: u32,
    calls: usize,
    /// Whether the closing `</think>` was written to the content, which happens if the stream does
    /// not separate reasoning from content.
    closed_reasoning: bool,
    end: Option<(Value, Value)>,
}

/// Parts of a chat message that one engine step adds to the stream.
#[derive(Default)]
struct StepDelta {
    content: String,
    reasoning: String,
    calls: Vec<(usize, String)>,
}

impl ChatStream {
    pub(super) fn new(
        format: SglangChatFormat,
        counter: EndedRequestCounter,
        reply: &Reply,
    ) -> Self {
        let choices = reply.choices.iter().map(|_| ChoiceProgress::default());
        Self { format, counter, prompt: reply.prompt_token_count(), choices: choices.collect() }
    }

    /// Appends a chat stream chunk with the given choices and usage.
    fn write_chunk(&self, out: &mut String, choices: Value, usage: Option<Value>) {
        let mut chunk = json!({
            "id": *self.format.id,
            "object": "chat.completion.chunk",
            "created": self.format.meta.shape.created,
            "model": self.format.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        out.push_str(&format!("data: {chunk}\n\n"));
    }

    fn chunk_usage(&self, index: usize) -> Option<Value> {
        let sent = &self.choices[index];
        let usage = self.format.usage;
        let shown = || UsageSettings::choice_usage_json(self.prompt, sent.tokens, sent.reasoning);
        usage.continuous.then(shown)
    }

    /// Appends a chat stream chunk with the given delta of the chat message.
    fn write_delta(&self, out: &mut String, index: usize, delta: &Value, logprobs: Value) {
        let choices = chunk_choices(index, delta, logprobs, NOT_ENDED);
        self.write_chunk(out, choices, self.chunk_usage(index));
    }

    /// Appends a chat stream chunk whose delta is text of the chat message.
    fn write_content(&self, out: &mut String, index: usize, text: &str, logprobs: Value) {
        if !self.format.parses_calls {
            let delta = json!({"reasoning_content": null, "content": text});
            return self.write_delta(out, index, &delta, logprobs);
        }
        let delta = json!({"role": null, "content": text, "reasoning_content": null});
        let choices = chunk_choices(index, &delta, logprobs, NOT_ENDED);
        let usage = self.chunk_usage(index).unwrap_or(Value::Null);
        self.write_chunk(out, choices, Some(usage));
    }

    fn write_call(
        &mut self,
        out: &mut String,
        index: usize,
        choice: &ReplyChoice,
        call: (usize, &str),
    ) {
        let (at, arguments) = call;
        let chunk = |id: Value, name: Value, arguments: &str| {
            let call = json!({
                "id": id,
                "index": at,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            });
            let delta = json!({
                "role": null, "content": null, "reasoning_content": null, "tool_calls": [call],
            });
            chunk_choices(index, &delta, Value::Null, NOT_ENDED)
        };
        // Chunks with calls always have the member, unlike those with text.
        let usage = Some(self.chunk_usage(index).unwrap_or(Value::Null));
        if self.choices[index].calls <= at {
            self.choices[index].calls = at + 1;
            let name = choice.script.calls.get(at).map_or("", String::as_str);
            let id = self.format.tool_call_id(index, at);
            self.write_chunk(out, chunk(id.into(), name.into(), ""), usage.clone());
        }
        if !arguments.is_empty() {
            self.write_chunk(out, chunk(Value::Null, Value::Null, arguments), usage);
        }
    }

    fn collect_delta(&mut self, choice: &mut ReplyChoice, tokens: u32) -> StepDelta {
        let mut delta = StepDelta::default();
        let separate = self.format.separate_reasoning;
        if self.format.hides_output {
            return delta;
        }
        let sent = &mut self.choices[choice.index];
        for token in choice.script.next_tokens(&mut choice.cursor, tokens) {
            sent.tokens += 1;
            match token.channel {
                OutputChannel::Reasoning => {
                    sent.reasoning += 1;
                    let text = if separate { &mut delta.reasoning } else { &mut delta.content };
                    text.push_str(token.text);
                }
                OutputChannel::Content => {
                    if !separate && sent.reasoning > 0 && !sent.closed_reasoning {
                        sent.closed_reasoning = true;
                        delta.content.push_str("</think>");
                    }
                    delta.content.push_str(token.text);
                }
                OutputChannel::Call(call) => match delta.calls.last_mut() {
                    Some((last, text)) if *last == usize::from(call) => text.push_str(token.text),
                    _ => delta.calls.push((call.into(), token.text.to_owned())),
                },
                OutputChannel::Marker => {}
            }
        }
        delta
    }
}

/// Finish reason and matched stop condition of a choice that has not ended.
const NOT_ENDED: (Value, Value) = (Value::Null, Value::Null);

/// Returns the choices of a chunk: the one choice that the chunk extends.
fn chunk_choices(index: usize, delta: &Value, logprobs: Value, end: (Value, Value)) -> Value {
    let (reason, matched) = end;
    json!([{
        "index": index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": reason,
        "matched_stop": matched,
    }])
}

impl StreamRenderer for ChatStream {
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let index = choice.index;
        let before = self.choices[index].tokens;
        if choice.sent == tokens || before == 0 && choice.sent_end.is_some() {
            let delta = json!({"reasoning_content": null, "role": "assistant", "content": ""});
            self.write_chunk(out, chunk_choices(index, &delta, Value::Null, NOT_ENDED), None);
        }
        let delta = self.collect_delta(choice, tokens);
        let now = self.choices[index].tokens;
        let mut logprobs = match now - before {
            0 => Value::Null,
            _ => self.format.choice_logprobs_json(choice, before, now),
        };
        if !delta.reasoning.is_empty() {
            let shown = json!({"reasoning_content": delta.reasoning});
            self.write_delta(out, index, &shown, logprobs.take());
        }
        if !delta.content.is_empty() {
            self.write_content(out, index, &delta.content, logprobs.take());
        }
        for (at, arguments) in &delta.calls {
            self.write_call(out, index, choice, (*at, arguments));
        }
        if let Some(end) = choice.sent_end {
            let (kind, matched) = finish_type_and_matched_stop(&sglang_finish_reason_json(
                choice,
                end,
                &self.format.meta.shape.tokenizer,
            ));
            let calls = kind == "stop" && self.choices[index].calls > 0;
            let kind = if calls { "tool_calls".into() } else { kind };
            self.choices[index].end = Some((kind, matched));
        }
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        for (index, progress) in self.choices.iter().enumerate() {
            let end = progress.end.clone().unwrap_or(NOT_ENDED);
            let delta = json!({"reasoning_content": null});
            self.write_chunk(out, chunk_choices(index, &delta, Value::Null, end), None);
        }
        if self.format.usage.include {
            let usage = self.format.reply_usage(reply);
            self.write_chunk(out, Value::Array(Vec::new()), Some(usage));
        }
        self.counter.count_ended_reply(reply);
        out.push_str("data: [DONE]\n\n");
    }

    fn write_failure(&mut self, out: &mut String) -> bool {
        out.push_str(&errors::engine_failure_events());
        true
    }
}
