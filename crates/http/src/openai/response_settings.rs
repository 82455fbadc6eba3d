//! Settings that determine the JSON of a response, resolved once per request.

use std::sync::Arc;

use super::logprobs::{self, LogprobFormat, LogprobSource, TokenLogprob};
use crate::app::App;
use crate::json;
use crate::transfer::params::KvTransferParams;
use vllm_sim_config::PerRequestDraftStats;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::{SequenceState, SharedSequenceProgress, unix_now_secs};
use vllm_sim_service::generate::{OutputEndReason, StopReason};
use vllm_sim_service::{GenerationJob, Reply, ReplyChoice};
use vllm_sim_tokenizer::Tokenizer;
use vllm_sim_wire::VllmVersion;

/// Settings for the JSON of a response, of every API with generated tokens.
#[derive(Clone)]
pub(crate) struct ResponseSettings {
    pub(crate) id: Arc<str>,
    pub(crate) created: u64,
    pub(crate) model: Arc<str>,
    /// vLLM release whose response fields are sent.
    pub(crate) version: VllmVersion,
    pub(crate) fingerprint: Option<Arc<str>>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) prompt_details: bool,
    pub(crate) reasoning_details: bool,
    pub(crate) logprobs: Option<u32>,
    pub(crate) distribution: LogprobSource,
    pub(crate) tokens_as_ids: bool,
    pub(crate) return_token_ids: bool,
    pub(crate) metrics: bool,
    pub(crate) drafts: Option<DraftTokenReport>,
    pub(crate) kv_transfer_params: Option<Arc<KvTransferParams>>,
    /// Number of media tokens of the prompt by modality, as JSON.
    pub(crate) media: Option<Arc<str>>,
    /// Version of the model weights to report (`return_weight_versions`).
    pub(crate) weights: Option<Arc<String>>,
    /// Finish reason of a prefill for a remote decode server, if it differs from the usual reasons.
    pub(crate) prefill_reason: Option<&'static str>,
}

impl ResponseSettings {
    /// Returns the default settings of a response, before the request's own settings are applied.
    pub(crate) fn new(app: &App, job: &GenerationJob) -> Self {
        let params = &job.params;
        let answers = &app.settings.answers;
        Self {
            id: job.request.id.clone(),
            created: unix_now_secs() as u64,
            model: app.service.models.model_name_in_responses(job.lora.as_deref()).clone(),
            version: app.version,
            fingerprint: app.settings.fingerprint.clone(),
            tokenizer: app.service.generator.tokenizer().clone(),
            include_usage: answers.force_include_usage,
            continuous_usage: answers.force_include_usage,
            prompt_details: answers.prompt_tokens_details
                || app.dialect.properties().always_reports_cached_tokens,
            reasoning_details: app.settings.parsers.reasoning.is_some(),
            logprobs: None,
            distribution: match app.dialect.properties().has_positional_logprobs {
                true => LogprobSource::ByPosition,
                false => LogprobSource::ByRank {
                    seed: app.service.settings().seed,
                    temperature: match params.top_k {
                        1 => 0.0,
                        _ => params.temperature,
                    },
                },
            },
            tokens_as_ids: answers.tokens_as_token_ids,
            return_token_ids: false,
            metrics: answers.per_request_metrics,
            drafts: draft_report_settings(app),
            kv_transfer_params: None,
            media: None,
            weights: None,
            prefill_reason: app.dialect.properties().prefill_finish_reason,
        }
    }

    /// Adds the usage reports that a stream request asks for: at the end of the stream, and
    /// optionally in every chunk.
    pub(crate) fn set_usage_reporting(&mut self, (at_end, in_chunks): (bool, bool)) {
        self.include_usage |= at_end;
        self.continuous_usage |= in_chunks && self.include_usage;
    }

    /// Returns the form of the log probabilities that the request asks for; `None` for none.
    pub(crate) fn logprob_style(&self) -> Option<LogprobFormat> {
        self.logprobs.map(|top| self.logprob_style_of(top))
    }

    fn logprob_style_of(&self, top: u32) -> LogprobFormat {
        LogprobFormat { top, as_ids: self.tokens_as_ids, distribution: self.distribution }
    }

