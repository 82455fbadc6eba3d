//! Renders replies of SGLang's `/generate` as JSON, or as events that repeat the text so far.

use std::sync::Arc;

use serde_json::{Value, json};

use super::errors;
use super::meta::MetaInfoSettings;
use super::request::new_request_id;
use super::usage::EndedRequestCounter;
use crate::openai::response_settings::end_reason_of_choice;
use crate::output_piece::OutputPiece;
use crate::stream::StreamRenderer;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::unix_now_secs;
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
                let output = OutputPiece::released_output(choice);
                let end = Some(end_reason_of_choice(choice));
                self.output(&self.new_id(choice), &output, prompt, choice, end)
            })
            .collect()
    }

    fn new_id(&self, choice: &ReplyChoice) -> Arc<str> {
        self.rids.get(choice.prompt).cloned().unwrap_or_else(new_request_id)
    }

    fn output(
        &self,
        rid: &str,
        output: &OutputPiece,
        prompt: u32,
        choice: &ReplyChoice,
        end: Option<SequenceEndReason>,
    ) -> Value {
        let shown = if self.hides_output { &OutputPiece::default() } else { output };
        let tokens = shown.ids.len() as u32;
        let mut meta = self.meta.choice_meta_info(rid, (prompt, tokens), choice, end);
        if self.hides_output
            && let Some(length) = meta.pointer_mut("/finish_reason/length")
        {
            *length = 0.into();
        }
        let mut json = json!({"text": shown.text, "output_ids": shown.ids});
        json["meta_info"] = meta;
        if self.shows_prompt {
            json["prompt_token_ids"] = json!(self.meta.prompt_token_ids(choice.prompt));
        }
        json
    }
}

/// Renders a streamed reply of `/generate` as events.
pub(super) struct GenerateStream {
    format: SglangGenerateFormat,
    counter: EndedRequestCounter,
    /// Id of each output, and its tokens so far.
    outputs: Vec<(Arc<str>, OutputPiece)>,
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
        let outputs = choices.map(|choice| (format.new_id(choice), OutputPiece::default()));
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
        let (rid, output) = &mut self.outputs[choice.index];
        let (text_sent, ids_sent) = (output.text.len(), output.ids.len());
        let is_first = ids_sent == 0;
        output.push_step(choice, tokens);
        let prompt = self.prompts.get(choice.prompt).copied().unwrap_or(0);
        let mut event = self.format.output(rid, output, prompt, choice, choice.sent_end);
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
        out.push_str(&errors::engine_failure_events());
        true
    }
}
