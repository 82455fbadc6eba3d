//! Bounds and delays that an operator changes while the engines run, and what a restart forgets.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::sim::{Sim, post};
use super::wire::Wire;

const COMPLETION: &str = "/v1/completions";

fn body(tokens: u32, stream: bool) -> Value {
    json!({"prompt": "Hi", "max_tokens": tokens, "ignore_eos": true, "stream": stream})
}

async fn tune(sim: &Sim, change: &Value) {
    let answer = sim.post("/admin/config", change).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Connections that each wait for a reply that takes long.
async fn busy(sim: &Sim, many: usize) -> Vec<Wire<tokio::net::TcpStream>> {
    let mut all = Vec::new();
    for _ in 0..many {
        let mut wire = sim.connect().await;
        let body = body(500, true).to_string();
        wire.send(&post(COMPLETION, &[], body.as_bytes())).await;
        all.push(wire);
    }
    all
}

/// The bounds of every scheduler: the batching ones read them before each step.
#[tokio::test]
async fn batch_and_queue_limits_change_at_run_time() {
    for scheduler in ["pool", "vllm", "sglang"] {
        let flags = ["--scheduler", scheduler, "--max-num-seqs", "2"];
        let slow = ["--time-to-first-token", "5ms", "--inter-token-latency", "5ms"];
        let sim = Sim::llmd(&[&flags[..], &slow].concat()).await;
        let first = busy(&sim, 4).await;
        assert!(sim.runs(2.0).await, "{scheduler}");
        assert!(sim.shows("vllm:num_requests_waiting", 2.0).await);
        tune(&sim, &json!({"max-num-seqs": 3, "max-waiting-queue-length": 1})).await;
        assert!(sim.runs(3.0).await, "{scheduler}");
        // One waits already.
        let refused = sim.post(COMPLETION, &body(2, false)).await;
        assert_eq!(refused.status, 429, "{scheduler}: {}", refused.text());
        tune(&sim, &json!({"max-num-seqs": 1})).await;
        // Who runs goes on.
        assert_eq!(sim.metric("vllm:num_requests_running").await, 3.0);
        drop(first);
        assert!(sim.is_idle().await);
        let second = busy(&sim, 1).await;
        assert!(sim.runs(1.0).await, "{scheduler}");
        let third = busy(&sim, 1).await;
        let waits = sim.shows("vllm:num_requests_waiting", 1.0).await;
        assert!(waits, "{scheduler}: {}", sim.metric("vllm:num_requests_running").await);
        drop((second, third));
        let shown = sim.get("/admin/config").await.json();
        assert_eq!(shown["max-num-seqs"], 1);
        assert_eq!(shown["max-waiting-queue-length"], 1);
    }
}

#[tokio::test]
async fn invalid_limit_changes_nothing() {
    let sim = Sim::llmd(&[]).await;
    let change = json!({"max-num-seqs": 0, "failure-injection-rate": 100});
    let refused = sim.post("/admin/config", &change).await;
    assert_eq!(refused.status, 400);
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("max num seqs cannot be less than 1"), "{message}");
    let shown = sim.get("/admin/config").await.json();
    assert_eq!((&shown["max-num-seqs"], &shown["failure-injection-rate"]), (&json!(5), &json!(0)));
}

