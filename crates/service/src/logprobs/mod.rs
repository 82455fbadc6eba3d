//! Synthetic but deterministic log probabilities of output and prompt tokens.
//!
//! The probabilities follow Zipf's law over the vocabulary. The preceding tokens determine the
//! order of the vocabulary and the exponent.

mod zipf;

use vllm_sim_random::mix_u64_pair;
use zipf::ZipfDistribution;

/// A token of the vocabulary with its rank and log probability at one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankedTokenLogprob {
    /// Id of the token.
    pub id: u32,
    /// Log probability, as `f32` like vLLM's; at least -9999.
    pub logprob: f32,
    /// Rank in the vocabulary, starting at 1 for the most likely token.
    pub rank: u32,
}

/// The inputs that determine the log probabilities at one token position.
#[derive(Debug, Clone, Copy)]
pub struct LogprobInputs {
    /// Vocabulary size, in tokens.
    pub vocabulary: u32,
    /// Hash of the seed and of all tokens before the position.
    pub context: u64,
    /// Sampling temperature, which affects only the rank of the chosen token.
    ///
    /// The log probabilities are those before temperature, like vLLM's `raw_logprobs`.
    pub temperature: f64,
}

impl LogprobInputs {
    fn rank_distribution(&self) -> ZipfDistribution {
        ZipfDistribution::new(self.context, self.vocabulary.max(2))
    }

    fn drawn_rank(&self, law: &ZipfDistribution, id: u32) -> u32 {
        law.draw_rank(mix_u64_pair(self.context, u64::from(id)), self.temperature)
    }

    /// Returns the log probabilities of the chosen token `id`, then of the other most likely
    /// tokens, without duplicates.
    ///
    /// Source: vLLM 0.33 `vllm/v1/engine/logprobs.py`, which converts a row to a dictionary.
    pub fn deduplicated_chosen_and_top_tokens(
        self,
        id: u32,
        max_top_tokens: usize,
    ) -> Vec<RankedTokenLogprob> {
        let mut row = self.chosen_and_top_tokens(id, max_top_tokens);
        if let Some(again) = row.iter().skip(1).position(|entry| entry.id == id) {
            row.remove(again + 1);
        }
        row
    }

    /// Returns log probabilities: the chosen token `id`, then the `max_top_tokens` most likely tokens in
    /// order of rank.
    ///
    /// The chosen token appears a second time if it is among the most likely.
    pub fn chosen_and_top_tokens(self, id: u32, max_top_tokens: usize) -> Vec<RankedTokenLogprob> {
        let law = self.rank_distribution();
        let own = self.drawn_rank(&law, id);
        let likeliest = (1..=self.vocabulary.max(2)).take(max_top_tokens).map(|rank| {
            let token = law.token_of_rank(rank);
            let token = match rank == own {
                true => id,
                // The chosen token and the token of its drawn rank swap their ranks.
                false if token == id => law.token_of_rank(own),
                false => token,
            };
            ranked_token(&law, token, rank)
        });
        std::iter::once(ranked_token(&law, id, own)).chain(likeliest).collect()
    }

    /// Returns log probabilities: the chosen token `id`, then `others` in the given order.
    pub fn chosen_and_listed_tokens(self, id: u32, others: &[u32]) -> Vec<RankedTokenLogprob> {
        let law = self.rank_distribution();
        let all = std::iter::once(&id).chain(others);
        all.map(|id| ranked_token(&law, *id, self.drawn_rank(&law, *id))).collect()
    }
}

fn ranked_token(law: &ZipfDistribution, id: u32, rank: u32) -> RankedTokenLogprob {
    RankedTokenLogprob { id, logprob: law.logprob_of_rank(rank).max(-9999.0) as f32, rank }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_likeliest_in_order_and_entries_the_chosen_one_once() {
        for context in 0..200 {
            let position = LogprobInputs { vocabulary: 100, context, temperature: 1.0 };
            let row = position.chosen_and_top_tokens(7, 5);
            let ranks: Vec<_> = row[1..].iter().map(|entry| entry.rank).collect();
            assert_eq!(ranks, [1, 2, 3, 4, 5]);
            let mut ids: Vec<_> = row[1..].iter().map(|entry| entry.id).collect();
            assert_eq!(ids.contains(&7), row[0].rank <= 5);
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 5);
            let entries = position.deduplicated_chosen_and_top_tokens(7, 5);
            assert_eq!(entries[0], row[0]);
            let rest: Vec<_> = row[1..].iter().filter(|entry| entry.id != 7).collect();
            assert!(entries[1..].iter().eq(rest));
        }
    }
}
