//! Converts runs of prompt tokens to the keys of the KV cache blocks that hold them.

use std::sync::Arc;

use vllm_sim_engine::{BlockKey, PlannedKvBlocks};
use vllm_sim_random::mix_u64_pair;

use super::workload::{PromptTokenRun, TurnPrompt};

/// Salt in the hashes of output tokens, so that no KV block of output equals a block of prompt
/// content.
const OUTPUT_HASH_DOMAIN: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(super) struct SessionTokenHistory {
    /// Prompt and output tokens of the session's earlier turns; empty if the next turn does not
    /// extend them.
    history: Vec<PromptTokenRun>,
}

impl SessionTokenHistory {
    /// Returns the prompt length of the session's next turn, in tokens, and the keys of its KV
    /// blocks.
    ///
    /// The content is kept if the prompt of the `next` turn extends it.
    pub(super) fn next_turn_block_keys(
        &mut self,
        prompt: &TurnPrompt,
        lora: Option<&str>,
        output: TurnOutputTokens,
        block_size: u32,
        next: Option<&TurnPrompt>,
    ) -> (u32, Arc<PlannedKvBlocks>) {
        let runs = match prompt {
            TurnPrompt::Whole(runs) => {
                self.history.clear();
                runs
            }
            TurnPrompt::Grown(runs) => runs,
        };
        let said = output.to_token_run();
        let all = self.history.iter().chain(runs);
        let tokens: u64 = all.clone().map(|run| u64::from(run.len)).sum();
        let total = tokens + u64::from(said.len);
        let mut keys = BlockKeyChain::new(block_size, total);
        keys.parent = lora.map_or(0, lora_root_block_key);
        all.chain([&said]).for_each(|run| keys.add_token_run(run));
        if matches!(next, Some(TurnPrompt::Grown(_))) {
            self.history.extend_from_slice(runs);
            self.history.push(said);
        } else {
            self.history = Vec::new();
        }
        let plan = PlannedKvBlocks { keys: keys.keys, block_size, ..PlannedKvBlocks::default() };
        (u32::try_from(tokens).unwrap_or(u32::MAX), Arc::new(plan))
    }
}

/// Returns the root key of a LoRA adapter's KV blocks, which no other adapter shares.
pub(super) fn lora_root_block_key(name: &str) -> u64 {
    name.bytes().fold(1, |key, byte| mix_u64_pair(key, byte.into()))
}

/// Identity of the output tokens of one turn, which differ from all other tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnOutputTokens {
    pub session: u64,
    pub turn: u32,
    pub len: u32,
}

impl TurnOutputTokens {
    fn to_token_run(self) -> PromptTokenRun {
        PromptTokenRun {
            id: mix_u64_pair(OUTPUT_HASH_DOMAIN, mix_u64_pair(self.session, self.turn.into())),
            len: self.len,
            same: false,
        }
    }
}

/// Builds the keys of all full KV blocks of a prompt; each key also covers all blocks before it.
struct BlockKeyChain {
    keys: Vec<BlockKey>,
    size: u32,
    parent: u64,
    local: u64,
    /// Number of tokens that still fit into the current KV block.
    left: u32,
}

impl BlockKeyChain {
    fn new(block_size: u32, tokens: u64) -> Self {
        let size = block_size.max(1);
        Self {
            keys: Vec::with_capacity((tokens / u64::from(size)) as usize),
            size,
            parent: 0,
            local: 0,
            left: size,
        }
    }

    fn add_token_run(&mut self, run: &PromptTokenRun) {
        let mut at = 0;
        while at < run.len {
            if self.left == self.size && run.len - at >= self.size {
                at = self.add_whole_blocks(run, at);
                continue;
            }
            let part = self.left.min(run.len - at);
            let from = if run.same { u64::MAX } else { at.into() };
            self.local =
                mix_u64_pair(mix_u64_pair(self.local, run.id), mix_u64_pair(from, part.into()));
            at += part;
            self.left -= part;
            if self.left == 0 {
                self.parent = mix_u64_pair(self.parent, self.local);
                self.keys.push(BlockKey(self.parent));
                (self.local, self.left) = (0, self.size);
            }
        }
    }

    /// Adds the keys of all KV blocks that are completely filled by tokens of `run` from token `at`
    /// on. Returns the index of the first token after these blocks.
    fn add_whole_blocks(&mut self, run: &PromptTokenRun, at: u32) -> u32 {
        // Blocks of a run with distinct tokens differ by their offset, which is mixed into the
        // chain.
        let whole = mix_u64_pair(run.id, u64::from(run.same));
        let (size, blocks) = (self.size, (run.len - at) / self.size);
        let parent = &mut self.parent;
        self.keys.extend((0..blocks).map(|block| {
            let stands = match run.same {
                true => 0,
                false => at + block * size,
            };
            *parent = mix_u64_pair(*parent, whole.wrapping_add(stands.into()));
            BlockKey(*parent)
        }));
        at + blocks * size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: u64, len: u32, same: bool) -> PromptTokenRun {
        PromptTokenRun { id, len, same }
    }

    fn keys(runs: &[PromptTokenRun], size: u32) -> Vec<BlockKey> {
        let mut keys = BlockKeyChain::new(size, 0);
        runs.iter().for_each(|run| keys.add_token_run(run));
        keys.keys
    }

    #[test]
    fn equal_prefixes_have_equal_block_keys() {
        let a = keys(&[run(1, 30, false), run(2, 34, false)], 8);
        let b = keys(&[run(1, 30, false), run(3, 34, false)], 8);
        assert_eq!(a.len(), 8);
        let equal = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        assert_eq!(equal, 3);
        assert!(a[3..].iter().all(|key| !b.contains(key)));
    }

    #[test]
    fn block_keys_ignore_where_a_run_is_split() {
        let one = keys(&[run(1, 32, true)], 8);
        let two = keys(&[run(1, 20, true), run(1, 12, true)], 8);
        assert_eq!(one.len(), 4);
        // Both have the first two blocks before the cut.
        assert_eq!(one[..2], two[..2]);
    }

    #[test]
    fn growing_turn_extends_previous_block_keys() {
        let mut content = SessionTokenHistory::default();
        let said = |turn| TurnOutputTokens { session: 5, turn, len: 16 };
        let first = TurnPrompt::Whole(vec![run(1, 32, false)]);
        let more = TurnPrompt::Grown(vec![run(2, 8, false)]);
        let (tokens, plan) = content.next_turn_block_keys(&first, None, said(0), 8, Some(&more));
        assert_eq!((tokens, plan.keys.len()), (32, 6));
        let (tokens, next) = content.next_turn_block_keys(&more, None, said(1), 8, None);
        assert_eq!((tokens, next.keys.len()), (56, 9));
        assert_eq!(next.keys[..6], plan.keys[..]);
    }

    #[test]
    fn an_adapter_has_separate_blocks() {
        let prompt = TurnPrompt::Whole(vec![run(1, 32, false)]);
        let said = TurnOutputTokens { session: 5, turn: 0, len: 0 };
        let [base, one, again, other] = [None, Some("a"), Some("a"), Some("b")].map(|lora| {
            let (_, plan) =
                SessionTokenHistory::default().next_turn_block_keys(&prompt, lora, said, 8, None);
            plan.keys.clone()
        });
        assert_eq!(one, again);
        assert!(base.iter().all(|key| !one.contains(key) && !other.contains(key)));
        assert!(one.iter().all(|key| !other.contains(key)));
    }
}
