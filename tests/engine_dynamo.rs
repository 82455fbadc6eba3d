//! Recorded runs of Dynamo's offline replay, played again: equal request by request.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::path::Path;

use serde_json::Value;
use vllm_sim::tools::dynamo_run::dynamo_run;

/// Equal within a nanosecond's share of a long run.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * b.abs().max(1.0),
        _ => a == b,
    }
}

fn check(name: &str) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/dynamo")
        .join(name);
    let text = std::fs::read_to_string(dir.join("report.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let report = serde_json::to_value(dynamo_run(&dir).unwrap()).unwrap();
    let mut wrong = Vec::new();
    compare_requests(&recorded["per_request"], &report["per_request"], &mut wrong);
    for (key, value) in recorded["summary"].as_object().unwrap() {
        // Speed of the host; percentiles that the peer takes from a sketch.
        let host = key == "wall_time_ms" || key.starts_with("processed_") && key.ends_with("_s");
        let sketched = key.contains("itl") || key.contains("per_user");
        let estimate = sketched && (key.starts_with('p') || key.starts_with("median"));
        if !host && !estimate && !same(&report["summary"][key], value) {
            wrong.push(format!(
                "summary {key}: {} is {value}",
                report["summary"][key]
            ));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

fn compare_requests(recorded: &Value, played: &Value, wrong: &mut Vec<String>) {
    let (recorded, played) = (recorded.as_array().unwrap(), played.as_array().unwrap());
    assert_eq!(played.len(), recorded.len());
    for (i, (recorded, played)) in recorded.iter().zip(played).enumerate() {
        for (key, value) in recorded.as_object().unwrap() {
            // Traces get random names, and admissions are compared one by one.
            let skipped = key == "uuid" && !recorded["session_id"].is_null();
            let equal = match key.as_str() {
                "admission_history" => {
                    let (a, b) = (value.as_array().unwrap(), played[key].as_array().unwrap());
                    a.len() == b.len()
                        && a.iter().zip(b).all(|(a, b)| {
                            a.as_object()
                                .unwrap()
                                .iter()
                                .all(|(key, a)| same(&b[key], a))
                        })
                }
                _ => same(&played[key], value),
            };
            if !equal && !skipped {
                wrong.push(format!("request {i} {key}: {} is {value}", played[key]));
            }
        }
    }
}

#[test]
fn closed_loop() {
    check("01-basic-closed");
}

#[test]
fn open_loop_at_a_fixed_interval() {
    check("02-open-fixed-interval");
}

#[test]
fn sessions_with_think_times_and_shared_prefixes() {
    check("16-sessions-trace");
}

#[test]
fn sglang() {
    check("20-sglang-basic");
}
