//! Pauses and sleeps that wait for running work, and bounds that hold for all who come together.

use std::sync::Barrier;

use serde_json::json;

use super::sim::{Sim, eventually};

const COMPLETION: &str = "/v1/completions";

/// A server with a request that runs until it is aborted.
async fn busy() -> (Sim, super::wire::Wire<tokio::net::TcpStream>) {
    let sim = Sim::serve(&["--dev-mode", "--time-to-first-token", "10m"]).await;
    let body = json!({"prompt": "x", "max_tokens": 1}).to_string();
    let mut wire = sim.connect().await;
    wire.send(&super::sim::post(COMPLETION, &[], body.as_bytes())).await;
    assert!(sim.runs(1.0).await);
    (sim, wire)
}

async fn is(sim: &Sim, path: &str, state: bool) -> bool {
    eventually(async || sim.get(path).await.text().contains(&state.to_string())).await
}

async fn completes(sim: &Sim) -> u16 {
    let quick = json!({"time-to-first-token": "0ms"});
    assert_eq!(sim.post("/admin/config", &quick).await.status, 200);
    let body = json!({"prompt": "x", "max_tokens": 1});
    sim.post(COMPLETION, &body).await.status
}

#[tokio::test]
async fn disconnect_during_pause_changes_nothing() {
    let (sim, _long) = busy().await;
    let mut leaving = sim.connect().await;
    leaving.send(b"POST /pause?mode=wait HTTP/1.1\r\nhost: sim\r\ncontent-length: 0\r\n\r\n").await;
    assert!(is(&sim, "/is_paused", true).await, "while it waits");
    drop(leaving);
    sim.poke("/abort_requests").await;
    assert!(sim.is_idle().await);
    assert!(is(&sim, "/is_paused", true).await, "once nothing runs");
    assert_eq!(completes(&sim).await, 503);
    sim.poke("/resume").await;
    assert!(is(&sim, "/is_paused", false).await);
    assert_eq!(completes(&sim).await, 200);
}

#[tokio::test]
async fn resume_overrides_waiting_pause() {
    let (sim, _long) = busy().await;
    let paused = sim.poke("/pause?mode=wait");
    let resumed = async {
        assert!(is(&sim, "/is_paused", true).await);
        assert_eq!(sim.poke("/resume").await.status, 200);
        assert!(is(&sim, "/is_paused", false).await);
    };
    let (paused, ()) = tokio::join!(paused, resumed);
    assert_eq!(paused.status, 200, "it does not wait for ever");
    sim.poke("/abort_requests").await;
    assert!(sim.is_idle().await);
    assert!(is(&sim, "/is_paused", false).await);
    assert_eq!(completes(&sim).await, 200);
}

#[tokio::test]
async fn disconnect_during_sleep_changes_nothing() {
    let (sim, _long) = busy().await;
    let mut leaving = sim.connect().await;
    leaving
        .send(b"POST /sleep?level=1&mode=wait HTTP/1.1\r\nhost: sim\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert!(is(&sim, "/is_sleeping", true).await, "while it waits");
    drop(leaving);
    sim.poke("/abort_requests").await;
    let asleep = "vllm:engine_sleep_state";
    assert!(
        eventually(async || sim.get("/metrics").await.text().lines().any(|line| {
            line.starts_with(asleep) && line.contains("weights_offloaded") && line.ends_with(" 1.0")
        }))
        .await
    );
    assert!(is(&sim, "/is_sleeping", true).await);
    assert!(sim.shows("vllm:sleep_mode_operations_in_flight", 0.0).await);
    sim.poke("/wake_up").await;
    assert!(is(&sim, "/is_sleeping", false).await);
    assert_eq!(completes(&sim).await, 200);
}

/// Places are reserved before anything is written: none is given twice.
#[tokio::test]
async fn admission_limits_hold_for_concurrent_requests() {
    const THREADS: usize = 8;
    let flags = ["--max-num-queued-reqs", "1", "--time-to-first-token", "10m", "--dev-mode"];
    let sim = Sim::serve(&flags).await;
    let service = sim.server.app_state().service();
    let barrier = Barrier::new(THREADS);
    let admitted = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 1..=500 {
                    barrier.wait();
                    let place = service.admit_sequences(1);
                    admitted.fetch_add(place.is_ok().into(), std::sync::atomic::Ordering::SeqCst);
                    barrier.wait();
                    assert_eq!(admitted.load(std::sync::atomic::Ordering::SeqCst), round);
                    barrier.wait();
                }
            });
        }
    });
    assert_eq!(service.in_flight_sequences(), 0);
    // A refused job gives its place back.
    let body = json!({"prompt": "x", "max_tokens": 1, "n": 2});
    assert_eq!(sim.post(COMPLETION, &body).await.status, 503);
    let body = json!({"prompt": "x", "max_tokens": 1, "stop_token_ids": [-1]});
    assert_eq!(sim.post(COMPLETION, &body).await.status, 400);
    assert_eq!(completes(&sim).await, 200);
}

