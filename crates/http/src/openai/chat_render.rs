//! Renders finished chat replies as one JSON object.
//!
//! Source: vLLM 0.33 `entrypoints/openai/chat_completion/`.

use super::chat_stream::{ChatRenderer, write_image_content_part};
use super::logprobs::{
    call_with_reply_token_position, write_chat_logprob_entry, write_prompt_logprobs,
};
use super::response_settings::{UsageFields, end_reason_of_choice, write_output_token_ids};
use crate::json;
use vllm_sim_observe::metrics::ToolParserMode;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};

impl ChatRenderer {
    /// Returns the JSON body of a finished chat reply.
    pub(crate) fn chat_completion_body_json(&self, reply: &Reply) -> String {
        let view = &self.view;
        let mut out = view.response_head_json("chat.completion");
        for (index, choice) in reply.choices.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            self.write_choice(&mut out, index, choice);
        }
        view.write_usage_after_choices(&mut out, reply, UsageFields::Chat);
        out.push_str(",\"prompt_logprobs\":");
        match (self.prompt_logprobs, &self.prompt_ids) {
            (Some(top), Some(ids)) => {
                write_prompt_logprobs(&mut out, &view.tokenizer, ids, top, view.distribution);
            }
            _ => out.push_str("null"),
        }
        self.write_prompt_token_ids(&mut out);
        view.write_response_end(&mut out, reply, self.ec_transfer_params.as_deref());
        out
    }

    fn write_choice(&self, out: &mut String, index: usize, choice: &ReplyChoice) {
        let released = choice.released_tokens();
        let end = end_reason_of_choice(choice);
        let content = choice.script.channel_text(OutputChannel::Content, released);
        let calls = self.tool_calls_in_released_tokens(choice, released);
        self.count_tool_parser_run(ToolParserMode::NonStreaming, !calls.is_empty());
        let content = match &self.echo {
            Some(echo) => format!("{echo}{content}"),
            None => content,
        };
        out.push_str("{\"index\":");
        json::write_json_int(out, index);
        out.push_str(",\"message\":{\"role\":");
        json::write_json_string(out, &self.role);
        out.push_str(",\"content\":");
        let thinks = choice.script.has_reasoning();
        if content.is_empty() && ((!calls.is_empty() && !self.forced) || thinks) {
            out.push_str("null");
        } else if self.image {
            out.push('[');
            if calls.is_empty() {
                out.push_str("{\"type\":\"text\",\"text\":");
                json::write_json_string(out, &content);
                out.push_str("},");
            }
            write_image_content_part(out);
            out.push(']');
        } else {
            json::write_json_string(out, &content);
        }
        out.push_str(
            ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null",
        );
        if !calls.is_empty() {
            self.write_tool_calls(out, index, &calls);
        }
        out.push_str(",\"reasoning\":");
        if thinks && self.include_reasoning {
            json::write_json_string(
                out,
                &choice.script.channel_text(OutputChannel::Reasoning, released),
            );
        } else {
            out.push_str("null");
        }
        out.push_str("},\"logprobs\":");
        let hidden = !self.include_reasoning && self.parsed;
        match self.view.logprob_style().filter(|_| !hidden) {
            Some(style) => {
                out.push_str("{\"content\":[");
                let script = &choice.script;
                for (position, token) in script.output_tokens().take(released as usize).enumerate()
                {
                    if position > 0 {
                        out.push(',');
                    }
                    call_with_reply_token_position(script, position, |place| {
                        write_chat_logprob_entry(out, &self.view.tokenizer, &token, place, style);
                    });
                }
                out.push_str("]}");
            }
            None => out.push_str("null"),
        }
        out.push(',');
        let stop_word = self.finish_reason_of_stopped_choice(calls.len());
        self.view.write_finish_reason(out, choice, end, stop_word);
        let shown = (self.view.return_token_ids && !hidden).then_some(released);
        write_output_token_ids(out, choice, shown);
        out.push_str(",\"routed_experts\":null");
        self.view.write_weight_versions(out, Some(released));
        out.push('}');
    }

    fn write_tool_calls(&self, out: &mut String, choice: usize, calls: &[(String, String)]) {
        out.push_str(",\"tool_calls\":[");
        for (at, (name, arguments)) in calls.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            out.push_str("{\"id\":");
            json::write_json_string(out, &self.call_ids.tool_call_id(choice, at));
            out.push_str(",\"type\":\"function\",\"function\":{\"name\":");
            json::write_json_string(out, name);
            out.push_str(",\"arguments\":");
            json::write_json_string(out, arguments);
            out.push_str("}}");
        }
        out.push(']');
    }
}