    /// Returns the log probabilities for one token position of a choice.
    pub(crate) fn token_logprobs_at(
        &self,
        choice: &ReplyChoice,
        position: usize,
        id: u32,
        top: u32,
    ) -> Vec<TokenLogprob> {
        let style = self.logprob_style_of(top);
        logprobs::call_with_reply_token_position(&choice.script, position, |place| {
            logprobs::token_logprobs(&self.tokenizer, id, place, style)
        })
    }
}

fn draft_report_settings(app: &App) -> Option<DraftTokenReport> {
    let detailed = match app.settings.answers.per_request_drafts {
        PerRequestDraftStats::None => return None,
        PerRequestDraftStats::Summary => false,
        PerRequestDraftStats::Detailed => true,
    };
    let tokens = app.settings.answers.draft_tokens?;
    Some(DraftTokenReport { tokens, detailed })
}

/// Selects whether JSON members that are null are written; streams omit them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NullMemberHandling {
    Shown,
    LeftOut,
}

/// Selects the members of `usage`; chat responses have some that completion responses lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageFields {
    Chat,
    Completion,
}

/// Settings of the report on draft tokens in a response (`--per-request-spec-decode-metrics`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DraftTokenReport {
    /// Number of draft tokens that each engine step proposes.
    pub(crate) tokens: u32,
    /// Whether the report on draft tokens lists each engine step.
    pub(crate) detailed: bool,
}

impl DraftTokenReport {
    /// Appends the report on draft tokens; `steps` holds the numbers of drafted and accepted tokens
    /// of each engine step.
    ///
    /// **Source:** vLLM 0.33 `vllm/v1/metrics/stats.py`, `RequestSpecDecodeMetrics.to_dict`.
    fn write_json(self, out: &mut String, steps: &[(u8, u8)], nulls: NullMemberHandling) {
        let mut histogram = vec![0_u32; self.tokens as usize + 1];
        for (_, accepted) in steps {
            if let Some(count) = histogram.get_mut(usize::from(*accepted)) {
                *count += 1;
            }
        }
        let drafted: u64 = steps.iter().map(|step| u64::from(step.0)).sum();
        let accepted: u64 = steps.iter().map(|step| u64::from(step.1)).sum();
        let share = |of: u64| {
            if of > 0 { accepted as f64 / of as f64 } else { 0.0 }
        };
        json::write_member(out, "{\"mean_acceptance_length\":", 1.0 + share(steps.len() as u64));
        json::write_member(out, ",\"draft_acceptance_rate\":", share(drafted));
        out.push_str(",\"acceptance_histogram\":");
        json::write_json_int_array(out, histogram);
        for (name, count) in [
            ("num_spec_steps", steps.len() as u64),
            ("num_accepted_draft_tokens", accepted),
            ("num_draft_tokens", drafted),
            ("num_spec_tokens", self.tokens.into()),
        ] {
            out.push_str(",\"");
            out.push_str(name);
            json::write_member(out, "\":", count);
        }
        let listed = self.detailed && !steps.is_empty();
        if listed {
            out.push_str(",\"per_step_accepted\":");
            json::write_json_int_array(out, steps.iter().map(|step| u32::from(step.1)));
            out.push_str(",\"per_step_drafted\":");
            json::write_json_int_array(out, steps.iter().map(|step| u32::from(step.0)));
        } else if nulls == NullMemberHandling::Shown {
            out.push_str(",\"per_step_accepted\":null,\"per_step_drafted\":null");
        }
        out.push('}');
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenCounts {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion: u32,
    pub(crate) cached: u32,
    pub(crate) created: u32,
    pub(crate) reasoning: u32,
}

impl TokenCounts {
    /// Returns the token counts of a finished reply, for `usage`.
    pub(crate) fn count_reply_tokens(reply: &Reply) -> Self {
        let mut counts = Self { prompt_tokens: reply.prompt_token_count(), ..Self::default() };
        for choice in &reply.choices {
            counts.completion += choice.released_tokens();
            counts.cached = choice.sequence_progress().reused_prompt_tokens(counts.prompt_tokens);
            counts.reasoning += count_reasoning_tokens(choice);
        }
        counts
    }
}

pub(crate) fn count_reasoning_tokens(choice: &ReplyChoice) -> u32 {
    if !choice.script.has_reasoning() {
        return 0;
    }
    let released = choice.released_tokens() as usize;
    let reasoning = |t: &vllm_sim_service::generate::OutputToken<'_>| {
        t.channel == vllm_sim_service::generate::OutputChannel::Reasoning
    };
    choice.script.output_tokens().take(released).filter(reasoning).count() as u32
}

impl ResponseSettings {
    /// Returns the beginning of the JSON of a stream chunk, up to its choices.
    pub(crate) fn chunk_head_json(&self, object: &str) -> String {
        // Leaves room for member names and for what a chat stream appends.
        let names = self.id.len() + object.len() + self.model.len();
        let mut head = String::with_capacity(names + 96);
        json::write_member(&mut head, "data: {\"id\":", &self.id);
        self.write_head_members(&mut head, object);
        head
    }

