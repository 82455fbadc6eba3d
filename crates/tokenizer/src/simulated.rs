//! Simulated tokenizer for models without tokenizer files: the word splitter of
//! llm-d-inference-sim.
//!
//! The id of a word is its FNV-1a hash, so any number is an id. Decoding needs the words encoded
//! before, of which a bounded number is stored. Characters beyond ASCII, which llm-d drops, are one
//! token each; the id contains the character, so it can be decoded anywhere. A hash among these ids
//! (one word in four thousand) decodes to its word where that is stored.
//!
//! **Source:** llm-d-inference-sim `pkg/tokenizer/tokenizer.go`.

use std::ops::Range;
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde_json::{Value as Json, json};

const CHARACTER_ID_FLAG: u32 = 0x8000_0000;

/// Maximum memory for the cached texts of the simulated tokenizer's token ids, in bytes; beyond it,
/// texts are evicted.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Approximate memory of an entry in the cache of token texts, without the text, in bytes.
const ENTRY_BYTES: u64 = 64;

/// Simulated tokenizer, which splits text into words and punctuation.
#[derive(Debug)]
pub struct SimulatedTokenizer {
    texts: Cache<u32, Arc<str>, EntryMemory>,
}

#[derive(Debug, Clone)]
struct EntryMemory;

impl Weighter<u32, Arc<str>> for EntryMemory {
    fn weight(&self, _: &u32, text: &Arc<str>) -> u64 {
        text.len() as u64 + ENTRY_BYTES
    }
}

impl Default for SimulatedTokenizer {
    fn default() -> Self {
        let typical_entries = MAX_TEXT_BYTES / (2 * ENTRY_BYTES);
        Self { texts: Cache::with_weighter(typical_entries as usize, MAX_TEXT_BYTES, EntryMemory) }
    }
}

impl SimulatedTokenizer {
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        for piece in split_pieces(text) {
            ids.push(self.intern_piece(text, &piece));
        }
        ids
    }

    pub(crate) fn token_ids_and_end_offsets(&self, text: &str) -> (Vec<u32>, Vec<u32>) {
        split_pieces(text)
            .map(|piece| {
                let end = u32::try_from(piece.range.end).unwrap_or(u32::MAX);
                (self.intern_piece(text, &piece), end)
            })
            .unzip()
    }

    fn intern_piece(&self, text: &str, piece: &SimulatedPiece) -> u32 {
        let text = &text[piece.range.clone()];
        let Some(id) = piece.hash else {
            return CHARACTER_ID_FLAG | text.chars().next().map_or(0, u32::from);
        };
        // Of two texts with one id the later one wins.
        if self.texts.get(&id).is_none_or(|stored| *stored != *text) {
            self.texts.insert(id, text.into());
        }
        id
    }

    /// Appends the text of a token id to `out`; returns false if the simulated tokenizer has no
    /// text for the id.
    pub(crate) fn append_token_text(&self, id: u32, out: &mut String) -> bool {
        if let Some(text) = self.texts.get(&id) {
            out.push_str(&text);
            return true;
        }
        match character_of_id(id) {
            Some(c) => out.push(c),
            None => return false,
        }
        true
    }

    /// Returns the token id of a text; `None` if the text is not exactly one token.
    pub(crate) fn token_id_of_text(&self, piece: &str) -> Option<u32> {
        let first = split_pieces(piece).next()?;
        (first.range.end == piece.len()).then(|| self.intern_piece(piece, &first))
    }
}

/// Returns the beginning of a text, cut to at most `max_tokens` tokens; `max_tokens` is at least 1.
pub(crate) fn truncate_text(text: &str, max_tokens: usize) -> &str {
    split_pieces(text).nth(max_tokens - 1).map_or(text, |last| &text[..last.range.end])
}

fn character_of_id(id: u32) -> Option<char> {
    let code = id.checked_sub(CHARACTER_ID_FLAG)?;
    char::from_u32(code).filter(|c| !c.is_ascii())
}

pub(crate) fn simulated_tokenizer_info() -> Json {
    json!({
        "tokenizer_class": "SimulatedTokenizer",
        "truncation_side": "left",
        "is_local": true,
        "local_files_only": true,
        "added_tokens_decoder": {},
        "backend": "simulated",
    })
}

/// Returns the 32-bit FNV-1a hash, which llm-d-inference-sim uses as token id of a word and as hash
/// of a URL.
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(FNV_BASIS, |hash, byte| fnv1a_with(hash, *byte))
}

const FNV_BASIS: u32 = 0x811c_9dc5;

