use std::sync::Arc;

use super::*;
use exposition::{Family, parse};
use vllm_sim_wire::VllmVersion;

mod exposition;
mod recorded;
mod traffic;

fn base() -> Settings {
    Settings {
        model_name: "tiny-llama".to_owned(),
        max_model_len: 1024,
        cache_config: vec![cache(50, "sha256_cbor").labels()],
        routes: vec!["/v1/models".to_owned()],
        clock: || 1.5e9,
        ..Settings::default()
    }
}

fn cache(blocks: u32, algo: &str) -> CacheConfig {
    CacheConfig {
        block_size: 32,
        user_specified_block_size: true,
        num_gpu_blocks: blocks,
        num_gpu_blocks_override: Some(blocks),
        prefix_caching_hash_algo: algo.to_owned(),
        kv_cache_memory_bytes: Some(1 << 30),
        version: VllmVersion::V032,
        ..CacheConfig::default()
    }
}

fn config_a() -> Settings {
    Settings { lora: Some(2), tool_parser: true, ..base() }
}

fn config_b() -> Settings {
    Settings { kv_cache_metrics: true, cache_config: vec![cache(40, "sha256").labels()], ..base() }
}

fn config_c() -> Settings {
    Settings { spec_positions: 3, cache_config: vec![cache(40, "xxhash_cbor").labels()], ..base() }
}

fn config_d() -> Settings {
    Settings {
        engines: vec!["0".to_owned(), "1".to_owned()],
        api_servers: ApiServers::Several,
        lora: Some(1),
        cache_config: vec![
            CacheConfig { data_parallel_size: 2, ..cache(40, "sha256") }.labels();
            2
        ],
        ..base()
    }
}

fn metrics(settings: Settings) -> Arc<Metrics> {
    Metrics::new(settings)
}

fn text(metrics: &Metrics) -> String {
    let mut out = String::new();
    metrics.encode(&mut out, 1.5e9);
    out
}

fn families(metrics: &Metrics) -> Vec<Family> {
    parse(&text(metrics)).unwrap()
}

/// Counts one `GET /v1/models`, which the recorded servers had answered.
fn get_models(metrics: &Metrics) {
    let handler = metrics.http().handler("/v1/models").unwrap();
    metrics.http().observe(handler, "GET", 200, 0, 900, 0.001);
}

/// Returns `name{other labels} value` for each series of these families, without `vllm:` and the
/// labels of every series.
fn series(metrics: &Metrics, names: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    for f in families(metrics) {
        let Some(name) = f.name.strip_prefix("vllm:").filter(|n| names.contains(n)) else {
            continue;
        };
        for s in f.samples.iter().filter(|s| s.suffix != "_bucket") {
            let labels = s.labels.iter().filter(|(n, _)| n != "engine" && n != "model_name");
            let labels: Vec<_> = labels.map(|(_, v)| v.as_str()).collect();
            out.push(format!("{name}{}{{{}}} {}", s.suffix, labels.join(","), s.value));
        }
    }
    out
}
