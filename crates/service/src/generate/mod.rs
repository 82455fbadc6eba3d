//! Generates the content of replies: turns a request into a finished [`ReplyScript`] of tokens and
//! texts.

pub mod hermes;
mod length;
mod recorded;
pub mod request;
mod script;
mod scripted;
mod stop;
pub mod tools;

use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;

pub use recorded::RecordedReplies;
pub use script::{
    EMPTY_CONTEXT_HASH, OutputChannel, OutputEndReason, OutputToken, PlannedOutputEnd, ReplyScript,
    ReplyScriptCursor, SentenceCorpus, StopReason, TokenTexts, extend_context_hash,
};

use crate::generate::request::{
    AllowedOutputTokens, ReplyContentKind, ReplyGeneratorInput, StopConditions,
};
use script::{CorpusSentenceIndex, ReplyTokenRun, ReplyTokenSource};
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, request_rng};
use vllm_sim_tokenizer::{SpecialTokenHandling, TokenFragments, Tokenizer};

/// The source of a reply's free text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplyTextMode {
    /// Free text consists of random sentences of the built-in corpus.
    #[default]
    Random,
    /// Free text is the client's last message, repeated.
    Echo,
    /// Free text is exclamation marks, as of a server that only encodes media (llm-d's
    /// `--mm-encoder-only`).
    Encoder,
}

/// Minimum length of the reasoning in a reply whose end the output limit cuts off, in tokens,
/// including the end marker of the reasoning.
const MIN_CUT_REASONING_TOKENS: u32 = 12;

/// Generates the content of replies: a script of tokens and texts per request.
#[derive(Debug)]
pub struct ReplyGenerator {
    mode: ReplyTextMode,
    seed: u64,
    tokenizer: Arc<Tokenizer>,
    corpus: Arc<SentenceCorpus>,
    reasoning_end: Vec<u32>,
    /// Whether replies may have reasoning, which a parser of the server separates.
    has_reasoning: bool,
    /// Whether the reasoning of recorded replies gets the end marker too, because the client parses
    /// tokens itself.
    marks_recorded: bool,
    whole_echo: bool,
    mute: bool,
    recordings: Option<RecordedReplies>,
}

#[derive(Default)]
struct ScriptBuilder {
    own: Vec<TokenFragments>,
    sentences: Vec<u16>,
    runs: Vec<ReplyTokenRun>,
    len: u32,
    times: Option<Arc<[Duration]>>,
}

impl ScriptBuilder {
    fn push_run(&mut self, source: ReplyTokenSource, from: u32, to: u32, channel: OutputChannel) {
        if to > from {
            self.runs.push(ReplyTokenRun { source, from, to, channel });
            self.len += to - from;
        }
    }

    /// Adds to the script at most `room` tokens of a text outside the corpus.
    fn push_own_text(&mut self, fragments: TokenFragments, room: u32, channel: OutputChannel) {
        let tokens = (fragments.ids.len() as u32).min(room);
        let Ok(index) = u16::try_from(self.own.len()) else {
            return;
        };
        self.own.push(fragments);
        self.push_run(ReplyTokenSource::Own(index), 0, tokens, channel);
    }
}

impl ReplyGenerator {
    /// Creates a generator of replies for a tokenizer; `mode` selects the source of free text.
    pub fn new(mode: ReplyTextMode, seed: u64, tokenizer: Arc<Tokenizer>) -> Self {
        let corpus = Arc::new(SentenceCorpus::new(tokenizer.clone()));
        let reasoning_end = vec![tokenizer.token_id_of_entry("</think>").unwrap_or_default()];
        Self {
            mode,
            seed,
            tokenizer,
            corpus,
            reasoning_end,
            has_reasoning: false,
            marks_recorded: false,
            recordings: None,
            whole_echo: false,
            mute: false,
        }
    }

    /// Sets whether tokens get no text, as on a server without a tokenizer.
    #[must_use]
    pub fn with_empty_token_texts(mut self, empty_texts: bool) -> Self {
        self.mute = empty_texts;
        self
    }

