//! `vllm-sim replay --trace-out`: the trace has what the report counts.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::replay_command::printed;

const WORK: &str = "--input-tokens 200 --output-tokens uniform:5:20 --request-count 60";

/// Report and trace events of a replay.
fn replayed(dir: &Path, more: &str) -> (Value, Vec<Value>) {
    let words = format!("replay {more} --report-json - --trace-out trace.json");
    let report: Value = serde_json::from_str(&printed(dir, &words)).unwrap();
    let trace = std::fs::read_to_string(dir.join("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    (report, trace["traceEvents"].as_array().unwrap().clone())
}

fn named<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["ph"] == "X" && event["name"] == name).collect()
}

fn sum(events: &[&Value], key: &str) -> f64 {
    events.iter().map(|event| event["args"][key].as_f64().unwrap()).sum()
}

/// Start and end of an event, in nanoseconds.
fn times(event: &Value) -> (u64, u64) {
    let nanos = |key: &str| (event[key].as_f64().unwrap() * 1e3).round() as u64;
    (nanos("ts"), nanos("ts") + nanos("dur"))
}

/// Asserts that no two events of a track overlap, and returns the number of tracks.
fn tracks_without_overlap(events: &[&Value]) -> usize {
    let mut tracks: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for event in events {
        let track = ["pid", "tid"].map(|key| event[key].as_u64().unwrap());
        tracks.entry(track.into()).or_default().push(times(event));
    }
    for (track, times) in &mut tracks {
        times.sort_unstable();
        let overlap = times.windows(2).find(|pair| pair[1].0 < pair[0].1);
        assert_eq!(overlap, None, "{track:?}");
    }
    tracks.len()
}

#[test]
fn a_trace_has_the_requests_steps_and_tokens_of_the_report() {
    let dir = tempfile::tempdir().unwrap();
    for more in [
        "--request-rate 50 --num-workers 3",
        "--replay-concurrency 8 --num-workers 2 --gpu H100 --model meta-llama/Llama-3.1-8B-Instruct",
        "--request-rate 50 --scheduler sglang",
    ] {
        let (report, events) = replayed(dir.path(), &format!("{WORK} {more}"));
        let summary = |key: &str| report["summary"][key].as_f64().unwrap();
        let (requests, steps) = (named(&events, "request"), named(&events, "step"));
        assert_eq!(requests.len() as f64, summary("completed_requests"), "{more}");
        assert_eq!(sum(&requests, "output_tokens"), summary("total_output_tokens"), "{more}");
        assert_eq!(sum(&requests, "input_tokens"), summary("total_input_tokens"), "{more}");
        assert_eq!(sum(&steps, "output_tokens"), summary("total_output_tokens"), "{more}");
        assert_eq!(sum(&steps, "prompt_tokens"), summary("total_input_tokens"), "{more}");
        let workers = tracks_without_overlap(&steps);
        assert_eq!(tracks_without_overlap(&requests), requests.len(), "{more}");
        let names = events.iter().filter(|event| event["name"] == "process_name");
        // One process more is for requests that reach no worker.
        assert_eq!(names.count(), workers + 1, "{more}");
        let phases = [named(&events, "queue"), named(&events, "prefill"), named(&events, "decode")];
        assert_eq!(phases[2].len(), requests.len(), "{more}");
        assert_eq!(tracks_without_overlap(&phases.concat()), requests.len(), "{more}");
    }
}

#[test]
fn a_trace_shows_preemptions_and_transfers() {
    let dir = tempfile::tempdir().unwrap();
    let more = "--input-tokens 100 --output-tokens 200 --request-count 20 --replay-concurrency 10 \
                --num-gpu-blocks-override 80 --block-size 16 --max-model-len 400";
    let (report, events) = replayed(dir.path(), more);
    let requests = named(&events, "request");
    let preempted = sum(&requests, "preemptions");
    assert!(preempted > 0.0, "{}", report["summary"]);
    assert_eq!(named(&events, "preempted").len() as f64, preempted);
    let split = "--request-rate 20 --num-prefill-workers 1 --num-decode-workers 1 \
                 --kv-cache-transfer-latency 5ms";
    let (_, events) = replayed(dir.path(), &format!("{WORK} {split}"));
    let transfers = named(&events, "transferred");
    // Each request has one on the prefill worker and one on the decode worker.
    assert_eq!(transfers.len(), 120);
    let process = |event: &Value| event["pid"].as_u64().unwrap();
    assert_eq!(transfers.iter().filter(|event| process(event) == 2).count(), 60);
    assert!(transfers.iter().any(|event| times(event).1 - times(event).0 >= 5_000_000));
}

#[test]
fn a_step_log_has_the_tokens_and_ends_of_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let more = "--scheduler vllm --num-workers 2 --request-rate 50 --no-enable-prefix-caching";
    let words = format!("replay {WORK} {more} --report-json - --step-log steps.jsonl");
    let report: Value = serde_json::from_str(&printed(dir.path(), &words)).unwrap();
    let summary = |key: &str| report["summary"][key].as_u64().unwrap();
    let log = std::fs::read_to_string(dir.path().join("steps.jsonl")).unwrap();
    let records: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let all = |key: &str| -> Vec<Value> {
        let lists = records.iter().filter_map(|record| record[key].as_array());
        lists.flatten().cloned().collect()
    };
    let requests: Vec<Value> = (0..60).map(Value::from).collect();
    for key in ["admitted", "ended"] {
        let mut numbers = all(key);
        numbers.sort_by_key(Value::as_u64);
        assert_eq!(numbers, requests, "{key}");
    }
    // The last token of a request is not computed.
    let computed: u64 = all("scheduled").iter().map(|one| one[2].as_u64().unwrap()).sum();
    let tokens = summary("total_input_tokens") + summary("total_output_tokens");
    assert_eq!(computed, tokens - summary("completed_requests"));
    for worker in [0, 1] {
        let of_worker = records.iter().filter(|record| record["worker"] == worker);
        let last = of_worker.max_by_key(|record| record["t"].as_u64()).unwrap();
        assert_eq!((&last["used"], &last["pool"]), (&0.into(), &"serving".into()));
    }
}