    /// Returns the beginning of the JSON of a response that is not a stream, up to its choices.
    pub(crate) fn response_head_json(&self, object: &str) -> String {
        let mut out = String::with_capacity(1024);
        json::write_member(&mut out, "{\"id\":", &self.id);
        self.write_head_members(&mut out, object);
        out
    }

    fn write_head_members(&self, out: &mut String, object: &str) {
        out.push_str(",\"object\":\"");
        out.push_str(object);
        json::write_member(out, "\",\"created\":", self.created);
        json::write_member(out, ",\"model\":", &self.model);
        out.push_str(",\"choices\":[");
    }

    /// Appends the members between the choices and the usage of a response that is not a stream.
    pub(crate) fn write_usage_after_choices(
        &self,
        out: &mut String,
        reply: &Reply,
        members: UsageFields,
    ) {
        out.push_str("],\"service_tier\":null,\"system_fingerprint\":");
        json::write_optional_json_string(out, self.fingerprint.as_deref());
        out.push_str(",\"usage\":");
        self.write_usage(out, TokenCounts::count_reply_tokens(reply), members);
    }

    /// Appends the last members of a response that is not a stream, from `kv_transfer_params` on.
    pub(crate) fn write_response_end(
        &self,
        out: &mut String,
        reply: &Reply,
        ec_transfer_params: Option<&str>,
    ) {
        out.push_str(",\"kv_transfer_params\":");
        self.write_kv_transfer_params(out);
        out.push_str(",\"ec_transfer_params\":");
        out.push_str(ec_transfer_params.unwrap_or("null"));
        out.push_str(",\"metrics\":");
        self.write_timings(out, reply, NullMemberHandling::Shown);
        out.push('}');
    }

    /// Appends the `usage` object of a response that is not a stream.
    pub(crate) fn write_usage(&self, out: &mut String, counts: TokenCounts, members: UsageFields) {
        let chat = members == UsageFields::Chat;
        write_token_counts(out, counts);
        out.push_str(",\"prompt_tokens_details\":");
        if self.prompt_details {
            json::write_member(out, "{\"cached_tokens\":", counts.cached);
            out.push_str(",\"created_cache_tokens\":");
            if chat {
                json::write_json_int(out, counts.created)
            } else {
                out.push_str("null")
            }
            out.push_str(",\"multimodal_tokens\":");
            out.push_str(self.media.as_deref().unwrap_or("null"));
            out.push('}');
        } else {
            out.push_str("null");
        }
        out.push_str(",\"completion_tokens_details\":");
        if chat {
            self.write_completion_details(out, counts);
        } else {
            out.push_str("null");
        }
        out.push('}');
    }

    fn write_completion_details(&self, out: &mut String, counts: TokenCounts) {
        if self.reasoning_details {
            json::write_member(out, "{\"reasoning_tokens\":", counts.reasoning);
            out.push('}');
        } else {
            out.push_str("null");
        }
    }