    /// Sets whether a reply in echo mode ignores its token limit, as in llm-d-inference-sim.
    ///
    /// The echoed reply still ends with the finish reason `length`.
    #[must_use]
    pub fn with_unlimited_echo(mut self, unlimited: bool) -> Self {
        self.whole_echo = unlimited;
        self
    }

    /// Enables reasoning in generated replies.
    #[must_use]
    pub fn with_reasoning_in_replies(mut self) -> Self {
        self.has_reasoning = true;
        self
    }

    /// Sets the token ids that end reasoning, also in recorded replies; for clients that parse
    /// tokens themselves.
    #[must_use]
    pub fn with_reasoning_end_ids(mut self, ids: Vec<u32>) -> Self {
        self.reasoning_end = ids;
        self.marks_recorded = true;
        self
    }

    /// Returns the tokenizer of the model.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Generates the content of the reply to a request.
    pub fn generate_script(&self, request: &ReplyGeneratorInput) -> ReplyScript {
        let mut rng = request_rng(self.seed, request.key, RandomStreamPurpose::Content);
        let mut draft = ScriptBuilder {
            own: Vec::new(),
            sentences: Vec::with_capacity(4),
            runs: Vec::with_capacity(2),
            len: 0,
            times: None,
        };
        let forced = request.bias.allowed_output_tokens(|id| self.ends_output(id, request.stops));
        let mut written = Vec::new();
        let (reason, stop) = match (&request.form, forced) {
            (ReplyContentKind::Text, Some(forced)) => {
                self.add_forced_tokens(request, forced, &mut draft, &mut rng)
            }
            (ReplyContentKind::Text, None) => self.add_free_text(request, &mut draft, &mut rng),
            (ReplyContentKind::Exact(text), _) => {
                let room = self.add_leading_reasoning(request, &mut draft, &mut rng);
                let whole = self.add_texts(&[(text, OutputChannel::Content)], room, &mut draft);
                (self.end_reply(whole, room, request, &mut draft), None)
            }
            (ReplyContentKind::Parsed(text), _) => {
                let room = self.add_leading_reasoning(request, &mut draft, &mut rng);
                let (pieces, names) = hermes::split_output_channels(text)
                    .unwrap_or_else(|| (vec![(text, OutputChannel::Content)], Vec::new()));
                written = names;
                let whole = self.add_texts(&pieces, room, &mut draft);
                (self.end_reply(whole, room, request, &mut draft), None)
            }
            (ReplyContentKind::Scripted(reply), _) => {
                (self.add_scripted_reply(reply, request, &mut draft), None)
            }
            (ReplyContentKind::Calls(calls), _) => {
                let room = self.add_leading_reasoning(request, &mut draft, &mut rng);
                let whole = self.add_tool_calls(calls, room, &mut draft);
                (self.end_reply(whole, room, request, &mut draft), None)
            }
        };
        let calls = match &request.form {
            ReplyContentKind::Calls(calls) => calls.iter().map(|c| c.name.clone()).collect(),
            ReplyContentKind::Scripted(reply) => {
                reply.calls.iter().map(|c| c.name.clone()).collect()
            }
            _ => written,
        };
        let mut script = ReplyScript {
            corpus: self.corpus.clone(),
            own: draft.own,
            sentences: draft.sentences,
            runs: draft.runs,
            len: draft.len,
            finish: PlannedOutputEnd { reason, stop },
            calls,
            times: draft.times,
            prompt: EMPTY_CONTEXT_HASH,
        };
        stop::apply_stop_conditions(&mut script, request, &self.tokenizer);
        if self.mute {
            script.remove_token_texts();
        }
        script
    }

    /// Ends a reply: adds the end-of-sequence token if the output limit has room for it after the
    /// `whole` tokens of the complete text.
    ///
    /// Adds the end-of-sequence token if there is room; otherwise the limit ends the text.
    fn end_reply(
        &self,
        whole: u32,
        room: u32,
        request: &ReplyGeneratorInput,
        draft: &mut ScriptBuilder,
    ) -> OutputEndReason {
        if whole >= room && !(whole == room && self.tokenizer.eos_token_id().is_none()) {
            return OutputEndReason::Length;
        }
        match self.tokenizer.eos_token_id() {
            Some(eos) if draft.len < request.limit => {
                draft.push_run(ReplyTokenSource::Silent(eos), 0, 1, OutputChannel::Marker);
            }
            _ => {}
        }
        if draft.len == 0 {
            draft.push_run(ReplyTokenSource::Silent(0), 0, 1, OutputChannel::Marker);
        }
        OutputEndReason::Stop
    }

