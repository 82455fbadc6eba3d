//! Writes the script of one reply: its free text, reasoning, tool calls and end.

use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;

use super::request::{AllowedOutputTokens, ReplyContentKind, TokenizedPrompt};
use super::script::{
    CorpusSentenceIndex, EMPTY_CONTEXT_HASH, OutputChannel, OutputEndReason, PlannedOutputEnd,
    ReplyScript, ReplyTokenRun, ReplyTokenSource, StopReason,
};
use super::tools::ToolCall;
use super::{ReplyGenerator, ReplyTextMode, hermes, length, stop};
use crate::job::GenerationJob;
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, request_rng};
use vllm_sim_tokenizer::TokenFragments;

/// Minimum length of the reasoning in a reply whose end the output limit cuts off, in tokens,
/// including the end marker of the reasoning.
const MIN_CUT_REASONING_TOKENS: u32 = 12;

/// End of the text of a tool call in the format of Hermes models.
const TOOL_CALL_END: &str = "}\n</tool_call>";

/// The script of one reply while it is written.
pub struct ScriptBuilder<'a> {
    pub(super) generator: &'a ReplyGenerator,
    pub(super) job: &'a GenerationJob,
    pub(super) prompt: &'a TokenizedPrompt,
    /// Maximum number of output tokens of the reply, at least 1.
    pub(super) limit: u32,
    /// Seed key of the reply's random streams; equal keys give equal content.
    key: u64,
    pub(super) rng: ChaCha8Rng,
    own: Vec<TokenFragments>,
    sentences: Vec<u16>,
    runs: Vec<ReplyTokenRun>,
    pub(super) len: u32,
    pub(super) times: Option<Arc<[Duration]>>,
}

impl ReplyGenerator {
    /// Returns the number of tokens of a text.
    pub(super) fn count_text_tokens(&self, text: &str) -> u32 {
        self.tokenizer.tokenize_with_text(text).ids.len() as u32
    }

    /// Returns the number of tokens of a tool call in the format of Hermes models.
    pub(super) fn count_tool_call_tokens(&self, call: &ToolCall) -> u32 {
        let start = tool_call_start(call);
        [&*start, &*call.arguments, TOOL_CALL_END]
            .map(|text| self.count_text_tokens(text))
            .iter()
            .sum()
    }
}

/// Returns the text of a tool call before its arguments, in the format of Hermes models.
fn tool_call_start(call: &ToolCall) -> String {
    format!("<tool_call>\n{{\"name\": \"{}\", \"arguments\": ", call.name)
}

impl<'a> ScriptBuilder<'a> {
    /// Starts the reply to a prompt of a job, of at most `limit` tokens.
    ///
    /// Equal values of `key`, the seed of the reply's random streams, give equal content.
    pub fn new(
        generator: &'a ReplyGenerator,
        job: &'a GenerationJob,
        prompt: &'a TokenizedPrompt,
        key: u64,
        limit: u32,
    ) -> Self {
        Self {
            generator,
            job,
            prompt,
            limit,
            key,
            rng: request_rng(generator.seed, key, RandomStreamPurpose::Content),
            own: Vec::new(),
            sentences: Vec::with_capacity(4),
            runs: Vec::with_capacity(2),
            len: 0,
            times: None,
        }
    }

    /// Writes the reply.
    pub fn build_script(mut self, kind: &ReplyContentKind) -> ReplyScript {
        let ReplyGenerator { tokenizer, corpus, mute, .. } = self.generator;
        let stops = &self.job.stops;
        let forced = self.job.bias.allowed_output_tokens(|id| {
            let own =
                Some(id) == tokenizer.eos_token_id() || tokenizer.stop_token_ids().contains(&id);
            own && !stops.ignore_eos || stops.ids.contains(id)
        });
        let names = |calls: &[ToolCall]| calls.iter().map(|call| call.name.clone()).collect();
        let mut calls = Vec::new();
        let (reason, stop) = match (kind, forced) {
            (ReplyContentKind::Text, Some(forced)) => self.add_forced_tokens(forced),
            (ReplyContentKind::Text, None) => self.add_free_text(),
            (ReplyContentKind::Exact(text), _) => {
                (self.add_whole_texts(&[(text, OutputChannel::Content)]), None)
            }
            (ReplyContentKind::Parsed(text), _) => {
                let (pieces, called) = hermes::split_output_channels(text)
                    .unwrap_or_else(|| (vec![(text, OutputChannel::Content)], Vec::new()));
                calls = called;
                (self.add_whole_texts(&pieces), None)
            }
            (ReplyContentKind::Scripted(reply), _) => {
                calls = names(&reply.calls);
                (self.add_scripted_reply(reply), None)
            }
            (ReplyContentKind::Calls(planned), _) => {
                calls = names(planned);
                let room = self.add_leading_reasoning();
                let whole = self.add_tool_calls(planned, room);
                (self.end_reply(whole, room), None)
            }
        };
        let mut script = ReplyScript {
            corpus: corpus.clone(),
            own: self.own,
            sentences: self.sentences,
            runs: self.runs,
            len: self.len,
            finish: PlannedOutputEnd { reason, stop },
            calls,
            times: self.times,
            prompt: EMPTY_CONTEXT_HASH,
        };
        stop::apply_stop_conditions(&mut script, stops, self.job.special_tokens(), tokenizer);
        if *mute {
            script.remove_token_texts();
        }
        script
    }

