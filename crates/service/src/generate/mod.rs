//! What is said: a brief in, a finished [`Script`] out.

mod corpus;
pub mod hermes;
mod length;
mod recorded;
pub mod request;
mod script;
mod stop;
pub mod tools;

use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;

pub use corpus::Corpus;
pub use recorded::Recordings;
pub use script::{Channel, Cursor, Finish, Reason, Script, StopReason, Token};

use crate::generate::request::{Form, GenerateRequest};
use corpus::Line;
use script::{Run, Source};
use vllm_sim_random::{Draw, Purpose, stream};
use vllm_sim_tokenizer::{Fragments, Tokenizer};

/// Where free text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Sentences at random.
    #[default]
    Random,
    /// The client's own words.
    Echo,
    /// Exclamation marks: what a server says that only encodes media (llm-d's
    /// `--mm-encoder-only`).
    Encoder,
}

/// A logit bias from which on the biased token is the only one ever chosen.
const DECISIVE_BIAS: f64 = 50.0;
/// A logit bias below which a token never appears.
const BANNING_BIAS: f64 = -50.0;

/// Tokens of the shortest thought that a limit may cut, end marker included.
const SHORTEST_THOUGHT: u32 = 12;

/// Turns briefs into scripts.
#[derive(Debug)]
pub struct Generator {
    mode: Mode,
    seed: u64,
    tokenizer: Arc<Tokenizer>,
    corpus: Arc<Corpus>,
    think_end: Option<u32>,
    /// Whether an echo may be longer than its limit.
    whole_echo: bool,
    /// Whether tokens have no text.
    mute: bool,
    recordings: Option<Recordings>,
}

/// A script in the making.
struct Draft {
    own: Vec<Fragments>,
    runs: Vec<Run>,
    len: u32,
    /// When its first tokens come, if that was recorded.
    times: Option<Arc<[Duration]>>,
}

impl Draft {
    fn push(&mut self, source: Source, from: u32, to: u32, channel: Channel) {
        if to > from {
            self.runs.push(Run {
                source,
                from,
                to,
                channel,
            });
            self.len += to - from;
        }
    }

    /// Adds a text of this script's own, at most `room` tokens of it.
    fn push_own(&mut self, fragments: Fragments, room: u32, channel: Channel) {
        let tokens = (fragments.ids.len() as u32).min(room);
        let Ok(index) = u16::try_from(self.own.len()) else {
            return;
        };
        self.own.push(fragments);
        self.push(Source::Own(index), 0, tokens, channel);
    }
}

impl Generator {
    /// A generator of `mode` text in the tokens of `tokenizer`.
    pub fn new(mode: Mode, seed: u64, tokenizer: Arc<Tokenizer>) -> Self {
        let corpus = Arc::new(Corpus::new(tokenizer.clone()));
        let think_end = tokenizer.id_of("</think>");
        Self {
            mode,
            seed,
            tokenizer,
            corpus,
            think_end,
            recordings: None,
            whole_echo: false,
            mute: false,
        }
    }

    /// Gives tokens without text, as a server does that has no tokenizer.
    #[must_use]
    pub fn with_mute(mut self, mute: bool) -> Self {
        self.mute = mute;
        self
    }

    /// Leaves an echo whole however low its token limit is, as llm-d-inference-sim does; it then
    /// still ends by `length`.
    #[must_use]
    pub fn with_whole_echo(mut self, whole: bool) -> Self {
        self.whole_echo = whole;
        self
    }

