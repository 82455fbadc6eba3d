//! A prefix cache in the memory of the host: how large it is, and what is refused.

use serde_json::{Value, json};

use super::try_words;
use vllm_sim_config::{ConfigError, LoadedConfig};
use vllm_sim_engine::kv::{HostCacheEvictionPolicy, OffloadConnector};

fn served(words: &[&str]) -> Result<LoadedConfig, ConfigError> {
    try_words(&[&["vllm-sim", "serve"], words].concat(), &[])
}

/// A connector of Llama 8B with these settings of its own.
fn connector(name: &str, extra: Value) -> Result<LoadedConfig, ConfigError> {
    let config = json!({"kv_connector": name, "kv_role": "kv_both",
        "kv_connector_extra_config": extra})
    .to_string();
    let words = ["meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100"];
    served(&[&words[..], &["--kv-transfer-config", &config]].concat())
}

/// Chunks, GPUs that copy, and microseconds that a chunk takes back.
fn size(words: &[&str]) -> (u32, u32, u128) {
    let host = served(words).unwrap().config.engine.kv_offload.unwrap();
    let (_, back) = host.tier.chunk_time;
    (host.tier.chunks, host.workers, back.as_micros())
}

#[test]
fn offload_size_covers_all_gpus() {
    let llama = "meta-llama/Llama-3.1-8B-Instruct";
    let sized = |words: &[&str]| {
        let size_gib = ["--kv-offloading-size", "64"];
        size(&[&[llama], &size_gib[..], words].concat())
    };
    // 128 KiB a token, 2 MiB a block.
    assert_eq!(sized(&["--gpu", "H100"]), (32_768, 1, 40));
    assert_eq!(sized(&["--gpu", "H100", "-tp", "4"]), (32_768, 4, 10));
    assert_eq!(sized(&["--gpu", "A100"]), (32_768, 1, 87));
    assert_eq!(sized(&["--gpu", "GH200"]), (32_768, 1, 5));
    assert_eq!(sized(&["--gpu", "H100", "--kv-cache-dtype", "fp8"]), (65_536, 1, 20));
    let slow = ["--gpu", "H100", "--kv-offloading-bandwidth", "2.097152"];
    assert_eq!(sized(&slow), (32_768, 1, 1000));
    let typed = ["m", "--kv-offloading-size", "1", "--kv-bytes-per-token", "1024"];
    assert_eq!(size(&typed).0, 65_536);
}

#[test]
fn offload_chunk_is_block_of_layer_group() {
    let gemma = ["google/gemma-3-27b-it", "--gpu", "H100", "-tp", "2"];
    let sized = [&gemma[..], &["--kv-offloading-size", "10"]].concat();
    let host = served(&sized).unwrap().config.engine.kv_offload.unwrap();
    // Ten of 62 layers, 16 key and value heads of 128 in two bytes, 16 tokens.
    assert_eq!(host.tier.chunk_bytes, 10 * 2 * 16 * 128 * 2 * 16);
    assert_eq!(host.tier.chunks, 8192);
    // A request has a block for every 16 tokens, and 64 in each of six groups that see 1024 tokens.
    assert_eq!(host.tokens, 8192 * 131_072 / (8192 + 6 * 64));
    let flat = [&sized[..], &["--disable-hybrid-kv-cache-manager"]].concat();
    let flat = served(&flat).unwrap().config.engine.kv_offload.unwrap();
    assert_eq!(flat.tier.chunk_bytes, 62 * 2 * 16 * 128 * 2 * 16);
    let config = |name: &str, extra: Value| {
        let config = json!({"kv_connector": name, "kv_role": "kv_both",
            "kv_connector_extra_config": extra})
        .to_string();
        served(&[&gemma[..], &["--kv-transfer-config", &config]].concat())
    };
    let large = json!({"cpu_bytes_to_use": 1e9, "blocks_per_chunk": 2});
    let refused = config("OffloadingConnector", large).unwrap_err().to_string();
    assert!(refused.contains("chunks of 2 blocks are not simulated"), "{refused}");
    // One that knows a single group has windows kept whole.
    let lmcache = config("LMCacheConnectorV1", json!({})).unwrap();
    let said =
        lmcache.warnings.iter().any(|text| text.contains("supports a single group of layers"));
    assert!(said, "{:?}", lmcache.warnings);
    let plan = lmcache.config.engine.kv_cache.unwrap().plan;
    assert_eq!((plan.full_groups, plan.sparse_groups), (1, 0));
}

#[test]
fn connectors_are_read_as_vllm_reads_them() {
    let tier = |name, extra| {
        let config = connector(name, extra).unwrap().config;
        config.engine.kv_offload.unwrap().tier
    };
    let native = tier(
        "OffloadingConnector",
        json!({"cpu_bytes_to_use": 1 << 30, "block_size": 64, "offload_prompt_only": false}),
    );
    assert_eq!((native.chunks, native.blocks_per_chunk), (128, 4));
    assert!(native.outputs);
    assert_eq!(native.eviction, HostCacheEvictionPolicy::Lru);
    let arc = json!({"cpu_bytes_to_use": 1 << 30, "eviction_policy": "arc"});
    assert_eq!(tier("OffloadingConnector", arc).eviction, HostCacheEvictionPolicy::Arc);
    let simple = tier("SimpleCPUOffloadConnector", json!({}));
    assert_eq!((simple.rules, simple.chunks), (OffloadConnector::Simple, 4096));
    let of_two = json!({"connectors": [
        {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 30}}]});
    assert_eq!(tier("MultiConnector", of_two).chunks, 512);
}

