//! Log probabilities, made up but stable: a Zipf law over the vocabulary whose order and steepness
//! depend on what stands before.

mod zipf;

use vllm_sim_random::mix;
use zipf::Zipf;

/// One entry of a position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankedToken {
    /// Its id.
    pub id: u32,
    /// As a 32-bit float, as vLLM sends it; not below its floor of -9999.
    pub logprob: f32,
    /// From 1, the likeliest.
    pub rank: u32,
}

/// What a position's entries follow from.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    /// Tokens that the model knows.
    pub vocabulary: u32,
    /// Stands for the seed and all that is before it.
    pub context: u64,
    /// A token's rank is drawn flatter or steeper by the temperature; the values are those before
    /// the temperature, as vLLM's `raw_logprobs` are.
    pub temperature: f64,
}

impl Position {
    fn law(&self) -> Zipf {
        Zipf::new(self.context, self.vocabulary.max(2))
    }

    fn drawn(&self, law: &Zipf, id: u32) -> u32 {
        law.drawn(mix(self.context, u64::from(id)), self.temperature)
    }

    /// [`row`](Self::row) with each token once: the chosen one, then the likeliest `most` but it.
    ///
    /// Source: vLLM 0.33 `vllm/v1/engine/logprobs.py`, which makes a map of a row.
    pub fn entries(self, id: u32, most: usize) -> Vec<RankedToken> {
        let mut row = self.row(id, most);
        if let Some(again) = row.iter().skip(1).position(|entry| entry.id == id) {
            row.remove(again + 1);
        }
        row
    }

    /// Returns the chosen token, then the likeliest `most` in their order, itself among them if it is
    /// one; each token of the vocabulary once at most.
    pub fn row(self, id: u32, most: usize) -> Vec<RankedToken> {
        let law = self.law();
        let own = self.drawn(&law, id);
        let likeliest = (1..=self.vocabulary.max(2)).take(most).map(|rank| {
            let token = law.token(rank);
            let token = match rank == own {
                true => id,
                // Its place in the order of the vocabulary is another's.
                false if token == id => law.token(own),
                false => token,
            };
            ranked(&law, token, rank)
        });
        std::iter::once(ranked(&law, id, own))
            .chain(likeliest)
            .collect()
    }

    /// The chosen token, then these, whatever their ranks.
    pub fn entries_of(self, id: u32, others: &[u32]) -> Vec<RankedToken> {
        let law = self.law();
        let all = std::iter::once(&id).chain(others);
        all.map(|id| ranked(&law, *id, self.drawn(&law, *id)))
            .collect()
    }
}

fn ranked(law: &Zipf, id: u32, rank: u32) -> RankedToken {
    RankedToken {
        id,
        logprob: law.logprob(rank).max(-9999.0) as f32,
        rank,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_likeliest_in_order_and_entries_the_chosen_one_once() {
        for context in 0..200 {
            let position = Position {
                vocabulary: 100,
                context,
                temperature: 1.0,
            };
            let row = position.row(7, 5);
            let ranks: Vec<_> = row[1..].iter().map(|entry| entry.rank).collect();
            assert_eq!(ranks, [1, 2, 3, 4, 5]);
            let mut ids: Vec<_> = row[1..].iter().map(|entry| entry.id).collect();
            assert_eq!(ids.contains(&7), row[0].rank <= 5);
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 5);
            let entries = position.entries(7, 5);
            assert_eq!(entries[0], row[0]);
            let rest: Vec<_> = row[1..].iter().filter(|entry| entry.id != 7).collect();
            assert!(entries[1..].iter().eq(rest));
        }
    }
}