    /// The tokenizer of its tokens.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Writes the script of a brief.
    pub fn script(&self, brief: &GenerateRequest) -> Script {
        let mut rng = stream(self.seed, brief.key, Purpose::Content);
        let mut draft = Draft {
            own: Vec::new(),
            runs: Vec::new(),
            len: 0,
            times: None,
        };
        let forced = self.forced(brief);
        let mut written = Vec::new();
        let (reason, stop) = match (&brief.form, forced) {
            (Form::Text, Some(forced)) => self.forced_tokens(brief, forced, &mut draft, &mut rng),
            (Form::Text, None) => self.text(brief, &mut draft, &mut rng),
            (Form::Exact(text), _) => {
                let room = self.think(brief, &mut draft, &mut rng);
                let whole = self.pieces(&[(text, Channel::Content)], room, &mut draft);
                (self.end(whole, room, brief, &mut draft), None)
            }
            (Form::Parsed(text), _) => {
                let room = self.think(brief, &mut draft, &mut rng);
                let (pieces, names) = hermes::pieces(text)
                    .unwrap_or_else(|| (vec![(text, Channel::Content)], Vec::new()));
                written = names;
                let whole = self.pieces(&pieces, room, &mut draft);
                (self.end(whole, room, brief, &mut draft), None)
            }
            (Form::Calls(calls), _) => {
                let room = self.think(brief, &mut draft, &mut rng);
                let whole = self.calls(calls, room, &mut draft);
                (self.end(whole, room, brief, &mut draft), None)
            }
        };
        let calls = match &brief.form {
            Form::Calls(calls) => calls.iter().map(|c| c.name.clone()).collect(),
            _ => written,
        };
        let mut script = Script {
            corpus: self.corpus.clone(),
            own: draft.own,
            runs: draft.runs,
            len: draft.len,
            finish: Finish { reason, stop },
            calls,
            times: draft.times,
        };
        stop::apply(&mut script, &brief.stops, &self.tokenizer);
        if self.mute {
            script.fall_silent();
        }
        script
    }

    /// Ends a text of `whole` tokens that had `room`: by itself with the end-of-sequence token,
    /// or by the limit.
    fn end(&self, whole: u32, room: u32, brief: &GenerateRequest, draft: &mut Draft) -> Reason {
        if whole >= room && !(whole == room && self.tokenizer.eos().is_none()) {
            return Reason::Length;
        }
        match self.tokenizer.eos() {
            Some(eos) if draft.len < brief.limit => {
                draft.push(Source::Silent(eos), 0, 1, Channel::Marker);
            }
            _ => {}
        }
        if draft.len == 0 {
            draft.push(Source::Silent(0), 0, 1, Channel::Marker);
        }
        Reason::Stop
    }

    /// How many tokens a free text has, and whether it ends before its limit by itself.
    fn length(&self, brief: &GenerateRequest, rng: &mut ChaCha8Rng) -> u32 {
        if brief.stops.ignore_eos {
            return brief.limit;
        }
        if let Some(length) = brief.length {
            // And the token that ends it.
            return length.saturating_add(1).min(brief.limit);
        }
        let drawn = if brief.limited {
            length::limited(brief.limit, rng)
        } else {
            length::free(brief.limit, rng)
        };
        // The token that ends a reply has no text; one more makes it say something.
        drawn.max(2).max(brief.stops.min_tokens).min(brief.limit)
    }

    fn text(
        &self,
        brief: &GenerateRequest,
        draft: &mut Draft,
        rng: &mut ChaCha8Rng,
    ) -> (Reason, Option<StopReason>) {
        match self.mode {
            Mode::Random => {}
            Mode::Echo => return self.echo(brief, draft, rng),
            Mode::Encoder => {
                let wanted = if brief.limited { brief.limit } else { 1 };
                draft.push_own(self.tokenizer.fragments("!"), 1, Channel::Content);
                for _ in 1..wanted {
                    draft.push(Source::Own(0), 0, 1, Channel::Content);
                }
                return (Reason::Length, None);
            }
        }
        if let Some(reason) = self.recorded(brief, draft, rng) {
            return (reason, None);
        }
        // One that ends by itself says something first.
        let mut target = self.length(brief, rng).max(brief.limit.min(2));
        if brief.reasoning.is_some() && brief.limit <= SHORTEST_THOUGHT {
            // No thought ends within so few tokens.
            target = brief.limit;
        }
        let full = target == brief.limit;
        // A reply that ends by itself ends with a token without text.
        let eos = self.tokenizer.eos().filter(|_| !full);
        let words = target - u32::from(eos.is_some());
        self.think_within(brief, words, draft, rng);
        self.sentences(words, draft, rng, Channel::Content, brief);
        if let Some(eos) = eos {
            draft.push(Source::Silent(eos), 0, 1, Channel::Marker);
        }
        (if full { Reason::Length } else { Reason::Stop }, None)
    }

