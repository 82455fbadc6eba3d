//! Generates the content of replies: turns a request into a finished [`Script`] of tokens and
//! texts.

mod corpus;
pub mod hermes;
mod length;
mod recorded;
pub mod request;
mod script;
mod scripted;
mod steering;
mod stop;
pub mod tools;

use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;

pub use corpus::Corpus;
pub use recorded::Recordings;
pub use script::{
    CONTEXT_START, Channel, Cursor, Finish, Reason, Script, StopReason, Token, TokenTexts,
    context_after,
};

use crate::generate::request::{GenerateRequest, OutputForm, StopConditions};
use corpus::CorpusSentence;
use script::{TokenRun, TokenSource};
use steering::ForcedTokens;
use vllm_sim_random::{Draw, Purpose, stream};
use vllm_sim_tokenizer::{Fragments, SpecialTokens, Tokenizer};

/// The source of a reply's free text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextMode {
    /// Random sentences of the built-in corpus.
    #[default]
    Random,
    /// The client's last message, repeated.
    Echo,
    /// Exclamation marks, like a server that only encodes media (llm-d's `--mm-encoder-only`).
    Encoder,
}

/// Length of the shortest reasoning that a limit may cut, end marker included, in tokens.
const MIN_CUT_REASONING: u32 = 12;

/// Generates the content of replies: a script of tokens and texts per request.
#[derive(Debug)]
pub struct Generator {
    mode: TextMode,
    seed: u64,
    tokenizer: Arc<Tokenizer>,
    corpus: Arc<Corpus>,
    reasoning_end: Vec<u32>,
    /// Whether recorded reasoning gets the end marker too, because the client parses tokens itself.
    marks_recorded: bool,
    whole_echo: bool,
    mute: bool,
    recordings: Option<Recordings>,
}

#[derive(Default)]
struct ScriptBuilder {
    own: Vec<Fragments>,
    sentences: Vec<u16>,
    runs: Vec<TokenRun>,
    len: u32,
    times: Option<Arc<[Duration]>>,
}

impl ScriptBuilder {
    fn push(&mut self, source: TokenSource, from: u32, to: u32, channel: Channel) {
        if to > from {
            self.runs.push(TokenRun {
                source,
                from,
                to,
                channel,
            });
            self.len += to - from;
        }
    }

    /// Adds at most `room` tokens of a text that is not in the corpus to the script.
    fn push_own(&mut self, fragments: Fragments, room: u32, channel: Channel) {
        let tokens = (fragments.ids.len() as u32).min(room);
        let Ok(index) = u16::try_from(self.own.len()) else {
            return;
        };
        self.own.push(fragments);
        self.push(TokenSource::Own(index), 0, tokens, channel);
    }
}

impl Generator {
    /// Creates a generator of replies for a tokenizer; `mode` selects the source of free text.
    pub fn new(mode: TextMode, seed: u64, tokenizer: Arc<Tokenizer>) -> Self {
        let corpus = Arc::new(Corpus::new(tokenizer.clone()));
        let reasoning_end = vec![tokenizer.id_of("</think>").unwrap_or_default()];
        Self {
            mode,
            seed,
            tokenizer,
            corpus,
            reasoning_end,
            marks_recorded: false,
            recordings: None,
            whole_echo: false,
            mute: false,
        }
    }

    /// Sets whether tokens get no text, as on a server without a tokenizer.
    #[must_use]
    pub fn with_mute(mut self, mute: bool) -> Self {
        self.mute = mute;
        self
    }

    /// Sets whether a reply in echo mode ignores its token limit, as in llm-d-inference-sim.
    ///
    /// The echoed reply still ends with the finish reason `length`.
    #[must_use]
    pub fn with_whole_echo(mut self, whole: bool) -> Self {
        self.whole_echo = whole;
        self
    }

    /// Sets the token ids that end reasoning, also in recorded replies; for clients that parse
    /// tokens themselves.
    #[must_use]
    pub fn with_reasoning_end(mut self, ids: Vec<u32>) -> Self {
        self.reasoning_end = ids;
        self.marks_recorded = true;
        self
    }

