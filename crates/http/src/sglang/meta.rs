//! `meta_info` and `finish_reason` of SGLang's responses.
//!
//! Source: SGLang 0.5.23 `srt/managers/tokenizer_manager.py` (`_handle_batch_output`,
//! `convert_logprob_style`), `srt/managers/schedule_batch.py` (`BaseFinishReason`).

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::usage::cached_tokens;
use crate::app::App;
use crate::openai::logprobs::{LogprobFormat, TokenLogprob, for_each_prompt_token, token_logprobs};
use crate::openai::response_settings::{ResponseSettings, count_reasoning_tokens};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::generate::{OutputEndReason, StopReason};
use vllm_sim_service::{GenerationJob, ReplyChoice};
use vllm_sim_tokenizer::Tokenizer;

/// Message in the finish reason of a request that is aborted while it waits in the queue.
const ABORTED_IN_QUEUE: &str = "Abort in waiting queue";

/// Returns the finish reason of an ended choice as SGLang's JSON object.
pub(super) fn sglang_finish_reason_json(
    choice: &ReplyChoice,
    end: SequenceEndReason,
    tokenizer: &Tokenizer,
) -> Value {
    if end != SequenceEndReason::Finished {
        return match choice.released_tokens() {
            0 => json!({"type": "abort", "message": ABORTED_IN_QUEUE}),
            _ => json!({
                "type": "abort", "message": "Aborted", "status_code": null, "err_type": null,
            }),
        };
    }
    if choice.handed_over {
        return json!({"type": "length", "length": 0});
    }
    let finish = &choice.script.finish;
    match (&finish.reason, &finish.stop) {
        (OutputEndReason::Length, _) => {
            json!({"type": "length", "length": choice.released_tokens()})
        }
        (OutputEndReason::Stop, Some(StopReason::Token(id))) => {
            json!({"type": "stop", "matched": id})
        }
        (OutputEndReason::Stop, Some(StopReason::Text(text))) => {
            json!({"type": "stop", "matched": text})
        }
        (OutputEndReason::Stop, None) => {
            let last = || choice.script.output_tokens().last().map(|token| token.id);
            json!({"type": "stop", "matched": tokenizer.eos_token_id().or_else(last)})
        }
    }
}

/// Returns the type and matched stop condition of a finish reason, for responses of OpenAI routes.
pub(super) fn finish_type_and_matched_stop(reason: &Value) -> (Value, Value) {
    let member = |name: &str| reason.get(name).cloned().unwrap_or(Value::Null);
    (member("type"), member("matched"))
}

/// Options for the log probabilities of a response.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogprobOptions {
    /// Number of most likely tokens reported at each position; `None` reports no log probabilities.
    pub(super) top: Option<u32>,
    /// First prompt position whose log probability is reported; `None` reports output tokens only.
    pub(super) start: Option<usize>,
}

/// Settings of the `meta_info` of a response.
pub(super) struct MetaInfoSettings {
    pub(super) shape: ResponseSettings,
    pub(super) logprobs: LogprobOptions,
    /// Whether log probabilities contain the texts of tokens.
    pub(super) texts: bool,
    /// Whether the response is a stream, whose first event contains the time of sending.
    pub(super) streams: bool,
    weight_version: Arc<String>,
    rank: Option<i64>,
    prompts: Vec<Vec<u32>>,
}

impl MetaInfoSettings {
    /// Creates the settings of `meta_info`; they contain the prompts' token ids if log
    /// probabilities need them.
    pub(super) fn new(
        app: &App,
        job: &GenerationJob,
        logprobs: LogprobOptions,
        rank: Option<i64>,
    ) -> Self {
        let ranks = app.rules.limits.data_parallel_ranks;
        let mut settings = Self {
            shape: ResponseSettings::new(app, job),
            logprobs,
            texts: false,
            streams: false,
            weight_version: app.weight_version.load_full(),
            rank: rank.filter(|_| ranks > 1),
            prompts: Vec::new(),
        };
        if logprobs.start.is_some() {
            settings.store_prompt_token_ids(job);
        }
        settings
    }

    /// Stores the token ids of the request's prompts for its response.
    pub(super) fn store_prompt_token_ids(&mut self, job: &GenerationJob) {
        self.prompts = job.prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
    }

    /// Returns the stored token ids of the prompt with this index; empty if they were not stored.
    pub(super) fn prompt_token_ids(&self, prompt: usize) -> &[u32] {
        self.prompts.get(prompt).map_or(&[], Vec::as_slice)
    }

    /// Returns `metadata` of an OpenAI response, with the version of the weights; `tokens` is the
    /// length of the first output.
    pub(super) fn weight_version_metadata(&self, tokens: u32) -> Value {
        json!({
            "weight_version": *self.weight_version,
            "weight_versions": self.weight_versions(tokens),
        })
    }

