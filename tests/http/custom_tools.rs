//! Tools of Responses that take free text.

use serde_json::{Value, json};

use super::sim::Sim;

const FLAGS: [&str; 3] = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];

fn ask() -> Value {
    let tool = json!({"type": "custom", "name": "run_code", "description": "Runs Python."});
    json!({"input": "hi", "tools": [tool], "tool_choice": "required", "seed": 3})
}

#[tokio::test]
async fn a_custom_tool_is_called_with_text() {
    let sim = Sim::serve(&FLAGS).await;
    let answer = sim.post("/v1/responses", &ask()).await.json();
    let call = answer["output"][0].clone();
    assert_eq!(call["type"], "custom_tool_call", "{answer}");
    assert_eq!(call["name"], "run_code");
    assert!(call["id"].as_str().unwrap().starts_with("ctc_"), "{call}");
    assert!(call["input"].is_string() && call.get("arguments").is_none());
    let result =
        json!({"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "1"});
    let next = json!({"input": [{"role": "user", "content": "hi"}, call, result]});
    let next = sim.post("/v1/responses", &next).await;
    assert_eq!(next.status, 200, "{}", next.text());
}

#[tokio::test]
async fn the_text_of_a_custom_tool_is_streamed_in_deltas() {
    let sim = Sim::serve(&FLAGS).await;
    let mut body = ask();
    body["stream"] = true.into();
    let answer = sim.post("/v1/responses", &body).await;
    let data = answer.text();
    let events: Vec<Value> = data
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    let of = |kind: &str| -> Vec<&Value> { events.iter().filter(|e| e["type"] == kind).collect() };
    let deltas = of("response.custom_tool_call_input.delta");
    let text: String = deltas.iter().map(|e| e["delta"].as_str().unwrap()).collect();
    let done = of("response.custom_tool_call_input.done")[0];
    assert_eq!(done["input"], text, "{data}");
    let item = &of("response.output_item.done")[0]["item"];
    assert_eq!((&item["input"], &item["id"]), (&done["input"], &done["item_id"]));
    assert_eq!(of("response.output_item.added")[0]["item"]["input"], "");
    assert!(of("response.function_call_arguments.delta").is_empty());
    let whole = &of("response.completed")[0]["response"]["output"][0];
    assert_eq!(whole, item);
}