    pub(super) fn push_run(
        &mut self,
        source: ReplyTokenSource,
        from: u32,
        to: u32,
        channel: OutputChannel,
    ) {
        if to > from {
            self.runs.push(ReplyTokenRun { source, from, to, channel });
            self.len += to - from;
        }
    }

    /// Adds a token without text.
    pub(super) fn push_silent_token(&mut self, id: u32) {
        self.push_run(ReplyTokenSource::Silent(id), 0, 1, OutputChannel::Marker);
    }

    /// Adds the tokens of a marker, as many as the output limit allows.
    pub(super) fn push_marker_tokens(&mut self, ids: &[u32]) {
        let room = self.limit.saturating_sub(self.len) as usize;
        ids.iter().take(room).for_each(|id| self.push_silent_token(*id));
    }

    /// Adds to the script at most `room` tokens of a text outside the corpus.
    pub(super) fn push_own_text(
        &mut self,
        fragments: TokenFragments,
        room: u32,
        channel: OutputChannel,
    ) {
        let tokens = (fragments.ids.len() as u32).min(room);
        let Ok(index) = u16::try_from(self.own.len()) else {
            return;
        };
        self.own.push(fragments);
        self.push_run(ReplyTokenSource::Own(index), 0, tokens, channel);
    }

    /// Adds a whole reply of fixed texts after its reasoning, and ends the reply.
    fn add_whole_texts(&mut self, pieces: &[(&str, OutputChannel)]) -> OutputEndReason {
        let room = self.add_leading_reasoning();
        let whole = self.add_texts(pieces, room);
        self.end_reply(whole, room)
    }

    /// Ends a reply: adds the end-of-sequence token if the output limit has room for it after the
    /// `whole` tokens of the complete text; otherwise the limit ends the text.
    pub(super) fn end_reply(&mut self, whole: u32, room: u32) -> OutputEndReason {
        if whole >= room && !(whole == room && self.generator.tokenizer.eos_token_id().is_none()) {
            return OutputEndReason::Length;
        }
        let eos = self.generator.tokenizer.eos_token_id();
        if let Some(eos) = eos.filter(|_| self.len < self.limit) {
            self.push_silent_token(eos);
        }
        if self.len == 0 {
            self.push_silent_token(0);
        }
        OutputEndReason::Stop
    }

    /// Returns the length of a reply's free text, in tokens.
    fn draw_length(&self) -> u32 {
        if self.job.stops.ignore_eos {
            return self.limit;
        }
        if let Some(audio) = self.prompt.audio {
            // Includes the end-of-sequence token.
            return audio.tokens.saturating_add(1).min(self.limit);
        }
        // A separate random stream, so that the limit does not change the text.
        let rng = &mut request_rng(self.generator.seed, self.key, RandomStreamPurpose::Length);
        let drawn = if self.job.limited {
            length::draw_reply_length_up_to_max(self.limit, rng)
        } else {
            length::draw_reply_length_without_max(self.limit, rng)
        };
        // At least one token besides the end-of-sequence token, which has no text.
        drawn.max(2).max(self.job.stops.min_tokens).min(self.limit)
    }

    fn add_free_text(&mut self) -> (OutputEndReason, Option<StopReason>) {
        match self.generator.mode {
            ReplyTextMode::Random => {}
            ReplyTextMode::Echo => return self.add_echo(),
            ReplyTextMode::Encoder => {
                let wanted = if self.job.limited { self.limit } else { 1 };
                self.push_own_text(
                    self.generator.tokenizer.tokenize_with_text("!"),
                    1,
                    OutputChannel::Content,
                );
                for _ in 1..wanted {
                    self.push_run(ReplyTokenSource::Own(0), 0, 1, OutputChannel::Content);
                }
                return (OutputEndReason::Length, None);
            }
        }
        if let Some(recordings) = &self.generator.recordings
            && let Some(reason) = self.add_recorded_reply(recordings)
        {
            return (reason, None);
        }
        // Leaves room for text before the end-of-sequence token.
        let mut target = self.draw_length().max(self.limit.min(2));
        if self.job.request.reasoning.is_some() && self.limit <= MIN_CUT_REASONING_TOKENS {
            // The limit is too low for reasoning to end.
            target = self.limit;
        }
        let full = target == self.limit;
        let eos = self.generator.tokenizer.eos_token_id().filter(|_| !full);
        let words = target - u32::from(eos.is_some());
        self.add_reasoning_share(words);
        self.add_sentences(words, OutputChannel::Content);
        if let Some(eos) = eos {
            self.push_silent_token(eos);
        }
        (if full { OutputEndReason::Length } else { OutputEndReason::Stop }, None)
    }

