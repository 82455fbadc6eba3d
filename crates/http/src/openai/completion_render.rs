//! Renders completion replies as one JSON object or as stream chunks.
//!
//! Source: vLLM 0.33 `entrypoints/openai/completion/`.

use std::sync::Arc;

use super::logprobs::{
    CompletionLogprobs, LogprobFormat, call_with_reply_token_position, for_each_prompt_token,
    write_prompt_logprobs,
};
use super::response_settings::{
    ResponseSettings, TokenCounts, UsageFields, end_reason_of_choice, write_output_token_ids,
};
use crate::json;
use crate::stream::StreamRenderer;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::VllmVersion;

#[derive(Clone)]
pub(crate) struct EchoedPrompt {
    pub(crate) ids: Arc<[u32]>,
    /// The prompt text that `echo` returns, without the special tokens that the tokenizer added.
    pub(crate) text: Arc<str>,
}

/// Response settings of completion replies, including those that chat replies lack.
#[derive(Clone)]
pub(crate) struct CompletionResponseSettings {
    pub(crate) view: ResponseSettings,
    pub(crate) echo: bool,
    /// Whether the response contains only the echoed prompt (`max_tokens` is 0).
    pub(crate) echo_only: bool,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) prompts: Option<Arc<[EchoedPrompt]>>,
    pub(crate) ec_transfer_params: Option<Arc<str>>,
    /// Whether the id of a completion response ends with the index of the prompt (llm-d).
    pub(crate) appends_prompt_index: bool,
}

impl CompletionResponseSettings {
    /// Returns the response settings for one prompt of a completion request.
    fn shape_for_prompt(&self, prompt: usize) -> ResponseSettings {
        let mut shape = self.view.clone();
        if self.appends_prompt_index {
            shape.id = format!("{}-{prompt}", shape.id).into();
        }
        shape
    }

    fn echoed_prompt(&self, choice: &ReplyChoice) -> Option<&EchoedPrompt> {
        self.prompts.as_ref()?.get(choice.prompt)
    }

    /// Returns the prompt text that `echo` puts before the output.
    fn echoed_text(&self, choice: &ReplyChoice) -> &str {
        // vLLM returns the prompt's ids instead of its text if token ids are requested.
        let shown = self.echo && !self.view.return_token_ids;
        self.echoed_prompt(choice).filter(|_| shown).map_or("", |p| &p.text)
    }

    pub(crate) fn completion_body_json(&self, reply: &Reply) -> String {
        let view = &self.view;
        let mut out = self.shape_for_prompt(0).response_head_json("text_completion");
        for (index, choice) in reply.choices.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            self.write_choice(&mut out, index, choice);
        }
        view.write_usage_after_choices(&mut out, reply, UsageFields::Completion);
        view.write_response_end(&mut out, reply, self.ec_transfer_params.as_deref());
        out
    }

    fn write_choice(&self, out: &mut String, index: usize, choice: &ReplyChoice) {
        let released = if self.echo_only { 0 } else { choice.released_tokens() };
        json::write_member(out, "{\"index\":", index);
        out.push_str(",\"text\":\"");
        json::push_json_escaped_unicode(out, self.echoed_text(choice));
        for token in choice.script.output_tokens().take(released as usize) {
            if token.channel != OutputChannel::Marker {
                json::push_json_escaped_unicode(out, token.text);
            }
        }
        out.push_str("\",\"logprobs\":");
        match self.view.logprob_style() {
            Some(style) => {
                let mut lists = CompletionLogprobs::default();
                self.push_prompt_logprobs(&mut lists, choice, style);
                let script = &choice.script;
                for (position, token) in script.output_tokens().take(released as usize).enumerate()
                {
                    call_with_reply_token_position(script, position, |place| {
                        lists.push_token_logprob(&self.view.tokenizer, token.id, place, style);
                    });
                }
                lists.write_completion_logprobs(out);
            }
            None => out.push_str("null"),
        }
        out.push(',');
        self.view.write_finish_reason(out, choice, end_reason_of_choice(choice), "stop");
        write_output_token_ids(out, choice, self.view.return_token_ids.then_some(released));
        out.push_str(",\"prompt_logprobs\":");
        let echo_top = self.view.logprobs.filter(|_| self.echo);
        match (self.prompt_logprobs.or(echo_top), self.echoed_prompt(choice)) {
            (Some(top), Some(shown)) => {
                let (view, ids) = (&self.view, &shown.ids);
                write_prompt_logprobs(out, &view.tokenizer, ids, top, view.distribution);
            }
            _ => out.push_str("null"),
        }
        out.push_str(",\"prompt_token_ids\":");
        match self.echoed_prompt(choice).filter(|_| self.view.return_token_ids) {
            Some(shown) => json::write_json_int_array(out, shown.ids.iter().copied()),
            None => out.push_str("null"),
        }
        out.push_str(",\"routed_experts\":null");
        self.view.write_weight_versions(out, Some(choice.released_tokens()));
        out.push('}');
    }

    fn push_prompt_logprobs(
        &self,
        lists: &mut CompletionLogprobs,
        choice: &ReplyChoice,
        style: LogprobFormat,
    ) {
        let Some(shown) = self.echoed_prompt(choice).filter(|_| self.echo) else {
            return;
        };
        let style = LogprobFormat {
            distribution: style.distribution.logprob_source_for_prompt_tokens(),
            ..style
        };
        for_each_prompt_token(&shown.ids, |id, place| match place.position {
            0 => lists.push_first_prompt_token_logprob(&self.view.tokenizer, id, place, style),
            _ => lists.push_token_logprob(&self.view.tokenizer, id, place, style),
        });
    }
}

