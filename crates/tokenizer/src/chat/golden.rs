//! Compares rendered chat templates with those of Python; `tests/fixtures/generate.py` generates
//! them.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value as Json};
use time::macros::datetime;

use super::templates::CompiledTemplate;
use super::{
    ChatMessage, ChatTemplateContentFormat, ChatTemplateError, ChatTemplateInput, ChatTemplates,
};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/templates");

pub(crate) struct ChatTemplateGoldenCase {
    case: Map<String, Json>,
    messages: Vec<ChatMessage>,
}

impl ChatTemplateGoldenCase {
    pub(crate) fn new(case_json: &Json) -> Self {
        let messages = case_json["messages"].as_array().into_iter().flatten();
        Self {
            case: case_json.as_object().unwrap().clone(),
            messages: messages.cloned().map(ChatMessage::from).collect(),
        }
    }

    pub(crate) fn input(&self) -> ChatTemplateInput<'_> {
        let list = |name: &str| self.case.get(name).and_then(Json::as_array).map(Vec::as_slice);
        let flag = |name: &str| self.case.get(name).is_some_and(|flag| *flag == true);
        ChatTemplateInput {
            messages: &self.messages,
            tools: list("tools"),
            documents: self.case.get("documents"),
            add_generation_prompt: flag("add_generation_prompt"),
            continue_final_message: flag("continue_final_message"),
            kwargs: self.case.get("kwargs").and_then(Json::as_object),
            ..ChatTemplateInput::default()
        }
    }
}

fn read_json(path: &str) -> Json {
    serde_json::from_str(&fs::read_to_string(Path::new(FIXTURES).join(path)).unwrap()).unwrap()
}

fn fixed_clock() -> time::OffsetDateTime {
    datetime!(2024-07-06 09:05:03 UTC)
}

fn result_difference(found: &Result<String, ChatTemplateError>, expected: &Json) -> String {
    let (Ok(found), Some(text)) = (found, expected["text"].as_str()) else {
        return format!("{found:?}, expected {expected}").chars().take(400).collect();
    };
    let same = found.chars().zip(text.chars()).take_while(|(left, right)| left == right).count();
    let near = |text: &str| text.chars().skip(same.saturating_sub(20)).take(60).collect::<String>();
    format!("{:?}, expected {:?}", near(found), near(text))
}

#[test]
fn chat_templates_render_as_in_python() {
    let golden = read_json("expected.json");
    let special_tokens = golden["special_tokens"].as_object().unwrap();
    let templates = ChatTemplates::new(Vec::new(), special_tokens);
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (name, expected) in golden["templates"].as_object().unwrap() {
        let source = fs::read_to_string(Path::new(FIXTURES).join(format!("{name}.jinja"))).unwrap();
        let compiled = match CompiledTemplate::new(&source, fixed_clock) {
            Ok(compiled) => compiled,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let format = if expected["format"] == "openai" {
            ChatTemplateContentFormat::Openai
        } else {
            ChatTemplateContentFormat::String
        };
        assert_eq!(compiled.format, format, "{name}");
        for (case, expected) in expected["expected"].as_object().unwrap() {
            let input = ChatTemplateGoldenCase::new(&golden["cases"][case]);
            let found = templates.render_chat_with_template(&compiled, &input.input());
            compared += 1;
            let right = match (&found, &expected["text"], &expected["error"]) {
                (Ok(text), Json::String(expected), _) => text == expected,
                (Err(error), _, Json::String(expected)) => error.to_string() == *expected,
                (Err(_), Json::Null, Json::Null) => true,
                _ => false,
            };
            if !right {
                wrong.push(format!("{name} / {case}: {}", result_difference(&found, expected)));
            }
        }
    }
    let count = wrong.len();
    wrong.truncate(5);
    assert_eq!(
        count,
        0,
        "{compared} compared
{}",
        wrong.join(
            "
"
        )
    );
    assert!(compared > 300);
}
