//! Checks that the internal hash distinguishes the same blocks as vLLM's.

use std::sync::Arc;

use crate::kv::{
    BlockHashAlgorithm, BlockHashConfig, BlockHashExtraKeys, BlockHasher, HashedMediaSpan,
    LoraAdapter,
};
use crate::{BlockKey, LoraId};

fn keys(algo: BlockHashAlgorithm, tokens: &[u32], extras: &BlockHashExtraKeys) -> Vec<BlockKey> {
    let hasher =
        BlockHasher::new(BlockHashConfig { algo, block_size: 4, ..BlockHashConfig::default() });
    hasher.plan_kv_blocks(tokens, extras).keys
}

/// Returns all pairs of prompts, with their extra keys.
#[test]
fn internal_block_keys_are_equal_iff_vllm_keys_are() {
    let salted = |salt: &str| BlockHashExtraKeys {
        salt: Some(Arc::from(salt)),
        ..BlockHashExtraKeys::default()
    };
    let adapter = |name: &str| BlockHashExtraKeys {
        lora: Some(LoraAdapter {
            id: LoraId(1),
            name: Arc::from(name),
            path: Arc::from("/adapters"),
        }),
        ..BlockHashExtraKeys::default()
    };
    let image = |identifier: &str, start: u32| BlockHashExtraKeys {
        media: vec![HashedMediaSpan { identifier: Arc::from(identifier), start, len: 3 }],
        ..BlockHashExtraKeys::default()
    };
    let extras = [
        BlockHashExtraKeys::default(),
        salted("a"),
        salted("b"),
        adapter("a"),
        adapter("b"),
        image("a", 2),
        image("a", 5),
        image("b", 5),
    ];
    let same_start: Vec<u32> = (0..12).collect();
    let mut other_middle = same_start.clone();
    other_middle[5] = 1 << 24;
    let prompts = [same_start, other_middle, (4..16).collect()];
    let named = |algo| {
        let named =
            extras.iter().flat_map(|extras| prompts.iter().map(move |prompt| (extras, prompt)));
        named.map(|(extras, prompt)| keys(algo, prompt, extras)).collect::<Vec<_>>()
    };
    let (internal, vllm) = (named(BlockHashAlgorithm::Internal), named(BlockHashAlgorithm::Sha256));
    for (i, j) in (0..vllm.len()).flat_map(|i| (0..vllm.len()).map(move |j| (i, j))) {
        let equal = |all: &[Vec<BlockKey>]| -> Vec<bool> {
            let pairs = all[i].iter().flat_map(|a| all[j].iter().map(move |b| a == b));
            pairs.collect()
        };
        assert_eq!(equal(&internal), equal(&vllm), "{i} and {j}");
    }
}
