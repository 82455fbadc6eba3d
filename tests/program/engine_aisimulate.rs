//! `replay --aisimulate`: files of AISimulate's `predict` give AISimulate's reports.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use vllm_sim_dynamo_run::replay_aisimulate_prediction;

/// Keys of the records in the files of expected reports.
const REQUEST_KEYS: [&str; 7] = [
    "arrival_time_ms",
    "first_token_ms",
    "terminal_time_ms",
    "input_length",
    "output_length",
    "reused_input_tokens",
    "terminal_status",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/aisimulate").join(name)
}

fn report(path: &Path) -> Result<Value, String> {
    let report = replay_aisimulate_prediction(path, None).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(report).unwrap())
}

fn rows(report: &Value) -> Vec<Vec<Value>> {
    let records = report["per_request"].as_array().unwrap();
    let row = |record: &Value| REQUEST_KEYS.map(|key| record[key].clone()).to_vec();
    records.iter().map(row).collect()
}

fn differ(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() > 1e-6 * a.abs().max(b.abs()) + 1e-6,
        _ => a != b,
    }
}

/// Requests that differ from AISimulate's, in order of time.
fn different_requests(name: &str) -> Vec<(Vec<Value>, Vec<Value>)> {
    let known = std::fs::read_to_string(fixture(&format!("{name}.json"))).unwrap();
    let known: Value = serde_json::from_str(&known).unwrap();
    let found = report(&fixture(&format!("{name}.yaml"))).unwrap();
    let by_time = |rows: &mut Vec<Vec<Value>>| {
        let time = |row: &Vec<Value>| (row[0].as_f64().unwrap(), row[2].as_f64().unwrap());
        rows.sort_by(|a, b| time(a).partial_cmp(&time(b)).unwrap());
    };
    let known_rows = known["requests"].as_array().unwrap();
    let mut theirs: Vec<Vec<Value>> =
        known_rows.iter().map(|row| row.as_array().unwrap().clone()).collect();
    let mut ours = rows(&found);
    by_time(&mut theirs);
    by_time(&mut ours);
    assert_eq!(theirs.len(), ours.len(), "{name}");
    let pairs = theirs.into_iter().zip(ours);
    pairs.filter(|(a, b)| a.iter().zip(b).any(|(a, b)| differ(a, b))).collect()
}

#[test]
fn files_of_aisimulate_give_its_requests() {
    for name in ["synthetic", "sessions", "mooncake", "split", "weka"] {
        assert_eq!(different_requests(name), [], "{name}");
    }
}

#[test]
fn files_of_aisimulate_give_its_summary() {
    for name in ["synthetic", "sessions", "mooncake", "split", "weka"] {
        let known = std::fs::read_to_string(fixture(&format!("{name}.json"))).unwrap();
        let known: Value = serde_json::from_str(&known).unwrap();
        let found = report(&fixture(&format!("{name}.yaml"))).unwrap();
        for key in [
            "num_requests",
            "completed_requests",
            "total_input_tokens",
            "total_output_tokens",
            "duration_ms",
            "mean_ttft_ms",
            "mean_ttst_ms",
            "mean_itl_ms",
            "mean_tpot_ms",
            "mean_e2e_latency_ms",
            "p90_ttft_ms",
            "output_throughput_tok_s",
            "prefix_cache_reused_ratio",
            "gpu_hours",
        ] {
            let (theirs, ours) = (&known["summary"][key], &found["summary"][key]);
            assert!(!differ(theirs, ours), "{name}, {key}: {theirs} and {ours}");
        }
    }
}

/// AISimulate splits a flat list of requests at prompts that share nothing; here only sub-agents
/// that the file names are agents of their own.
#[test]
fn agents_that_a_weka_file_does_not_name_are_not_split_off() {
    let different = different_requests("weka-host");
    let [(theirs, ours)] = &different[..] else { panic!("{different:?}") };
    assert_eq!((theirs[0].as_f64(), ours[0].as_f64()), (Some(300.0), Some(302.0)));
}

#[test]
fn unsupported_fields_of_aisimulate_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture("synthetic.yaml")).unwrap();
    let path = dir.path().join("changed.yaml");
    let hybrid = "model: Qwen/Qwen3-32B-FP8\n  database_mode: HYBRID";
    for (from, to, told) in [
        ("mode: aggregated", "mode: afd", "engine.mode: \"afd\" is not modelled"),
        ("model: Qwen/Qwen3-32B-FP8", hybrid, "engine.database_mode: \"HYBRID\" is not modelled"),
        ("pipeline: 1", "pipeline: 2", "engine.workers.aggregated.parallelism.pipeline: 2 is not"),
        (
            "type: fixed, blocks: 256",
            "type: default",
            "engine.workers.aggregated.kv_cache.capacity.type: must be fixed",
        ),
        (
            "prefix_caching: true",
            "kvcr: {}",
            "engine.workers.aggregated.kv_cache.kvcr: {} is not modelled",
        ),
        ("decode_ms: 1", "decode_us: 1", "engine.workers.aggregated.timing.decode_ms: is missing"),
        ("engine:", "router: {mode: kv}\nengine:", "router: {\"mode\":\"kv\"} is not modelled"),
        (
            "engine:",
            "traffic: {source: {images: {}}, stop: {requests: 1}}\nengine:",
            "traffic.source.images: {} is not modelled",
        ),
        ("engine:", "engines:", "engine: is missing"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        std::fs::write(&path, changed).unwrap();
        let error = report(&path).unwrap_err();
        assert!(error.starts_with(told), "{error}");
    }
}
