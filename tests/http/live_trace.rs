//! `GET /dashboard/trace`: the trace of a live server has what its metrics count.

use serde_json::{Value, json};

use super::sim::Sim;
use super::wire::Answer;

const TRACE: &str = "/dashboard/trace";

/// Trace events of an answer.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["traceEvents"].as_array().unwrap().clone()
}

fn named<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["ph"] == "X" && event["name"] == name).collect()
}

fn sum(events: &[&Value], key: &str) -> u64 {
    events.iter().map(|event| event["args"][key].as_u64().unwrap()).sum()
}

async fn complete(sim: &Sim, body: Value) {
    assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
}

#[tokio::test]
async fn a_trace_has_the_requests_steps_and_tokens_since_the_first_look() {
    let times = ["--time-to-first-token", "2ms", "--inter-token-latency", "1ms"];
    let ranks = ["--data-parallel-size", "2", "--no-enable-prefix-caching"];
    let sim = Sim::serve(&[&times[..], &ranks].concat()).await;
    complete(&sim, json!({"prompt": "before the first look", "max_tokens": 3})).await;
    assert!(sim.is_idle().await);
    let first = sim.get(TRACE).await;
    assert_eq!(first.header("content-type"), Some("application/json"));
    let saved = "attachment; filename=\"vllm-sim-trace.json\"";
    assert_eq!(first.header("content-disposition"), Some(saved));
    assert_eq!(events(&first).len(), 1, "a name, and no data");
    for (tokens, n) in [(20, 1), (33, 3), (4, 1)] {
        let prompt: Vec<u32> = (100..100 + tokens).collect();
        let body = json!({"prompt": prompt, "n": n, "max_tokens": 7, "ignore_eos": true});
        complete(&sim, body).await;
    }
    assert!(sim.is_idle().await);
    let events = events(&sim.get(TRACE).await);
    let (requests, steps) = (named(&events, "request"), named(&events, "step"));
    let (prompts, outputs) = (20 + 3 * 33 + 4, 5 * 7);
    assert_eq!(requests.len(), 5);
    assert_eq!(
        (sum(&requests, "input_tokens"), sum(&requests, "output_tokens")),
        (prompts, outputs)
    );
    assert_eq!((sum(&steps, "prompt_tokens"), sum(&steps, "output_tokens")), (prompts, outputs));
    assert!(requests.iter().all(|request| request["args"]["status"] == "completed"));
    for phase in ["queue", "prefill", "decode"] {
        assert_eq!(named(&events, phase).len(), 5, "{phase}");
    }
    let names = events.iter().filter(|event| event["name"] == "process_name");
    let names: Vec<&Value> = names.map(|event| &event["args"]["name"]).collect();
    assert_eq!(names, ["no worker", "worker 0", "worker 1"]);
}

#[tokio::test]
async fn a_trace_shows_preemptions() {
    let cache =
        ["--block-size", "32", "--num-gpu-blocks-override", "50", "--max-model-len", "1024"];
    let sim = Sim::serve(&[&cache[..], &["--inter-token-latency", "1ms"]].concat()).await;
    sim.get(TRACE).await;
    let prompt = |first: u32| -> Vec<u32> { (first..first + 640).collect() };
    let body = json!({"prompt": [prompt(1000), prompt(2000)], "max_tokens": 300,
        "ignore_eos": true});
    complete(&sim, body).await;
    assert!(sim.is_idle().await);
    let events = events(&sim.get(TRACE).await);
    let preempted = sim.metric("vllm:num_preemptions_total").await as usize;
    assert_eq!((named(&events, "preempted").len(), preempted), (1, 1));
}

#[tokio::test]
async fn a_trace_names_requests_and_needs_the_key() {
    let sim = Sim::serve(&["--api-key", "secret"]).await;
    assert_eq!(sim.get(TRACE).await.status, 401);
    let request =
        format!("GET {TRACE} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer secret\r\n\r\n");
    assert_eq!(sim.ask(request).await.status, 200);
}
