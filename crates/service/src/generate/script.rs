use std::sync::{Arc, OnceLock};
use std::time::Duration;

use vllm_sim_python::json;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_tokenizer::{TokenFragments, Tokenizer};

/// Estimated length of a token's text, in bytes.
const ESTIMATED_TOKEN_BYTES: usize = 6;

/// The part of a response message to which an output token belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputChannel {
    /// Output channel: content of the response message.
    Content,
    /// Output channel: reasoning of the response message.
    Reasoning,
    /// Output channel: marker of the model's output format that clients do not see (`</think>`,
    /// `<tool_call>`).
    Marker,
    /// Output channel: arguments of the tool call with this index, from 0.
    Call(u16),
}

/// The reason why an output ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputEndReason {
    /// Finish reason: the output ends at an end-of-sequence token or by a stop condition.
    Stop,
    /// Finish reason: the output ends at its token limit.
    Length,
}

/// The stop condition that ended an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// Stop condition: the output ended at this stop token id, which is not the primary
    /// end-of-sequence token.
    Token(u32),
    /// Stop condition: the output ended at this stop string, given as requested.
    Text(String),
}

/// The planned end of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedOutputEnd {
    /// Reason for the end of the output.
    pub reason: OutputEndReason,
    /// Matched stop condition at the end of the output, if any.
    pub stop: Option<StopReason>,
}

/// The complete content of a reply: token ids and their texts, written before the request is
/// submitted.
///
/// Sentences of the shared corpus are stored as references of two bytes.
#[derive(Debug, Clone)]
pub struct ReplyScript {
    pub(super) corpus: Arc<SentenceCorpus>,
    pub(super) own: Vec<TokenFragments>,
    /// Indices of the reply's sentences in the corpus; the reply's runs of tokens refer to these
    /// indices.
    pub(super) sentences: Vec<u16>,
    pub(super) runs: Vec<ReplyTokenRun>,
    pub(super) len: u32,
    /// Planned end of the output.
    pub finish: PlannedOutputEnd,
    /// Names of the called tools, by index of the call.
    pub calls: Vec<String>,
    /// Recorded times at which the first tokens are output, from the start of the sequence.
    pub times: Option<Arc<[Duration]>>,
    /// Hash of the prompt's token ids, made with [`extend_context_hash`].
    pub prompt: u64,
}

/// Hash of an empty token sequence.
pub const EMPTY_CONTEXT_HASH: u64 = 0x5eed;

/// Returns the hash of a token sequence extended by one token.
pub fn extend_context_hash(context: u64, token: u32) -> u64 {
    mix_u64_pair(context, u64::from(token))
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyTokenRun {
    pub(super) source: ReplyTokenSource,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) channel: OutputChannel,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ReplyTokenSource {
    /// Token source: consecutive sentences of the built-in corpus, from index `start` of the
    /// sentence list; the tokens may end within the last sentence. `first` selects the form of the
    /// first sentence without a leading space.
    Sentences { start: u32, first: bool },
    /// Token source: a text outside the corpus, given by its index in the list of such texts.
    Own(u16),
    /// Token source: one token without text, given by its id.
    Silent(u32),
}

/// One output token of a reply, written before the request is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputToken<'a> {
    /// Id of the output token.
    pub id: u32,
    /// Text of the output token; may be empty.
    pub text: &'a str,
    /// Part of the response message to which the token belongs.
    pub channel: OutputChannel,
}

/// A position in the tokens of a reply script.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplyScriptCursor {
    run: u32,
    /// Number of tokens of the current run (consecutive tokens of one source and channel) before
    /// this position.
    taken: u32,
    /// Number of sentences of the current token run before this position.
    sentence: u32,
    /// Number of tokens of the current sentence, or of the current text outside the corpus, before
    /// this position.
    offset: u32,
}

/// The remaining tokens of a run in a reply script, at most up to the end of the current sentence
/// or text.
struct RunPiece<'a> {
    /// Whether JSON escapes any character of the text; `None` if not computed.
    has_escapes: Option<bool>,
    /// Tokens of the run with their texts; `Err` holds the id of a token without text.
    fragments: Result<&'a TokenFragments, u32>,
    from: u32,
    tokens: u32,
    channel: OutputChannel,
}

impl ReplyScriptCursor {
    /// Moves a cursor of a reply script over `tokens` tokens of the [`TokenTexts`] that begin at
    /// the cursor.
    pub fn advance_script_cursor(&mut self, tokens: u32) {
        self.taken += tokens;
        self.offset += tokens;
    }
}

/// The texts of consecutive output tokens, within one sentence or text.
#[derive(Debug, Clone, Copy)]
pub struct TokenTexts<'a> {
    fragments: &'a TokenFragments,
    /// Whether JSON escapes any character of the text; `None` if not computed.
    has_escapes: Option<bool>,
    from: usize,
    to: usize,
}

