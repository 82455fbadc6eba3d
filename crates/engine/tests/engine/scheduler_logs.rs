//! Compares step logs of the vLLM scheduler with those that vLLM's own scheduler wrote for the same
//! workloads (`lab/scheduler`, `tests/fixtures/scheduler`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::scheduler_workload;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/scheduler")
}

/// Brings a step log into the compact form of the fixtures: one array per record.
fn compact(line: &Value) -> Value {
    let list = |key: &str| line[key].as_array().cloned().unwrap_or_default();
    if line.get("scheduled").is_some() {
        let mut preempted = list("preempted");
        preempted.sort_by_key(|name| name.as_str().map(str::to_owned));
        let (scheduled, admitted, resumed) = (list("scheduled"), list("admitted"), list("resumed"));
        let mut parts = vec![
            line["t"].clone(),
            json!(scheduled),
            json!(admitted),
            json!(resumed),
            json!(preempted),
        ];
        parts.push(line["used"].clone());
        parts.extend(line.get("encoded").cloned());
        return json!(parts);
    }
    let mut events: Vec<Value> = list("events").iter().flat_map(flat).collect();
    // vLLM keeps the chunks of a copy to host memory in a set, without an order.
    for run in events.chunk_by_mut(|a, b| (&a[0], &a[4]) == (&b[0], &b[4])) {
        if run[0][4] == "CPU" {
            run.sort_by_key(|event| event[1][0].as_u64());
        }
    }
    json!([line["t"], list("drafts"), list("ended"), events, line["used"]])
}

/// Splits an event of removed blocks: the number of blocks per message is not compared.
fn flat(event: &Value) -> Vec<Value> {
    match (event[0].as_str(), event[1].as_array()) {
        (Some("BlockRemoved"), Some(hashes)) => {
            let one = |hash| json!(["BlockRemoved", [hash], event[2], event[3], event[4]]);
            hashes.iter().map(one).collect()
        }
        _ => vec![event.clone()],
    }
}

/// Hashes a compact log, so that fixtures stay small: FNV-1a over its JSON text.
fn digest(line: &Value) -> u32 {
    let text = line.to_string();
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}

#[test]
fn step_logs_equal_those_of_vllm() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    let (mut workloads, mut different) = (0, Vec::new());
    for path in &files {
        for text in std::fs::read_to_string(path).unwrap().lines() {
            let fixture: Value = serde_json::from_str(text).unwrap();
            let name = fixture["name"].as_str().unwrap().to_owned();
            let log = scheduler_workload::play(&fixture["workload"]).unwrap();
            let ours: Vec<Value> = log.iter().map(|line| json!(digest(&compact(line)))).collect();
            let vllm = fixture["records"].as_array().unwrap();
            workloads += 1;
            let pairs = ours.iter().zip(vllm).position(|(ours, vllm)| ours != vllm);
            let at = pairs.or((ours.len() != vllm.len()).then_some(ours.len().min(vllm.len())));
            if let Some(at) = at {
                let record = log.get(at).map(|line| compact(line).to_string());
                different.push(format!("{name}: record {at}: ours {record:?}"));
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(workloads >= 500, "{workloads} workloads in {}", fixtures().display());
}
