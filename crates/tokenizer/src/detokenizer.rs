//! Token ids → text, as they come.

use tokenizers::Tokenizer as HfTokenizer;
use tokenizers::tokenizer::step_decode_stream;

use super::Tokenizer;
use super::hf::Hf;
use super::vocabulary::Vocabulary;

/// A text cut into tokens, with the text that each of them adds when it is decoded as it comes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fragments {
    /// The tokens.
    pub ids: Vec<u32>,
    /// All text that they show.
    pub text: String,
    /// Where each token's text ends, in bytes of `text`. Token *i* adds
    /// `text[ends[i - 1]..ends[i]]`: nothing while a character is incomplete.
    pub ends: Vec<u32>,
}

impl Fragments {
    /// The text that token `index` adds.
    pub fn piece(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start as usize..self.ends[index] as usize]
    }
}

/// Decodes one token after another.
///
/// Text that ends in U+FFFD is held back, because the next token may complete the character; like
/// vLLM's, this never shows such text when nothing follows.
///
/// Source: `tokenizers/src/tokenizer/mod.rs`, `step_decode_stream`; `vllm/v1/engine/detokenizer.py`.
#[derive(Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    state: State<'t>,
}

#[derive(Debug)]
enum State<'t> {
    /// Tokens are byte strings: only the bytes not yet shown matter.
    Bytes {
        vocabulary: &'t Vocabulary,
        held: Vec<u8>,
    },
    /// What `step_decode_stream` keeps between its calls.
    Stream {
        tokenizer: &'t HfTokenizer,
        ids: Vec<u32>,
        prefix: String,
        prefix_index: usize,
    },
    /// Every token is whole text.
    Whole,
}

/// Tokens of the prompt that a stream needs to know whether a blank belongs before its first word.
const CONTEXT: usize = 8;

impl<'t> Detokenizer<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, prompt: &[u32], skip_special: bool) -> Self {
        let state = match tokenizer {
            Tokenizer::Simulated(_) => State::Whole,
            Tokenizer::Hf(hf) => State::hf(hf, prompt),
        };
        Self {
            tokenizer,
            skip_special,
            state,
        }
    }

    /// Takes a token and gives the text that can be shown now.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.push_to(id, &mut out);
        out
    }

    /// Takes a token and appends the text that can be shown now.
    pub fn push_to(&mut self, id: u32, out: &mut String) {
        let skip = self.skip_special && self.tokenizer.is_special(id);
        match &mut self.state {
            State::Whole => self.tokenizer.append_text(id, out),
            State::Bytes { .. } if skip => {}
            State::Bytes { vocabulary, held } => {
                held.extend_from_slice(vocabulary.bytes(id).unwrap_or_default());
                if ends_whole(held) {
                    out.push_str(&String::from_utf8_lossy(held));
                    held.clear();
                }
            }
            State::Stream {
                tokenizer,
                ids,
                prefix,
                prefix_index,
            } => {
                let step = |ids: &mut Vec<u32>, prefix: &mut String, index: &mut usize| {
                    step_decode_stream(tokenizer, vec![id], self.skip_special, ids, prefix, index)
                };
                let mut text = step(ids, prefix, prefix_index);
                if text.is_err() {
                    // Decoding was not monotonic: vLLM starts afresh with this token.
                    ids.clear();
                    prefix.clear();
                    *prefix_index = 0;
                    text = step(ids, prefix, prefix_index);
                }
                if let Ok(Some(text)) = text {
                    out.push_str(&text);
                }
            }
        }
    }

    /// Appends what is still held back, replacement characters and all.
    pub(super) fn finish(self, out: &mut String) {
        match self.state {
            State::Whole => {}
            State::Bytes { held, .. } => out.push_str(&String::from_utf8_lossy(&held)),
            State::Stream {
                tokenizer,
                ids,
                prefix,
                ..
            } => {
                let text = tokenizer
                    .decode(&ids, self.skip_special)
                    .unwrap_or_default();
                out.push_str(text.strip_prefix(&prefix).unwrap_or_default());
            }
        }
    }
}

impl<'t> State<'t> {
    fn hf(hf: &'t Hf, prompt: &[u32]) -> Self {
        let vocabulary = hf.vocabulary();
        if vocabulary.bytes(0).is_some() {
            return Self::Bytes {
                vocabulary,
                held: Vec::new(),
            };
        }
        let ids = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        Self::Stream {
            tokenizer: hf.inner(),
            ids,
            prefix: String::new(),
            prefix_index: 0,
        }
    }
}

/// Whether bytes end with a whole character that is not the replacement character.
fn ends_whole(bytes: &[u8]) -> bool {
    let tail = &bytes[bytes.len().saturating_sub(4)..];
    let Some(lead) = tail.iter().rposition(|byte| byte & 0xc0 != 0x80) else {
        return false;
    };
    std::str::from_utf8(&tail[lead..]).is_ok_and(|last| last != "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_characters_end_a_text() {
        assert!(ends_whole("aé".as_bytes()));
        assert!(ends_whole("😀".as_bytes()));
        assert!(ends_whole(b"\xff\xe4\xb8\xad"));
        for held in [
            &b""[..],
            b"a\xe4",
            b"a\xe4\xb8",
            b"\x80\x80\x80\x80\x80",
            b"\xff",
            "a\u{fffd}".as_bytes(),
        ] {
            assert!(!ends_whole(held), "{held:?}");
        }
        assert!(!ends_whole(b"\xc3\xa9\x80"));
    }
}