/// The text of one output token.
#[derive(Debug, Clone, Copy)]
pub struct TokenText<'a> {
    fragments: &'a TokenFragments,
    index: usize,
}

impl<'a> TokenText<'a> {
    /// Returns the output token's text.
    #[inline]
    pub fn as_str(self) -> &'a str {
        self.fragments.fragment_text(self.index)
    }

    /// Appends the output token's text to `out`.
    #[inline]
    pub fn append_to(self, out: &mut String) {
        self.fragments.append_fragment_text(self.index, out);
    }
}

impl<'a> TokenTexts<'a> {
    /// Returns whether JSON escapes any character of the tokens' texts.
    pub fn may_need_json_escapes(self) -> bool {
        let found = || json::needs_json_escape(self.fragments.text_of_tokens(self.from, self.to));
        self.has_escapes.unwrap_or_else(found)
    }

    /// Iterates over the text of each output token.
    pub fn iter(self) -> impl Iterator<Item = TokenText<'a>> {
        let fragments = self.fragments;
        (self.from..self.to).map(move |index| TokenText { fragments, index })
    }
}

impl ReplyScript {
    /// Returns the number of output tokens of the reply, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a script is never empty")]
    pub fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn remove_token_texts(&mut self) {
        let silent = |token: OutputToken<'_>| ReplyTokenRun {
            source: ReplyTokenSource::Silent(token.id),
            from: 0,
            to: 1,
            channel: token.channel,
        };
        self.runs = self.output_tokens().map(silent).collect();
        self.own.clear();
    }

    /// Returns whether any output token is reasoning.
    pub fn has_reasoning(&self) -> bool {
        self.runs.iter().any(|run| run.channel == OutputChannel::Reasoning)
    }

    /// Returns the token position at which each tool call but the first starts, markers included.
    pub(crate) fn tool_call_positions_after_first(&self) -> Box<[u32]> {
        let (mut begun, mut position, mut marker) = (0u32, 0, None);
        let mut starts = Vec::new();
        for run in &self.runs {
            match run.channel {
                OutputChannel::Call(call) if u32::from(call) >= begun => {
                    begun = u32::from(call) + 1;
                    if call > 0 {
                        starts.push(marker.unwrap_or(position));
                    }
                    marker = None;
                }
                OutputChannel::Marker => marker = Some(position),
                _ => marker = None,
            }
            position += run.to - run.from;
        }
        starts.retain(|start| *start > 0 && *start < self.len);
        starts.into()
    }

    /// Returns the output token at a cursor of the reply script, and moves the cursor after it;
    /// `None` at the end of the reply.
    pub fn next_token(&self, cursor: &mut ReplyScriptCursor) -> Option<OutputToken<'_>> {
        let piece = self.next_piece(cursor)?;
        cursor.taken += 1;
        cursor.offset += 1;
        let index = piece.from as usize;
        let (id, text) = match piece.fragments {
            Ok(fragments) => (fragments.ids[index], fragments.fragment_text(index)),
            Err(id) => (id, ""),
        };
        Some(OutputToken { id, text, channel: piece.channel })
    }

    /// Returns the next `count` output tokens from a cursor of the reply script, fewer at the end
    /// of the reply, and moves the cursor after them.
    pub fn next_tokens(
        &self,
        cursor: &mut ReplyScriptCursor,
        count: u32,
    ) -> impl Iterator<Item = OutputToken<'_>> {
        (0..count).map_while(move |_| self.next_token(cursor))
    }

    /// Returns the texts of the consecutive output tokens at a cursor of the reply script; `None`
    /// if the next token has no text.
    pub fn next_token_texts(&self, cursor: &mut ReplyScriptCursor) -> Option<TokenTexts<'_>> {
        let piece = self.next_piece(cursor)?;
        let from = piece.from as usize;
        Some(TokenTexts {
            fragments: piece.fragments.ok()?,
            has_escapes: piece.has_escapes,
            from,
            to: from + piece.tokens as usize,
        })
    }

    /// Returns the output tokens from the cursor to the end of the current sentence or text, within
    /// the current run. A cursor at the end of a run first moves to the next run.
    fn next_piece(&self, at: &mut ReplyScriptCursor) -> Option<RunPiece<'_>> {
        loop {
            let run = self.runs.get(at.run as usize)?;
            let left = run.to - run.from - at.taken;
            if left == 0 {
                *at = ReplyScriptCursor { run: at.run + 1, ..ReplyScriptCursor::default() };
                continue;
            }
            let mut has_escapes = None;
            let (fragments, from, tokens) = match run.source {
                ReplyTokenSource::Silent(id) => (Err(id), 0, left),
                ReplyTokenSource::Own(own) => {
                    (Ok(&self.own[own as usize]), run.from + at.offset, left)
                }
                ReplyTokenSource::Sentences { start, first } => {
                    let index = self.sentences[(start + at.sentence) as usize];
                    let first = first && at.sentence == 0;
                    let sentence =
                        self.corpus.tokenized_sentence(CorpusSentenceIndex { index, first });
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
            return Some(RunPiece { fragments, has_escapes, from, tokens, channel });
        }
    }

    /// Returns the ids of the output tokens before a position, at most the last four.
    pub fn preceding_token_ids(&self, position: usize) -> Vec<u32> {
        let from = position.saturating_sub(4);
        let mut cursor = self.cursor_at(from as u32);
        let last = std::iter::from_fn(|| self.next_token(&mut cursor));
        last.take(position - from).map(|token| token.id).collect()
    }

    /// Returns a hash of the prompt and the last four output tokens before a position.
    pub fn context_hash(&self, position: usize) -> u64 {
        let last = self.preceding_token_ids(position).into_iter();
        last.fold(self.prompt, extend_context_hash)
    }

    fn cursor_at(&self, position: u32) -> ReplyScriptCursor {
        let mut at = ReplyScriptCursor::default();
        let mut left = position;
        while left > 0
            && let Some(piece) = self.next_piece(&mut at)
        {
            let tokens = piece.tokens.min(left);
            left -= tokens;
            at.taken += tokens;
            at.offset += tokens;
        }
        at
    }

    /// Returns the ids of all output tokens.
    pub fn output_token_ids(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.len as usize);
        let mut at = ReplyScriptCursor::default();
        while let Some(piece) = self.next_piece(&mut at) {
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

    /// Iterates over all output tokens.
    pub fn output_tokens(&self) -> impl Iterator<Item = OutputToken<'_>> {
        let mut cursor = ReplyScriptCursor::default();
        std::iter::from_fn(move || self.next_token(&mut cursor))
    }

    /// Returns the text of `channel` within the first `tokens` output tokens.
    pub fn channel_text(&self, channel: OutputChannel, tokens: u32) -> String {
        let mut text = String::new();
        let mut left = tokens;
        let mut at = ReplyScriptCursor::default();
        while left > 0
            && let Some(piece) = self.next_piece(&mut at)
        {
            let tokens = piece.tokens.min(left);
            if piece.channel == channel
                && let Ok(fragments) = piece.fragments
            {
                if text.is_empty() {
                    text.reserve(left as usize * ESTIMATED_TOKEN_BYTES);
                }
                text.push_str(
                    fragments.text_of_tokens(piece.from as usize, (piece.from + tokens) as usize),
                );
            }
            left -= tokens;
            at.taken += tokens;
            at.offset += tokens;
        }
        text
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CorpusSentenceIndex {
    pub(super) index: u16,
    pub(super) first: bool,
}

#[derive(Debug)]
pub(super) struct TokenizedSentence {
    pub(super) fragments: TokenFragments,
    pub(super) has_escapes: bool,
}

/// The built-in sentences of random replies, tokenized on first use.
#[derive(Debug)]
pub struct SentenceCorpus {
    tokenizer: Arc<Tokenizer>,
    sentences: Vec<&'static str>,
    first: Vec<OnceLock<TokenizedSentence>>,
    further: Vec<OnceLock<TokenizedSentence>>,
}

impl SentenceCorpus {
    /// Creates the corpus of sentences for a tokenizer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let sentences: Vec<_> = include_str!("sentences.txt").lines().collect();
        let empty = || sentences.iter().map(|_| OnceLock::new()).collect();
        Self { first: empty(), further: empty(), tokenizer, sentences }
    }

    /// Returns the number of sentences in the corpus.
    #[expect(clippy::len_without_is_empty, reason = "the built-in corpus is never empty")]
    pub fn len(&self) -> usize {
        self.sentences.len()
    }

    pub(super) fn sentence_fragments(&self, at: CorpusSentenceIndex) -> &TokenFragments {
        &self.tokenized_sentence(at).fragments
    }

    pub(super) fn tokenized_sentence(&self, at: CorpusSentenceIndex) -> &TokenizedSentence {
        let index = usize::from(at.index);
        let sentence = self.sentences[index];
        if at.first {
            self.first[index].get_or_init(|| self.tokenize_sentence(sentence))
        } else {
            self.further[index].get_or_init(|| self.tokenize_sentence(&format!(" {sentence}")))
        }
    }

    fn tokenize_sentence(&self, sentence: &str) -> TokenizedSentence {
        let fragments = self.tokenizer.tokenize_with_text(sentence);
        TokenizedSentence { has_escapes: json::needs_json_escape(&fragments.text), fragments }
    }
}
