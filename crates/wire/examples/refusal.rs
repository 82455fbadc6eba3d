//! Reads chat requests and prints vLLM's error response for each that it rejects.
//!
//! `cargo run -p vllm-sim-wire --example refusal -- '{"model": "m", "messages": []}'`

use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::openai::ChatRequest;
use vllm_sim_wire::{Fault, body};

const BODIES: [&str; 4] = [
    r#"{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": "5"}"#,
    r#"{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": "warm"}"#,
    r#"{"model": "m", "messages": "Hi", "n": 0}"#,
    r#"{"model": "m", "messages": [}"#,
];

fn read(text: &str) -> Result<ChatRequest, Fault> {
    let value = body::read_json_body(Some("application/json"), text.as_bytes())?;
    ChatRequest::parse_chat_request(&value, &RequestBounds::default())
}

fn main() {
    let mut bodies: Vec<String> = std::env::args().skip(1).collect();
    if bodies.is_empty() {
        bodies = BODIES.map(str::to_owned).into();
    }
    for text in bodies {
        println!("{text}");
        match read(&text) {
            Ok(request) => println!("  taken: {} messages", request.messages.len()),
            Err(fault) => println!("  {} {}", fault.status, fault.to_json()),
        }
    }
}
