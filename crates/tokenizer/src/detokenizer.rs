//! Converts token ids to text incrementally.

use crate::SpecialTokens;
use crate::hf::{DecodeStream, HfTokenizer};
use crate::simulated::SimulatedTokenizer;

/// Tokens of a text, with the text that each token adds in incremental decoding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenFragments {
    /// Ids of the text's tokens, in order.
    pub ids: Vec<u32>,
    /// Decoded text of all tokens.
    pub text: String,
    /// End of each token's text, in bytes of `text`. Token *i* adds `text[ends[i - 1]..ends[i]]`,
    /// which is empty while a character is incomplete.
    pub ends: Vec<u32>,
}

impl TokenFragments {
    /// Returns the text that the token at `index` adds.
    #[inline]
    pub fn fragment_text(&self, index: usize) -> &str {
        let (start, end) = self.fragment_bounds(index);
        &self.text[start..end]
    }

    #[inline]
    fn fragment_bounds(&self, index: usize) -> (usize, usize) {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        (start as usize, self.ends[index] as usize)
    }

    /// Appends to `out` the text that the token at `index` adds.
    #[inline]
    pub fn push_fragment(&self, index: usize, out: &mut String) {
        /// Maximum length in bytes of texts that are copied with a fixed size and then truncated,
        /// which avoids a call of memcpy.
        const SHORT_FRAGMENT_BYTES: usize = 16;
        let (start, end) = self.fragment_bounds(index);
        if end - start <= SHORT_FRAGMENT_BYTES
            && let Some(longer) = self.text.get(start..start + SHORT_FRAGMENT_BYTES)
        {
            let end = out.len() + (end - start);
            out.push_str(longer);
            out.truncate(end);
        } else {
            out.push_str(&self.text[start..end]);
        }
    }

    /// Returns the text that the tokens `from..to` add; `to` must not be below `from`.
    #[inline]
    pub fn text_of_tokens(&self, from: usize, to: usize) -> &str {
        let end = |tokens: usize| tokens.checked_sub(1).map_or(0, |last| self.ends[last]) as usize;
        &self.text[end(from)..end(to)]
    }
}

/// Incremental decoder of token ids to text.
///
/// Text that ends in U+FFFD is held back, because the next token may complete the character. As in
/// vLLM, such text is never emitted if no token follows.
///
/// **Source:** `vllm/v1/engine/detokenizer.py`.
#[derive(Debug)]
pub struct Detokenizer<'t>(DetokenizerKind<'t>);

#[derive(Debug)]
enum DetokenizerKind<'t> {
    Hf(DecodeStream<'t>),
    Simulated(&'t SimulatedTokenizer),
}

impl<'t> Detokenizer<'t> {
    pub(crate) fn hf(hf: &'t HfTokenizer, prompt: &[u32], special: SpecialTokens) -> Self {
        Self(DetokenizerKind::Hf(DecodeStream::new(hf, prompt, special)))
    }

    pub(crate) fn simulated(simulated: &'t SimulatedTokenizer) -> Self {
        Self(DetokenizerKind::Simulated(simulated))
    }

    /// Decodes one more token id and returns the text that is complete.
    pub fn decode_token(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.decode_token_into(id, &mut out);
        out
    }

    /// Decodes one more token id and appends the text that is complete to `out`.
    pub fn decode_token_into(&mut self, id: u32, out: &mut String) {
        match &mut self.0 {
            DetokenizerKind::Hf(stream) => stream.push(id, out),
            DetokenizerKind::Simulated(simulated) => {
                simulated.append_text(id, out);
            }
        }
    }

    /// Appends the text still held back for incomplete characters, including replacement
    /// characters.
    pub(crate) fn flush_into(self, out: &mut String) {
        match self.0 {
            DetokenizerKind::Hf(stream) => stream.finish(out),
            DetokenizerKind::Simulated(_) => {}
        }
    }
}
