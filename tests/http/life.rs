//! Clients that go away, queues that are full, servers that stop.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::sim::{Sim, eventually, post};
use super::transport::http_2;
use super::wire::Wire;

const COMPLETION: &str = "/v1/completions";

/// A request that would take minutes.
fn endless(stream: bool) -> Vec<u8> {
    let body = json!({"prompt": "Hi", "max_tokens": 1000, "ignore_eos": true, "stream": stream});
    post(COMPLETION, &[], body.to_string().as_bytes())
}

const SLOW: &[&str] = &["--time-to-first-token", "10ms", "--inter-token-latency", "500ms"];

#[tokio::test]
async fn a_disconnected_client_frees_its_slot() {
    for stream in [false, true] {
        let sim = Sim::serve(SLOW).await;
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut wire = sim.connect().await;
            wire.send(&endless(stream)).await;
            if stream {
                assert_eq!(wire.head().await.status, 200);
                assert!(wire.chunk().await.is_some());
            }
            clients.push(wire);
        }
        assert!(sim.runs(3.0).await);
        drop(clients);
        assert!(sim.is_idle().await, "stream: {stream}");
        sim.server.shut_down_server().await;
    }
}

#[tokio::test]
async fn all_choices_of_a_disconnected_client_are_aborted() {
    let sim = Sim::serve(&["--enable-server-load-tracking"]).await;
    let load = async |requests: u32| {
        eventually(async || sim.get("/load").await.json() == json!({"server_load": requests})).await
    };
    let (choices, tokens) = (16_384, 100);
    let body = json!({
        "prompt": "Hi", "n": choices, "max_tokens": tokens, "ignore_eos": true, "temperature": 1.0,
    });
    let long = post(COMPLETION, &[], body.to_string().as_bytes());
    let mut leaving = sim.connect().await;
    leaving.send(&long).await;
    // Its choices are being written from here on.
    assert!(load(1).await);
    drop(leaving);
    assert!(load(0).await);
    // The first one would be done by then: they begin in order.
    let mut staying = sim.connect().await;
    staying.send(&long).await;
    assert_eq!(staying.answer().await.status, 200);
    let made = sim.metric("vllm:generation_tokens_total").await;
    assert_eq!(made, f64::from(choices * tokens));
}

#[tokio::test]
async fn a_waiting_request_of_a_disconnected_client_never_runs() {
    let sim = Sim::serve(&[SLOW, &["--max-num-seqs", "1"]].concat()).await;
    let mut running = sim.connect().await;
    running.send(&endless(true)).await;
    assert!(sim.runs(1.0).await);
    let mut waiting = sim.connect().await;
    waiting.send(&endless(false)).await;
    assert!(sim.shows("vllm:num_requests_waiting", 1.0).await);
    drop(waiting);
    assert!(sim.shows("vllm:num_requests_waiting", 0.0).await);
    assert_eq!(sim.metric("vllm:num_requests_running").await, 1.0);
    drop(running);
    assert!(sim.is_idle().await);
}

#[tokio::test]
async fn a_full_queue_of_vllm_returns_503() {
    let sim = Sim::serve(&[SLOW, &["--max-num-queued-reqs", "2"]].concat()).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut wire = sim.connect().await;
        wire.send(&endless(true)).await;
        clients.push(wire);
    }
    assert!(sim.runs(2.0).await);
    let message = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.";
    let expected = json!({"error": {"message": message, "type": "Service Unavailable", "param": null, "code": 503}});
    for stream in [false, true] {
        let answer = sim.ask(endless(stream)).await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.json(), expected);
    }
    drop(clients);
    assert!(sim.is_idle().await);
    let body = json!({"prompt": "Hi", "max_tokens": 1});
    assert_eq!(sim.post(COMPLETION, &body).await.status, 200);
    // Each choice counts.
    let body = json!({"prompt": "Hi", "max_tokens": 1, "n": 3});
    assert_eq!(sim.post(COMPLETION, &body).await.status, 503);
    let refused = "vllm:admission_rejections_total";
    assert_eq!(sim.metric(refused).await, 3.0);
}

