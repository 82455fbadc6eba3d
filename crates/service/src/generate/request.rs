//! Prompts, stop conditions and constraints of the content of replies, independent of the protocol.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::tools::ToolCall;
use crate::scripted::ScriptedReply;
use vllm_sim_engine::{MediaEncoderKind, PromptMediaItem};
use vllm_sim_tokenizer::{MediaModality, PlacedMediaItem, TokenFragments};

/// A tokenized prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// Token ids of the prompt, as the engine receives them.
    pub tokens: Vec<u32>,
    /// Token id outside the 32-bit range, as the client sent it; `tokens` has `u32::MAX` in its
    /// place.
    pub unknown_id: Option<i64>,
    /// Text of the reply in echo mode.
    pub echo: Box<str>,
    /// Token ids of the reply in echo mode; `None` encodes `echo`.
    pub echo_ids: Option<Arc<[u32]>>,
    /// Token ids of the start marker of reasoning; `None` unless the client parses tokens and the
    /// prompt does not contain the marker.
    pub reasoning_start: Option<Arc<[u32]>>,
    /// Images, audio clips and videos among the prompt's tokens, in order.
    pub media: Vec<PlacedMediaItem>,
    /// Hash of the conversation, if the dataset identifies prompts by their text; `None` uses the
    /// hash of `echo`.
    pub text_hash: Option<[u8; 32]>,
    /// Audio clip to transcribe.
    pub audio: Option<AudioInput>,
    /// JSON Schema of the reply, found in the prompt text.
    pub schema: Option<Arc<Value>>,
}

impl TokenizedPrompt {
    /// Returns the media of the prompt in the form that the engine's encoders need.
    pub(crate) fn encoder_inputs(&self) -> Option<Arc<[PromptMediaItem]>> {
        if self.media.is_empty() {
            return None;
        }
        let inputs = self.media.iter().map(|item| {
            let mut hasher = DefaultHasher::new();
            item.identifier.hash(&mut hasher);
            PromptMediaItem {
                key: hasher.finish(),
                kind: match item.modality {
                    MediaModality::Image | MediaModality::Video => MediaEncoderKind::Vision,
                    MediaModality::Audio => MediaEncoderKind::Audio,
                },
                start: item.start,
                len: item.len,
            }
        });
        PromptMediaItem::sorted_without_overlap(inputs.collect())
    }

    /// Returns the token ids of the start marker of reasoning; may be empty.
    pub(super) fn reasoning_start_ids(&self) -> &[u32] {
        self.reasoning_start.as_deref().unwrap_or_default()
    }
}

/// An audio clip to transcribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AudioInput {
    /// Hash of the clip's content; equal clips get equal transcripts.
    pub key: u64,
    /// Length of the clip's transcript, in tokens.
    pub tokens: u32,
}

/// The conditions, other than the token limit, that end a sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StopConditions {
    /// Stop strings; the one that occurs first in the output ends it.
    pub strings: Vec<StopString>,
    /// Regular expressions; the token after which one matches is the last of the output.
    pub patterns: Vec<StopPattern>,
    /// Whether a matched stop string stays in the output.
    pub include: bool,
    /// Stop token ids, in addition to the model's end-of-sequence tokens.
    pub ids: TokenIdSet,
    /// Whether the model's end-of-sequence tokens are ignored.
    pub ignore_eos: bool,
    /// Minimum number of output tokens before a stop condition applies.
    pub min_tokens: u32,
}

/// Kind of content that a reply must have: free text, a fixed text, tool calls or a scripted reply.
#[derive(Debug, Clone, Default)]
pub enum ReplyContentKind {
    /// The reply is free text in the generator's text mode.
    #[default]
    Text,
    /// The reply is a fixed text (structured output), which only the token limit may cut.
    Exact(Arc<str>),
    /// The reply is a fixed text that is parsed for tool calls in the format of Hermes models.
    Parsed(Arc<str>),
    /// The reply is one or more tool calls, written as the raw text of a model.
    Calls(Vec<ToolCall>),
    /// The reply is a scripted one, which only the token limit may cut.
    Scripted(Arc<ScriptedReply>),
}

