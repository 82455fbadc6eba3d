//! What `vllm-sim plan`, `sweep` and `replay` say about how far their results can be relied on:
//! overload, few requests, the API server, prices of mixed pools and SGLang's engines.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::replay_command::{printed, vllm_sim};

const LLAMA: &str = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100";
const FEW: &str = "--input-tokens 1000 --output-tokens 20 --request-rate 20 --request-count 3";

/// Returns the JSON report of a plan whose workload is a text.
fn plan_of_text(dir: &Path, workload: &str, words: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-sim"))
        .current_dir(dir)
        .arg("plan")
        .args(words.split_whitespace())
        .args(["--workload", workload, "--report-json", "-"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"))
}

/// One H100 completes 11 of these requests a second, and no bound of 30 s shows it in a minute.
#[test]
fn overload_that_no_bound_shows_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("{LLAMA} -tp 1 --slo-ttft-ms 30000 --max-gpus 1");
    for rate in [13, 15] {
        let plan = plan_of_text(dir.path(), &format!("{rate} req/s of 2k/300"), &words);
        let missed = &plan["points"][0]["trials"][0]["missed"][0];
        assert!(missed.as_str().unwrap().starts_with("the queue grows: "), "{rate}: {plan}");
        assert_eq!(plan["answer"], Value::Null, "{rate}");
    }
    let served = plan_of_text(dir.path(), "10 req/s of 2k/300", &words);
    let most = served["outlook"]["most_traffic"].as_f64().unwrap();
    assert!((1.0..1.3).contains(&most), "{most}");
}

#[test]
fn a_run_too_short_for_its_latencies_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!(
        "plan {LLAMA} -tp 1 --input-tokens 2000 --output-tokens 300 --request-rate 15 \
         --request-count 150 --slo-ttft-ms 30000"
    );
    let text = printed(dir.path(), &words);
    let told =
        "not tested whether the queue grows: all requests arrive within 9.1 s, and one takes";
    assert!(text.contains(told), "{text}");
}

#[test]
fn percentiles_of_few_requests_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let few = "p99 of 3 requests is their highest value: a p99 needs 100";
    let plan = format!("plan {LLAMA} {FEW} -tp 1 --slo-ttft-ms 300 --bound ttft-p95=300");
    let text = printed(dir.path(), &plan);
    for told in [
        few,
        "p95 of 3 requests is their highest value: a p95 needs 20",
        "not tested whether the queue grows: 3 requests were completed, and the test needs 80",
    ] {
        assert!(text.contains(told), "no {told:?} in {text}");
    }
    let text = printed(dir.path(), &format!("sweep {LLAMA} {FEW} --grid tensor-parallel-size=1,2"));
    assert!(text.contains(few), "{text}");
    let enough = plan.replace("--request-count 3", "--request-count 200");
    let text = printed(dir.path(), &enough);
    assert!(!text.contains("highest value") && !text.contains("not tested"), "{text}");
}

/// A prompt of 1,000 tokens takes 6.6 ms in vLLM's API server: 3.4 ms, and 3.2 us for each token.
#[test]
fn ttft_includes_the_api_server() {
    let dir = tempfile::tempdir().unwrap();
    let none = "front_end_us: 0\nfront_end_sequence_us: 0\nfront_end_token_us: 0\n";
    std::fs::write(dir.path().join("none.yaml"), none).unwrap();
    let alone = "--input-tokens 1000 --output-tokens 20 --request-rate 0.1 --request-count 3";
    let summary = |words: &str| -> Value {
        let json = printed(dir.path(), &format!("replay {alone} {words} --report-json -"));
        serde_json::from_str(&json).unwrap()
    };
    let added = |words: &str, key: &str| {
        let with = summary(words)["summary"][key].as_f64().unwrap();
        let without = summary(&format!("{words} --latency-coefficients none.yaml"));
        with - without["summary"][key].as_f64().unwrap()
    };
    for key in ["mean_ttft_ms", "mean_e2e_latency_ms"] {
        let ms = added(LLAMA, key);
        assert!((ms - 6.6).abs() < 1e-6, "{key}: {ms}");
        let ms = added(&format!("{LLAMA} --speedup-ratio 10"), key);
        assert!((ms - 0.66).abs() < 1e-6, "{key}: {ms}");
        // Nothing is known of SGLang's.
        let ms = added(&format!("{LLAMA} --scheduler sglang"), key);
        assert!(ms.abs() < 1e-6, "{key}: {ms}");
    }
    assert!(added(LLAMA, "mean_tpot_ms").abs() < 1e-6);
    // One of the two API servers of a split deployment counts, and none of Dynamo's mocker.
    let split = format!("{LLAMA} --num-prefill-workers 1 --num-decode-workers 1");
    let ms = added(&split, "mean_ttft_ms");
    assert!((ms - 6.6).abs() < 1e-6, "{ms}");
    let both = LLAMA.replace("--model", "--extra-engine-args {\"engine_type\":\"vllm\"} --model");
    assert!(added(&both, "mean_ttft_ms").abs() < 1e-6);
    let text = printed(dir.path(), &format!("explain {LLAMA}"));
    let told = "A request spends 3.4 ms in the API server before its prompt starts";
    assert!(text.contains(told), "{text}");
}

