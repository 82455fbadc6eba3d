//! Fast encoder for the tokenizers of most current models: byte-level BPE with a split pattern that
//! [`PreTokenizerSplitPattern`] supports.
//!
//! The general encoder of the tokenizers crate tracks the origin of each byte through every step,
//! which is not needed here. Known words are looked up, others go to the model. Results are equal.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::RwLock;
use serde_json::Value as Json;
use tokenizers::models::bpe::BPE;
use tokenizers::{Model, ModelWrapper, NormalizerWrapper, Tokenizer};
use xxhash_rust::xxh3::xxh3_64;

use super::split_pattern::PreTokenizerSplitPattern;
use super::vocabulary::char_of_byte;

/// Fast encoder for byte-level BPE tokenizers, without the general encoder of the tokenizers crate.
#[derive(Debug)]
pub(super) struct ByteLevelEncoder {
    pattern: PreTokenizerSplitPattern,
    /// Whether text must already be in Unicode NFC because the tokenizer's normalizer converts to
    /// NFC.
    composed: bool,
    added: AddedTokens,
    words: Box<[RwLock<WordCache>]>,
}

/// Cache of the token ids of words, by the word's hash; the stored word resolves collisions.
type WordCache = HashMap<u64, (Box<str>, Box<[u32]>), BuildHasherDefault<PrehashedHasher>>;

/// Number of word cache shards, which reduces lock contention between encoders.
const WORD_CACHE_SHARDS: usize = 64;

/// Maximum number of words in a cache shard; a full shard is cleared.
const MAX_CACHED_WORDS: usize = 1024;

/// Maximum length of a cached word, in bytes; longer words are rare.
const MAX_CACHED_WORD_BYTES: usize = 64;

#[derive(Debug, Default)]
struct PrehashedHasher(u64);

impl Hasher for PrehashedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl ByteLevelEncoder {
    /// Creates a fast encoder with the same results as `tokenizer`; returns `None` if it does not
    /// support that tokenizer.
    pub(super) fn byte_level_encoder_for(tokenizer: &Tokenizer) -> Option<Self> {
        let composed = match tokenizer.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        bpe_model(tokenizer).filter(|bpe| bpe.dropout.is_none())?;
        let steps = serde_json::to_value(tokenizer.get_pre_tokenizer()?).ok()?;
        let pattern = split_pattern_of(&steps)?;
        let added = AddedTokens::new(tokenizer)?;
        let words = (0..WORD_CACHE_SHARDS).map(|_| RwLock::default()).collect();
        Some(Self { pattern, composed, added, words })
    }

    /// Returns the token ids of a text; `None` if only the general encoder is certain to be
    /// correct.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
        if self.composed && !text.chars().all(is_composed_char) {
            return None;
        }
        let bpe = bpe_model(tokenizer)?;
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        let mut rest = text;
        while !rest.is_empty() {
            let (plain, token) = self.added.next_added_token(rest);
            let mut words = &rest[..plain];
            while !words.is_empty() {
                let (word, after) = words.split_at(self.pattern.first_word_len(words));
                self.encode_word(bpe, word, &mut ids)?;
                words = after;
            }
            rest = &rest[plain..];
            if let Some((length, id)) = token {
                ids.push(id);
                rest = &rest[length..];
            }
        }
        Some(ids)
    }

    fn encode_word(&self, bpe: &BPE, word: &str, ids: &mut Vec<u32>) -> Option<()> {
        let hash = xxh3_64(word.as_bytes());
        let shard = &self.words[usize::try_from(hash >> 58).unwrap_or(0) % WORD_CACHE_SHARDS];
        if let Some((known, found)) = shard.read().get(&hash)
            && **known == *word
        {
            ids.extend_from_slice(found);
            return Some(());
        }
        let spelled: String = word.bytes().map(char_of_byte).collect();
        let start = ids.len();
        ids.extend(bpe.tokenize(&spelled).ok()?.into_iter().map(|token| token.id));
        if word.len() <= MAX_CACHED_WORD_BYTES {
            let mut shard = shard.write();
            if shard.len() >= MAX_CACHED_WORDS {
                shard.clear();
            }
            shard.insert(hash, (word.into(), ids[start..].into()));
        }
        Some(())
    }
}

