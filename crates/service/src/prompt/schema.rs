//! Finds a JSON Schema in the text of a conversation, which the reply then follows.
//!
//! Client libraries describe a schema in the prompt when they do not use structured output:
//! instructor's JSON modes, LangChain's output parsers, Pydantic AI's prompted output.

use serde_json::{Deserializer, Value};

/// Position in a text beyond which no JSON Schema may start, in bytes.
const MAX_SEARCH_BYTES: usize = 256 * 1024;
/// Maximum number of opening braces per text that are tried as the start of a JSON Schema.
const MAX_BRACES: usize = 32;

/// Searches the texts of a prompt, newest first, for the last JSON Schema with `type: object`.
pub(super) fn find_prompt_schema<'t>(
    texts: impl DoubleEndedIterator<Item = &'t str>,
) -> Option<Value> {
    texts.rev().filter(|text| text.contains("chema")).find_map(last_schema_in_text)
}

fn last_schema_in_text(text: &str) -> Option<Value> {
    let mut found = None;
    let mut at = 0;
    for _ in 0..MAX_BRACES {
        let Some(brace) = text[at..].find('{').map(|distance| at + distance) else {
            break;
        };
        if brace > MAX_SEARCH_BYTES {
            break;
        }
        let mut values = Deserializer::from_str(&text[brace..]).into_iter::<Value>();
        at = match values.next() {
            Some(Ok(value)) => {
                if value.get("properties").is_some_and(Value::is_object) {
                    found = Some(value);
                }
                brace + values.byte_offset()
            }
            _ => brace + 1,
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(texts: &[&str]) -> Option<Value> {
        find_prompt_schema(texts.iter().copied())
    }

    #[test]
    fn the_last_schema_of_the_last_text_is_found() {
        let example = r#"For the JSON schema {"properties": {"foo": {}}} the object {"foo": 1} is good.
            Here is the schema: ``` {"properties": {"bar": {"type": "integer"}}} ``` {curly}"#;
        let bar = json!({"properties": {"bar": {"type": "integer"}}});
        assert_eq!(found(&[example, "Which one?"]), Some(bar.clone()));
        let other = r#"schema: {"properties": {"other": {}}}"#;
        assert_eq!(found(&[other, example]), Some(bar));
    }

    #[test]
    fn other_json_is_not_taken_for_a_schema() {
        assert_eq!(found(&[r#"{"properties": {}}"#, "no word of it"]), None);
        let tool = r#"schemas: {"name": "f", "parameters": {"properties": {}}}"#;
        assert_eq!(found(&[tool]), None);
        assert_eq!(found(&[&format!("schema {}", "{".repeat(9))]), None);
        let braces = format!("schema {} {{\"properties\": {{}}}}", "{ ".repeat(MAX_BRACES));
        assert_eq!(found(&[&braces]), None);
    }
}