    /// Appends `,"usage":{…}` to a chunk if every chunk has usage (`continuous_usage_stats`).
    pub(crate) fn write_chunk_usage(
        &self,
        out: &mut String,
        counts: TokenCounts,
        members: UsageFields,
    ) {
        if !self.continuous_usage {
            return;
        }
        out.push_str(",\"usage\":");
        write_token_counts(out, counts);
        if members == UsageFields::Chat {
            out.push_str(",\"completion_tokens_details\":");
            self.write_completion_details(out, counts);
        }
        out.push('}');
    }

    /// Appends usage, fingerprint and timings to the last chunk of a stream; null members are
    /// omitted.
    pub(crate) fn write_final_usage(&self, out: &mut String, reply: &Reply, members: UsageFields) {
        let (counts, chat) = (TokenCounts::count_reply_tokens(reply), members == UsageFields::Chat);
        out.push_str("\"usage\":");
        write_token_counts(out, counts);
        if self.prompt_details {
            out.push_str(",\"prompt_tokens_details\":{\"cached_tokens\":");
            json::write_json_int(out, counts.cached);
            if chat {
                json::write_member(out, ",\"created_cache_tokens\":", counts.created);
            }
            if let Some(media) = &self.media {
                out.push_str(",\"multimodal_tokens\":");
                out.push_str(media);
            }
            out.push('}');
        }
        if self.reasoning_details && chat {
            out.push_str(",\"completion_tokens_details\":");
            self.write_completion_details(out, counts);
        }
        out.push('}');
        self.write_system_fingerprint(out);
        let told = self.metrics || self.drafts.is_some();
        if told && reply.choices.len() == 1 {
            out.push_str(",\"metrics\":");
            self.write_timings(out, reply, NullMemberHandling::LeftOut);
        }
    }

    /// Appends `,"system_fingerprint":"…"` if the server has a fingerprint.
    pub(crate) fn write_system_fingerprint(&self, out: &mut String) {
        if let Some(fingerprint) = &self.fingerprint {
            json::write_member(out, ",\"system_fingerprint\":", fingerprint);
        }
    }

    /// Appends the `metrics` object with the timings of a reply, or `null` for a reply with several
    /// choices.
    pub(crate) fn write_timings(&self, out: &mut String, reply: &Reply, nulls: NullMemberHandling) {
        let [choice] = reply.choices.as_slice() else {
            return out.push_str("null");
        };
        if !self.metrics && self.drafts.is_none() {
            return out.push_str("null");
        }
        let progress: &SharedSequenceProgress = choice.sequence_progress();
        let [scheduled, first, last] = progress.admission_first_latest_token_times();
        let ms = |d: std::time::Duration| d.as_nanos() as f64 / 1e6;
        let tokens = f64::from(choice.released_tokens());
        let generation = ms(last - first);
        let busy = ms(last - scheduled) / 1e3;
        let members = [
            ("time_to_first_token_ms", Some(ms(first - scheduled))),
            ("generation_time_ms", Some(generation)),
            ("queue_time_ms", Some(ms(scheduled - progress.arrived))),
            ("mean_itl_ms", (tokens > 1.0).then(|| generation / (tokens - 1.0))),
            ("tokens_per_second", Some(if busy > 0.0 { tokens / busy } else { 0.0 })),
        ];
        let mut separator = '{';
        for (name, value) in members {
            let value = value.filter(|_| self.metrics);
            if value.is_none() && nulls == NullMemberHandling::LeftOut {
                continue;
            }
            out.push(separator);
            separator = ',';
            json::write_json_string(out, name);
            out.push(':');
            match value {
                Some(value) => json::write_python_float(out, value),
                None => out.push_str("null"),
            }
        }
        match self.drafts {
            None if nulls == NullMemberHandling::LeftOut => {}
            None => out.push_str(",\"speculative_decoding\":null"),
            Some(report) => {
                out.push(separator);
                out.push_str("\"speculative_decoding\":");
                report.write_json(out, &progress.proposed_and_accepted_draft_counts(), nulls);
            }
        }
        out.push('}');
    }

