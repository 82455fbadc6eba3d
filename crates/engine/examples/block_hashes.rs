//! Prints the block hashes of vLLM and llm-d for a prompt: `cargo run --example block_hashes`.

use vllm_sim_engine::kv::{BlockHashAlgorithm, BlockHashConfig, BlockHashExtraKeys, BlockHasher};

fn main() {
    // Ten token ids in blocks of four: two full blocks, and two further tokens.
    let prompt: Vec<u32> = (1000..1010).collect();
    let extras = BlockHashExtraKeys { model: "my-model".into(), ..BlockHashExtraKeys::default() };
    for algo in [
        BlockHashAlgorithm::Sha256,
        BlockHashAlgorithm::Sha256Cbor,
        BlockHashAlgorithm::Xxhash,
        BlockHashAlgorithm::XxhashCbor,
        BlockHashAlgorithm::LlmdFnv,
        BlockHashAlgorithm::LlmdSha256,
    ] {
        let hasher = BlockHasher::new(BlockHashConfig {
            algo,
            seed: Some("0".to_owned()), // PYTHONHASHSEED
            block_size: 4,
            keep_hashes: true,
            ..BlockHashConfig::default()
        });
        let plan = hasher.plan_kv_blocks(&prompt, &extras);
        println!("{algo}");
        for (key, hash) in plan.keys.iter().zip(&plan.hashes) {
            let hash = &hash[..algo.hash_len_bytes()];
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("  {:>20}  {hex}", key.0);
        }
    }
}
