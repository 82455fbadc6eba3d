//! Tests block hashes made with Python's own encoders by `tests/python/kv_hash_vectors.py`.

use serde::Deserialize;

use crate::kv::{
    BlockHashAlgorithm, BlockHashConfig, BlockHashExtraKeys, BlockHasher, HashedMediaSpan,
    LoraAdapter,
};
use crate::{BlockKey, LoraId};

#[derive(Deserialize)]
struct PythonHashCase {
    algo: String,
    seed: Option<String>,
    block_size: u32,
    tokens: Tokens,
    lora: Option<(String, String)>,
    model: String,
    salt: Option<Salt>,
    media: Vec<(String, u32, u32)>,
    #[serde(default)]
    lookahead: u32,
    hashes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Tokens {
    All(Vec<u32>),
    Series { seed: u64, count: usize },
}

impl Tokens {
    fn expand(self) -> Vec<u32> {
        match self {
            Self::All(tokens) => tokens,
            Self::Series { mut seed, count } => (0..count)
                .map(|_| {
                    seed = seed
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    ((seed >> 33) % 200_000) as u32
                })
                .collect(),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Salt {
    Text(String),
    Repeated { text: String, times: usize },
}

fn to_media_span((identifier, start, len): (String, u32, u32)) -> HashedMediaSpan {
    HashedMediaSpan { identifier: identifier.into(), start, len }
}

#[test]
fn block_hashes_equal_python_on_random_prompts() {
    let cases = include_str!("../../../../../tests/fixtures/kv_block_hashes.jsonl");
    let mut checked = 0;
    for (line, case) in cases.lines().enumerate() {
        let case: PythonHashCase = serde_json::from_str(case).unwrap();
        let algo = match case.algo.as_str() {
            "sha256" => BlockHashAlgorithm::Sha256,
            "sha256_cbor" => BlockHashAlgorithm::Sha256Cbor,
            "xxhash" => BlockHashAlgorithm::Xxhash,
            "xxhash_cbor" => BlockHashAlgorithm::XxhashCbor,
            "llm-d-fnv" => BlockHashAlgorithm::LlmdFnv,
            "llm-d-sha256" => BlockHashAlgorithm::LlmdSha256,
            other => panic!("line {line}: {other}"),
        };
        let extras = BlockHashExtraKeys {
            lora: case.lora.map(|(name, path)| LoraAdapter {
                id: LoraId(1),
                name: name.into(),
                path: path.into(),
            }),
            model: case.model.into(),
            salt: case.salt.map(|salt| match salt {
                Salt::Text(text) => text.into(),
                Salt::Repeated { text, times } => text.repeat(times).into(),
            }),
            media: case.media.into_iter().map(to_media_span).collect(),
        };
        let hasher = BlockHasher::new(BlockHashConfig {
            algo,
            seed: case.seed,
            block_size: case.block_size,
            lookahead: case.lookahead,
            keep_hashes: true,
            keep_tokens: false,
        });
        let plan = hasher.plan_kv_blocks(&case.tokens.expand(), &extras);
        let hex = |hash: &[u8; 32]| -> String {
            let bytes = hash[..algo.hash_len_bytes()].iter();
            bytes.map(|byte| format!("{byte:02x}")).collect()
        };
        let whole: Vec<String> = plan.hashes.iter().map(hex).collect();
        assert_eq!(whole, case.hashes, "line {}: {algo}", line + 1);
        let low = |hash: &String| u64::from_str_radix(&hash[hash.len() - 16..], 16).unwrap();
        let keys: Vec<BlockKey> = case.hashes.iter().map(low).map(BlockKey).collect();
        assert_eq!(plan.keys, keys, "line {}", line + 1);
        checked += keys.len();
    }
    assert!(checked > 300, "{checked}");
}
