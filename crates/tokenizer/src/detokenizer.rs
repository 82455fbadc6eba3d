//! Converts token ids to text incrementally.

use crate::SpecialTokens;
use crate::hf::{DecodeStream, Hf};
use crate::simulated::Simulated;

/// Tokens of a text, with the text that each token adds in incremental decoding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fragments {
    /// Ids of the text's tokens, in order.
    pub ids: Vec<u32>,
    /// Decoded text of all tokens.
    pub text: String,
    /// End of each token's text, in bytes of `text`. Token *i* adds `text[ends[i - 1]..ends[i]]`,
    /// which is empty while a character is incomplete.
    pub ends: Vec<u32>,
}

impl Fragments {
    /// Returns the text that the token at `index` adds.
    #[inline]
    pub fn piece(&self, index: usize) -> &str {
        let (start, end) = self.bounds(index);
        &self.text[start..end]
    }

    #[inline]
    fn bounds(&self, index: usize) -> (usize, usize) {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        (start as usize, self.ends[index] as usize)
    }

    /// Appends to `out` the text that the token at `index` adds.
    #[inline]
    pub fn push_piece(&self, index: usize, out: &mut String) {
        /// Maximum length in bytes of texts that are copied with a fixed size and then truncated,
        /// which avoids a call of memcpy.
        const SHORT: usize = 16;
        let (start, end) = self.bounds(index);
        if end - start <= SHORT
            && let Some(longer) = self.text.get(start..start + SHORT)
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
    pub fn span(&self, from: usize, to: usize) -> &str {
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
pub struct Detokenizer<'t>(Decoding<'t>);

#[derive(Debug)]
enum Decoding<'t> {
    Hf(DecodeStream<'t>),
    Simulated(&'t Simulated),
}

impl<'t> Detokenizer<'t> {
    pub(crate) fn hf(hf: &'t Hf, prompt: &[u32], special: SpecialTokens) -> Self {
        Self(Decoding::Hf(DecodeStream::new(hf, prompt, special)))
    }

    pub(crate) fn simulated(simulated: &'t Simulated) -> Self {
        Self(Decoding::Simulated(simulated))
    }

    /// Decodes one more token id and returns the text that is complete.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.push_to(id, &mut out);
        out
    }

    /// Decodes one more token id and appends the text that is complete to `out`.
    pub fn push_to(&mut self, id: u32, out: &mut String) {
        match &mut self.0 {
            Decoding::Hf(stream) => stream.push(id, out),
            Decoding::Simulated(simulated) => {
                simulated.append(id, out);
            }
        }
    }

    /// Appends the text still held back for incomplete characters, including replacement
    /// characters.
    pub(crate) fn finish(self, out: &mut String) {
        match self.0 {
            Decoding::Hf(stream) => stream.finish(out),
            Decoding::Simulated(_) => {}
        }
    }
}
