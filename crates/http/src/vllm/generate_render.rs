//! Renders replies of `/inference/v1/generate` as one JSON object or as stream chunks.
//!
//! Source: vLLM `entrypoints/scale_out/token_in_token_out/protocol.py`.

use std::sync::Arc;

use crate::dialect::ResponseFieldSet;
use crate::json;
use crate::openai::logprobs;
use crate::openai::response_settings::NullMemberHandling;
use crate::openai::response_settings::{
    ResponseSettings, TokenCounts, UsageFields, end_reason_of_choice,
};
use crate::stream::StreamRenderer;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};

/// Settings that determine the JSON of a reply of `/inference/v1/generate`.
pub(super) struct GenerateResponseSettings {
    pub(super) view: ResponseSettings,
    /// Output format of the `/inference/v1/generate` reply: `tokens`, `text` or `derender`.
    pub(super) mode: Arc<str>,
    pub(super) prompt: Arc<[u32]>,
    /// Positions of media items in the prompt, as JSON.
    pub(super) placeholders: Option<Arc<str>>,
    pub(super) prompt_logprobs: Option<u32>,
    pub(super) weight_version: Arc<String>,
    pub(super) form: &'static GenerateReplyFormat,
    /// Transfer parameters of encoded media items, as JSON.
    pub(super) ec_transfer_params: Option<Arc<str>>,
}

/// Functions by which vLLM or llm-d-inference-sim renders a reply of `/inference/v1/generate`.
pub(super) struct GenerateReplyFormat {
    /// Appends the JSON members that follow the id in a complete response of
    /// `/inference/v1/generate`.
    members: fn(&GenerateResponseSettings, &mut String, &Reply),
    /// Appends the JSON members that precede the choices in a stream chunk of
    /// `/inference/v1/generate`.
    chunk_members: fn(&mut GenerateStream, &mut String, &ReplyChoice),
    choice: fn(
        &GenerateResponseSettings,
        &mut String,
        usize,
        &ReplyChoice,
        &OutputPiece,
        Option<SequenceEndReason>,
    ),
}

const VLLM_FORMAT: GenerateReplyFormat = GenerateReplyFormat {
    members: GenerateResponseSettings::write_members,
    chunk_members: GenerateStream::write_chunk_members,
    choice: GenerateResponseSettings::write_choice,
};
const LLMD_FORMAT: GenerateReplyFormat = GenerateReplyFormat {
    members: GenerateResponseSettings::write_llmd_members,
    chunk_members: |_, _, _| {},
    choice: GenerateResponseSettings::write_llmd_choice,
};

impl GenerateReplyFormat {
    pub(super) fn generate_format_for_fields(fields: ResponseFieldSet) -> &'static Self {
        match fields {
            ResponseFieldSet::Full => &VLLM_FORMAT,
            ResponseFieldSet::Short => &LLMD_FORMAT,
        }
    }
}

#[derive(Default)]
struct OutputPiece {
    ids: Vec<u32>,
    text: String,
    from: usize,
}

impl GenerateResponseSettings {
    /// Returns the JSON body of a finished reply of `/inference/v1/generate`.
    pub(super) fn generate_body_json(&self, reply: &Reply) -> String {
        let mut out = String::with_capacity(1024);
        out.push_str("{\"request_id\":");
        json::write_json_string(&mut out, &self.view.id);
        (self.form.members)(self, &mut out, reply);
        out.push('}');
        out
    }