    /// Returns the tokenizer of the model.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Generates the content of the reply to a request.
    pub fn script(&self, request: &GenerateRequest) -> Script {
        let mut rng = stream(self.seed, request.key, Purpose::Content);
        let mut draft = ScriptBuilder {
            own: Vec::new(),
            sentences: Vec::with_capacity(4),
            runs: Vec::with_capacity(2),
            len: 0,
            times: None,
        };
        let forced = request.bias.forced(|id| self.ends(id, request.stops));
        let mut written = Vec::new();
        let (reason, stop) = match (&request.form, forced) {
            (OutputForm::Text, Some(forced)) => {
                self.forced_tokens(request, forced, &mut draft, &mut rng)
            }
            (OutputForm::Text, None) => self.text(request, &mut draft, &mut rng),
            (OutputForm::Exact(text), _) => {
                let room = self.think(request, &mut draft, &mut rng);
                let whole = self.pieces(&[(text, Channel::Content)], room, &mut draft);
                (self.end(whole, room, request, &mut draft), None)
            }
            (OutputForm::Parsed(text), _) => {
                let room = self.think(request, &mut draft, &mut rng);
                let (pieces, names) = hermes::pieces(text)
                    .unwrap_or_else(|| (vec![(text, Channel::Content)], Vec::new()));
                written = names;
                let whole = self.pieces(&pieces, room, &mut draft);
                (self.end(whole, room, request, &mut draft), None)
            }
            (OutputForm::Scripted(reply), _) => (self.scripted(reply, request, &mut draft), None),
            (OutputForm::Calls(calls), _) => {
                let room = self.think(request, &mut draft, &mut rng);
                let whole = self.calls(calls, room, &mut draft);
                (self.end(whole, room, request, &mut draft), None)
            }
        };
        let calls = match &request.form {
            OutputForm::Calls(calls) => calls.iter().map(|c| c.name.clone()).collect(),
            OutputForm::Scripted(reply) => reply.calls.iter().map(|c| c.name.clone()).collect(),
            _ => written,
        };
        let mut script = Script {
            corpus: self.corpus.clone(),
            own: draft.own,
            sentences: draft.sentences,
            runs: draft.runs,
            len: draft.len,
            finish: Finish { reason, stop },
            calls,
            times: draft.times,
            prompt: CONTEXT_START,
        };
        stop::apply(&mut script, request, &self.tokenizer);
        if self.mute {
            script.remove_text();
        }
        script
    }

    /// Ends a text of `whole` tokens for which the limit had `room`.
    ///
    /// Adds the end-of-sequence token if there is room; otherwise the limit ends the text.
    fn end(
        &self,
        whole: u32,
        room: u32,
        request: &GenerateRequest,
        draft: &mut ScriptBuilder,
    ) -> Reason {
        if whole >= room && !(whole == room && self.tokenizer.eos().is_none()) {
            return Reason::Length;
        }
        match self.tokenizer.eos() {
            Some(eos) if draft.len < request.limit => {
                draft.push(TokenSource::Silent(eos), 0, 1, Channel::Marker);
            }
            _ => {}
        }
        if draft.len == 0 {
            draft.push(TokenSource::Silent(0), 0, 1, Channel::Marker);
        }
        Reason::Stop
    }

    /// Returns the length of a reply's free text, in tokens.
    fn length(&self, request: &GenerateRequest) -> u32 {
        if request.stops.ignore_eos {
            return request.limit;
        }
        if let Some(length) = request.length {
            // Includes the end-of-sequence token.
            return length.saturating_add(1).min(request.limit);
        }
        // A separate random stream, so that the limit does not change the text.
        let rng = &mut stream(self.seed, request.key, Purpose::Length);
        let drawn = if request.limited {
            length::limited(request.limit, rng)
        } else {
            length::free(request.limit, rng)
        };
        // At least one token besides the end-of-sequence token, which has no text.
        drawn
            .max(2)
            .max(request.stops.min_tokens)
            .min(request.limit)
    }