    /// Repeats the client's text, and adds random sentences if the reply must not end after this
    /// text.
    fn add_echo(&mut self) -> (OutputEndReason, Option<StopReason>) {
        let room = self.add_leading_reasoning();
        let fragments = match &self.prompt.echo_ids {
            Some(ids) => id_list_fragments(ids),
            None => self.generator.tokenizer.tokenize_with_text(&self.prompt.echo),
        };
        let whole = fragments.ids.len() as u32;
        let room = if self.generator.whole_echo { room.max(whole) } else { room };
        self.push_own_text(fragments, room, OutputChannel::Content);
        let least = if self.generator.whole_echo {
            // A whole echo adds nothing.
            0
        } else if self.job.stops.ignore_eos {
            self.limit
        } else {
            self.job.stops.min_tokens
        };
        if self.len < least.min(self.limit) {
            let lacking = least.min(self.limit) - self.len;
            self.add_sentences(self.len + lacking, OutputChannel::Content);
            let reason = if self.len >= self.limit {
                OutputEndReason::Length
            } else {
                OutputEndReason::Stop
            };
            return (reason, None);
        }
        if self.job.limited && self.len >= self.limit {
            return (OutputEndReason::Length, None);
        }
        if self.prompt.echo_ids.is_some() && self.len > 0 {
            // An echo of token ids adds no end-of-sequence token.
            return (OutputEndReason::Stop, None);
        }
        (self.end_reply(whole, room), None)
    }

    /// Adds sentences of the corpus until the script has `until` tokens.
    pub(super) fn add_sentences(&mut self, until: u32, channel: OutputChannel) {
        let first = self.runs.last().is_none_or(|run| run.channel != channel);
        let start = self.sentences.len() as u32;
        let from = self.len;
        let mut len = from;
        let mut tries = 0;
        while len < until {
            let index = self.rng.draw_u64_between(0, self.generator.corpus.len() as u64 - 1) as u16;
            let first = first && len == from;
            let fragments =
                self.generator.corpus.sentence_fragments(CorpusSentenceIndex { index, first });
            tries += 1;
            // Skips sentences whose first token has no complete character.
            let mute = first && fragments.ends.first() == Some(&0);
            let number = 2 * index as usize + usize::from(first);
            let bans = || {
                self.job.bias.bans_corpus_sentence(
                    number,
                    2 * self.generator.corpus.len(),
                    fragments,
                )
            };
            if tries < 1000 && (mute || bans()) {
                continue;
            }
            if fragments.ids.is_empty() {
                break;
            }
            self.sentences.push(index);
            len = (len + fragments.ids.len() as u32).min(until);
        }
        let tokens = len - from;
        self.push_run(ReplyTokenSource::Sentences { start, first }, 0, tokens, channel);
        // A tokenizer may encode a sentence to no tokens.
        while self.len < until {
            self.push_run(ReplyTokenSource::Silent(0), 0, 1, channel);
        }
    }

    /// Adds reasoning in front of a reply whose length does not include the reasoning; returns the
    /// number of tokens left for the reply.
    pub(super) fn add_leading_reasoning(&mut self) -> u32 {
        if let Some(share) = self.job.request.reasoning {
            let tokens = (length::draw_reply_length_without_max(self.limit, &mut self.rng) as f64
                * share
                * 2.0) as u32;
            self.add_reasoning(tokens.clamp(1, self.limit));
        }
        self.limit.saturating_sub(self.len)
    }

    /// Adds reasoning whose length is the requested fraction of a reply of `words` tokens.
    fn add_reasoning_share(&mut self, words: u32) {
        let Some(share) = self.job.request.reasoning else {
            return;
        };
        let thought = (f64::from(words) * share) as u32;
        // Under a limit that cuts the reply, the reasoning gets its minimum length first.
        let cut = words == self.limit;
        let thought = if cut { thought.max(MIN_CUT_REASONING_TOKENS.min(words)) } else { thought };
        self.add_reasoning(thought);
    }

