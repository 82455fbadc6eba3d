//! Decodes the token ids of a Hugging Face tokenizer incrementally.

use tokenizers::Tokenizer;
use tokenizers::tokenizer::step_decode_stream;

use super::model::HfTokenizer;
use super::vocabulary::TokenVocabulary;
use crate::SpecialTokenHandling;

/// Incremental decoder of one sequence of token ids.
///
/// **Source:** `tokenizers/src/tokenizer/mod.rs`, `step_decode_stream`;
/// `vllm/v1/engine/detokenizer.py`.
#[derive(Debug)]
pub(crate) struct DecodeStream<'t> {
    hf: &'t HfTokenizer,
    skip_special: bool,
    state: StreamState<'t>,
}

#[derive(Debug)]
enum StreamState<'t> {
    /// Decoder state for a byte-level tokenizer: only the bytes of an incomplete character.
    Bytes {
        vocabulary: &'t TokenVocabulary,
        held: Vec<u8>,
    },
    General {
        tokenizer: &'t Tokenizer,
        ids: Vec<u32>,
        prefix: String,
        prefix_index: usize,
    },
}

/// Number of tokens at the end of the prompt that determine whether the first decoded word starts
/// with a space.
const CONTEXT_TOKENS: usize = 8;

impl<'t> DecodeStream<'t> {
    pub(crate) fn new(hf: &'t HfTokenizer, prompt: &[u32], special: SpecialTokenHandling) -> Self {
        let vocabulary = hf.vocabulary();
        let state = if vocabulary.token_bytes(0).is_some() {
            StreamState::Bytes { vocabulary, held: Vec::new() }
        } else {
            StreamState::General {
                tokenizer: hf.tokenizers_crate_tokenizer(),
                ids: prompt[prompt.len().saturating_sub(CONTEXT_TOKENS)..].to_vec(),
                prefix: String::new(),
                prefix_index: 0,
            }
        };
        Self { hf, skip_special: special == SpecialTokenHandling::Without, state }
    }

    /// Decodes one more token id and appends the text that is complete to `out`.
    pub(crate) fn push_token_id(&mut self, id: u32, out: &mut String) {
        let skip = self.skip_special && self.hf.is_special_token(id);
        match &mut self.state {
            StreamState::Bytes { .. } if skip => {}
            StreamState::Bytes { vocabulary, held } => {
                held.extend_from_slice(vocabulary.token_bytes(id).unwrap_or_default());
                if ends_at_char_boundary(held) {
                    out.push_str(&String::from_utf8_lossy(held));
                    held.clear();
                }
            }
            StreamState::General { tokenizer, ids, prefix, prefix_index } => {
                let step = |ids: &mut Vec<u32>, prefix: &mut String, index: &mut usize| {
                    step_decode_stream(tokenizer, vec![id], self.skip_special, ids, prefix, index)
                };
                let mut text = step(ids, prefix, prefix_index);
                if text.is_err() {
                    // Decoding was not monotonic: vLLM restarts with this token.
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

    /// Appends the text that was held back because its last character is incomplete, with
    /// replacement characters.
    pub(crate) fn flush_text_into(self, out: &mut String) {
        match self.state {
            StreamState::Bytes { held, .. } => out.push_str(&String::from_utf8_lossy(&held)),
            StreamState::General { tokenizer, ids, prefix, .. } => {
                let text = tokenizer.decode(&ids, self.skip_special).unwrap_or_default();
                out.push_str(text.strip_prefix(&prefix).unwrap_or_default());
            }
        }
    }
}

/// Returns whether bytes end with a complete UTF-8 character other than the replacement character.
fn ends_at_char_boundary(bytes: &[u8]) -> bool {
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
    fn incomplete_utf8_characters_are_held_back() {
        assert!(ends_at_char_boundary("aé".as_bytes()));
        assert!(ends_at_char_boundary("😀".as_bytes()));
        assert!(ends_at_char_boundary(b"\xff\xe4\xb8\xad"));
        for held in [
            &b""[..],
            b"a\xe4",
            b"a\xe4\xb8",
            b"\x80\x80\x80\x80\x80",
            b"\xff",
            "a\u{fffd}".as_bytes(),
        ] {
            assert!(!ends_at_char_boundary(held), "{held:?}");
        }
        assert!(!ends_at_char_boundary(b"\xc3\xa9\x80"));
    }
}