    /// Returns the versions of the weights that produced an output of `tokens` tokens.
    fn weight_versions(&self, tokens: u32) -> Value {
        json!([{"version": *self.weight_version, "start": 0, "end": tokens}])
    }

    /// Returns the `meta_info` of a choice with `tokens` output tokens; `end` is its end reason if
    /// the choice has ended.
    pub(super) fn choice_meta_info(
        &self,
        id: &str,
        (prompt_tokens, tokens): (u32, u32),
        choice: &ReplyChoice,
        end: Option<SequenceEndReason>,
    ) -> Value {
        let progress = choice.sequence_progress();
        let reason = end.map(|end| sglang_finish_reason_json(choice, end, &self.shape.tokenizer));
        let mut meta = Map::new();
        let mut set = |name: &str, value: Value| {
            meta.insert(name.to_owned(), value);
        };
        let [_, _, last] = progress.admission_first_latest_token_times();
        let latency = (last - progress.arrived).as_secs_f64();
        set("id", id.into());
        set("finish_reason", reason.clone().unwrap_or(Value::Null));
        if tokens == 0 && reason.is_some_and(|reason| reason["message"] == ABORTED_IN_QUEUE) {
            set("weight_version", self.weight_version.as_str().into());
            set("e2e_latency", 0.0.into());
            set("completion_tokens", 0.into());
            return Value::Object(meta);
        }
        let cached = cached_tokens(choice, prompt_tokens);
        set("prompt_tokens", prompt_tokens.into());
        set("weight_version", self.weight_version.as_str().into());
        set("num_retractions", 0.into());
        if let Some(top) = self.logprobs.top {
            for (name, value) in self.logprob_members(choice, tokens, top) {
                set(name, value);
            }
        }
        set("reasoning_tokens", count_reasoning_tokens(choice).min(tokens).into());
        set("completion_tokens", tokens.into());
        set("cached_tokens", cached.into());
        if end.is_some() {
            set("weight_versions", self.weight_versions(tokens));
        }
        let details = (cached > 0).then(|| json!({"device": cached, "host": 0}));
        set("cached_tokens_details", details.unwrap_or(Value::Null));
        set("dp_rank", self.rank.into());
        if end.is_some() {
            set("e2e_latency", latency.into());
        }
        if end.is_some() && !self.streams {
            set("response_sent_to_client_ts", unix_now_secs().into());
        }
        Value::Object(meta)
    }

    /// Returns the log probability members of a choice's `meta_info`.
    fn logprob_members(
        &self,
        choice: &ReplyChoice,
        tokens: u32,
        top: u32,
    ) -> Vec<(&'static str, Value)> {
        let (mut input, mut input_top) = (Vec::new(), Vec::new());
        if let Some(start) = self.logprobs.start {
            let distribution = self.shape.distribution.logprob_source_for_prompt_tokens();
            let style = LogprobFormat { top, as_ids: false, distribution };
            for_each_prompt_token(self.prompt_token_ids(choice.prompt), |id, place| {
                if place.position < start {
                    return;
                }
                let entries = token_logprobs(&self.shape.tokenizer, id, place, style);
                let is_first = place.position == 0;
                let value = if is_first { Value::Null } else { entries[0].logprob.into() };
                input.push(json!([value, id, self.text(&entries[0].text)]));
                input_top.push(if is_first { Value::Null } else { self.top_row(&entries, top) });
            });
        }
        let (mut output, mut output_top) = (Vec::new(), Vec::new());
        for (position, token) in choice.script.output_tokens().take(tokens as usize).enumerate() {
            let entries = self.shape.token_logprobs_at(choice, position, token.id, top);
            output.push(json!([entries[0].logprob, token.id, self.text(&entries[0].text)]));
            output_top.push(self.top_row(&entries, top));
        }
        let count = output.len();
        let mut members = vec![
            ("input_token_logprobs", input.into()),
            ("output_token_logprobs", output.into()),
            ("output_token_logprobs_length", count.into()),
        ];
        if top > 0 {
            members.push(("input_top_logprobs", input_top.into()));
            members.push(("output_top_logprobs", output_top.into()));
        }
        members
    }

    fn text(&self, text: &str) -> Value {
        if self.texts { text.into() } else { Value::Null }
    }

    fn top_row(&self, entries: &[TokenLogprob], top: u32) -> Value {
        let row = most_likely_tokens(entries, top).into_iter();
        row.map(|entry| json!([entry.logprob, entry.id, self.text(&entry.text)])).collect()
    }
}

/// Returns the most likely tokens of a position, in descending order of probability.
pub(super) fn most_likely_tokens(entries: &[TokenLogprob], top: u32) -> Vec<&TokenLogprob> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_by_key(|entry| entry.rank);
    sorted.truncate(top as usize);
    sorted
}
