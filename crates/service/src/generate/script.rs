use std::sync::Arc;
use std::time::Duration;

use super::corpus::{Corpus, CorpusSentence};
use vllm_sim_python::json;
use vllm_sim_random::mix;
use vllm_sim_tokenizer::Fragments;

/// What the text of a token takes, about.
const TOKEN_BYTES: usize = 6;

/// Which part of a message a token belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// The answer.
    Content,
    /// Thinking, shown apart.
    Reasoning,
    /// A marker of the model's format that no client sees (`</think>`, `<tool_call>`).
    Marker,
    /// Arguments of the call with this index.
    Call(u16),
}

/// Why the output ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// By itself, or by a stop condition.
    Stop,
    /// By the limit.
    Length,
}

/// Which stop condition matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// A stop token other than the primary end of sequence.
    Token(u32),
    /// A stop string.
    Text(String),
}

/// How the output is planned to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub reason: Reason,
    /// What matched, if something did.
    pub stop: Option<StopReason>,
}

/// What will be said: token ids and the text each one adds, finished before the first is released.
///
/// Free text is a list of references into the shared corpus, so a long reply costs two bytes per
/// sentence.
#[derive(Debug, Clone)]
pub struct Script {
    pub(super) corpus: Arc<Corpus>,
    pub(super) own: Vec<Fragments>,
    /// Sentences of the corpus, as runs have them.
    pub(super) sentences: Vec<u16>,
    pub(super) runs: Vec<TokenRun>,
    pub(super) len: u32,
    /// How it ends.
    pub finish: Finish,
    /// Names of the calls in it, by index.
    pub calls: Vec<String>,
    /// When its first tokens come, from the start of the sequence, if that was recorded.
    pub times: Option<Arc<[Duration]>>,
    /// Stands for the tokens of the prompt: [`context_after`] each of them.
    pub prompt: u64,
}

/// What stands for no tokens at all.
pub const CONTEXT_START: u64 = 0x5eed;

/// What stands for the tokens of `context` and the one behind them.
pub fn context_after(context: u64, token: u32) -> u64 {
    mix(context, u64::from(token))
}

/// Consecutive tokens of one source.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenRun {
    pub(super) source: TokenSource,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) channel: Channel,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum TokenSource {
    /// Sentences of the corpus, from this one of the script's list on: the start of a text, or its
    /// continuation. The run ends within the last of them.
    Sentences { start: u32, first: bool },
    /// Text of this script alone.
    Own(u16),
    /// One token without text.
    Silent(u32),
}

/// One token of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// Its id.
    pub id: u32,
    /// The text it adds; may be empty.
    pub text: &'a str,
    /// Where it belongs.
    pub channel: Channel,
}

/// A position in a script.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    run: u32,
    /// Tokens of the run before it.
    taken: u32,
    /// Sentences of the run before it.
    sentence: u32,
    /// Tokens before it in its sentence or text.
    offset: u32,
}

/// The rest of a run in one text.
struct RunPiece<'a> {
    /// Of the text, where it is known.
    has_escapes: Option<bool>,
    /// Or the id of a token without text.
    fragments: Result<&'a Fragments, u32>,
    from: u32,
    tokens: u32,
    channel: Channel,
}

impl Cursor {
    /// Moves over `tokens` tokens of the [`Texts`] that begin here.
    pub fn pass(&mut self, tokens: u32) {
        self.taken += tokens;
        self.offset += tokens;
    }
}

/// The texts of tokens that follow each other in one text.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    fragments: &'a Fragments,
    /// Where it is known.
    has_escapes: Option<bool>,
    from: usize,
    to: usize,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a> {
    fragments: &'a Fragments,
    index: usize,
}

impl<'a> Text<'a> {
    /// As it is.
    #[inline]
    pub fn as_str(self) -> &'a str {
        self.fragments.piece(self.index)
    }

    /// Appends it.
    #[inline]
    pub fn push_to(self, out: &mut String) {
        self.fragments.push_piece(self.index, out);
    }
}

impl<'a> Texts<'a> {
    /// Whether JSON may escape any of their characters.
    pub fn may_have_escapes(self) -> bool {
        let found = || json::has_escapes(self.fragments.span(self.from, self.to));
        self.has_escapes.unwrap_or_else(found)
    }

    /// One by one.
    pub fn iter(self) -> impl Iterator<Item = Text<'a>> {
        let fragments = self.fragments;
        (self.from..self.to).map(move |index| Text { fragments, index })
    }
}