    /// Appends `"finish_reason":…,"stop_reason":…` of an ended choice.
    ///
    /// `stop_word` is the finish reason if the choice stopped by itself.
    pub(crate) fn write_finish_reason(
        &self,
        out: &mut String,
        choice: &ReplyChoice,
        end: SequenceEndReason,
        stop_word: &'static str,
    ) {
        out.push_str("\"finish_reason\":\"");
        out.push_str(self.finish_reason(choice, end, stop_word));
        out.push('"');
        write_stop_reason(out, choice, end);
    }

    /// Returns the finish reason of an ended choice; `stop_word` is the API's word for a normal
    /// stop.
    pub(crate) fn finish_reason(
        &self,
        choice: &ReplyChoice,
        end: SequenceEndReason,
        stop_word: &'static str,
    ) -> &'static str {
        let prefilled = self.kv_transfer_params.as_ref().and(self.prefill_reason);
        if let (SequenceEndReason::Finished, Some(word)) = (end, prefilled) {
            return word;
        }
        match (end, choice.script.finish.reason) {
            (SequenceEndReason::Aborted | SequenceEndReason::Cancelled, _) => "abort",
            (SequenceEndReason::Threshold, _) => "cache_threshold",
            (SequenceEndReason::Failed, _) => "error",
            (SequenceEndReason::Finished, OutputEndReason::Length) => "length",
            (SequenceEndReason::Finished, OutputEndReason::Stop) => stop_word,
        }
    }

    /// Appends the member `,"weight_versions":…`, which vLLM 0.32 does not have.
    ///
    /// `ended_choice_tokens` is the number of tokens of an ended choice; they form one span.
    pub(crate) fn write_weight_versions(&self, out: &mut String, ended_choice_tokens: Option<u32>) {
        if self.version < VllmVersion::V033 {
            return;
        }
        out.push_str(",\"weight_versions\":");
        match (&self.weights, ended_choice_tokens) {
            (Some(_), Some(0)) => out.push_str("[]"),
            (Some(version), Some(tokens)) => {
                json::write_member(out, "[{\"version\":", version.as_str());
                json::write_member(out, ",\"start\":0,\"end\":", tokens);
                out.push_str("}]");
            }
            _ => out.push_str("null"),
        }
    }

    pub(crate) fn write_kv_transfer_params(&self, out: &mut String) {
        match &self.kv_transfer_params {
            Some(params) => params.write_kv_transfer_params_json(out),
            None => out.push_str("null"),
        }
    }
}

/// Appends the member `stop_reason` of an ended choice: the stop string or token that ended it.
pub(crate) fn write_stop_reason(out: &mut String, choice: &ReplyChoice, end: SequenceEndReason) {
    out.push_str(",\"stop_reason\":");
    match &choice.script.finish.stop {
        Some(StopReason::Token(id)) if end == SequenceEndReason::Finished => {
            json::write_json_int(out, *id)
        }
        Some(StopReason::Text(text)) if end == SequenceEndReason::Finished => {
            json::write_json_string(out, text)
        }
        _ => out.push_str("null"),
    }
}

/// Appends the first members of `usage`, and leaves the object open.
pub(crate) fn write_token_counts(out: &mut String, counts: TokenCounts) {
    json::write_member(out, "{\"prompt_tokens\":", counts.prompt_tokens);
    out.push_str(",\"total_tokens\":");
    json::write_json_int(out, counts.prompt_tokens.saturating_add(counts.completion));
    json::write_member(out, ",\"completion_tokens\":", counts.completion);
}

/// Appends the member `token_ids`: the ids of the first `released` output tokens, or null if
/// `released` is `None`.
pub(crate) fn write_output_token_ids(
    out: &mut String,
    choice: &ReplyChoice,
    released: Option<u32>,
) {
    out.push_str(",\"token_ids\":");
    match released {
        Some(released) => json::write_json_int_array(
            out,
            choice.script.output_tokens().take(released as usize).map(|t| t.id),
        ),
        None => out.push_str("null"),
    }
}

pub(crate) fn end_reason_of_choice(choice: &ReplyChoice) -> SequenceEndReason {
    match choice.sequence_state() {
        SequenceState::Ended(end) => end,
        _ => SequenceEndReason::Finished,
    }
}