    /// The client's words: whole, or repeated to the limit when nothing may end it.
    fn echo(
        &self,
        brief: &GenerateRequest,
        draft: &mut Draft,
        rng: &mut ChaCha8Rng,
    ) -> (Reason, Option<StopReason>) {
        let room = self.think(brief, draft, rng);
        let fragments = match &brief.echo_ids {
            Some(ids) => listed(ids),
            None => self.tokenizer.fragments(&brief.echo),
        };
        let whole = fragments.ids.len() as u32;
        let room = if self.whole_echo {
            room.max(whole)
        } else {
            room
        };
        draft.push_own(fragments, room, Channel::Content);
        let least = if brief.stops.ignore_eos {
            brief.limit
        } else {
            brief.stops.min_tokens
        };
        if draft.len < least.min(brief.limit) {
            let lacking = least.min(brief.limit) - draft.len;
            self.sentences(draft.len + lacking, draft, rng, Channel::Content, brief);
            let reason = if draft.len >= brief.limit {
                Reason::Length
            } else {
                Reason::Stop
            };
            return (reason, None);
        }
        if brief.limited && draft.len >= brief.limit {
            return (Reason::Length, None);
        }
        if brief.echo_ids.is_some() && draft.len > 0 {
            // Nothing is said but these ids.
            return (Reason::Stop, None);
        }
        (self.end(whole, room, brief, draft), None)
    }

    /// Fills the draft with sentences until it has `until` tokens.
    fn sentences(
        &self,
        until: u32,
        draft: &mut Draft,
        rng: &mut ChaCha8Rng,
        channel: Channel,
        brief: &GenerateRequest,
    ) {
        let mut first = draft.runs.last().is_none_or(|run| run.channel != channel);
        let mut tries = 0;
        while draft.len < until {
            let index = rng.between(0, self.corpus.len() as u64 - 1) as u32;
            let line = Line { index, first };
            let fragments = self.corpus.fragments(line);
            tries += 1;
            // A short reply that starts inside a letter would say nothing.
            let mute = first && fragments.ends.first() == Some(&0);
            if tries < 1000 && (mute || is_banned(fragments, brief)) {
                continue;
            }
            let tokens = (fragments.ids.len() as u32).min(until - draft.len);
            if tokens == 0 {
                draft.push(Source::Silent(0), 0, 1, channel);
                continue;
            }
            draft.push(Source::Line(line), 0, tokens, channel);
            first = false;
        }
    }

    /// Reasoning before an answer of its own length; the tokens left for the answer.
    fn think(&self, brief: &GenerateRequest, draft: &mut Draft, rng: &mut ChaCha8Rng) -> u32 {
        if let Some(share) = brief.reasoning {
            let tokens = (length::free(brief.limit, rng) as f64 * share * 2.0) as u32;
            self.reason(tokens.clamp(1, brief.limit), draft, rng, brief);
        }
        brief.limit.saturating_sub(draft.len)
    }

    /// Reasoning as a share of a text of `words` tokens.
    fn think_within(
        &self,
        brief: &GenerateRequest,
        words: u32,
        draft: &mut Draft,
        rng: &mut ChaCha8Rng,
    ) {
        let Some(share) = brief.reasoning else { return };
        let thought = (f64::from(words) * share) as u32;
        // A limit that cuts the reply cuts the shortest thought first.
        let cut = words == brief.limit;
        let thought = if cut {
            thought.max(SHORTEST_THOUGHT.min(words))
        } else {
            thought
        };
        self.reason(thought, draft, rng, brief);
    }

    fn reason(
        &self,
        tokens: u32,
        draft: &mut Draft,
        rng: &mut ChaCha8Rng,
        brief: &GenerateRequest,
    ) {
        if tokens == 0 {
            return;
        }
        let whole = tokens < brief.limit;
        let words = if whole { tokens.max(2) - 1 } else { tokens };
        self.sentences(words, draft, rng, Channel::Reasoning, brief);
        if whole {
            let end = self.think_end.unwrap_or_default();
            draft.push(Source::Silent(end), 0, 1, Channel::Marker);
        }
    }