impl Script {
    /// Tokens in all, at least one.
    #[expect(clippy::len_without_is_empty, reason = "a script is never empty")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Takes the text from its tokens.
    pub(super) fn fall_silent(&mut self) {
        let silent = |token: Token<'_>| TokenRun {
            source: TokenSource::Silent(token.id),
            from: 0,
            to: 1,
            channel: token.channel,
        };
        self.runs = self.tokens().map(silent).collect();
        self.own.clear();
    }

    /// Whether any token is reasoning.
    pub fn has_reasoning(&self) -> bool {
        self.runs
            .iter()
            .any(|run| run.channel == Channel::Reasoning)
    }

    /// Positions of the first token of each call but the first one, markers included.
    pub(crate) fn further_calls(&self) -> Box<[u32]> {
        let (mut begun, mut position, mut marker) = (0u32, 0, None);
        let mut starts = Vec::new();
        for run in &self.runs {
            match run.channel {
                Channel::Call(call) if u32::from(call) >= begun => {
                    begun = u32::from(call) + 1;
                    if call > 0 {
                        starts.push(marker.unwrap_or(position));
                    }
                    marker = None;
                }
                Channel::Marker => marker = Some(position),
                _ => marker = None,
            }
            position += run.to - run.from;
        }
        starts.retain(|start| *start > 0 && *start < self.len);
        starts.into()
    }

    /// The token at the cursor, which moves on.
    pub fn next(&self, at: &mut Cursor) -> Option<Token<'_>> {
        let piece = self.piece(at)?;
        at.taken += 1;
        at.offset += 1;
        let index = piece.from as usize;
        let (id, text) = match piece.fragments {
            Ok(fragments) => (fragments.ids[index], fragments.piece(index)),
            Err(id) => (id, ""),
        };
        Some(Token {
            id,
            text,
            channel: piece.channel,
        })
    }

    /// The texts of the tokens from the cursor on, as far as one text has them; `None`: the next token has
    /// none.
    pub fn texts(&self, at: &mut Cursor) -> Option<Texts<'_>> {
        let piece = self.piece(at)?;
        let from = piece.from as usize;
        Some(Texts {
            fragments: piece.fragments.ok()?,
            has_escapes: piece.has_escapes,
            from,
            to: from + piece.tokens as usize,
        })
    }

    /// What is at the cursor, which moves to where that begins.
    fn piece(&self, at: &mut Cursor) -> Option<RunPiece<'_>> {
        loop {
            let run = self.runs.get(at.run as usize)?;
            let left = run.to - run.from - at.taken;
            if left == 0 {
                *at = Cursor {
                    run: at.run + 1,
                    ..Cursor::default()
                };
                continue;
            }
            let mut has_escapes = None;
            let (fragments, from, tokens) = match run.source {
                TokenSource::Silent(id) => (Err(id), 0, left),
                TokenSource::Own(own) => (Ok(&self.own[own as usize]), run.from + at.offset, left),
                TokenSource::Sentences { start, first } => {
                    let index = self.sentences[(start + at.sentence) as usize];
                    let first = first && at.sentence == 0;
                    let sentence = self.corpus.tokenized(CorpusSentence { index, first });
                    let fragments = &sentence.fragments;
                    has_escapes = Some(sentence.has_escapes);
                    let rest = fragments.ids.len() as u32 - at.offset;
                    if rest == 0 {
                        at.sentence += 1;
                        at.offset = 0;
                        continue;
                    }
                    (Ok(fragments), at.offset, rest.min(left))
                }
            };
            let channel = run.channel;
            return Some(RunPiece {
                fragments,
                has_escapes,
                from,
                tokens,
                channel,
            });
        }
    }

    /// The last tokens before a position, at most four.
    pub fn before(&self, position: usize) -> Vec<u32> {
        let from = position.saturating_sub(4);
        let mut cursor = self.cursor(from as u32);
        let last = std::iter::from_fn(|| self.next(&mut cursor));
        last.take(position - from).map(|token| token.id).collect()
    }

    /// Stands for what is before a position: the prompt and the last tokens.
    pub fn context(&self, position: usize) -> u64 {
        let last = self.before(position).into_iter();
        last.fold(self.prompt, context_after)
    }

    /// A cursor that stands before the token at `position`.
    fn cursor(&self, position: u32) -> Cursor {
        let mut at = Cursor::default();
        let mut left = position;
        while left > 0
            && let Some(piece) = self.piece(&mut at)
        {
            let tokens = piece.tokens.min(left);
            left -= tokens;
            at.taken += tokens;
            at.offset += tokens;
        }
        at
    }

    /// The ids of all tokens in order.
    pub fn token_ids(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.len as usize);
        let mut at = Cursor::default();
        while let Some(piece) = self.piece(&mut at) {
            let (from, tokens) = (piece.from as usize, piece.tokens as usize);
            match piece.fragments {
                Ok(fragments) => ids.extend_from_slice(&fragments.ids[from..from + tokens]),
                Err(id) => ids.extend(std::iter::repeat_n(id, tokens)),
            }
            at.taken += piece.tokens;
            at.offset += piece.tokens;
        }
        ids
    }

    /// All tokens in order.
    pub fn tokens(&self) -> impl Iterator<Item = Token<'_>> {
        let mut cursor = Cursor::default();
        std::iter::from_fn(move || self.next(&mut cursor))
    }

    /// Text of one channel in the first `tokens` tokens.
    pub fn text(&self, channel: Channel, tokens: u32) -> String {
        let mut text = String::new();
        let mut left = tokens;
        let mut at = Cursor::default();
        while left > 0
            && let Some(piece) = self.piece(&mut at)
        {
            let tokens = piece.tokens.min(left);
            if piece.channel == channel
                && let Ok(fragments) = piece.fragments
            {
                if text.is_empty() {
                    text.reserve(left as usize * TOKEN_BYTES);
                }
                text.push_str(fragments.span(piece.from as usize, (piece.from + tokens) as usize));
            }
            left -= tokens;
            at.taken += tokens;
            at.offset += tokens;
        }
        text
    }
}