fn fnv1a_with(hash: u32, byte: u8) -> u32 {
    (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
}

struct SimulatedPiece {
    range: Range<usize>,
    /// FNV-1a hash of this piece of a text, which is the piece's token id; `None` for a character
    /// beyond ASCII.
    hash: Option<u32>,
}

/// Splits a text into the simulated tokenizer's tokens, without gaps.
///
/// A token is a word of letters and digits, or a punctuation character, each with the whitespace
/// after it. Leading whitespace and each character beyond ASCII are tokens, too.
fn split_pieces(text: &str) -> impl Iterator<Item = SimulatedPiece> + '_ {
    let bytes = text.as_bytes();
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = *bytes.get(start)?;
        let mut end = start + 1;
        let mut hash = fnv1a_with(FNV_BASIS, first);
        let mut run = |class| {
            while let Some(byte) = bytes.get(end)
                && BYTE_CLASSES[usize::from(*byte)] == class
            {
                hash = fnv1a_with(hash, *byte);
                end += 1;
            }
        };
        if first.is_ascii() {
            // Go's `\w` includes the underscore, but at the start of a piece it is punctuation.
            if first.is_ascii_alphanumeric() {
                run(CLASS_WORD);
            }
            run(CLASS_BLANK);
        } else {
            run(CLASS_CONTINUATION);
        }
        Some(SimulatedPiece {
            range: std::mem::replace(&mut start, end)..end,
            hash: first.is_ascii().then_some(hash),
        })
    })
}

/// Byte class of Go's `\w`: ASCII letters, digits and underscore.
const CLASS_WORD: u8 = 1;
/// Byte class of Go's `\s`: ASCII whitespace.
const CLASS_BLANK: u8 = 2;
/// Byte class of UTF-8 continuation bytes.
const CLASS_CONTINUATION: u8 = 3;

static BYTE_CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => CLASS_WORD,
            b'\t' | b'\n' | b'\x0c' | b'\r' | b' ' => CLASS_BLANK,
            0x80..=0xbf => CLASS_CONTINUATION,
            _ => 0,
        };
        byte += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(text: &str) -> Vec<&str> {
        split_pieces(text).map(|piece| &text[piece.range]).collect()
    }

    fn decode(tokenizer: &SimulatedTokenizer, ids: &[u32]) -> String {
        let mut out = String::new();
        for id in ids {
            assert!(tokenizer.append_token_text(*id, &mut out));
        }
        out
    }

    #[test]
    fn simulated_ids_and_pieces_equal_llm_d() {
        let tokenizer = SimulatedTokenizer::default();
        assert_eq!(split("This is a test."), ["This ", "is ", "a ", "test", "."]);
        assert_eq!(
            tokenizer.encode("This is a test."),
            [3_157_421_587, 1_477_013_615, 186_949_092, 2_949_673_445, 722_245_873]
        );
        assert_eq!(
            split("### user: This is a test.\n"),
            ["#", "#", "# ", "user", ": ", "This ", "is ", "a ", "test", ".\n"]
        );
        assert_eq!(split("__init__ a_1 _b"), ["_", "_", "init__ ", "a_1 ", "_", "b"]);
        assert_eq!(
            split("don't 3.14\t\n{x}"),
            ["don", "'", "t ", "3", ".", "14\t\n", "{", "x", "}"]
        );
    }

    #[test]
    fn simulated_tokenizer_keeps_text_that_llm_d_drops() {
        assert_eq!(
            split("  a `b` | é世 \u{b}😀\0"),
            ["  ", "a ", "`", "b", "` ", "| ", "é", "世", " ", "\u{b}", "😀", "\0"]
        );
        let other = SimulatedTokenizer::default();
        let ids = SimulatedTokenizer::default().encode("é世😀");
        assert_eq!(decode(&other, &ids), "é世😀");
        assert!(!other.append_token_text(fnv1a_32(b"never seen"), &mut String::new()));
    }

    #[test]
    fn one_piece_has_an_id() {
        let tokenizer = SimulatedTokenizer::default();
        assert_eq!(tokenizer.token_id_of_text("This "), Some(3_157_421_587));
        assert_eq!(tokenizer.token_id_of_text("世"), Some(0x8000_4e16));
        assert_eq!(tokenizer.token_id_of_text("two words"), None);
        assert_eq!(tokenizer.token_id_of_text(""), None);
    }

    #[test]
    fn stored_texts_are_bounded_and_the_later_one_of_an_id_wins() {
        let tokenizer = SimulatedTokenizer::default();
        let long = "x".repeat(20_000);
        for n in 0..10_000 {
            tokenizer.encode(&format!("{n}y{long}"));
            tokenizer.encode("used");
        }
        assert!(tokenizer.texts.weight() <= MAX_TEXT_BYTES);
        assert_eq!(decode(&tokenizer, &tokenizer.encode("used")), "used");
        tokenizer.texts.insert(fnv1a_32(b"used"), "other".into());
        assert_eq!(decode(&tokenizer, &tokenizer.encode("used")), "used");
    }

    proptest! {
        #[test]
        fn text_survives_a_round_trip(text in "\\PC*|[ -~\\s]*|.*") {
            let tokenizer = SimulatedTokenizer::default();
            let ids = tokenizer.encode(&text);
            prop_assert_eq!(decode(&tokenizer, &ids), text.clone());
            let (again, ends) = tokenizer.token_ids_and_end_offsets(&text);
            prop_assert_eq!(&again, &ids);
            prop_assert_eq!(ends.last().copied().unwrap_or(0) as usize, text.len());
        }
    }
}
