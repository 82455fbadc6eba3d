/// What one step computes, as sums over its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Batch {
    /// Sequences that decode.
    pub decodes: u32,
    /// Tokens fed for them; more than one each with speculative decoding.
    pub decode_tokens: u32,
    /// Sum of their context lengths, the token being computed included.
    pub context: u64,
    /// The same, each clipped to the sliding window.
    pub clipped: u64,
    /// Prompt chunks.
    pub chunks: u32,
    /// Tokens computed for them.
    pub chunk_tokens: u64,
    /// Tokens that stand before them, cached or computed earlier.
    pub chunk_past: u64,
    /// Twice the (query, key) pairs of the chunks: sum of `new x (2 x past + new)`.
    pub chunk_pairs: u64,
    /// The same, each query seeing no more than the sliding window.
    pub chunk_pairs_clipped: u64,
}

impl Batch {
    /// Adds a sequence with `context` tokens that feeds `tokens` of them.
    #[inline]
    pub fn add_decode(&mut self, context: u32, tokens: u32, window: Option<u32>) {
        self.decodes += 1;
        self.decode_tokens += tokens;
        self.context += u64::from(context);
        self.clipped += u64::from(window.map_or(context, |w| context.min(w)));
    }

    /// Adds a chunk of `new` prompt tokens after `past` others.
    #[inline]
    pub fn add_chunk(&mut self, new: u32, past: u32, window: Option<u32>) {
        let (new, past) = (u64::from(new), u64::from(past));
        self.chunks += 1;
        self.chunk_tokens += new;
        self.chunk_past += past;
        let pairs = new * (2 * past + new);
        self.chunk_pairs += pairs;
        // The part of the chunk before the window's width sees all that stands before it.
        self.chunk_pairs_clipped += match window.map(u64::from) {
            Some(w) if past + new > w => {
                let whole = w.saturating_sub(past);
                whole * (2 * past + whole) + 2 * w * (new - whole)
            }
            _ => pairs,
        };
    }

    /// Tokens of the step.
    pub fn tokens(&self) -> u64 {
        u64::from(self.decode_tokens) + self.chunk_tokens
    }

    /// Sequences that take part.
    pub fn sequences(&self) -> u32 {
        self.decodes + self.chunks
    }

    /// One of `parts` equal batches that this one is split into; fractions count as whole.
    pub(super) fn part(&self, parts: u32) -> Self {
        let (few, many) = (parts.max(1), u64::from(parts.max(1)));
        Self {
            decodes: self.decodes.div_ceil(few),
            decode_tokens: self.decode_tokens.div_ceil(few),
            context: self.context.div_ceil(many),
            clipped: self.clipped.div_ceil(many),
            chunks: self.chunks.div_ceil(few),
            chunk_tokens: self.chunk_tokens.div_ceil(many),
            chunk_past: self.chunk_past.div_ceil(many),
            chunk_pairs: self.chunk_pairs.div_ceil(many),
            chunk_pairs_clipped: self.chunk_pairs_clipped.div_ceil(many),
        }
    }

    /// What each of `ranks` computes that share the tokens of prompts and nothing else; fractions
    /// count as whole.
    pub(super) fn with_shared_chunks(&self, ranks: u32) -> Self {
        let ranks = u64::from(ranks.max(1));
        Self {
            chunk_tokens: self.chunk_tokens.div_ceil(ranks),
            chunk_pairs: self.chunk_pairs.div_ceil(ranks),
            chunk_pairs_clipped: self.chunk_pairs_clipped.div_ceil(ranks),
            ..*self
        }
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.sequences() == 0
    }
}

impl std::ops::AddAssign for Batch {
    fn add_assign(&mut self, other: Self) {
        self.decodes += other.decodes;
        self.decode_tokens += other.decode_tokens;
        self.context += other.context;
        self.clipped += other.clipped;
        self.chunks += other.chunks;
        self.chunk_tokens += other.chunk_tokens;
        self.chunk_past += other.chunk_past;
        self.chunk_pairs += other.chunk_pairs;
        self.chunk_pairs_clipped += other.chunk_pairs_clipped;
    }
}

impl std::ops::SubAssign for Batch {
    fn sub_assign(&mut self, other: Self) {
        self.decodes -= other.decodes;
        self.decode_tokens -= other.decode_tokens;
        self.context -= other.context;
        self.clipped -= other.clipped;
        self.chunks -= other.chunks;
        self.chunk_tokens -= other.chunk_tokens;
        self.chunk_past -= other.chunk_past;
        self.chunk_pairs -= other.chunk_pairs;
        self.chunk_pairs_clipped -= other.chunk_pairs_clipped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_a_chunk_are_clipped_to_the_window() {
        let clipped = |new, past| {
            let mut batch = Batch::default();
            batch.add_chunk(new, past, Some(10));
            batch.chunk_pairs_clipped
        };
        // Within; across: 4 tokens as before, 6 that see 10; beyond.
        assert_eq!(
            [clipped(4, 6), clipped(10, 6), clipped(5, 30)],
            [64, 64 + 120, 100]
        );
    }
}