/// vLLM's `record_sleep_state(1, 0)` sets all series to 0.
#[tokio::test]
async fn sleep_level_0_sets_sleep_metrics_to_0() {
    let sim = Sim::serve(&["--dev-mode"]).await;
    sim.poke("/sleep?level=0").await;
    assert!(sim.shows("vllm:engine_sleep_state", 0.0).await);
    sim.poke("/wake_up").await;
    assert!(sim.shows("vllm:engine_sleep_state", 1.0).await);
}

/// vLLM makes one token for each item: it waits, counts and is cut as any other request.
#[tokio::test]
async fn scores_run_through_engine_queue() {
    let sim = Sim::serve(&["--dev-mode"]).await;
    let body =
        |query: &str| json!({"query": query, "items": ["yes", "no"], "label_token_ids": [5, 6]});
    let path = "/generative_scoring";
    let first = sim.post(path, &body("a question")).await;
    assert_eq!(first.status, 200, "{}", first.text());
    let used = first.json()["usage"]["prompt_tokens"].as_f64().unwrap();
    assert!(sim.shows("vllm:prompt_tokens_total", used).await);
    assert!(sim.shows("vllm:generation_tokens_total", 2.0).await);
    let long = sim.post(path, &body(&"word ".repeat(5000))).await.json();
    assert_eq!(long["usage"]["prompt_tokens"], 2 * 2047, "cut to the context and one more token");
    sim.poke("/pause").await;
    assert_eq!(sim.post(path, &body("a question")).await.status, 503);
    sim.poke("/resume").await;
    let again = sim.post(path, &body("a question")).await.json();
    assert_eq!(again["data"], first.json()["data"]);
}

/// vLLM's `wait` lets running requests end, and keeps the queued ones for after the pause.
#[tokio::test]
async fn queued_request_continues_after_waiting_pause() {
    let flags = ["--dev-mode", "--scheduler", "vllm", "--max-num-seqs", "1"];
    let sim = Sim::serve(&[&flags[..], &["--time-to-first-token", "10m"]].concat()).await;
    let body = json!({"prompt": "x", "max_tokens": 1}).to_string();
    let mut running = sim.connect().await;
    running.send(&super::sim::post(COMPLETION, &[], body.as_bytes())).await;
    assert!(sim.runs(1.0).await);
    let mut queued = sim.connect().await;
    queued.send(&super::sim::post(COMPLETION, &[], body.as_bytes())).await;
    assert!(sim.shows("vllm:num_requests_waiting", 1.0).await);
    let pausing = sim.poke("/pause?mode=wait");
    let ending = async {
        assert!(is(&sim, "/is_paused", true).await);
        let quick = json!({"time-to-first-token": "0ms"});
        assert_eq!(sim.post("/admin/config", &quick).await.status, 200);
    };
    let (paused, ()) = tokio::join!(pausing, ending);
    assert_eq!(paused.status, 200);
    assert_eq!(running.answer().await.status, 200);
    assert!(sim.shows("vllm:num_requests_waiting", 1.0).await);
    sim.poke("/resume").await;
    assert_eq!(queued.answer().await.status, 200);
}