fn bpe_model(tokenizer: &Tokenizer) -> Option<&BPE> {
    match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) => Some(bpe),
        _ => None,
    }
}

/// Returns the split pattern of a pre-tokenizer that splits by a pattern and then maps bytes.
fn split_pattern_of(steps: &Json) -> Option<PreTokenizerSplitPattern> {
    let [split, bytes] = steps.get("pretokenizers")?.as_array()?.as_slice() else {
        return None;
    };
    let is = |step: &Json, name: &str, value: Json| step.get(name) == Some(&value);
    let splits = is(split, "type", "Split".into())
        && is(split, "behavior", "Isolated".into())
        && is(split, "invert", false.into());
    let spells = is(bytes, "type", "ByteLevel".into())
        && is(bytes, "add_prefix_space", false.into())
        && is(bytes, "use_regex", false.into());
    if !splits || !spells {
        return None;
    }
    PreTokenizerSplitPattern::from_regex(split.get("pattern")?.get("Regex")?.as_str()?)
}

#[derive(Debug)]
struct AddedTokens {
    /// Flags by byte value: whether some added token of the tokenizer starts with the byte.
    starts: Box<[bool; 256]>,
    tokens: Vec<(Box<str>, u32)>,
}

impl AddedTokens {
    /// Reads the tokenizer's added tokens. Returns `None` if some of them match more than their
    /// text, such as the spaces around it.
    fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let tokens = tokenizer.get_added_tokens_decoder();
        let normalized = tokens.values().filter(|token| token.normalized).count();
        let plain = tokens.values().all(|t| !t.single_word && !t.lstrip && !t.rstrip);
        if !plain || (normalized > 0 && normalized < tokens.len()) {
            return None;
        }
        let mut starts = Box::new([false; 256]);
        let mut tokens: Vec<(Box<str>, u32)> = tokens
            .into_iter()
            .filter(|(_, token)| !token.content.is_empty())
            .map(|(id, token)| (token.content.into(), id))
            .collect();
        tokens.sort_by(|(left, _), (right, _)| {
            right.len().cmp(&left.len()).then_with(|| left.cmp(right))
        });
        for (token, _) in &tokens {
            starts[usize::from(token.as_bytes()[0])] = true;
        }
        Some(Self { starts, tokens })
    }

    /// Returns position, length and id of the first added token in `text`; without such a token,
    /// the position is the end of the text.
    fn next_added_token(&self, text: &str) -> (usize, Option<(usize, u32)>) {
        for (at, byte) in text.bytes().enumerate() {
            if self.starts[usize::from(byte)] {
                let rest = &text.as_bytes()[at..];
                let found =
                    self.tokens.iter().find(|(token, _)| rest.starts_with(token.as_bytes()));
                if let Some((token, id)) = found {
                    return (at, Some((token.len(), *id)));
                }
            }
        }
        (text.len(), None)
    }
}

/// Returns whether NFC leaves the character unchanged in any text: no combining marks, nothing that
/// decomposes.
fn is_composed_char(c: char) -> bool {
    matches!(
        c,
        '\0'..='\u{2ff}'
            | '\u{388}'..='\u{482}'
            | '\u{5d0}'..='\u{5ea}'
            | '\u{2010}'..='\u{2027}'
            | '\u{3001}'..='\u{3029}'
            | '\u{3041}'..='\u{3096}'
            | '\u{30a1}'..='\u{30fa}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7a3}'
            | '\u{ff01}'..='\u{ff5e}'
            | '\u{1f300}'..='\u{1f64f}'
            | '\u{1f900}'..='\u{1f9ff}'
    )
}