    /// Adds reasoning of `tokens` tokens, start and end markers included.
    ///
    /// The output limit or the client's thinking budget may cut the reasoning; the budget excludes
    /// the markers.
    fn add_reasoning(&mut self, tokens: u32) {
        if tokens == 0 {
            return;
        }
        let (start, end) = (self.prompt.reasoning_start_ids(), &self.generator.reasoning_end);
        let opening = start.len() as u32;
        let marks = opening + end.len() as u32;
        let least = tokens.max(marks + 1);
        let cut = tokens >= self.limit || least > self.limit;
        let words = match cut {
            true => least.min(self.limit).saturating_sub(opening),
            false => least - marks,
        };
        let budget = self.job.thinking_budget.unwrap_or(u32::MAX);
        let whole = !cut || budget < words;
        self.push_marker_tokens(start);
        let until = self.len + words.min(budget);
        self.add_sentences(until, OutputChannel::Reasoning);
        if whole {
            self.push_marker_tokens(end);
        }
    }

    /// Adds tool calls in the format of Hermes models; returns the number of tokens of all calls,
    /// also of those cut by `room`.
    pub(super) fn add_tool_calls(&mut self, calls: &[ToolCall], room: u32) -> u32 {
        let mut whole = 0;
        let mut room = room;
        for (index, call) in calls.iter().enumerate() {
            let start = tool_call_start(call);
            let parts = [
                (start.as_str(), OutputChannel::Marker),
                (call.arguments.as_str(), OutputChannel::Call(index as u16)),
                (TOOL_CALL_END, OutputChannel::Marker),
            ];
            let before = self.len;
            whole += self.add_texts(&parts, room);
            room = room.saturating_sub(self.len - before);
        }
        whole
    }

    /// Adds at most `room` tokens of consecutive texts; returns the number of tokens of all texts.
    pub(super) fn add_texts(&mut self, pieces: &[(&str, OutputChannel)], room: u32) -> u32 {
        let start = self.len;
        let mut whole = 0;
        for (text, channel) in pieces {
            let fragments = self.generator.tokenizer.tokenize_with_text(text);
            whole += fragments.ids.len() as u32;
            let left = room.saturating_sub(self.len - start);
            self.push_own_text(fragments, left, *channel);
        }
        whole
    }

    /// Draws tokens from the request's allowed tokens until one of them ends the output.
    fn add_forced_tokens(
        &mut self,
        AllowedOutputTokens { ending, lasting }: &AllowedOutputTokens,
    ) -> (OutputEndReason, Option<StopReason>) {
        let stops = &self.job.stops;
        let eos = self.generator.tokenizer.eos_token_id().filter(|_| !stops.ignore_eos);
        let mut ids = Vec::new();
        let mut last = None;
        let choices = ending.len() + lasting.len();
        let draws = self.rng.draw_u64_between(0, choices as u64 * 8);
        while (ids.len() as u32) < self.limit {
            let early = (ids.len() as u32) < stops.min_tokens;
            let over = lasting.is_empty() || ids.len() as u64 >= draws;
            if !early && over && !ending.is_empty() {
                last = ending
                    .get(self.rng.draw_u64_between(0, ending.len() as u64 - 1) as usize)
                    .copied();
                break;
            }
            if lasting.is_empty() {
                self.add_sentences(stops.min_tokens.min(self.limit), OutputChannel::Content);
                ids.clear();
                if self.len >= self.limit {
                    return (OutputEndReason::Length, None);
                }
                last = ending.first().copied();
                break;
            }
            ids.push(lasting[self.rng.draw_u64_between(0, lasting.len() as u64 - 1) as usize]);
        }
        let room = self.limit - self.len;
        let mut detokenizer = self.generator.tokenizer.detokenizer(self.job.special_tokens());
        let decode = |text: &mut String, id| text.push_str(&detokenizer.decode_token(id));
        self.push_own_text(token_fragments(&ids, decode), room, OutputChannel::Content);
        let Some(last) = last else {
            return (OutputEndReason::Length, None);
        };
        self.push_silent_token(last);
        (OutputEndReason::Stop, (Some(last) != eos).then_some(StopReason::Token(last)))
    }
}

/// Returns tokens whose texts are their ids, separated by commas.
fn id_list_fragments(ids: &[u32]) -> TokenFragments {
    token_fragments(ids, |text, id| {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&id.to_string());
    })
}

/// Returns the tokens `ids`, each with the text that `append` writes for it.
fn token_fragments(ids: &[u32], mut append: impl FnMut(&mut String, u32)) -> TokenFragments {
    let mut text = String::new();
    let ends = ids.iter().map(|id| {
        append(&mut text, *id);
        text.len() as u32
    });
    let ends = ends.collect();
    TokenFragments { ids: ids.to_vec(), ends, text }
}
