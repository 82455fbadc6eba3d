//! Converts runs of prompt tokens to the keys of the KV cache blocks that hold them.

use std::sync::Arc;

use vllm_sim_engine::{BlockKey, BlockPlan};
use vllm_sim_random::mix;

use super::workload::{Prompt, TokenRun};

/// Hash domain of output tokens, so that no block of output equals a block of prompt content.
const OUTPUT: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(super) struct SessionContent {
    /// Prompt and output tokens of all earlier turns; empty if the next turn does not extend them.
    history: Vec<TokenRun>,
}

impl SessionContent {
    /// Returns the prompt length of the session's next turn, in tokens, and the keys of its KV
    /// blocks.
    ///
    /// The content is kept if the prompt of the `next` turn extends it.
    pub(super) fn turn(
        &mut self,
        prompt: &Prompt,
        lora: Option<&str>,
        output: OutputRef,
        block_size: u32,
        next: Option<&Prompt>,
    ) -> (u32, Arc<BlockPlan>) {
        let runs = match prompt {
            Prompt::Whole(runs) => {
                self.history.clear();
                runs
            }
            Prompt::Grown(runs) => runs,
        };
        let said = output.run();
        let all = self.history.iter().chain(runs);
        let tokens: u64 = all.clone().map(|run| u64::from(run.len)).sum();
        let total = tokens + u64::from(said.len);
        let mut keys = KeyChain::new(block_size, total);
        keys.parent = lora.map_or(0, adapter_key);
        all.chain([&said]).for_each(|run| keys.add(run));
        if matches!(next, Some(Prompt::Grown(_))) {
            self.history.extend_from_slice(runs);
            self.history.push(said);
        } else {
            self.history = Vec::new();
        }
        let plan = BlockPlan {
            keys: keys.keys,
            block_size,
            ..BlockPlan::default()
        };
        (u32::try_from(tokens).unwrap_or(u32::MAX), Arc::new(plan))
    }
}

/// Returns the root key of a LoRA adapter's KV blocks, which no other adapter shares.
pub(super) fn adapter_key(name: &str) -> u64 {
    name.bytes().fold(1, |key, byte| mix(key, byte.into()))
}

/// Identifies the output tokens of one turn, which differ from all other tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputRef {
    pub session: u64,
    pub turn: u32,
    pub len: u32,
}

impl OutputRef {
    fn run(self) -> TokenRun {
        TokenRun {
            id: mix(OUTPUT, mix(self.session, self.turn.into())),
            len: self.len,
            same: false,
        }
    }
}

/// Builds the keys of all full KV blocks of a prompt; each key also covers all blocks before it.
struct KeyChain {
    keys: Vec<BlockKey>,
    size: u32,
    parent: u64,
    local: u64,
    /// Number of free tokens in the current block.
    left: u32,
}

impl KeyChain {
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

    fn add(&mut self, run: &TokenRun) {
        let mut at = 0;
        while at < run.len {
            if self.left == self.size && run.len - at >= self.size {
                at = self.add_whole(run, at);
                continue;
            }
            let part = self.left.min(run.len - at);
            let from = if run.same { u64::MAX } else { at.into() };
            self.local = mix(mix(self.local, run.id), mix(from, part.into()));
            at += part;
            self.left -= part;
            if self.left == 0 {
                self.parent = mix(self.parent, self.local);
                self.keys.push(BlockKey(self.parent));
                (self.local, self.left) = (0, self.size);
            }
        }
    }

    /// Adds all whole KV blocks of `run` from token `at` on, and returns the index after their last
    /// token.
    fn add_whole(&mut self, run: &TokenRun, at: u32) -> u32 {
        // Blocks of a run with distinct tokens differ by their offset, which is mixed into the
        // chain.
        let whole = mix(run.id, u64::from(run.same));
        let (size, blocks) = (self.size, (run.len - at) / self.size);
        let parent = &mut self.parent;
        self.keys.extend((0..blocks).map(|block| {
            let stands = match run.same {
                true => 0,
                false => at + block * size,
            };
            *parent = mix(*parent, whole.wrapping_add(stands.into()));
            BlockKey(*parent)
        }));
        at + blocks * size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: u64, len: u32, same: bool) -> TokenRun {
        TokenRun { id, len, same }
    }

    fn keys(runs: &[TokenRun], size: u32) -> Vec<BlockKey> {
        let mut keys = KeyChain::new(size, 0);
        runs.iter().for_each(|run| keys.add(run));
        keys.keys
    }

    #[test]
    fn equal_beginnings_have_equal_keys_and_only_those() {
        let a = keys(&[run(1, 30, false), run(2, 34, false)], 8);
        let b = keys(&[run(1, 30, false), run(3, 34, false)], 8);
        assert_eq!(a.len(), 8);
        let equal = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        assert_eq!(equal, 3);
        assert!(a[3..].iter().all(|key| !b.contains(key)));
    }

    #[test]
    fn a_run_of_one_token_is_the_same_wherever_it_is_cut() {
        let one = keys(&[run(1, 32, true)], 8);
        let two = keys(&[run(1, 20, true), run(1, 12, true)], 8);
        assert_eq!(one.len(), 4);
        // Both have the first two blocks before the cut.
        assert_eq!(one[..2], two[..2]);
    }

    #[test]
    fn a_turn_that_grows_begins_with_the_turn_before() {
        let mut content = SessionContent::default();
        let said = |turn| OutputRef {
            session: 5,
            turn,
            len: 16,
        };
        let first = Prompt::Whole(vec![run(1, 32, false)]);
        let more = Prompt::Grown(vec![run(2, 8, false)]);
        let (tokens, plan) = content.turn(&first, None, said(0), 8, Some(&more));
        assert_eq!((tokens, plan.keys.len()), (32, 6));
        let (tokens, next) = content.turn(&more, None, said(1), 8, None);
        assert_eq!((tokens, next.keys.len()), (56, 9));
        assert_eq!(next.keys[..6], plan.keys[..]);
    }

    #[test]
    fn an_adapter_has_separate_blocks() {
        let prompt = Prompt::Whole(vec![run(1, 32, false)]);
        let said = OutputRef {
            session: 5,
            turn: 0,
            len: 0,
        };
        let [base, one, again, other] = [None, Some("a"), Some("a"), Some("b")].map(|lora| {
            let (_, plan) = SessionContent::default().turn(&prompt, lora, said, 8, None);
            plan.keys.clone()
        });
        assert_eq!(one, again);
        assert!(
            base.iter()
                .all(|key| !one.contains(key) && !other.contains(key))
        );
        assert!(one.iter().all(|key| !other.contains(key)));
    }
}