    /// Calls in the format of Hermes models; the tokens of all of them.
    fn calls(&self, calls: &[crate::generate::request::Call], room: u32, draft: &mut Draft) -> u32 {
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

    /// Texts one behind the other, at most `room` tokens of them; the tokens of all of them.
    fn pieces(&self, pieces: &[(&str, Channel)], room: u32, draft: &mut Draft) -> u32 {
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

    /// The token that a decisive bias makes the only choice.
    fn forced(&self, brief: &GenerateRequest) -> Option<Vec<u32>> {
        if let Some(allowed) = brief.bias.allowed.as_ref().filter(|a| !a.is_empty()) {
            return Some(allowed.clone());
        }
        let strongest = brief
            .bias
            .logits
            .iter()
            .filter(|(_, bias)| *bias >= DECISIVE_BIAS)
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
        Some(vec![strongest.0])
    }

    /// Tokens drawn from a given set, until one of them ends the output.
    fn forced_tokens(
        &self,
        brief: &GenerateRequest,
        choices: Vec<u32>,
        draft: &mut Draft,
        rng: &mut ChaCha8Rng,
    ) -> (Reason, Option<StopReason>) {
        let stops = &brief.stops;
        let eos = self.tokenizer.eos().filter(|_| !stops.ignore_eos);
        let ends = |id: u32| {
            let secondary = !stops.ignore_eos && self.tokenizer.stop_ids().contains(&id);
            Some(id) == eos || secondary || stops.ids.contains(&id)
        };
        let (ending, lasting): (Vec<u32>, Vec<u32>) = choices.iter().partition(|id| ends(**id));
        let mut ids = Vec::new();
        let mut last = None;
        let draws = rng.between(0, choices.len() as u64 * 8);
        while (ids.len() as u32) < brief.limit {
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
                    stops.min_tokens.min(brief.limit),
                    draft,
                    rng,
                    Channel::Content,
                    brief,
                );
                ids.clear();
                if draft.len >= brief.limit {
                    return (Reason::Length, None);
                }
                last = ending.first().copied();
                break;
            }
            ids.push(lasting[rng.between(0, lasting.len() as u64 - 1) as usize]);
        }
        let room = brief.limit - draft.len;
        draft.push_own(
            self.visible(&ids, brief.skip_special_tokens),
            room,
            Channel::Content,
        );
        let Some(last) = last else {
            return (Reason::Length, None);
        };
        draft.push(Source::Silent(last), 0, 1, Channel::Marker);
        (
            Reason::Stop,
            (Some(last) != eos).then_some(StopReason::Token(last)),
        )
    }

    fn visible(&self, ids: &[u32], skip_special: bool) -> Fragments {
        let mut detokenizer = self.tokenizer.detokenizer(skip_special);
        let mut text = String::new();
        let ends = ids.iter().map(|id| {
            text.push_str(&detokenizer.push(*id));
            text.len() as u32
        });
        let ends = ends.collect();
        Fragments {
            ids: ids.to_vec(),
            ends,
            text,
        }
    }
}

/// Tokens whose text is their numbers, with commas between them.
fn listed(ids: &[u32]) -> Fragments {
    let mut text = String::new();
    let ends = ids.iter().map(|id| {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&id.to_string());
        text.len() as u32
    });
    let ends = ends.collect();
    Fragments {
        ids: ids.to_vec(),
        ends,
        text,
    }
}

/// Whether a sentence holds a word or a token that the client banned.
fn is_banned(fragments: &Fragments, brief: &GenerateRequest) -> bool {
    let bias = &brief.bias;
    bias.bad_words
        .iter()
        .any(|word| fragments.text.contains(word.trim()))
        || bias
            .logits
            .iter()
            .any(|(id, bias)| *bias <= BANNING_BIAS && fragments.ids.contains(id))
}
