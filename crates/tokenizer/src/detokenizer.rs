//! Token ids → text, as they come.

use crate::SpecialTokens;
use crate::hf::{DecodeStream, Hf};
use crate::simulated::Simulated;

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

    /// Appends that.
    #[inline]
    pub fn push_piece(&self, index: usize, out: &mut String) {
        /// Texts up to here are copied with what follows them, which is taken back: always as many bytes need
        /// no call.
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

    /// The text that the tokens from `from` up to `to` add; `to` is not below `from`.
    #[inline]
    pub fn span(&self, from: usize, to: usize) -> &str {
        let end = |tokens: usize| tokens.checked_sub(1).map_or(0, |last| self.ends[last]) as usize;
        &self.text[end(from)..end(to)]
    }
}

/// Decodes one token after another.
///
/// Text that ends in U+FFFD is held back, because the next token may complete the character; like
/// vLLM's, this never shows such text when nothing follows.
///
/// Source: `vllm/v1/engine/detokenizer.py`.
#[derive(Debug)]
pub struct Detokenizer<'t>(Decoding<'t>);

#[derive(Debug)]
enum Decoding<'t> {
    Hf(DecodeStream<'t>),
    /// Every token is whole text.
    Simulated(&'t Simulated),
}

impl<'t> Detokenizer<'t> {
    pub(crate) fn hf(hf: &'t Hf, prompt: &[u32], special: SpecialTokens) -> Self {
        Self(Decoding::Hf(DecodeStream::new(hf, prompt, special)))
    }

    pub(crate) fn simulated(simulated: &'t Simulated) -> Self {
        Self(Decoding::Simulated(simulated))
    }

    /// Takes a token and gives the text that can be shown now.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.push_to(id, &mut out);
        out
    }

    /// Takes a token and appends the text that can be shown now.
    pub fn push_to(&mut self, id: u32, out: &mut String) {
        match &mut self.0 {
            Decoding::Hf(stream) => stream.push(id, out),
            Decoding::Simulated(simulated) => {
                simulated.append(id, out);
            }
        }
    }

    /// Appends what is still held back, replacement characters and all.
    pub(crate) fn finish(self, out: &mut String) {
        match self.0 {
            Decoding::Hf(stream) => stream.finish(out),
            Decoding::Simulated(_) => {}
        }
    }
}