    fn write_members(&self, out: &mut String, reply: &Reply) {
        let view = &self.view;
        out.push_str(",\"model\":");
        json::write_json_string(out, &view.model);
        out.push_str(",\"created\":");
        json::write_json_int(out, view.created);
        out.push_str(",\"usage\":");
        view.write_usage(out, TokenCounts::count_reply_tokens(reply), UsageFields::Completion);
        out.push_str(",\"prompt_logprobs\":");
        match self.prompt_logprobs {
            Some(top) => {
                let (tokenizer, distribution) = (&view.tokenizer, view.distribution);
                logprobs::write_prompt_logprobs(out, tokenizer, &self.prompt, top, distribution);
            }
            None => out.push_str("null"),
        }
        out.push_str(",\"prompt_token_id_logprobs\":null,\"prompt_token_ids\":");
        if view.return_token_ids {
            json::write_json_int_array(out, self.prompt.iter().copied());
        } else {
            out.push_str("null");
        }
        out.push_str(",\"mm_placeholders\":");
        out.push_str(self.placeholders.as_deref().unwrap_or("null"));
        out.push_str(",\"metrics\":");
        view.write_timings(out, reply, NullMemberHandling::Shown);
        out.push_str(",\"kv_transfer_params\":");
        view.write_kv_transfer_params(out);
        out.push_str(",\"ec_transfer_params\":");
        out.push_str(self.ec_transfer_params.as_deref().unwrap_or("null"));
        out.push_str(",\"output_mode\":");
        json::write_json_string(out, &self.mode);
        self.write_choices(out, reply);
    }

    fn write_choices(&self, out: &mut String, reply: &Reply) {
        out.push_str(",\"choices\":[");
        for (index, choice) in reply.choices.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            let mut piece = OutputPiece::default();
            for token in choice.script.output_tokens().take(choice.released_tokens() as usize) {
                piece.push_token(token.id, token.text, token.channel);
            }
            (self.form.choice)(
                self,
                out,
                index,
                choice,
                &piece,
                Some(end_reason_of_choice(choice)),
            );
        }
        out.push(']');
    }

    fn write_llmd_members(&self, out: &mut String, reply: &Reply) {
        self.write_choices(out, reply);
        out.push_str(",\"ec_transfer_params\":");
        out.push_str(self.ec_transfer_params.as_deref().unwrap_or("null"));
        if self.view.kv_transfer_params.is_some() {
            out.push_str(",\"kv_transfer_params\":");
            self.view.write_kv_transfer_params(out);
        }
    }

    fn write_llmd_choice(
        &self,
        out: &mut String,
        index: usize,
        choice: &ReplyChoice,
        piece: &OutputPiece,
        end: Option<SequenceEndReason>,
    ) {
        out.push_str("{\"index\":");
        json::write_json_int(out, index);
        out.push_str(",\"finish_reason\":");
        let reason = end.map(|end| self.view.finish_reason(choice, end, "stop"));
        json::write_optional_json_string(out, reason);
        out.push_str(",\"token_ids\":");
        json::write_json_int_array(out, piece.ids.iter().copied());
        out.push('}');
    }

    fn write_choice(
        &self,
        out: &mut String,
        index: usize,
        choice: &ReplyChoice,
        piece: &OutputPiece,
        end: Option<SequenceEndReason>,
    ) {
        out.push_str("{\"index\":");
        json::write_json_int(out, index);
        out.push(',');
        match end {
            Some(end) => self.view.write_finish_reason(out, choice, end, "stop"),
            None => out.push_str("\"finish_reason\":null,\"stop_reason\":null"),
        }
        out.push_str(",\"token_ids\":");
        json::write_json_int_array(out, piece.ids.iter().copied());
        out.push_str(",\"routed_experts\":null,\"sampling_mask\":null,\"weight_versions\":");
        let tokens = piece.from + piece.ids.len();
        if end.is_some() && tokens > 0 {
            out.push_str("[{\"version\":");
            json::write_json_string(out, &self.weight_version);
            out.push_str(",\"start\":0,\"end\":");
            json::write_json_int(out, tokens);
            out.push_str("}]");
        } else {
            out.push_str("null");
        }
        if &*self.mode != "tokens" {
            out.push_str(",\"text\":");
            json::write_json_string(out, &piece.text);
        }
        out.push_str(",\"logprobs\":");
        match self.view.logprobs {
            Some(top) => self.write_logprobs(out, choice, piece, top),
            None => out.push_str("null"),
        }
        out.push('}');
    }

    fn write_logprobs(
        &self,
        out: &mut String,
        choice: &ReplyChoice,
        piece: &OutputPiece,
        top: u32,
    ) {
        let style =
            logprobs::LogprobFormat { top, as_ids: true, distribution: self.view.distribution };
        out.push_str("{\"content\":[");
        for (at, id) in piece.ids.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            let entries = logprobs::call_with_reply_token_position(
                &choice.script,
                piece.from + at,
                |place| logprobs::token_logprobs(&self.view.tokenizer, *id, place, style),
            );
            write_logprob_entry(out, &entries[0]);
            out.push_str(",\"top_logprobs\":[");
            for (index, other) in entries.iter().take(top as usize).enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_logprob_entry(out, other);
                out.push('}');
            }
            out.push_str("]}");
        }
        out.push_str("]}");
    }
}