impl ReplyContentKind {
    pub(crate) fn has_tool_calls(&self) -> bool {
        match self {
            Self::Calls(_) => true,
            Self::Scripted(reply) => !reply.calls.is_empty(),
            Self::Text | Self::Exact(_) | Self::Parsed(_) => false,
        }
    }
}

/// Logit bias at or above which the biased token is always generated.
const DECISIVE_BIAS: f64 = 50.0;
/// Logit bias at or below which a token is never generated.
const BANNING_BIAS: f64 = -50.0;

/// A set of token ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenIdSet(Box<[u32]>);

impl TokenIdSet {
    /// Returns whether the set of token ids contains the given id.
    pub fn contains(&self, id: u32) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    /// Returns whether the set of token ids is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<u32> for TokenIdSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        let mut ids: Vec<u32> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        Self(ids.into())
    }
}

/// A regular expression that ends an output in which it matches.
#[derive(Debug, Clone)]
pub struct StopPattern(Regex);

impl StopPattern {
    /// Compiles a regular expression.
    ///
    /// # Errors
    /// [`regex::Error`] for a syntax error, for look-around and backreferences, and for an expression
    /// that is too large.
    pub fn new(pattern: &str) -> Result<Self, regex::Error> {
        RegexBuilder::new(pattern).size_limit(1 << 20).build().map(Self)
    }

    /// Returns the regular expression.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns whether the expression matches somewhere in a text.
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl PartialEq for StopPattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

/// A stop string, with the failure table of the Knuth-Morris-Pratt search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopString {
    text: String,
    /// Failure table of the Knuth-Morris-Pratt search: match length to continue with after a
    /// mismatch, in bytes.
    borders: Box<[u32]>,
}

impl StopString {
    /// Creates the search table of a stop string; `None` for an empty string.
    pub fn new(text: String) -> Option<Self> {
        let bytes = text.as_bytes();
        u32::try_from(bytes.len()).ok().filter(|length| *length > 0)?;
        let mut borders = vec![0; bytes.len()];
        let mut matched_bytes = 0;
        for at in 1..bytes.len() {
            matched_bytes = extend_match(bytes, &borders, matched_bytes, bytes[at]);
            borders[at] = matched_bytes;
        }
        let borders = borders.into();
        Some(Self { text, borders })
    }

    /// Returns the stop string.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Continues the search for the stop string in `piece`, and returns the byte offset at which a
    /// match ends first.
    ///
    /// `matched_bytes` is the number of bytes of the stop string matched so far, initially 0.
    pub(super) fn find_stop_string_end(
        &self,
        piece: &str,
        matched_bytes: &mut u32,
    ) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let mut end = None;
        for (at, byte) in piece.bytes().enumerate() {
            *matched_bytes = extend_match(bytes, &self.borders, *matched_bytes, byte);
            if *matched_bytes as usize == bytes.len() {
                *matched_bytes = self.borders[bytes.len() - 1];
                end = end.or(Some(at + 1));
            }
        }
        end
    }
}

/// Returns the match length in the stop string after one more byte.
fn extend_match(bytes: &[u8], borders: &[u32], mut matched: u32, byte: u8) -> u32 {
    while matched > 0 && bytes[matched as usize] != byte {
        matched = borders[matched as usize - 1];
    }
    matched + u32::from(bytes[matched as usize] == byte)
}

/// Logit biases, allowed tokens and bad words of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OutputTokenConstraints {
    /// Token ids of which the output may consist; empty means any.
    forced: Vec<u32>,
    banned: TokenIdSet,
    /// Bad words of the request, trimmed.
    bad_words: Vec<String>,
    split: OnceLock<AllowedOutputTokens>,
    /// Results of [`Self::bans_corpus_sentence`] per sentence of the corpus, cached.
    sentences: OnceLock<Box<[OnceLock<bool>]>>,
}

/// Token ids of which the output may consist, split by whether they end the output.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct AllowedOutputTokens {
    pub(super) ending: Vec<u32>,
    pub(super) lasting: Vec<u32>,
}

