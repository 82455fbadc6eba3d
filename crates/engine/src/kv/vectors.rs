//! Tests KV block hashes against published test vectors.

use std::sync::Arc;

use super::{
    BlockHashAlgorithm, BlockHashConfig, BlockHashExtraKeys, BlockHasher, HashedMediaSpan,
    LoraAdapter,
};
use crate::{BlockHashExtraKey, LoraId, PlannedKvBlocks};

fn block_hasher(algo: BlockHashAlgorithm, seed: Option<&str>, block_size: u32) -> BlockHasher {
    BlockHasher::new(BlockHashConfig {
        algo,
        seed: seed.map(str::to_owned),
        block_size,
        keep_hashes: true,
        keep_tokens: true,
        ..BlockHashConfig::default()
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn lora_adapter(name: &str, path: &str) -> LoraAdapter {
    LoraAdapter { id: LoraId(1), name: name.into(), path: path.into() }
}

fn media_span(identifier: &str, start: u32, len: u32) -> HashedMediaSpan {
    HashedMediaSpan { identifier: identifier.into(), start, len }
}

/// Returns, for each planned KV block, its hash in hexadecimal digits and its key.
fn hashes_and_keys(plan: &PlannedKvBlocks, len: usize) -> Vec<(String, u64)> {
    let keys = plan.keys.iter().map(|key| key.0);
    plan.hashes.iter().map(|hash| hex(&hash[..len])).zip(keys).collect()
}

struct PublishedVector {
    algo: BlockHashAlgorithm,
    seed: Option<&'static str>,
    block_size: u32,
    extras: BlockHashExtraKeys,
    tokens: Vec<u32>,
    none: &'static str,
    blocks: &'static [(&'static str, u64)],
}

impl PublishedVector {
    fn check(&self) {
        let hasher = block_hasher(self.algo, self.seed, self.block_size);
        let plan = hasher.plan_kv_blocks(&self.tokens, &self.extras);
        let expected: Vec<_> = self.blocks.iter().map(|&(h, n)| (h.to_owned(), n)).collect();
        assert_eq!(hex(hasher.none_hash()), self.none);
        assert_eq!(hashes_and_keys(&plan, self.algo.hash_len_bytes()), expected);
    }
}

fn twelve_tokens() -> Vec<u32> {
    (1..=12).collect()
}

fn tokens_at_encoding_limits() -> Vec<u32> {
    [0, 23, 24, 255, 256, 65_535, 65_536, 100_000].repeat(2)
}

fn tokens_by_formula() -> Vec<u32> {
    (0..100).map(|i| (7 * i + 11) % 4000).collect()
}

fn cache_salt(salt: &str) -> BlockHashExtraKeys {
    BlockHashExtraKeys { salt: Some(salt.into()), ..BlockHashExtraKeys::default() }
}

const SHA256_NONE_HASH_SEED_0: &str =
    "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c";
const SHA256_NONE_HASH_NO_SEED: &str =
    "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198";
const CBOR_NONE_HASH_SEED_0: &str =
    "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e";
const CBOR_NONE_HASH_NO_SEED: &str =
    "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0";

#[test]
fn none_hash_is_the_hash_of_pythonhashseed() {
    let root = |algo, seed| hex(block_hasher(algo, seed, 16).none_hash());
    for (algo, seed, expected) in [
        (BlockHashAlgorithm::Sha256, Some("0"), SHA256_NONE_HASH_SEED_0),
        (BlockHashAlgorithm::Sha256, None, SHA256_NONE_HASH_NO_SEED),
        (BlockHashAlgorithm::Sha256Cbor, Some("0"), CBOR_NONE_HASH_SEED_0),
        (BlockHashAlgorithm::Sha256Cbor, None, CBOR_NONE_HASH_NO_SEED),
        (
            BlockHashAlgorithm::Sha256,
            Some("42"),
            "c0bc02c9fc92a4944335649961b9e55cc41b194bece4801e8c6ef0f0f3f5884a",
        ),
        (
            BlockHashAlgorithm::Sha256Cbor,
            Some("42"),
            "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780",
        ),
        (BlockHashAlgorithm::Xxhash, Some("0"), "6fb31cc38bba6066183f7f2104b9c051"),
        (BlockHashAlgorithm::Xxhash, Some("42"), "b6cdd80ea04b31ad0b9fc22fff500882"),
        (BlockHashAlgorithm::XxhashCbor, Some("0"), "1ebe36576dcb573f26b99533a20aaeca"),
        (BlockHashAlgorithm::XxhashCbor, Some("42"), "a9d2e63407fce1a26c9dc9d7fa2d7caf"),
    ] {
        assert_eq!(root(algo, seed), expected, "{algo} {seed:?}");
    }
}

#[test]
fn sha256_cbor_hashes_equal_vllm() {
    PublishedVector {
        algo: BlockHashAlgorithm::Sha256Cbor,
        seed: Some("0"),
        block_size: 4,
        extras: BlockHashExtraKeys::default(),
        tokens: twelve_tokens(),
        none: CBOR_NONE_HASH_SEED_0,
        blocks: &[
            (
                "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb",
                2_164_874_634_404_590_027,
            ),
            (
                "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6",
                17_270_480_062_156_288_726,
            ),
            (
                "e628d7f6f15c524d67345b6a98489c375c91df1c31e3d154daed446d95c926b2",
                15_775_340_307_203_827_378,
            ),
        ],
    }
    .check();
}

#[test]
fn sha256_pickle_hashes_equal_vllm() {
    PublishedVector {
        algo: BlockHashAlgorithm::Sha256,
        seed: Some("0"),
        block_size: 4,
        extras: BlockHashExtraKeys::default(),
        tokens: twelve_tokens(),
        none: SHA256_NONE_HASH_SEED_0,
        blocks: &[
            (
                "762b2e7e1520febd3a0aedb7358e8602facf3924440e18538fce057e23bae91d",
                10_362_225_831_949_560_093,
            ),
            (
                "9e62b5a7ec298f33cb4c7d9e00b659874bb2432d23ad6879ad1746592a2b036b",
                12_472_515_041_799_373_675,
            ),
            (
                "fd503875de30430b3c7e35f7ecca2fe995f2d55487bfef31707e09b175f917a0",
                8_105_927_037_106_591_648,
            ),
        ],
    }
    .check();
}

#[test]
fn token_ids_of_every_width_hash_as_in_vllm() {
    PublishedVector {
        algo: BlockHashAlgorithm::Sha256Cbor,
        seed: None,
        block_size: 16,
        extras: BlockHashExtraKeys::default(),
        tokens: tokens_at_encoding_limits(),
        none: CBOR_NONE_HASH_NO_SEED,
        blocks: &[(
            "9d65fe6a0e68edabb53099b82cc59363decb96c2a61214a408a0afe8cfba2d19",
            621_690_163_029_486_873,
        )],
    }
    .check();
    PublishedVector {
        algo: BlockHashAlgorithm::Sha256,
        seed: None,
        block_size: 16,
        extras: BlockHashExtraKeys::default(),
        tokens: tokens_at_encoding_limits(),
        none: SHA256_NONE_HASH_NO_SEED,
        blocks: &[(
            "1e95b480ef136dd02407eb1fd7da487cbb522d6834e3a1ade2a99960449faf3a",
            16_332_754_162_383_040_314,
        )],
    }
    .check();
}

#[test]
fn blocks_of_32_tokens_hash_as_in_vllm() {
    PublishedVector {
        algo: BlockHashAlgorithm::Sha256Cbor,
        seed: Some("0"),
        block_size: 32,
        extras: BlockHashExtraKeys::default(),
        tokens: tokens_by_formula(),
        none: CBOR_NONE_HASH_SEED_0,
        blocks: &[
            (
                "3ae87e5c48342c909ae4e8307a1ebc0fb94cdab54f4d36a6cbd3231b880fcba9",
                14_687_121_410_939_145_129,
            ),
            (
                "7f0b9c893ba8fbf98e8de79f9367cf3087e55d0de147e1de7ee0d18a624fb9e1",
                9_142_537_635_847_191_009,
            ),
            (
                "babd955c11caac898589efdb6d0da20603186ab6d97239b930be7fa8cbe2fb10",
                3_512_385_122_347_449_104,
            ),
        ],
    }
    .check();
}

#[test]
fn cache_salt_changes_every_block_hash() {
    PublishedVector {
        algo: BlockHashAlgorithm::Sha256,
        seed: None,
        block_size: 32,
        extras: cache_salt("pepper"),
        tokens: tokens_by_formula(),
        none: SHA256_NONE_HASH_NO_SEED,
        blocks: &[
            (
                "0feb3e472b1edfeba987af97b3c52f04bf664472a2ee89cc4e469052b0046d27",
                5_640_354_268_142_923_047,
            ),
            (
                "5db86604421f97049f98cf8f55168f6706680c0af4a277bf1f806657df237ca3",
                2_269_926_739_786_562_723,
            ),
            (
                "7768c4a1db779931bfcc2336f14e6a760cf269a10154c4f487efdc704afdfff5",
                9_795_290_089_406_726_133,
            ),
        ],
    }
    .check();
}

#[test]
fn lora_and_cache_salt_hash_as_in_vllm() {
    PublishedVector {
        algo: BlockHashAlgorithm::Sha256Cbor,
        seed: Some("0"),
        block_size: 32,
        extras: BlockHashExtraKeys {
            lora: Some(lora_adapter("sql-lora", "adapters/sql-lora")),
            ..cache_salt("pepper")
        },
        tokens: tokens_by_formula(),
        none: CBOR_NONE_HASH_SEED_0,
        blocks: &[
            (
                "1ab3d2d0f4c135280bc23faec4367a70c57ecb19a315792c2e6bb9486a8f6121",
                3_344_970_868_929_290_529,
            ),
            (
                "b1c7166b77335a0b80df30c88aafd9df6b6cd1508cc830e78f71f5880aa682d8",
                10_336_312_584_435_040_984,
            ),
            (
                "5ed139120a02469da4c9bdb8bc906ac119f7167a57bca7f6c7652b557851fe2f",
                14_367_937_832_286_289_455,
            ),
        ],
    }
    .check();
}

#[test]
fn xxhash_cbor_hashes_equal_vllm() {
    PublishedVector {
        algo: BlockHashAlgorithm::XxhashCbor,
        seed: Some("0"),
        block_size: 4,
        extras: BlockHashExtraKeys::default(),
        tokens: twelve_tokens(),
        none: "1ebe36576dcb573f26b99533a20aaeca",
        blocks: &[
            ("0a8577df5ee3430515a8cc1f6e3ac52e", 1_560_721_706_249_274_670),
            ("d152782cb4d753bde718a811a3b75e23", 16_652_244_415_917_022_755),
            ("11854328836fe73fb185ad46317b7017", 12_791_820_833_605_251_095),
        ],
    }
    .check();
}

#[test]
fn xxhash_pickle_hashes_equal_vllm() {
    PublishedVector {
        algo: BlockHashAlgorithm::Xxhash,
        seed: Some("42"),
        block_size: 4,
        extras: BlockHashExtraKeys::default(),
        tokens: twelve_tokens(),
        none: "b6cdd80ea04b31ad0b9fc22fff500882",
        blocks: &[
            ("a3022a626f660bf026682e131b969803", 2_767_512_630_621_280_259),
            ("26b6262475f4351137c57e8ba5b706ec", 4_018_757_380_743_825_132),
            ("298f29e90f66e41cfa869d68a12d1e9a", 18_052_289_229_067_460_250),
        ],
    }
    .check();
}

#[test]
fn media_identifiers_hash_as_in_vllm() {
    let tokens = vec![
        128_000, 9906, 11, 1917, 0, 128_009, 882, 271, 15_339, 1917, 13, 128_009, 78_191, 128_007,
        271, 40, 128_000, 9906, 11, 1917, 0, 128_009, 882, 271, 15_339, 1917, 13, 128_009, 78_191,
        128_007, 271, 40,
    ];
    PublishedVector {
        algo: BlockHashAlgorithm::Sha256Cbor,
        seed: Some("random"),
        block_size: 16,
        extras: BlockHashExtraKeys {
            media: vec![media_span("img-hash-1", 6, 12), media_span("img-hash-2", 20, 4)],
            ..BlockHashExtraKeys::default()
        },
        tokens,
        none: "78d6ac7e28de859e492449dcea03e3807377d69998c5af819fed33a6df490cad",
        blocks: &[
            (
                "58c280e60441d6b3348ba3120a10c4a537804629bd0deb785d75c63c47a6cab4",
                6_734_506_780_004_895_412,
            ),
            (
                "1a7634830a9c9ef930485ce016a134086814cbcb2ae32a6a32c05a93fb3d6acb",
                3_657_022_489_046_641_355,
            ),
        ],
    }
    .check();
}

#[test]
fn llmd_root_hash_depends_on_the_model() {
    let extras = |media: Vec<HashedMediaSpan>| BlockHashExtraKeys {
        model: "my_model".into(),
        media,
        ..BlockHashExtraKeys::default()
    };
    let keys = |seed, size, extras: &BlockHashExtraKeys| -> Vec<u64> {
        let tokens: Vec<u32> = (1..=16).collect();
        let plan = block_hasher(BlockHashAlgorithm::LlmdFnv, Some(seed), size)
            .plan_kv_blocks(&tokens, extras);
        plan.keys.iter().map(|key| key.0).collect()
    };
    let plain = extras(vec![]);
    assert_eq!(keys("", 8, &plain), [14_151_251_437_537_762_825, 7_567_673_111_010_523_724]);
    assert_eq!(keys("", 16, &plain), [17_846_329_336_356_658_649]);
    assert_eq!(keys("42", 8, &plain), [7_120_184_760_178_095_809, 8_967_364_386_575_195_016]);
    let image = extras(vec![media_span("abc", 2, 3)]);
    assert_eq!(keys("", 8, &image), [7_103_571_041_084_167_398, 911_194_152_905_941_944]);
    // The router that recomputes keys from events cannot distinguish a salt from a media item.
    let salted = BlockHashExtraKeys { salt: Some("abc".into()), ..extras(vec![]) };
    assert_eq!(keys("", 8, &salted), [7_103_571_041_084_167_398, 911_194_152_905_941_944]);
}

#[test]
fn llmd_v06_block_hashes_ignore_the_model() {
    // The expected values are from fxamacker/cbor, as used by llm-d-kv-cache-manager v0.3.0.
    let keys = |seed| -> Vec<u64> {
        let tokens: Vec<u32> = (1..=16).collect();
        let plan = block_hasher(BlockHashAlgorithm::LlmdSha256, Some(seed), 8)
            .plan_kv_blocks(&tokens, &BlockHashExtraKeys::default());
        plan.keys.iter().map(|key| key.0).collect()
    };
    assert_eq!(keys(""), [8_565_633_689_886_292_673, 1_365_280_974_284_707_021]);
    assert_eq!(keys("42"), [3_398_220_529_416_926_051, 4_103_281_032_283_978_826]);
}

#[test]
fn kv_events_contain_untagged_extra_keys() {
    let extras = BlockHashExtraKeys {
        lora: Some(lora_adapter("sql-lora", "p")),
        media: vec![media_span("img", 3, 4)],
        ..cache_salt("pepper")
    };
    let text = |text: &str| BlockHashExtraKey::Text(text.into());
    let img = |offset| BlockHashExtraKey::Media { identifier: "img".into(), offset };
    let shown = block_hasher(BlockHashAlgorithm::Sha256, None, 4)
        .plan_kv_blocks(&twelve_tokens(), &extras)
        .extra_keys;
    let expected: Vec<Option<Arc<[BlockHashExtraKey]>>> = vec![
        Some([text("sql-lora"), img(3), text("pepper")].into()),
        Some([text("sql-lora"), img(-1)].into()),
        Some([text("sql-lora")].into()),
    ];
    assert_eq!(shown, expected);
    let salted = block_hasher(BlockHashAlgorithm::Sha256, None, 4)
        .plan_kv_blocks(&twelve_tokens(), &cache_salt("s"))
        .extra_keys;
    assert_eq!(salted, [Some([text("s")].into()), None, None]);
}

#[test]
fn block_plan_built_incrementally_is_equal() {
    let hasher = block_hasher(BlockHashAlgorithm::Sha256Cbor, None, 4);
    let extras = cache_salt("s");
    let whole = hasher.plan_kv_blocks(&tokens_by_formula(), &extras);
    let mut prompt = hasher.begin_planned_kv_blocks(&extras, 0);
    prompt.append_tokens(&tokens_by_formula()[..37]);
    let mut reply = prompt.clone();
    tokens_by_formula()[37..].iter().for_each(|&token| reply.append_tokens(&[token]));
    assert_eq!(reply.finish_planned_kv_blocks(), whole);
    assert_eq!(prompt.finish_planned_kv_blocks().keys, whole.keys[..9]);
}

#[test]
fn block_plan_omits_parts_that_nothing_reads() {
    let plan = BlockHasher::new(BlockHashConfig { block_size: 4, ..BlockHashConfig::default() })
        .plan_kv_blocks(&twelve_tokens(), &cache_salt("s"));
    assert_eq!(plan.keys.len(), 3);
    assert_eq!(plan.tokens.len() + plan.hashes.len() + plan.extra_keys.len(), 0);
}
