//! Indexes the replies of a dataset in memory, by prompt and by length.

use rand_chacha::rand_core::Rng;

use super::hash::PromptHash;
use super::reply::{ReplyStats, RequestedReplyLength};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IndexedDatasetReply {
    /// First 8 bytes of the prompt hash, which identify the prompt in the index.
    key: u64,
    pub(super) n: u32,
    pub(super) id: i64,
}

impl IndexedDatasetReply {
    pub(super) fn new(hash: &PromptHash, reply_tokens: u32, row_id: i64) -> Self {
        Self { key: hash_prefix_u64(hash), n: reply_tokens, id: row_id }
    }
}

fn hash_prefix_u64(hash: &PromptHash) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_be_bytes(first)
}

/// Index over all replies of a dataset, built when a dataset is opened, because most files contain
/// no index.
#[derive(Debug)]
pub(super) struct ReplyIndex {
    /// Replies of the dataset, sorted by key (start of the prompt hash), number of tokens and row
    /// id.
    by_prompt: Vec<IndexedDatasetReply>,
    /// Indices into `by_prompt`, sorted by the number of tokens of the replies.
    by_length: Vec<u32>,
}

impl ReplyIndex {
    /// Builds the index over the replies of a dataset; the order of the given replies does not
    /// matter.
    pub(super) fn new(mut replies: Vec<IndexedDatasetReply>) -> Self {
        replies.sort_unstable();
        let positions = 0..u32::try_from(replies.len()).unwrap_or(u32::MAX);
        let mut by_length: Vec<u32> = positions.collect();
        by_length.sort_by_key(|position| replies[*position as usize].n);
        Self { by_prompt: replies, by_length }
    }

    pub(super) fn len(&self) -> usize {
        self.by_prompt.len()
    }

    pub(super) fn row_ids_and_reply_lengths(&self) -> impl Iterator<Item = (i64, u32)> {
        self.by_prompt.iter().map(|reply| (reply.id, reply.n))
    }

    pub(super) fn reply_stats(&self) -> ReplyStats {
        let rows = self.len();
        let at = |position: usize| {
            let position = self.by_length.get(position);
            position.map_or(0, |position| self.by_prompt[*position as usize].n)
        };
        ReplyStats {
            rows,
            prompts: self.by_prompt.chunk_by(|a, b| a.key == b.key).count(),
            tokens: self.by_prompt.iter().map(|reply| u64::from(reply.n)).sum(),
            lengths: [at(0), at(rows / 2), at(rows.saturating_sub(1))],
        }
    }

    /// Returns the replies to prompts whose hash is in `hashes`, sorted by number of tokens.
    pub(super) fn replies_with_prompt_hashes(
        &self,
        hashes: &[PromptHash],
    ) -> Vec<IndexedDatasetReply> {
        let mut keys: Vec<u64> = hashes.iter().map(hash_prefix_u64).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut found = Vec::new();
        for key in keys {
            let start = self.by_prompt.partition_point(|reply| reply.key < key);
            let rest = &self.by_prompt[start..];
            found.extend_from_slice(&rest[..rest.partition_point(|reply| reply.key == key)]);
        }
        found.sort_unstable_by_key(|reply| (reply.n, reply.id));
        found
    }

    /// Chooses a random reply to any prompt by the length rules of [`choose_reply_to_prompt`]; if
    /// none fits, any reply. Returns the row id of the reply.
    pub(super) fn choose_reply_to_any_prompt(
        &self,
        wanted: RequestedReplyLength,
        rng: &mut impl Rng,
    ) -> Option<i64> {
        let most = wanted.max_reply_tokens();
        let length = |position: &u32| self.by_prompt[*position as usize].n;
        let up_to = self.by_length.partition_point(|position| length(position) <= most);
        let from = match wanted {
            RequestedReplyLength::Exactly(_) => {
                self.by_length.partition_point(|position| length(position) < most)
            }
            RequestedReplyLength::AtMost(_) => 0,
        };
        let positions = match &self.by_length[from..up_to] {
            [] => &self.by_length[..],
            fitting => fitting,
        };
        if positions.is_empty() {
            return None;
        }
        let position = positions[draw_below(positions.len(), rng)];
        Some(self.by_prompt[position as usize].id)
    }
}

/// Chooses one of the replies to a prompt, which are sorted by number of tokens. Returns the row id
/// of the reply.
///
/// Prefers a random reply within the wanted length, else a longer reply. An exact length prefers a
/// reply of that length, then a longer one, then any.
pub(super) fn choose_reply_to_prompt(
    same: &[IndexedDatasetReply],
    wanted: RequestedReplyLength,
    rng: &mut impl Rng,
) -> Option<i64> {
    let most = wanted.max_reply_tokens();
    let shorter = same.partition_point(|reply| reply.n < most);
    let fitting = same.partition_point(|reply| reply.n <= most);
    let best = match wanted {
        RequestedReplyLength::Exactly(_) => &same[shorter..fitting],
        RequestedReplyLength::AtMost(_) => &same[..fitting],
    };
    let second = &same[fitting..];
    let from = [best, second, same].into_iter().find(|replies| !replies.is_empty())?;
    Some(from[draw_below(from.len(), rng)].id)
}

/// Draws a random number uniformly from `0..n`; `n` must not be 0.
fn draw_below(n: usize, rng: &mut impl Rng) -> usize {
    // Multiply-shift; the bias is below 2^-64 x n.
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}
