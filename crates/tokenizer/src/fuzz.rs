//! Mutated chat templates: a text or words, never a panic.

use serde_json::{Map, Value, json};

use super::{ChatInput, ChatTemplates};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

const TEMPLATES: &[&str] = &[
    include_str!("../../../tests/fixtures/templates/chatml.jinja"),
    include_str!("../../../tests/fixtures/templates/loop_controls.jinja"),
    include_str!("../../../tests/fixtures/templates/python_types.jinja"),
    include_str!("../../../tests/fixtures/templates/thinking.jinja"),
    include_str!("../../../tests/fixtures/templates/tool_xml.jinja"),
    include_str!("../../../tests/fixtures/templates/values.jinja"),
    include_str!("../../../tests/fixtures/templates/whitespace.jinja"),
];

#[test]
fn templates() {
    let messages: Vec<Value> = vec![
        json!({"role": "user", "content": "Hi"}),
        json!({"role": "assistant", "content": "Ho", "tool_calls": []}),
    ];
    mutate::each(TEMPLATES, |bytes| {
        let source = String::from_utf8_lossy(bytes).into_owned();
        let templates = ChatTemplates::new(vec![("default".to_owned(), source)], &Map::new());
        let chat = ChatInput {
            messages: &messages,
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        match templates.render(&chat) {
            Ok(text) => assert!(text.len() < 64 << 20),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}