fn write_logprob_entry(out: &mut String, entry: &logprobs::TokenLogprob) {
    out.push_str("{\"token_id\":");
    json::write_json_int(out, entry.id);
    out.push_str(",\"logprob\":");
    json::write_python_float(out, entry.logprob);
    out.push_str(",\"rank\":");
    json::write_json_int(out, entry.rank);
}

impl OutputPiece {
    fn push_token(&mut self, id: u32, text: &str, channel: OutputChannel) {
        self.ids.push(id);
        if channel != OutputChannel::Marker {
            self.text.push_str(text);
        }
    }
}

pub(super) struct GenerateStream {
    generate: GenerateResponseSettings,
    head: String,
    shown_prompt: bool,
}

impl GenerateStream {
    pub(super) fn new(generate: GenerateResponseSettings) -> Self {
        let mut head = String::from("data: {\"request_id\":");
        json::write_json_string(&mut head, &generate.view.id);
        Self { generate, head, shown_prompt: false }
    }

    /// Appends the JSON members that precede the choices in a stream chunk of
    /// `/inference/v1/generate`.
    fn write_chunk_members(&mut self, out: &mut String, choice: &ReplyChoice) {
        let generate = &self.generate;
        out.push_str(",\"usage\":");
        if generate.view.continuous_usage {
            let (prompt, done) = (generate.prompt.len(), choice.sent as usize);
            out.push_str("{\"prompt_tokens\":");
            json::write_json_int(out, prompt);
            out.push_str(",\"total_tokens\":");
            json::write_json_int(out, prompt + done);
            out.push_str(",\"completion_tokens\":");
            json::write_json_int(out, done);
            out.push('}');
        } else {
            out.push_str("null");
        }
        if generate.view.return_token_ids && !self.shown_prompt {
            out.push_str(",\"prompt_token_ids\":");
            json::write_json_int_array(out, generate.prompt.iter().copied());
            out.push_str(",\"mm_placeholders\":");
            out.push_str(generate.placeholders.as_deref().unwrap_or("null"));
            self.shown_prompt = true;
        }
        out.push_str(",\"output_mode\":");
        json::write_json_string(out, &generate.mode);
    }
}

impl StreamRenderer for GenerateStream {
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let mut piece =
            OutputPiece { from: (choice.sent - tokens) as usize, ..OutputPiece::default() };
        for _ in 0..tokens {
            let Some(token) = choice.script.next_token(&mut choice.cursor) else {
                break;
            };
            piece.push_token(token.id, token.text, token.channel);
        }
        out.push_str(&self.head);
        (self.generate.form.chunk_members)(self, out, choice);
        out.push_str(",\"choices\":[");
        let generate = &self.generate;
        (generate.form.choice)(generate, out, choice.index, choice, &piece, choice.sent_end);
        out.push_str("]}\n\n");
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        let view = &self.generate.view;
        if view.include_usage {
            out.push_str(&self.head);
            out.push_str(",\"usage\":");
            let counts = TokenCounts::count_reply_tokens(reply);
            out.push_str("{\"prompt_tokens\":");
            json::write_json_int(out, counts.prompt_tokens);
            out.push_str(",\"total_tokens\":");
            json::write_json_int(out, counts.prompt_tokens.saturating_add(counts.completion));
            out.push_str(",\"completion_tokens\":");
            json::write_json_int(out, counts.completion);
            if view.prompt_details {
                out.push_str(",\"prompt_tokens_details\":{\"cached_tokens\":");
                json::write_json_int(out, counts.cached);
                out.push('}');
            }
            out.push_str("},\"output_mode\":");
            json::write_json_string(out, &self.generate.mode);
            out.push_str(",\"choices\":[]}\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }
}