#[test]
fn unsupported_offload_settings_are_rejected() {
    for (name, extra, message) in [
        ("OffloadingConnector", json!({}), "cpu_bytes_to_use must be specified"),
        (
            "OffloadingConnector",
            json!({"cpu_bytes_to_use": 1e9, "eviction_policy": "fifo"}),
            "eviction_policy: \"fifo\" is not lru or arc",
        ),
        (
            "LMCacheConnectorV1",
            json!({"eviction_policy": "arc"}),
            "eviction_policy: \"arc\" is not lru",
        ),
        (
            "OffloadingConnector",
            json!({"cpu_bytes_to_use": 1e9, "store_threshold": "often"}),
            "store_threshold: \"often\" is not a number",
        ),
        (
            "OffloadingConnector",
            json!({"cpu_bytes_to_use": 1e9, "spec_name": "TieringOffloadingSpec"}),
            "spec_name",
        ),
        (
            "OffloadingConnector",
            json!({"cpu_bytes_to_use": 1e9, "block_size": 40}),
            "a whole number of blocks",
        ),
        ("OffloadingConnector", json!({"cpu_bytes_to_use": "much"}), "a number of at least 0"),
        ("SimpleCPUOffloadConnector", json!({"lazy_offload": true}), "lazy_offload"),
        (
            "SimpleCPUOffloadConnector",
            json!({"kv_offload_backend": "disk"}),
            "kv_offload_backend: \"disk\" is not cpu",
        ),
    ] {
        let text = connector(name, extra).unwrap_err().to_string();
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn flags_without_effect_are_reported() {
    for (words, message) in [
        (&["m", "--kv-offloading-size", "8"][..], "the KV cache size of a token is unknown"),
        (
            &["m", "--kv-offloading-size", "8", "--kv-offloading-backend", "lmcache"],
            "an LMCache server",
        ),
        (&["m", "--kv-offloading-size", "8", "--scheduler", "pool"], "it needs --scheduler vllm"),
        (
            &["m", "--kv-offloading-size", "0.000001", "--kv-bytes-per-token", "1000"],
            "smaller than one block",
        ),
        (&["m", "--kv-offloading-bandwidth", "9"], "nothing is offloaded"),
    ] {
        let loaded = served(words).unwrap();
        assert_eq!(loaded.config.engine.kv_offload, None);
        let said = loaded.warnings.iter().any(|text| text.contains(message));
        assert!(said, "{:?}", loaded.warnings);
    }
}

#[test]
fn names_look_ahead_where_drafts_read_the_next_token_and_no_connector_is_there() {
    let ahead = |drafts: &str, more: &[&str]| {
        let words = ["m", "--speculative-config", drafts];
        let loaded = served(&[&words[..], more].concat()).unwrap();
        let drafts = loaded.config.engine.speculative.unwrap();
        (drafts.lookahead, drafts.drops_last_block)
    };
    let eagle = r#"{"method":"eagle3","model":"d","num_speculative_tokens":3}"#;
    assert_eq!(ahead(eagle, &[]), (1, false));
    let offload = ["--kv-offloading-size", "1", "--kv-bytes-per-token", "1024"];
    assert_eq!(ahead(eagle, &offload), (0, true));
    let keeps = r#"{"method":"eagle3","model":"d","num_speculative_tokens":3,"disable_eagle_block_drop":true}"#;
    assert_eq!(ahead(keeps, &[]), (0, false));
    let ngram = r#"{"method":"ngram","num_speculative_tokens":3}"#;
    assert_eq!(ahead(ngram, &[]), (0, false));
    // A chain of modules reads as far ahead as it drafts.
    let dir = tempfile::tempdir().unwrap();
    for (modules, expected) in [(1, 1), (2, 3)] {
        let config = json!({"num_nextn_predict_layers": modules}).to_string();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let mtp = json!({"method": "mtp", "model": dir.path(), "num_speculative_tokens": 3});
        assert_eq!(ahead(&mtp.to_string(), &[]), (expected, false));
    }
}

#[test]
fn wrong_key_error_names_flag_source() {
    let config = json!({"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 30, "eviction_policy": "fifo"}})
    .to_string();
    let words = ["vllm-sim", "serve", "m"];
    let typed = [&words[..], &["--kv-transfer-config", &config]].concat();
    let variable = ("VLLM_SIM_KV_TRANSFER_CONFIG", &*config);
    for (words, variables, source) in [
        (&typed[..], &[][..], "command line"),
        (&words, &[variable], "environment VLLM_SIM_KV_TRANSFER_CONFIG"),
    ] {
        let refused = try_words(words, variables).unwrap_err().to_string();
        let told =
            format!("\"fifo\" is not lru or arc (other values are not simulated) (from {source})");
        assert!(refused.ends_with(&told), "{refused}");
    }
}

/// Also if nothing is offloaded, because the size of a token is unknown.
#[test]
fn unsimulated_storage_tiers_are_rejected() {
    let extra = json!({"cpu_bytes_to_use": 1 << 30, "secondary_tiers": [{"type": "disk"}]});
    let config = json!({"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": extra})
    .to_string();
    for model in [&["m"][..], &["meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100"]] {
        let words = [model, &["--kv-transfer-config", &config]].concat();
        let refused = served(&words).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!(
                "kv_connector_extra_config.secondary_tiers: a tier behind CPU memory is not \
                 simulated (--kv-transfer-config is {config:?}, from command line)"
            )
        );
    }
}