/// A delay is at most a day, and what is refused changes nothing.
#[tokio::test]
async fn too_long_delay_is_rejected() {
    let sim = Sim::llmd(&["--time-to-first-token", "1ms"]).await;
    for (field, value) in [
        ("time-to-first-token", json!("24h1ns")),
        ("inter-token-latency", json!("86400000000001ns")),
        ("prefill-time-per-token", json!("9999999h")),
        ("time-to-generate-image", json!("2000h")),
    ] {
        let refused = sim.post("/admin/config", &json!({field: value})).await;
        assert_eq!(refused.status, 400, "{field}");
        let message = refused.json()["error"]["message"].to_string();
        let typed = value.as_str().unwrap();
        for word in [field, typed, "a duration of at most 24h"] {
            assert!(message.contains(word), "{word}: {message}");
        }
    }
    tune(&sim, &json!({"inter-token-latency": "24h"})).await;
    let shown = sim.get("/admin/config").await.json();
    assert_eq!(shown["time-to-first-token"], "1ms");
    assert_eq!(shown["inter-token-latency"], "24h0m0s");
    // The factors count, too.
    for update in [
        json!({"latency-factor": 2}),
        json!({"time-factor-under-load": 1.1}),
        json!({"inter-token-latency": "1h", "latency-factor": 1000}),
    ] {
        let refused = sim.post("/admin/config", &update).await;
        assert_eq!(refused.status, 400, "{update}");
        let message = refused.json()["error"]["message"].to_string();
        assert!(message.contains("inter-token-latency times "), "{update}: {message}");
    }
    tune(&sim, &json!({"time-to-first-token": "12h", "inter-token-latency": 0})).await;
    tune(&sim, &json!({"latency-factor": 2})).await;
    let shown = sim.get("/admin/config").await.json();
    assert_eq!(shown["time-to-first-token"], "12h0m0s");
    assert_eq!(shown["latency-factor"], 2);
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a delay takes real time")]
async fn changed_delays_reach_batching_scheduler() {
    for scheduler in ["vllm", "sglang"] {
        let sim = Sim::llmd(&["--scheduler", scheduler, "--latency-model", "delays"]).await;
        let took = async || {
            let begin = Instant::now();
            assert_eq!(sim.post(COMPLETION, &body(3, false)).await.status, 200);
            begin.elapsed()
        };
        let quick = took().await;
        tune(&sim, &json!({"time-to-first-token": "80ms", "inter-token-latency": "40ms"})).await;
        let slow = took().await;
        assert!(slow >= Duration::from_millis(160) && quick < slow, "{quick:?} {slow:?}");
        // By the prompt, when that is what is set.
        let change =
            json!({"time-to-first-token": 0, "inter-token-latency": 0, "prefill-overhead": "90ms"});
        tune(&sim, &change).await;
        let slow = took().await;
        assert!(slow >= Duration::from_millis(90), "{scheduler}: {slow:?}");
    }
}

#[tokio::test]
async fn restart_resets_metrics_to_zero() {
    let sim = Sim::llmd(&["--mode", "echo"]).await;
    assert_eq!(sim.post(COMPLETION, &body(3, false)).await.status, 200);
    let counted = [
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:request_success_total",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_sum",
        "vllm:time_to_first_token_seconds_count",
    ];
    for name in counted {
        assert!(sim.metric(name).await > 0.0, "{name}");
    }
    let born = sim.metric("vllm:generation_tokens_created").await;
    let started = sim.metric("process_start_time_seconds").await;
    let scenario = json!({"phases": [{"for": "1ms", "do": [{"restart": "0s"}]}]});
    let mut operator = sim.connect().await;
    let request = post("/admin/scenario", &[], scenario.to_string().as_bytes());
    operator.send(&request).await;
    assert!(operator.is_closed().await);
    for name in counted {
        assert_eq!(sim.metric(name).await, 0.0, "{name}");
    }
    assert!(sim.metric("vllm:generation_tokens_created").await > born);
    assert!(sim.metric("process_start_time_seconds").await > started);
    assert_eq!(sim.post(COMPLETION, &body(3, false)).await.status, 200);
    assert_eq!(sim.metric("vllm:generation_tokens_total").await, 3.0);
}

#[tokio::test]
async fn pooling_requests_count_as_in_flight() {
    let flags = ["--runner", "pooling", "--max-num-queued-reqs", "2"];
    let sim = Sim::serve(&flags).await;
    let embed = |inputs: usize| json!({"input": vec!["Hi"; inputs]});
    assert_eq!(sim.post("/v1/embeddings", &embed(2)).await.status, 200);
    let refused = sim.post("/v1/embeddings", &embed(3)).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    // Nothing stays behind.
    assert_eq!(sim.post("/v1/embeddings", &embed(2)).await.status, 200);
    let documents = json!({"query": "a", "documents": ["b", "c", "d"]});
    assert_eq!(sim.post("/rerank", &documents).await.status, 503);
    assert_eq!(sim.metric("vllm:admission_rejections_total").await, 2.0);
}

/// The warning is the same as at startup.
#[tokio::test]
async fn delay_without_effect_is_warned_about() {
    let sim = Sim::serve(&["--latency-model", "polynomial", "--dev-mode"]).await;
    let change = json!({"time-to-first-token": "2s"});
    let answer = sim.post("/admin/config", &change).await;
    let warning = answer.header("warning").expect("a warning");
    assert!(
        warning.contains("--time-to-first-token: no effect because a latency model"),
        "{warning}"
    );
    let answer = sim.post("/admin/config", &json!({"time_to_first_token": "3s"})).await;
    assert_eq!(answer.header("warning"), Some(warning));
    let sim = Sim::serve(&["--dev-mode"]).await;
    let answer = sim.post("/admin/config", &change).await;
    assert_eq!(answer.header("warning"), None);
}

#[tokio::test]
async fn a_change_is_answered_with_what_changed() {
    let sim = Sim::llmd(&["--time-to-first-token", "10ms"]).await;
    let update = json!({"time-to-first-token": "2s", "failure-injection-rate": 0});
    let answer = sim.post("/admin/config", &update).await;
    assert!(answer.text().starts_with("{\"changed\":"), "{}", answer.text());
    let changed = json!({"time-to-first-token": {"from": "10ms", "to": "2s"}});
    let answer = answer.json();
    assert_eq!(answer["changed"], changed);
    // The whole configuration follows, as llm-d answers.
    assert_eq!(answer["time-to-first-token"], "2s");
    let answer = sim.post("/admin/config", &json!({"reset": ["time-to-first-token"]})).await;
    let changed = json!({"time-to-first-token": {"from": "2s", "to": "10ms"}});
    assert_eq!(answer.json()["changed"], changed);
    // Fields may have underscores.
    let update = json!({"time_to_first_token": "3s", "reset": ["failure_injection_rate"]});
    let answer = sim.post("/admin/config", &update).await.json();
    let changed = json!({"time-to-first-token": {"from": "10ms", "to": "3s"}});
    assert_eq!(answer["changed"], changed);
    let drills = sim.get("/dashboard/drills").await.json();
    let newest = drills["events"].as_array().unwrap().last().unwrap();
    let changed = json!({"time-to-first-token": "3s", "failure-injection-rate": null});
    assert_eq!(newest["changed"], changed, "{newest}");
    // llm-d's clients get its form.
    let sim = Sim::llmd(&["--compat", "llm-d"]).await;
    let answer = sim.post("/admin/config", &json!({"failure-injection-rate": 1})).await.json();
    assert!(answer.get("changed").is_none() && answer["failure-injection-rate"] == 1, "{answer}");
}