    fn text(
        &self,
        request: &GenerateRequest,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> (Reason, Option<StopReason>) {
        match self.mode {
            TextMode::Random => {}
            TextMode::Echo => return self.echo(request, draft, rng),
            TextMode::Encoder => {
                let wanted = if request.limited { request.limit } else { 1 };
                draft.push_own(self.tokenizer.fragments("!"), 1, Channel::Content);
                for _ in 1..wanted {
                    draft.push(TokenSource::Own(0), 0, 1, Channel::Content);
                }
                return (Reason::Length, None);
            }
        }
        if let Some(reason) = self.recorded(request, draft, rng) {
            return (reason, None);
        }
        // Leaves room for text before the end-of-sequence token.
        let mut target = self.length(request).max(request.limit.min(2));
        if request.reasoning.is_some() && request.limit <= MIN_CUT_REASONING {
            // The limit is too low for reasoning to end.
            target = request.limit;
        }
        let full = target == request.limit;
        let eos = self.tokenizer.eos().filter(|_| !full);
        let words = target - u32::from(eos.is_some());
        self.think_within(request, words, draft, rng);
        self.sentences(words, draft, rng, Channel::Content, request);
        if let Some(eos) = eos {
            draft.push(TokenSource::Silent(eos), 0, 1, Channel::Marker);
        }
        (if full { Reason::Length } else { Reason::Stop }, None)
    }

    /// Repeats the client's text, and adds random sentences if the reply must not end there.
    fn echo(
        &self,
        request: &GenerateRequest,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> (Reason, Option<StopReason>) {
        let room = self.think(request, draft, rng);
        let fragments = match request.echo_ids {
            Some(ids) => listed(ids),
            None => self.tokenizer.fragments(request.echo),
        };
        let whole = fragments.ids.len() as u32;
        let room = if self.whole_echo {
            room.max(whole)
        } else {
            room
        };
        draft.push_own(fragments, room, Channel::Content);
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
            self.sentences(draft.len + lacking, draft, rng, Channel::Content, request);
            let reason = if draft.len >= request.limit {
                Reason::Length
            } else {
                Reason::Stop
            };
            return (reason, None);
        }
        if request.limited && draft.len >= request.limit {
            return (Reason::Length, None);
        }
        if request.echo_ids.is_some() && draft.len > 0 {
            // An echo of token ids adds no end-of-sequence token.
            return (Reason::Stop, None);
        }
        (self.end(whole, room, request, draft), None)
    }

    /// Adds sentences of the corpus until the script has `until` tokens.
    fn sentences(
        &self,
        until: u32,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
        channel: Channel,
        request: &GenerateRequest,
    ) {
        let first = draft.runs.last().is_none_or(|run| run.channel != channel);
        let start = draft.sentences.len() as u32;
        let from = draft.len;
        let mut len = from;
        let mut tries = 0;
        while len < until {
            let index = rng.between(0, self.corpus.len() as u64 - 1) as u16;
            let first = first && len == from;
            let fragments = self.corpus.fragments(CorpusSentence { index, first });
            tries += 1;
            // Skips sentences whose first token has no complete character.
            let mute = first && fragments.ends.first() == Some(&0);
            let number = 2 * index as usize + usize::from(first);
            let bans = || request.bias.bans(number, 2 * self.corpus.len(), fragments);
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
        draft.push(TokenSource::Sentences { start, first }, 0, tokens, channel);
        // A tokenizer may encode a sentence to no tokens.
        while draft.len < until {
            draft.push(TokenSource::Silent(0), 0, 1, channel);
        }
    }

    /// Adds reasoning before a reply whose length does not include it; returns the number of tokens
    /// left for the reply.
    fn think(
        &self,
        request: &GenerateRequest,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> u32 {
        if let Some(share) = request.reasoning {
            let tokens = (length::free(request.limit, rng) as f64 * share * 2.0) as u32;
            self.reason(tokens.clamp(1, request.limit), draft, rng, request);
        }
        request.limit.saturating_sub(draft.len)
    }

    /// Adds reasoning as a fraction of a reply of `words` tokens.
    fn think_within(
        &self,
        request: &GenerateRequest,
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
        let thought = if cut {
            thought.max(MIN_CUT_REASONING.min(words))
        } else {
            thought
        };
        self.reason(thought, draft, rng, request);
    }

    /// Adds reasoning of `tokens` tokens, start and end markers included.
    ///
    /// The output limit or the client's thinking budget may cut the reasoning; the budget excludes
    /// the markers.
    fn reason(
        &self,
        tokens: u32,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
        request: &GenerateRequest,
    ) {
        if tokens == 0 {
            return;
        }
        let (start, end) = (request.reasoning_start, &self.reasoning_end);
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
        push_marks(start, request, draft);
        let until = draft.len + words.min(budget);
        self.sentences(until, draft, rng, Channel::Reasoning, request);
        if whole {
            push_marks(end, request, draft);
        }
    }

    /// Adds tool calls in the format of Hermes models; returns the number of tokens of all calls,
    /// also of those cut by `room`.
    fn calls(&self, calls: &[tools::ToolCall], room: u32, draft: &mut ScriptBuilder) -> u32 {
        let mut whole = 0;
        let mut room = room;
        for (index, call) in calls.iter().enumerate() {
            let open = format!(
                "<tool_call>\n{{\"name\": \"{}\", \"arguments\": ",
                call.name
            );
            let parts = [
                (open.as_str(), Channel::Marker),
                (call.arguments.as_str(), Channel::Call(index as u16)),
                ("}\n</tool_call>", Channel::Marker),
            ];
            let before = draft.len;
            whole += self.pieces(&parts, room, draft);
            room = room.saturating_sub(draft.len - before);
        }
        whole
    }

    /// Adds at most `room` tokens of consecutive texts; returns the number of tokens of all texts.
    fn pieces(&self, pieces: &[(&str, Channel)], room: u32, draft: &mut ScriptBuilder) -> u32 {
        let start = draft.len;
        let mut whole = 0;
        for (text, channel) in pieces {
            let fragments = self.tokenizer.fragments(text);
            whole += fragments.ids.len() as u32;
            let left = room.saturating_sub(draft.len - start);
            draft.push_own(fragments, left, *channel);
        }
        whole
    }

    fn ends(&self, id: u32, stops: &StopConditions) -> bool {
        let tokenizer = &self.tokenizer;
        let own = Some(id) == tokenizer.eos() || tokenizer.stop_ids().contains(&id);
        own && !stops.ignore_eos || stops.ids.contains(id)
    }

    /// Draws tokens from the request's allowed tokens until one of them ends the output.
    fn forced_tokens(
        &self,
        request: &GenerateRequest,
        ForcedTokens { ending, lasting }: &ForcedTokens,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> (Reason, Option<StopReason>) {
        let stops = request.stops;
        let eos = self.tokenizer.eos().filter(|_| !stops.ignore_eos);
        let mut ids = Vec::new();
        let mut last = None;
        let choices = ending.len() + lasting.len();
        let draws = rng.between(0, choices as u64 * 8);
        while (ids.len() as u32) < request.limit {
            let early = (ids.len() as u32) < stops.min_tokens;
            let over = lasting.is_empty() || ids.len() as u64 >= draws;
            if !early && over && !ending.is_empty() {
                last = ending
                    .get(rng.between(0, ending.len() as u64 - 1) as usize)
                    .copied();
                break;
            }
            if lasting.is_empty() {
                self.sentences(
                    stops.min_tokens.min(request.limit),
                    draft,
                    rng,
                    Channel::Content,
                    request,
                );
                ids.clear();
                if draft.len >= request.limit {
                    return (Reason::Length, None);
                }
                last = ending.first().copied();
                break;
            }
            ids.push(lasting[rng.between(0, lasting.len() as u64 - 1) as usize]);
        }
        let room = request.limit - draft.len;
        draft.push_own(
            self.visible(&ids, request.special_tokens),
            room,
            Channel::Content,
        );
        let Some(last) = last else {
            return (Reason::Length, None);
        };
        draft.push(TokenSource::Silent(last), 0, 1, Channel::Marker);
        (
            Reason::Stop,
            (Some(last) != eos).then_some(StopReason::Token(last)),
        )
    }

    fn visible(&self, ids: &[u32], special: SpecialTokens) -> Fragments {
        let mut detokenizer = self.tokenizer.detokenizer(special);
        fragments(ids, |text, id| text.push_str(&detokenizer.push(id)))
    }
}

/// Adds the tokens of a marker, as many as the output limit allows.
fn push_marks(ids: &[u32], request: &GenerateRequest, draft: &mut ScriptBuilder) {
    let room = request.limit.saturating_sub(draft.len) as usize;
    for id in ids.iter().take(room) {
        draft.push(TokenSource::Silent(*id), 0, 1, Channel::Marker);
    }
}

/// Returns tokens whose texts are their ids, separated by commas.
fn listed(ids: &[u32]) -> Fragments {
    fragments(ids, |text, id| {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&id.to_string());
    })
}

/// Returns the tokens `ids`, each with the text that `append` writes for it.
fn fragments(ids: &[u32], mut append: impl FnMut(&mut String, u32)) -> Fragments {
    let mut text = String::new();
    let ends = ids.iter().map(|id| {
        append(&mut text, *id);
        text.len() as u32
    });
    let ends = ends.collect();
    Fragments {
        ids: ids.to_vec(),
        ends,
        text,
    }
}