#[test]
fn pools_of_different_gpus_have_their_own_prices() {
    let dir = tempfile::tempdir().unwrap();
    let prices = "date: 2026-11-01\ncurrency: EUR\ngpu_hour: {H100: 3, L40S: 0.8}\n";
    std::fs::write(dir.path().join("prices.yaml"), prices).unwrap();
    let words = format!(
        "plan {LLAMA} --input-tokens 500 --output-tokens 20 --request-rate 10 --request-count 100 \
         --slo-ttft-ms 900 --num-prefill-workers 2 --num-decode-workers 1 --prices prices.yaml \
         --pool-flags {{\"prefill\":{{\"gpu\":\"L40S\"}}}}"
    );
    let plan: Value =
        serde_json::from_str(&printed(dir.path(), &format!("{words} --report-json -"))).unwrap();
    let found = &plan["points"][0]["found"];
    let groups = found["workers"].as_u64().unwrap();
    let cost = found["cost_per_hour"].as_f64().unwrap();
    assert!((cost - 4.6 * groups as f64).abs() < 1e-9, "{found}");
    assert_eq!(plan["run"]["gpu"], "L40S, H100");
    let text = printed(dir.path(), &words);
    let answer = format!("Answer: {} L40S and {groups} H100 in ", 2 * groups);
    assert!(text.starts_with(&answer), "{text}");
    let told = "evidence: none, because its workers differ, and servers of one kind were recorded";
    assert!(text.contains(told), "{text}");
    let output = vllm_sim(dir.path(), &format!("{words} --max-cost 4"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("one worker costs 4.60, --max-cost is 4"), "{text}");
    let unknown = words.replace("L40S", "H200");
    let output = vllm_sim(dir.path(), &unknown);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("no gpu_hour for \"H200\", only for H100, L40S"), "{errors}");
}

#[test]
fn simulated_sglang_is_not_deployed_with_vllm() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        format!("plan {LLAMA} {FEW} -tp 1 --slo-ttft-ms 2000 --vary scheduler=sglang --max-gpus 2");
    let text = printed(dir.path(), &words);
    let why = "it simulates SGLang, and vLLM was recorded";
    assert!(text.contains(&format!("evidence: none, because {why}")), "{text}");
    assert!(text.contains("to deploy: with SGLang, "), "{text}");
    assert!(!text.contains("once vllm serve"), "{text}");
    let output = vllm_sim(dir.path(), &format!("{words} --deploy-dir out"));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--deploy-dir cannot be used with --scheduler sglang"), "{errors}");
    let text = printed(dir.path(), &format!("explain {LLAMA} --scheduler sglang"));
    assert!(text.contains(&format!("Evidence    none: {why}")), "{text}");
    assert!(!text.contains("median error"), "{text}");
}

#[test]
fn given_workers_have_no_budget() {
    let dir = tempfile::tempdir().unwrap();
    let prices = "date: 2026-11-01\ncurrency: EUR\ngpu_hour: {H100: 3}\n";
    std::fs::write(dir.path().join("prices.yaml"), prices).unwrap();
    let words = format!("plan {LLAMA} {FEW} --fixed-workers 2 --prices prices.yaml");
    for bound in ["--max-gpus", "--max-cost"] {
        let output = vllm_sim(dir.path(), &format!("{words} --slo-ttft-ms 300 {bound} 3"));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("--fixed-workers") && errors.contains(bound), "{errors}");
    }
    let output = vllm_sim(dir.path(), &format!("{words} --slo-ttft-ms 1"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no deployment of 2 workers makes 95 % of the requests good"), "{text}");
}
