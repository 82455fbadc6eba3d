//! Prompt-lookup speculative decoding (n-gram): drafts the tokens that followed the same n-gram
//! before.
//!
//! The content of a reply is generated before submission, so the accepted draft tokens are computed
//! in advance.

use std::collections::HashMap;
use std::sync::Arc;

use crate::generate::ReplyScript;
use vllm_sim_engine::StepDraftCounts;

const HASH_BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Settings of prompt lookup, vLLM's speculative method `ngram`.
///
/// **Source:** vLLM 0.33 `vllm/v1/spec_decode/ngram_proposer.py`,
/// `_find_longest_matched_ngram_and_propose_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramLookupSettings {
    /// Minimum n-gram length in tokens, at least 1.
    pub min: u32,
    /// Maximum n-gram length in tokens, at least `min`; the longest match wins.
    pub max: u32,
    /// Maximum number of draft tokens per step (`num_speculative_tokens`).
    pub tokens: u32,
}

impl NgramLookupSettings {
    pub(super) fn ngram_draft_lengths_of_script(
        &self,
        prompt: &[u32],
        script: &ReplyScript,
    ) -> Arc<[StepDraftCounts]> {
        let output: Vec<u32> = script.output_tokens().map(|token| token.id).collect();
        self.draft_lengths(prompt, &output)
    }

    /// Returns the lengths of the draft and of its accepted prefix after each token of `output` but
    /// the last.
    ///
    /// The longest matching n-gram wins; among equal lengths, the earliest.
    fn draft_lengths(&self, prompt: &[u32], output: &[u32]) -> Arc<[StepDraftCounts]> {
        let text = [prompt, output].concat();
        let hashes = NgramHashes::new(&text, self.max as usize);
        let lengths: Vec<usize> = (self.min as usize..=self.max as usize).rev().collect();
        let mut first: HashMap<(usize, u64), usize> = HashMap::new();
        let mut drafts = Vec::with_capacity(output.len().saturating_sub(1));
        for end in 1..text.len() {
            let mut found = None;
            for &length in lengths.iter().filter(|length| **length <= end) {
                let key = (length, hashes.ngram_hash(end, length));
                let at = *first.entry(key).or_insert(end);
                let equal = || text[at - length..at] == text[end - length..end];
                if found.is_none() && at < end && equal() {
                    found = Some(at);
                }
            }
            if end > prompt.len() {
                drafts.push(self.draft_at(&text, end, found));
            }
        }
        drafts.into()
    }

    /// Returns the lengths of the draft copied from position `from` and of its accepted prefix.
    fn draft_at(&self, text: &[u32], end: usize, from: Option<usize>) -> StepDraftCounts {
        let Some(from) = from else {
            return StepDraftCounts::default();
        };
        let most = (end - from).min(self.tokens as usize).min(u8::MAX.into());
        let proposed = &text[from..from + most];
        let right = proposed.iter().zip(&text[end..]);
        StepDraftCounts {
            proposed: most as u8,
            accepted: right.take_while(|(draft, token)| draft == token).count() as u8,
        }
    }
}

/// Rolling hashes of a token sequence, from which the hash of any n-gram follows.
struct NgramHashes {
    prefixes: Vec<u64>,
    powers: Vec<u64>,
}

impl NgramHashes {
    fn new(text: &[u32], longest: usize) -> Self {
        let mut prefixes = vec![0_u64];
        let mut hash = 0_u64;
        for &token in text {
            hash = hash.wrapping_mul(HASH_BASE).wrapping_add(u64::from(token) + 1);
            prefixes.push(hash);
        }
        let mut powers = vec![1_u64];
        for at in 0..longest {
            powers.push(powers[at].wrapping_mul(HASH_BASE));
        }
        Self { prefixes, powers }
    }

    /// Returns the hash of the `length` tokens before position `end`.
    fn ngram_hash(&self, end: usize, length: usize) -> u64 {
        let before = self.prefixes[end - length].wrapping_mul(self.powers[length]);
        self.prefixes[end].wrapping_sub(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(lookup: (u32, u32, u32), prompt: &[u32], output: &[u32]) -> Vec<(u8, u8)> {
        let (min, max, tokens) = lookup;
        let lookup = NgramLookupSettings { min, max, tokens };
        let drafts = lookup.draft_lengths(prompt, output);
        drafts.iter().map(|d| (d.proposed, d.accepted)).collect()
    }

    #[test]
    fn drafts_repeat_what_followed_the_same_tokens() {
        // 3 4 1 2 follow the first 1 2; the output continues with 3 9.
        let found = drafts((2, 2, 3), &[1, 2, 3, 4, 1], &[2, 3, 9, 9]);
        assert_eq!(found, [(3, 1), (3, 0), (0, 0)]);
    }

    #[test]
    fn a_text_without_repetition_has_no_drafts() {
        assert_eq!(drafts((1, 5, 4), &[1, 2, 3], &[4, 5, 6]), [(0, 0); 2]);
        assert_eq!(drafts((1, 5, 4), &[1], &[2]), []);
    }

    #[test]
    fn an_echo_is_drafted_whole() {
        let text: Vec<u32> = (0..40).collect();
        let found = drafts((3, 3, 5), &text, &text);
        assert_eq!(found[..2], [(0, 0), (0, 0)], "three tokens are needed");
        assert!(found[2..34].iter().all(|draft| *draft == (5, 5)), "{found:?}");
    }

    #[test]
    fn the_longest_and_then_the_earliest_match_counts() {
        let found = drafts((1, 2, 1), &[5, 1, 7, 6, 1, 8, 9, 6], &[1, 8, 3]);
        assert_eq!(found[0], (1, 1), "behind 6 1, not behind 1 alone");
        let found = drafts((1, 1, 1), &[1, 7, 1, 8], &[1, 7, 3]);
        assert_eq!(found[0], (1, 1));
    }
}
