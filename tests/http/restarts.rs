//! The state that a restart of a scenario resets, and its duration.

use std::time::Duration;

use serde_json::{Value, json};
use vllm_sim_service::LoraAdapterLoadMode;
use vllm_sim_service::ServerAvailability;

use super::sim::{Sim, eventually, post};

/// Only a failure takes that long.
const PATIENCE: Duration = Duration::from_secs(20);

const RESPONSES: &str = "/v1/responses";

/// Begins a scenario, and waits for a state of the server.
async fn plays(sim: &Sim, phases: Value, until: impl FnMut(&ServerAvailability) -> bool) {
    let mut availability = sim.server.app_state().availability_sender().subscribe();
    let scenario = json!({"phases": phases}).to_string();
    // The answer may be lost with its connection.
    let mut operator = sim.connect().await;
    operator.send(&post("/admin/scenario", &[], scenario.as_bytes())).await;
    let reached = tokio::time::timeout(PATIENCE, availability.wait_for(until));
    reached.await.expect("the restart never comes").unwrap();
}

#[tokio::test]
async fn second_restart_ends_at_its_own_time() {
    let sim = Sim::serve(&["--dev-mode", "--enable-lora"]).await;
    let phases = json!([
        {"for": "50ms", "do": [{"restart": "100ms"}]},
        {"for": "300ms", "do": [{"restart": "1h"}]},
        {"for": "1h", "do": [{"load-lora": {"name": "mark", "path": "/mark"}}]},
    ]);
    plays(&sim, phases, |now| now.lives == 2 && now.down).await;
    // The first one would have ended before the third phase begins.
    let models = &sim.server.app_state().service().models;
    assert!(eventually(async || !models.loaded_lora_adapters().is_empty()).await);
    let now = *sim.server.app_state().availability_sender().borrow();
    assert!(now.down && now.lives == 2, "{now:?}");
}

async fn answers(sim: &Sim, path: &str) -> Option<Value> {
    let answer = sim.get(path).await;
    (answer.status == 200).then(|| answer.json())
}

#[tokio::test]
async fn a_restart_loses_all_that_is_not_on_the_command_line() {
    let flags = ["--dev-mode", "--enable-lora", "--lora-modules", "one=/one", "--responses-store"];
    let sim = Sim::serve(&flags).await;
    let response = json!({"input": "one two", "store": true, "max_output_tokens": 4});
    let stored = sim.post(RESPONSES, &response).await.json();
    let stored = format!("{RESPONSES}/{}", stored["id"].as_str().unwrap());
    assert!(answers(&sim, &stored).await.is_some());
    let models = &sim.server.app_state().service().models;
    models.load_lora_adapter("two", "/two", None, LoraAdapterLoadMode::New).unwrap();
    models.unload_lora_adapter("one");
    sim.poke("/sleep?level=1").await;
    sim.poke("/pause?mode=keep").await;
    let phases = json!([{"for": "1h", "do": [{"restart": "10ms"}]}]);
    plays(&sim, phases, |now| now.lives == 1 && !now.down).await;
    let state = async |path: &str| sim.get(path).await.json();
    assert_eq!(state("/is_paused").await, json!({"is_paused": false}));
    assert_eq!(state("/is_sleeping").await, json!({"is_sleeping": false}));
    let shown = state("/v1/models").await;
    let names = shown["data"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["tiny-llama", "one"]);
    assert_eq!(answers(&sim, &stored).await, None);
    let page = sim.get("/metrics").await.text();
    let mut states = page.lines().filter(|line| line.starts_with("vllm:engine_sleep_state{"));
    assert!(states.all(|line| line.contains("awake") == line.ends_with(" 1.0")), "{page}");
    let again = sim.post(RESPONSES, &response).await;
    assert_eq!(again.status, 200, "{}", again.text());
}

/// vLLM writes both of its maps anew for each request.
#[tokio::test]
async fn a_request_id_used_again_stores_the_later_response() {
    let sim = Sim::serve(&["--responses-store"]).await;
    let asked = |input: &str| json!({"input": input, "store": true, "request_id": "resp_same", "max_output_tokens": 4});
    let used = |answer: &Value| answer["usage"]["input_tokens"].as_u64().unwrap();
    let short = sim.post(RESPONSES, &asked("one")).await.json();
    let long = "one two three four ".repeat(10);
    let long = sim.post(RESPONSES, &asked(&long)).await.json();
    assert!(used(&long) > used(&short) + 20);
    let next = json!({"input": "x", "previous_response_id": "resp_same", "max_output_tokens": 4});
    let next = sim.post(RESPONSES, &next).await.json();
    assert!(used(&next) > used(&long), "{next}");
    // A cancelled one does not stay for the id either.
    let mut slow = asked("one");
    slow["background"] = true.into();
    sim.post(RESPONSES, &slow).await;
    sim.poke(&format!("{RESPONSES}/resp_same/cancel")).await;
    sim.post(RESPONSES, &asked("two")).await;
    let shown = sim.get(&format!("{RESPONSES}/resp_same")).await.json();
    assert_eq!(shown["status"], "incomplete", "{shown}");
}
