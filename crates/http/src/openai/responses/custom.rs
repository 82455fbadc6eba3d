//! Custom tools of a Responses request, which take free text: the model sees them as functions with
//! one argument.
//!
//! Source: vLLM 0.33 `tool_parsers/utils.py`, `custom_tool_parameters`;
//! `entrypoints/openai/responses/utils.py`, `decode_custom_tool_input`.

use serde_json::{Value, json};

/// Returns the chat function that represents a custom tool.
pub(super) fn custom_tool_function(tool: &Value) -> Value {
    json!({"type": "function", "function": {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": {
            "type": "object",
            "properties": {
                "input": {
                    "type": "string",
                    "description": "The freeform text payload for this tool.",
                },
            },
            "required": ["input"],
            "additionalProperties": false,
        },
        "strict": null,
    }})
}

pub(super) fn custom_tool_arguments(input: &str) -> String {
    format!("{{\"input\": {}}}", Value::from(input))
}

/// Returns the free text in the complete arguments of a custom tool's call; arguments of another
/// form are returned unchanged.
pub(super) fn custom_tool_input(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let text = parsed.and_then(|parsed| Some(parsed.get("input")?.as_str()?.to_owned()));
    text.unwrap_or_else(|| arguments.to_owned())
}

/// Returns the beginning of the free text in a call of a custom tool, as far as the incomplete
/// arguments contain it.
pub(super) fn partial_custom_tool_input(arguments: &str) -> String {
    let value = || {
        let rest = arguments.trim_start().strip_prefix('{')?.trim_start();
        let rest = rest.strip_prefix("\"input\"")?.trim_start();
        rest.strip_prefix(':')?.trim_start().strip_prefix('"')
    };
    let Some(text) = value() else {
        return String::new();
    };
    let mut escaped = false;
    let end = text.find(|c| {
        let closes = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    });
    let mut text = &text[..end.unwrap_or(text.len())];
    // The text may end inside an escape; the longest is a surrogate pair of 12 bytes.
    for _ in 0..12 {
        if let Ok(text) = serde_json::from_str(&format!("\"{text}\"")) {
            return text;
        }
        let Some((last, _)) = text.char_indices().next_back() else {
            break;
        };
        text = &text[..last];
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_input_is_a_prefix_of_the_whole_input() {
        let payload = "say \"hi\"\\ \u{1f600} ü\n";
        let written = [
            custom_tool_arguments(payload),
            "{ \"input\" :\"say \\\"hi\\\"\\\\ \\ud83d\\ude00 \\u00fc\\n\"}".to_owned(),
        ];
        for text in &written {
            assert_eq!(custom_tool_input(text), payload);
            let mut longest = 0;
            for (end, _) in text.char_indices() {
                let begun = partial_custom_tool_input(&text[..end]);
                assert!(payload.starts_with(&begun), "{begun}");
                assert!(begun.len() >= longest, "{begun}");
                longest = begun.len();
            }
            assert_eq!(partial_custom_tool_input(text), payload);
        }
        assert_eq!(custom_tool_input("bare"), "bare");
    }
}
