//! Renders replies of `/inference/v1/generate` as one JSON object or as stream chunks.
//!
//! Source: vLLM `entrypoints/scale_out/token_in_token_out/protocol.py`.

use std::sync::Arc;

use crate::dialect::ResponseFieldSet;
use crate::json;
use crate::openai::logprobs;
use crate::openai::response_settings::{
    NullMemberHandling, ResponseSettings, TokenCounts, UsageFields, end_reason_of_choice,
    write_token_counts,
};
use crate::output_piece::OutputPiece;
use crate::stream::StreamRenderer;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_service::{Reply, ReplyChoice};

/// Settings for the JSON of a reply of `/inference/v1/generate`.
pub(super) struct GenerateResponseSettings {
    pub(super) view: ResponseSettings,
    /// Output format of the `/inference/v1/generate` reply: `tokens`, `text` or `derender`.
    pub(super) mode: Arc<str>,
    pub(super) prompt: Arc<[u32]>,
    /// Positions of media items in the prompt, as JSON.
    pub(super) placeholders: Option<Arc<str>>,
    pub(super) prompt_logprobs: Option<u32>,
    pub(super) weight_version: Arc<String>,
    /// Set of members in responses: those of vLLM or of llm-d-inference-sim.
    pub(super) fields: ResponseFieldSet,
    /// Transfer parameters of encoded media items, as JSON.
    pub(super) ec_transfer_params: Option<Arc<str>>,
}

impl GenerateResponseSettings {
    /// Returns the JSON body of a finished reply of `/inference/v1/generate`.
    pub(super) fn generate_body_json(&self, reply: &Reply) -> String {
        let mut out = String::with_capacity(1024);
        json::write_member(&mut out, "{\"request_id\":", &self.view.id);
        match self.fields {
            ResponseFieldSet::Full => self.write_members(&mut out, reply),
            ResponseFieldSet::Short => self.write_llmd_members(&mut out, reply),
        }
        out.push('}');
        out
    }

    fn write_members(&self, out: &mut String, reply: &Reply) {
        let view = &self.view;
        json::write_member(out, ",\"model\":", &view.model);
        json::write_member(out, ",\"created\":", view.created);
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
        json::write_member(out, ",\"output_mode\":", &self.mode);
        self.write_choices(out, reply);
    }

    fn write_choices(&self, out: &mut String, reply: &Reply) {
        out.push_str(",\"choices\":[");
        for (index, choice) in reply.choices.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            let piece = OutputPiece::released_output(choice);
            let end = end_reason_of_choice(choice);
            self.write_choice(out, index, choice, &piece, Some(end));
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
        json::write_member(out, "{\"index\":", index);
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
        if self.fields == ResponseFieldSet::Short {
            return self.write_llmd_choice(out, index, choice, piece, end);
        }
        json::write_member(out, "{\"index\":", index);
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
            json::write_member(out, "[{\"version\":", self.weight_version.as_str());
            json::write_member(out, ",\"start\":0,\"end\":", tokens);
            out.push_str("}]");
        } else {
            out.push_str("null");
        }
        if &*self.mode != "tokens" {
            json::write_member(out, ",\"text\":", &piece.text);
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
    json::write_member(out, "{\"token_id\":", entry.id);
    json::write_member(out, ",\"logprob\":", entry.logprob);
    json::write_member(out, ",\"rank\":", entry.rank);
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
            let (prompt_tokens, completion) = (generate.prompt.len() as u32, choice.sent);
            let counts = TokenCounts { prompt_tokens, completion, ..TokenCounts::default() };
            write_token_counts(out, counts);
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
        json::write_member(out, ",\"output_mode\":", &generate.mode);
    }
}

impl StreamRenderer for GenerateStream {
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let mut piece =
            OutputPiece { from: (choice.sent - tokens) as usize, ..OutputPiece::default() };
        piece.push_step(choice, tokens);
        out.push_str(&self.head);
        if self.generate.fields == ResponseFieldSet::Full {
            self.write_chunk_members(out, choice);
        }
        out.push_str(",\"choices\":[");
        let generate = &self.generate;
        generate.write_choice(out, choice.index, choice, &piece, choice.sent_end);
        out.push_str("]}\n\n");
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        let view = &self.generate.view;
        if view.include_usage {
            out.push_str(&self.head);
            out.push_str(",\"usage\":");
            let counts = TokenCounts::count_reply_tokens(reply);
            write_token_counts(out, counts);
            if view.prompt_details {
                out.push_str(",\"prompt_tokens_details\":{\"cached_tokens\":");
                json::write_json_int(out, counts.cached);
                out.push('}');
            }
            json::write_member(out, "},\"output_mode\":", &self.generate.mode);
            out.push_str(",\"choices\":[]}\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }
}