pub(crate) struct CompletionStream {
    completion: CompletionResponseSettings,
    /// Beginning of the JSON of a completion chunk, up to its choices: one text per prompt, the
    /// last of which serves all further prompts.
    heads: Vec<String>,
    prompts: Vec<u32>,
    /// For each choice, the number of tokens sent so far, and the number of characters that these
    /// tokens have in log probabilities.
    so_far: Vec<(u32, usize)>,
}

impl CompletionStream {
    /// Creates the renderer of a completion stream with `choices` choices; `prompts` holds the
    /// prompt lengths, in tokens.
    pub(crate) fn new(
        completion: CompletionResponseSettings,
        choices: usize,
        prompts: &[u32],
    ) -> Self {
        let ids = if completion.appends_prompt_index { prompts.len() } else { 1 };
        let head = |prompt| completion.shape_for_prompt(prompt).chunk_head_json("text_completion");
        let heads = (0..ids.max(1)).map(head).collect();
        Self { completion, heads, prompts: prompts.to_vec(), so_far: vec![(0, 0); choices] }
    }

    fn write_chunk(
        &mut self,
        out: &mut String,
        choice: &ReplyChoice,
        tokens: u32,
        text: &str,
        logprobs: Option<&CompletionLogprobs>,
        ids: &[u32],
    ) {
        let view = &self.completion.view;
        let last = self.heads.len() - 1;
        out.push_str(&self.heads[choice.prompt.min(last)]);
        json::write_member(out, "{\"index\":", choice.index);
        out.push_str(",\"text\":\"");
        if choice.sent == tokens {
            json::push_json_escaped_unicode(out, self.completion.echoed_text(choice));
        }
        json::push_json_escaped_unicode(out, text);
        out.push_str("\",\"logprobs\":");
        match logprobs {
            Some(lists) => lists.write_completion_logprobs(out),
            None => out.push_str("null"),
        }
        match choice.sent_end {
            None => out.push_str(",\"finish_reason\":null,\"stop_reason\":null"),
            Some(end) => {
                out.push(',');
                view.write_finish_reason(out, choice, end, "stop");
            }
        }
        out.push_str(",\"prompt_token_ids\":");
        let shows_prompt = choice.sent == tokens && (view.return_token_ids || self.completion.echo);
        match self.completion.echoed_prompt(choice).filter(|_| shows_prompt) {
            Some(shown) => json::write_json_int_array(out, shown.ids.iter().copied()),
            None => out.push_str("null"),
        }
        out.push_str(",\"token_ids\":");
        if view.return_token_ids {
            json::write_json_int_array(out, ids.iter().copied())
        } else {
            out.push_str("null")
        }
        let (new, ended) = (view.version >= VllmVersion::V033, choice.sent_end.is_some());
        view.write_weight_versions(out, choice.sent_end.map(|_| choice.sent));
        out.push_str("}]");
        let counts = TokenCounts {
            prompt_tokens: self.prompts.get(choice.prompt).copied().unwrap_or(0),
            completion: self.so_far[choice.index].0,
            ..TokenCounts::default()
        };
        view.write_chunk_usage(out, counts, UsageFields::Completion);
        if ended && !view.include_usage {
            view.write_system_fingerprint(out);
        }
        if new || (ended && view.kv_transfer_params.is_some()) {
            out.push_str(",\"kv_transfer_params\":");
            if ended { view.write_kv_transfer_params(out) } else { out.push_str("null") }
        }
        out.push_str("}\n\n");
    }
}

impl StreamRenderer for CompletionStream {
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let style = self.completion.view.logprob_style();
        let mut lists =
            style.map(|_| CompletionLogprobs::with_text_offset(self.so_far[choice.index].1));
        if let (true, Some(lists), Some(style)) = (choice.sent == tokens, &mut lists, style) {
            self.completion.push_prompt_logprobs(lists, choice, style);
        }
        let mut text = String::new();
        let mut ids = Vec::new();
        for token in choice.script.next_tokens(&mut choice.cursor, tokens) {
            let position = self.so_far[choice.index].0 as usize;
            self.so_far[choice.index].0 += 1;
            if self.completion.echo_only {
                continue;
            }
            if token.channel != OutputChannel::Marker {
                text.push_str(token.text);
            }
            if self.completion.view.return_token_ids {
                ids.push(token.id);
            }
            if let (Some(lists), Some(style)) = (&mut lists, style) {
                let tokenizer = &self.completion.view.tokenizer;
                call_with_reply_token_position(&choice.script, position, |place| {
                    lists.push_token_logprob(tokenizer, token.id, place, style);
                });
            }
        }
        if let Some(lists) = &lists {
            self.so_far[choice.index].1 = lists.offset;
        }
        self.write_chunk(out, choice, tokens, &text, lists.as_ref(), &ids);
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        if self.completion.view.include_usage {
            out.push_str(&self.heads[0]);
            out.push_str("],");
            self.completion.view.write_final_usage(out, reply, UsageFields::Completion);
            out.push_str("}\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }
}
