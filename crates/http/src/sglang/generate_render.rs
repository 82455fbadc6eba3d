//! Renders replies of SGLang's `/generate` as JSON, or as events that repeat the text so far.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::errors;
use super::meta::MetaInfoSettings;
use super::request::new_request_id;
use super::usage::EndedRequestCounter;
use crate::error;
use crate::openai::response_settings::end_reason_of_choice;
use crate::stream::StreamRenderer;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};

/// Ids and options for the JSON of a response of `/generate`.
pub(super) struct SglangGenerateFormat {
    pub(super) meta: MetaInfoSettings,
    /// Ids of the requests, one per prompt; the output for a prompt without an id gets a new one.
    pub(super) rids: Vec<Arc<str>>,
    /// Whether the response contains the token ids of the prompt.
    pub(super) shows_prompt: bool,
    /// Whether the response hides the output, because the request asks for zero output tokens.
    pub(super) hides_output: bool,
}

impl SglangGenerateFormat {
    /// Returns one JSON object per choice of an ended reply.
    pub(super) fn generation_outputs_json(&self, reply: &Reply) -> Vec<Value> {
        let choices = reply.choices.iter();
        choices
            .map(|choice| {
                let prompt = reply.prompts.get(choice.prompt).copied().unwrap_or(0);
                let released = choice.released_tokens();
                let tokens = choice.script.output_tokens().take(released as usize);
                let mut output = Output { rid: self.new_id(choice), ..Output::default() };
                for token in tokens {
                    output.push(token.id, token.text, token.channel);
                }
                self.output(&output, prompt, choice, Some(end_reason_of_choice(choice)))
            })
            .collect()
    }

    fn new_id(&self, choice: &ReplyChoice) -> Arc<str> {
        self.rids.get(choice.prompt).cloned().unwrap_or_else(new_request_id)
    }

    fn output(
        &self,
        output: &Output,
        prompt: u32,
        choice: &ReplyChoice,
        end: Option<SequenceEndReason>,
    ) -> Value {
        let shown = if self.hides_output { &Output::default() } else { output };
        let tokens = shown.ids.len() as u32;
        let mut meta = self.meta.choice_meta_info(&output.rid, (prompt, tokens), choice, end);
        if self.hides_output
            && let Some(length) = meta.pointer_mut("/finish_reason/length")
        {
            *length = 0.into();
        }
        let mut members = Map::new();
        members.insert("text".to_owned(), shown.text.as_str().into());
        members.insert("output_ids".to_owned(), json!(shown.ids));
        members.insert("meta_info".to_owned(), meta);
        if self.shows_prompt {
            let ids = json!(self.meta.prompt_token_ids(choice.prompt));
            members.insert("prompt_token_ids".to_owned(), ids);
        }
        Value::Object(members)
    }
}

/// Id, text and token ids of one output of `/generate` so far.
#[derive(Default)]
struct Output {
    rid: Arc<str>,
    text: String,
    ids: Vec<u32>,
}

impl Output {
    fn push(&mut self, id: u32, text: &str, channel: OutputChannel) {
        self.ids.push(id);
        if channel != OutputChannel::Marker {
            self.text.push_str(text);
        }
    }
}

/// Renders a streamed reply of `/generate` as events.
pub(super) struct GenerateStream {
    format: SglangGenerateFormat,
    counter: EndedRequestCounter,
    outputs: Vec<Output>,
    prompts: Vec<u32>,
    /// Whether each stream event contains the index of its output.
    pub(super) shows_index: bool,
    /// Whether each stream event contains only the new tokens of its output.
    pub(super) is_incremental: bool,
}

impl GenerateStream {
    pub(super) fn new(
        format: SglangGenerateFormat,
        counter: EndedRequestCounter,
        reply: &Reply,
    ) -> Self {
        let choices = reply.choices.iter();
        let outputs =
            choices.map(|choice| Output { rid: format.new_id(choice), ..Output::default() });
        Self {
            outputs: outputs.collect(),
            prompts: reply.prompts.clone(),
            format,
            counter,
            shows_index: false,
            is_incremental: false,
        }
    }
}

/// Members of `meta_info` that are lists with one element per output token.
const MEMBERS_PER_TOKEN: [&str; 2] = ["output_token_logprobs", "output_top_logprobs"];

/// Removes from a stream event the text and token ids that earlier events contained.
fn keep_new_part(event: &mut Value, text_sent: usize, ids_sent: usize) {
    if let Some(Value::String(text)) = event.get_mut("text") {
        text.replace_range(..text_sent.min(text.len()), "");
    }
    let drop_sent = |list: Option<&mut Value>| {
        if let Some(Value::Array(items)) = list {
            items.drain(..ids_sent.min(items.len()));
        }
    };
    drop_sent(event.get_mut("output_ids"));
    for name in MEMBERS_PER_TOKEN {
        drop_sent(event["meta_info"].get_mut(name));
    }
}

impl StreamRenderer for GenerateStream {
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let output = &mut self.outputs[choice.index];
        let (text_sent, ids_sent) = (output.text.len(), output.ids.len());
        let is_first = ids_sent == 0;
        for _ in 0..tokens {
            let Some(token) = choice.script.next_token(&mut choice.cursor) else {
                break;
            };
            output.push(token.id, token.text, token.channel);
        }
        let prompt = self.prompts.get(choice.prompt).copied().unwrap_or(0);
        let mut event =
            self.format.output(&self.outputs[choice.index], prompt, choice, choice.sent_end);
        if self.is_incremental {
            keep_new_part(&mut event, text_sent, ids_sent);
        }
        if is_first {
            event["meta_info"]["response_sent_to_client_ts"] = unix_now_secs().into();
        }
        if self.shows_index {
            event["index"] = choice.index.into();
        }
        out.push_str(&format!("data: {event}\n\n"));
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        self.counter.count_ended_reply(reply);
        out.push_str("data: [DONE]\n\n");
    }

    fn write_failure(&mut self, out: &mut String) -> bool {
        out.push_str(&errors::stream_error_event(&error::engine_failure_fault()));
        out.push_str("data: [DONE]\n\n");
        true
    }
}