/// vLLM counts prompts that have no output, and refuses at the bound whatever comes next.
#[tokio::test]
async fn a_backlog_of_prompts_returns_503_until_their_first_token() {
    let slow = ["--latency-model", "delays", "--time-to-first-token", "1s"];
    let sim = Sim::serve(&[&slow[..], &["--max-num-queued-tokens", "8"]].concat()).await;
    let body = |prompt: &[u32]| json!({"prompt": prompt, "max_tokens": 2});
    // An empty engine takes what is longer than the bound.
    let mut first = sim.connect().await;
    let long = body(&[5; 20]).to_string();
    first.send(&post(COMPLETION, &[], long.as_bytes())).await;
    assert!(sim.runs(1.0).await);
    let refused = sim.post(COMPLETION, &body(&[5])).await;
    assert_eq!(refused.status, 503);
    let message = "The engine has reached its prefill token backlog limit. Please try again later or on a different instance.";
    let expected = json!({"error": {"message": message, "type": "Service Unavailable", "param": null, "code": 503}});
    assert_eq!(refused.json(), expected);
    let counted = "vllm:admission_rejections_total";
    assert_eq!(sim.metric(counted).await, 1.0);
    drop(first);
    assert!(sim.is_idle().await);
    assert_eq!(sim.post(COMPLETION, &body(&[5; 20])).await.status, 200);
}