    /// Returns the length of a reply's free text, in tokens.
    fn draw_length(&self, request: &ReplyGeneratorInput) -> u32 {
        if request.stops.ignore_eos {
            return request.limit;
        }
        if let Some(audio) = request.prompt.audio {
            // Includes the end-of-sequence token.
            return audio.tokens.saturating_add(1).min(request.limit);
        }
        // A separate random stream, so that the limit does not change the text.
        let rng = &mut request_rng(self.seed, request.key, RandomStreamPurpose::Length);
        let drawn = if request.limited {
            length::draw_reply_length_up_to_max(request.limit, rng)
        } else {
            length::draw_reply_length_without_max(request.limit, rng)
        };
        // At least one token besides the end-of-sequence token, which has no text.
        drawn.max(2).max(request.stops.min_tokens).min(request.limit)
    }

    fn add_free_text(
        &self,
        request: &ReplyGeneratorInput,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> (OutputEndReason, Option<StopReason>) {
        match self.mode {
            ReplyTextMode::Random => {}
            ReplyTextMode::Echo => return self.add_echo(request, draft, rng),
            ReplyTextMode::Encoder => {
                let wanted = if request.limited { request.limit } else { 1 };
                draft.push_own_text(
                    self.tokenizer.tokenize_with_text("!"),
                    1,
                    OutputChannel::Content,
                );
                for _ in 1..wanted {
                    draft.push_run(ReplyTokenSource::Own(0), 0, 1, OutputChannel::Content);
                }
                return (OutputEndReason::Length, None);
            }
        }
        if let Some(recordings) = &self.recordings
            && let Some(reason) = self.add_recorded_reply(recordings, request, draft, rng)
        {
            return (reason, None);
        }
        // Leaves room for text before the end-of-sequence token.
        let mut target = self.draw_length(request).max(request.limit.min(2));
        if request.reasoning.is_some() && request.limit <= MIN_CUT_REASONING_TOKENS {
            // The limit is too low for reasoning to end.
            target = request.limit;
        }
        let full = target == request.limit;
        let eos = self.tokenizer.eos_token_id().filter(|_| !full);
        let words = target - u32::from(eos.is_some());
        self.add_reasoning_share(request, words, draft, rng);
        self.add_sentences(words, draft, rng, OutputChannel::Content, request);
        if let Some(eos) = eos {
            draft.push_run(ReplyTokenSource::Silent(eos), 0, 1, OutputChannel::Marker);
        }
        (if full { OutputEndReason::Length } else { OutputEndReason::Stop }, None)
    }

    /// Repeats the client's text, and adds random sentences if the reply must not end after this
    /// text.
    fn add_echo(
        &self,
        request: &ReplyGeneratorInput,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> (OutputEndReason, Option<StopReason>) {
        let room = self.add_leading_reasoning(request, draft, rng);
        let fragments = match &request.prompt.echo_ids {
            Some(ids) => id_list_fragments(ids),
            None => self.tokenizer.tokenize_with_text(&request.prompt.echo),
        };
        let whole = fragments.ids.len() as u32;
        let room = if self.whole_echo { room.max(whole) } else { room };
        draft.push_own_text(fragments, room, OutputChannel::Content);
        let least = if self.whole_echo {
            // A whole echo adds nothing.
            0
        } else if request.stops.ignore_eos {
            request.limit
        } else {
            request.stops.min_tokens
        };
        if draft.len < least.min(request.limit) {
            let lacking = least.min(request.limit) - draft.len;
            self.add_sentences(draft.len + lacking, draft, rng, OutputChannel::Content, request);
            let reason = if draft.len >= request.limit {
                OutputEndReason::Length
            } else {
                OutputEndReason::Stop
            };
            return (reason, None);
        }
        if request.limited && draft.len >= request.limit {
            return (OutputEndReason::Length, None);
        }
        if request.prompt.echo_ids.is_some() && draft.len > 0 {
            // An echo of token ids adds no end-of-sequence token.
            return (OutputEndReason::Stop, None);
        }
        (self.end_reply(whole, room, request, draft), None)
    }

    /// Adds sentences of the corpus until the script has `until` tokens.
    fn add_sentences(
        &self,
        until: u32,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
        channel: OutputChannel,
        request: &ReplyGeneratorInput,
    ) {
        let first = draft.runs.last().is_none_or(|run| run.channel != channel);
        let start = draft.sentences.len() as u32;
        let from = draft.len;
        let mut len = from;
        let mut tries = 0;
        while len < until {
            let index = rng.draw_u64_between(0, self.corpus.len() as u64 - 1) as u16;
            let first = first && len == from;
            let fragments = self.corpus.sentence_fragments(CorpusSentenceIndex { index, first });
            tries += 1;
            // Skips sentences whose first token has no complete character.
            let mute = first && fragments.ends.first() == Some(&0);
            let number = 2 * index as usize + usize::from(first);
            let bans =
                || request.bias.bans_corpus_sentence(number, 2 * self.corpus.len(), fragments);
            if tries < 1000 && (mute || bans()) {
                continue;
            }
            if fragments.ids.is_empty() {
                break;
            }
            draft.sentences.push(index);
            len = (len + fragments.ids.len() as u32).min(until);
        }
        let tokens = len - from;
        draft.push_run(ReplyTokenSource::Sentences { start, first }, 0, tokens, channel);
        // A tokenizer may encode a sentence to no tokens.
        while draft.len < until {
            draft.push_run(ReplyTokenSource::Silent(0), 0, 1, channel);
        }
    }

    /// Adds reasoning in front of a reply whose length does not include the reasoning; returns the
    /// number of tokens left for the reply.
    fn add_leading_reasoning(
        &self,
        request: &ReplyGeneratorInput,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> u32 {
        if let Some(share) = request.reasoning {
            let tokens = (length::draw_reply_length_without_max(request.limit, rng) as f64
                * share
                * 2.0) as u32;
            self.add_reasoning(tokens.clamp(1, request.limit), draft, rng, request);
        }
        request.limit.saturating_sub(draft.len)
    }

    /// Adds reasoning whose length is the requested fraction of a reply of `words` tokens.
    fn add_reasoning_share(
        &self,
        request: &ReplyGeneratorInput,
        words: u32,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) {
        let Some(share) = request.reasoning else {
            return;
        };
        let thought = (f64::from(words) * share) as u32;
        // Under a limit that cuts the reply, the reasoning gets its minimum length first.
        let cut = words == request.limit;
        let thought = if cut { thought.max(MIN_CUT_REASONING_TOKENS.min(words)) } else { thought };
        self.add_reasoning(thought, draft, rng, request);
    }

    /// Adds reasoning of `tokens` tokens, start and end markers included.
    ///
    /// The output limit or the client's thinking budget may cut the reasoning; the budget excludes
    /// the markers.
    fn add_reasoning(
        &self,
        tokens: u32,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
        request: &ReplyGeneratorInput,
    ) {
        if tokens == 0 {
            return;
        }
        let (start, end) = (request.prompt.reasoning_start_ids(), &self.reasoning_end);
        let opening = start.len() as u32;
        let marks = opening + end.len() as u32;
        let least = tokens.max(marks + 1);
        let cut = tokens >= request.limit || least > request.limit;
        let words = match cut {
            true => least.min(request.limit).saturating_sub(opening),
            false => least - marks,
        };
        let budget = request.thinking_budget.unwrap_or(u32::MAX);
        let whole = !cut || budget < words;
        push_marker_tokens(start, request, draft);
        let until = draft.len + words.min(budget);
        self.add_sentences(until, draft, rng, OutputChannel::Reasoning, request);
        if whole {
            push_marker_tokens(end, request, draft);
        }
    }

    /// Adds tool calls in the format of Hermes models; returns the number of tokens of all calls,
    /// also of those cut by `room`.
    fn add_tool_calls(
        &self,
        calls: &[tools::ToolCall],
        room: u32,
        draft: &mut ScriptBuilder,
    ) -> u32 {
        let mut whole = 0;
        let mut room = room;
        for (index, call) in calls.iter().enumerate() {
            let open = format!("<tool_call>\n{{\"name\": \"{}\", \"arguments\": ", call.name);
            let parts = [
                (open.as_str(), OutputChannel::Marker),
                (call.arguments.as_str(), OutputChannel::Call(index as u16)),
                ("}\n</tool_call>", OutputChannel::Marker),
            ];
            let before = draft.len;
            whole += self.add_texts(&parts, room, draft);
            room = room.saturating_sub(draft.len - before);
        }
        whole
    }

    /// Adds at most `room` tokens of consecutive texts; returns the number of tokens of all texts.
    fn add_texts(
        &self,
        pieces: &[(&str, OutputChannel)],
        room: u32,
        draft: &mut ScriptBuilder,
    ) -> u32 {
        let start = draft.len;
        let mut whole = 0;
        for (text, channel) in pieces {
            let fragments = self.tokenizer.tokenize_with_text(text);
            whole += fragments.ids.len() as u32;
            let left = room.saturating_sub(draft.len - start);
            draft.push_own_text(fragments, left, *channel);
        }
        whole
    }

    fn ends_output(&self, id: u32, stops: &StopConditions) -> bool {
        let tokenizer = &self.tokenizer;
        let own = Some(id) == tokenizer.eos_token_id() || tokenizer.stop_token_ids().contains(&id);
        own && !stops.ignore_eos || stops.ids.contains(id)
    }

    /// Draws tokens from the request's allowed tokens until one of them ends the output.
    fn add_forced_tokens(
        &self,
        request: &ReplyGeneratorInput,
        AllowedOutputTokens { ending, lasting }: &AllowedOutputTokens,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> (OutputEndReason, Option<StopReason>) {
        let stops = request.stops;
        let eos = self.tokenizer.eos_token_id().filter(|_| !stops.ignore_eos);
        let mut ids = Vec::new();
        let mut last = None;
        let choices = ending.len() + lasting.len();
        let draws = rng.draw_u64_between(0, choices as u64 * 8);
        while (ids.len() as u32) < request.limit {
            let early = (ids.len() as u32) < stops.min_tokens;
            let over = lasting.is_empty() || ids.len() as u64 >= draws;
            if !early && over && !ending.is_empty() {
                last =
                    ending.get(rng.draw_u64_between(0, ending.len() as u64 - 1) as usize).copied();
                break;
            }
            if lasting.is_empty() {
                self.add_sentences(
                    stops.min_tokens.min(request.limit),
                    draft,
                    rng,
                    OutputChannel::Content,
                    request,
                );
                ids.clear();
                if draft.len >= request.limit {
                    return (OutputEndReason::Length, None);
                }
                last = ending.first().copied();
                break;
            }
            ids.push(lasting[rng.draw_u64_between(0, lasting.len() as u64 - 1) as usize]);
        }
        let room = request.limit - draft.len;
        draft.push_own_text(
            self.visible_fragments(&ids, request.special_tokens),
            room,
            OutputChannel::Content,
        );
        let Some(last) = last else {
            return (OutputEndReason::Length, None);
        };
        draft.push_run(ReplyTokenSource::Silent(last), 0, 1, OutputChannel::Marker);
        (OutputEndReason::Stop, (Some(last) != eos).then_some(StopReason::Token(last)))
    }

    fn visible_fragments(&self, ids: &[u32], special: SpecialTokenHandling) -> TokenFragments {
        let mut detokenizer = self.tokenizer.detokenizer(special);
        token_fragments(ids, |text, id| text.push_str(&detokenizer.decode_token(id)))
    }
}

/// Adds the tokens of a marker, as many as the output limit allows.
fn push_marker_tokens(ids: &[u32], request: &ReplyGeneratorInput, draft: &mut ScriptBuilder) {
    let room = request.limit.saturating_sub(draft.len) as usize;
    for id in ids.iter().take(room) {
        draft.push_run(ReplyTokenSource::Silent(*id), 0, 1, OutputChannel::Marker);
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