impl OutputTokenConstraints {
    /// Creates the token constraints of a request from logit biases, allowed tokens (`None` allows
    /// all) and bad words.
    pub fn new(
        logit_bias: impl Iterator<Item = (u32, f64)>,
        allowed_token_ids: Option<Vec<u32>>,
        bad_words: &[String],
    ) -> Self {
        let mut strongest: Option<(u32, f64)> = None;
        let mut banned = Vec::new();
        for (id, bias) in logit_bias {
            if bias <= BANNING_BIAS {
                banned.push(id);
            }
            let wins = |(other, most): (u32, f64)| bias > most || bias == most && id < other;
            if bias >= DECISIVE_BIAS && strongest.is_none_or(wins) {
                strongest = Some((id, bias));
            }
        }
        let decided = || strongest.map(|(id, _)| id).into_iter().collect();
        Self {
            forced: allowed_token_ids.filter(|ids| !ids.is_empty()).unwrap_or_else(decided),
            banned: banned.into_iter().collect(),
            bad_words: bad_words.iter().map(|word| word.trim().to_owned()).collect(),
            ..Self::default()
        }
    }

    /// Returns the token ids of which the output may consist, if restricted. `ends` returns whether
    /// a token id ends the output, and must be the same function in all calls.
    pub(super) fn allowed_output_tokens(
        &self,
        ends: impl Fn(u32) -> bool,
    ) -> Option<&AllowedOutputTokens> {
        if self.forced.is_empty() {
            return None;
        }
        Some(self.split.get_or_init(|| {
            let (ending, lasting) = self.forced.iter().partition(|id| ends(**id));
            AllowedOutputTokens { ending, lasting }
        }))
    }

    /// Returns whether a sentence of the corpus contains a bad word or banned token.
    ///
    /// `number` is the index of the sentence in the corpus, and `count` the number of sentences.
    pub(super) fn bans_corpus_sentence(
        &self,
        number: usize,
        count: usize,
        sentence: &TokenFragments,
    ) -> bool {
        if self.bad_words.is_empty() && self.banned.is_empty() {
            return false;
        }
        let known = || (0..count).map(|_| OnceLock::new()).collect();
        *self.sentences.get_or_init(known)[number].get_or_init(|| {
            let words = &mut self.bad_words.iter();
            words.any(|word| sentence.text.contains(word.as_str()))
                || sentence.ids.iter().any(|id| self.banned.contains(*id))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends(stop: &str, pieces: &[String]) -> Vec<Option<usize>> {
        let stop = StopString::new(stop.to_owned()).expect("a text");
        let mut matched = 0;
        let read = pieces.iter().map(|piece| stop.find_stop_string_end(piece, &mut matched));
        read.collect()
    }

    proptest! {
        #[test]
        fn a_stop_string_is_found_where_a_search_finds_it(
            stop in "[abé]{1,5}",
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
        ) {
            let mut text = String::new();
            let found = ends(&stop, &pieces);
            for (piece, found) in pieces.iter().zip(found) {
                let before = text.len();
                text.push_str(piece);
                let places = (0..text.len()).filter(|at| text.as_bytes()[*at..].starts_with(stop.as_bytes()));
                let end = places.map(|at| at + stop.len()).find(|end| *end > before);
                prop_assert_eq!(found, end.map(|end| end - before));
            }
        }
    }

    #[test]
    fn the_strongest_bias_decides() {
        let forced = |logits: &[(u32, f64)], allowed: Option<Vec<u32>>| {
            let bias = OutputTokenConstraints::new(logits.iter().copied(), allowed, &[]);
            bias.allowed_output_tokens(|id| id == 2).cloned().map(|f| (f.ending, f.lasting))
        };
        assert_eq!(forced(&[(1, 49.0)], None), None);
        assert_eq!(forced(&[(9, 60.0), (7, 60.0), (8, 50.0)], None), Some((vec![], vec![7])));
        assert_eq!(forced(&[(9, 60.0)], Some(vec![2, 1])), Some((vec![2], vec![1])));
        assert_eq!(forced(&[(9, 60.0)], Some(vec![])), Some((vec![], vec![9])));
    }
}