/// Delays changed by an operator reach steps of the batching scheduler too.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "delays are what is looked at")]
async fn batching_scheduler_applies_new_delays() {
    let sim = Sim::serve(&["--latency-model", "delays", "--dev-mode"]).await;
    let settings = json!({"time-to-first-token": "200ms", "inter-token-latency": "20ms"});
    assert_eq!(sim.post("/admin/config", &settings).await.status, 200);
    let body = json!({"prompt": [5, 6], "max_tokens": 6, "ignore_eos": true});
    let begin = Instant::now();
    assert_eq!(sim.post(COMPLETION, &body).await.status, 200);
    assert!(begin.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_full_queue_of_llmd_returns_429() {
    let flags = ["--max-num-seqs", "1", "--max-waiting-queue-length", "1"];
    let sim = Sim::llmd(&[SLOW, &flags].concat()).await;
    let mut running = sim.connect().await;
    running.send(&endless(true)).await;
    assert!(sim.runs(1.0).await);
    let mut waiting = sim.connect().await;
    waiting.send(&endless(true)).await;
    assert!(sim.shows("vllm:num_requests_waiting", 1.0).await);
    let answer = sim.ask(endless(false)).await;
    assert_eq!(answer.status, 429);
    let error = &answer.json()["error"];
    assert_eq!(error["message"], "Failed to enqueue request, waiting requests queue is full");
    assert_eq!(error["code"], 429);
    drop((running, waiting));
    assert!(sim.is_idle().await);
}

#[tokio::test]
async fn load_endpoint_counts_requests_in_flight() {
    let sim = Sim::serve(&[SLOW, &["--enable-server-load-tracking"]].concat()).await;
    let mut client = sim.connect().await;
    client.send(&endless(true)).await;
    assert!(sim.runs(1.0).await);
    assert_eq!(sim.get("/load").await.json(), json!({"server_load": 1}));
    drop(client);
    assert!(sim.is_idle().await);
    assert_eq!(sim.get("/load").await.json(), json!({"server_load": 0}));
}

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n";

fn twenty_tokens(stream: bool) -> Vec<u8> {
    let body = json!({
        "model": "tiny-llama", "prompt": "Hi", "max_tokens": 20, "ignore_eos": true, "stream": stream,
    });
    post(COMPLETION, &[], body.to_string().as_bytes())
}

/// Idle connections close at once and others after their answer, as uvicorn's do, so that clients
/// turn to another pod; who connects anew learns why.
#[tokio::test]
async fn shutdown_waits_for_requests() {
    let flags = ["--inter-token-latency", "100ms", "--shutdown-timeout", "30"];
    let sim = Sim::serve(&flags).await;
    let mut streaming = sim.connect().await;
    streaming.send(&twenty_tokens(true)).await;
    assert_eq!(streaming.head().await.header("connection"), None);
    let mut whole = sim.connect().await;
    whole.send(&twenty_tokens(false)).await;
    // It lasts as long as somebody looks at the server.
    let mut held = sim.connect().await;
    held.send(&endless(true)).await;
    assert!(sim.runs(3.0).await);
    let mut idle = sim.connect().await;
    idle.send(HEALTH).await;
    assert_eq!(idle.answer().await.status, 200);
    let address = sim.address();
    let stop = tokio::spawn(sim.server.shut_down_server());
    assert!(idle.is_closed().await);
    let probe = b"{\"prompt\":\"Hi\"}";
    for request in [HEALTH, &post(COMPLETION, &[], probe)] {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut new = Wire::new(stream);
        new.send(request).await;
        let answer = new.answer().await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(new.is_closed().await);
    }
    drop(held);
    let answer = whole.answer().await;
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    assert!(whole.is_closed().await);
    let mut deltas = Vec::new();
    while let Some(chunk) = streaming.chunk().await {
        deltas.push(chunk);
    }
    assert!(deltas[deltas.len() - 1].contains("[DONE]"), "{deltas:?}");
    assert!(streaming.is_closed().await);
    stop.await.unwrap();
}

/// A call that runs on a connection of HTTP/2 ends well; the connection takes no other.
#[tokio::test]
async fn shutdown_waits_for_http2_calls() {
    let flags = ["--inter-token-latency", "20ms", "--shutdown-timeout", "30"];
    let sim = Sim::serve(&flags).await;
    let client = http_2();
    let body = json!({"prompt": "Hi", "max_tokens": 20, "ignore_eos": true});
    let url = format!("http://{}{COMPLETION}", sim.address());
    let call = tokio::spawn(client.post(&url).json(&body).send());
    assert!(sim.runs(1.0).await);
    let stop = tokio::spawn(sim.server.shut_down_server());
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    stop.await.unwrap();
}

/// llm-d's server keeps its connections until the last request has ended.
#[tokio::test]
async fn a_server_of_llmd_refuses_on_the_connections_it_has() {
    let flags = ["--compat", "llm-d", "--inter-token-latency", "20ms", "--shutdown-timeout", "30"];
    let sim = Sim::llmd(&flags).await;
    let mut running = sim.connect().await;
    running.send(&twenty_tokens(false)).await;
    let mut idle = sim.connect().await;
    assert!(sim.runs(1.0).await);
    let stop = tokio::spawn(sim.server.shut_down_server());
    let stops = eventually(async || {
        idle.send(HEALTH).await;
        idle.answer().await.status == 503
    });
    assert!(stops.await, "it is still healthy");
    idle.send(&post(COMPLETION, &[], b"{\"model\":\"tiny-llama\",\"prompt\":\"Hi\"}")).await;
    assert_eq!(idle.answer().await.status, 503);
    assert_eq!(running.answer().await.status, 200);
    stop.await.unwrap();
    assert!(idle.is_closed().await);
}

#[tokio::test]
async fn shutdown_aborts_requests_after_the_timeout() {
    for (stream, timeout) in [(true, "0"), (false, "0"), (true, "0.2")] {
        let sim = Sim::serve(&[SLOW, &["--shutdown-timeout", timeout]].concat()).await;
        let mut client = sim.connect().await;
        client.send(&endless(stream)).await;
        assert!(sim.runs(1.0).await);
        let stopped = tokio::time::timeout(Duration::from_secs(3), sim.server.shut_down_server());
        assert!(stopped.await.is_ok(), "it waits for an endless request");
        // vLLM: what reaches a draining engine ends as `abort`.
        let answer = client.answer().await;
        let last = match stream {
            true => answer.deltas().pop().unwrap(),
            false => answer.json(),
        };
        assert_eq!(last["choices"][0]["finish_reason"], "abort", "{last}");
    }
}

#[tokio::test]
async fn a_stopped_server_releases_its_port() {
    let sim = Sim::serve(&[]).await;
    let address = sim.address();
    sim.server.shut_down_server().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn startup_takes_configured_duration() {
    let sim = Sim::serve(&["--startup-duration", "300ms"]).await;
    assert_eq!(sim.get("/health").await.status, 200);
    assert_eq!(sim.get("/health/ready").await.status, 503);
    assert!(eventually(async || sim.get("/ready").await.status == 200).await);
}

/// A request of very many sequences is written without holding up the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn many_sequence_request_delays_no_other() {
    let sim = Sim::serve(&["--max-num-seqs", "64"]).await;
    let body = json!({"prompt": vec!["Hi"; 1000], "n": 60, "max_tokens": 1}).to_string();
    let mut large = sim.connect().await;
    large.send(&post(COMPLETION, &[], body.as_bytes())).await;
    let mut small = 0;
    let answered = async {
        loop {
            assert_eq!(sim.get("/health").await.status, 200);
            small += 1;
        }
    };
    let answer = tokio::select! {
        answer = large.answer() => answer,
        () = answered => unreachable!("the others never stop"),
    };
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["choices"].as_array().unwrap().len(), 60_000);
    assert!(small > 10, "{small} answers meanwhile");
    assert!(sim.is_idle().await);
}
