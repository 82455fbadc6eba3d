/// Sums up the computation of one engine step over its sequences, as input of latency models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchWork {
    /// Number of decoding sequences in the step.
    pub decodes: u32,
    /// Number of tokens computed for decoding sequences; several each with speculative decoding.
    pub decode_tokens: u32,
    /// Sum of the context lengths of the decoding sequences, in tokens, each including the token
    /// being computed.
    pub context: u64,
    /// Sum of the context lengths of the decoding sequences, in tokens, each clipped to the sliding
    /// window.
    pub clipped: u64,
    /// Number of prompt chunks that the step prefills.
    pub chunks: u32,
    /// Number of prompt tokens that the step computes, over all chunks.
    pub chunk_tokens: u64,
    /// Number of earlier tokens of the prompts, cached or computed before the chunks, summed over
    /// the chunks of the step.
    pub chunk_past: u64,
    /// Twice the number of (query, key) pairs of the prompt chunks: sum of
    /// `new x (2 x past + new)`.
    pub chunk_pairs: u64,
    /// Twice the number of (query, key) pairs of the prompt chunks, with each query limited to the
    /// sliding window.
    pub chunk_pairs_clipped: u64,
}

impl BatchWork {
    /// Adds a decoding sequence with a context of `context` tokens to the batch; the step computes
    /// `tokens` of them.
    #[inline]
    pub fn add_decoding_sequence(&mut self, context: u32, tokens: u32, window: Option<u32>) {
        self.decodes += 1;
        self.decode_tokens += tokens;
        self.context += u64::from(context);
        self.clipped += u64::from(window.map_or(context, |w| context.min(w)));
    }

    /// Adds a chunk of `new` prompt tokens after `past` earlier tokens of the same prompt to the
    /// batch.
    #[inline]
    pub fn add_prompt_chunk(&mut self, new: u32, past: u32, window: Option<u32>) {
        let (new, past) = (u64::from(new), u64::from(past));
        self.chunks += 1;
        self.chunk_tokens += new;
        self.chunk_past += past;
        let pairs = new * (2 * past + new);
        self.chunk_pairs += pairs;
        // Tokens of the chunk inside the window attend to all tokens before them.
        self.chunk_pairs_clipped += match window.map(u64::from) {
            Some(w) if past + new > w => {
                let whole = w.saturating_sub(past);
                whole * (2 * past + whole) + 2 * w * (new - whole)
            }
            _ => pairs,
        };
    }

    /// Returns the number of tokens that the step computes.
    pub fn computed_tokens(&self) -> u64 {
        u64::from(self.decode_tokens) + self.chunk_tokens
    }

    /// Returns the number of decoding sequences and prompt chunks.
    pub fn sequence_count(&self) -> u32 {
        self.decodes + self.chunks
    }

    /// Returns the number of tokens with logits: all tokens of decoding sequences, and the last
    /// token of each prompt chunk.
    pub fn logit_rows(&self) -> u32 {
        self.decode_tokens + self.chunks
    }

    /// Returns one of `parts` equal parts of this batch, with all counts rounded up.
    pub(super) fn work_per_equal_part(&self, parts: u32) -> Self {
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

    /// Returns the batch of each of `ranks` context-parallel ranks, which divide only the prompt
    /// tokens; counts are rounded up.
    pub(super) fn work_per_context_parallel_rank(&self, ranks: u32) -> Self {
        let ranks = u64::from(ranks.max(1));
        Self {
            chunk_tokens: self.chunk_tokens.div_ceil(ranks),
            chunk_pairs: self.chunk_pairs.div_ceil(ranks),
            chunk_pairs_clipped: self.chunk_pairs_clipped.div_ceil(ranks),
            ..*self
        }
    }

    /// Returns whether the batch has no sequences.
    pub fn is_empty(&self) -> bool {
        self.sequence_count() == 0
    }
}

impl std::ops::AddAssign for BatchWork {
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

impl std::ops::SubAssign for BatchWork {
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
            let mut batch = BatchWork::default();
            batch.add_prompt_chunk(new, past, Some(10));
            batch.chunk_pairs_clipped
        };
        // Within; across: 4 tokens as before, 6 that see 10; beyond.
        assert_eq!([clipped(4, 6), clipped(10, 6), clipped(5, 30)], [64, 64 + 120, 100]);
    }
}
