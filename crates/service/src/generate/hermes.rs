//! Parses tool calls in the format of Hermes models, as vLLM's parser does.
//!
//! Source: vLLM 0.33 `tool_parsers/hermes_tool_parser.py`. `<tool_call>` precedes a JSON object
//! with name and arguments. Text before the first call is content; text after a call is dropped. If
//! any object is not valid JSON, the whole text is content.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::OutputChannel;

const CALL_OPEN_TAG: &str = "<tool_call>";
const CALL_CLOSE_TAG: &str = "</tool_call>";

/// Texts of a reply in order, each with its output channel, and the names of the called tools.
pub(super) type ChannelPiecesAndToolNames<'a> = (Vec<(&'a str, OutputChannel)>, Vec<String>);

#[derive(Deserialize)]
struct WrittenCall<'a> {
    name: String,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

/// Returns name and JSON arguments of each tool call in a text; `None` if the text contains no
/// valid call.
pub fn parse_tool_calls(text: &str) -> Option<Vec<(String, String)>> {
    let (pieces, names) = split_output_channels(text)?;
    let arguments = |index: usize| {
        let own =
            |(_, channel): &&(&str, OutputChannel)| *channel == OutputChannel::Call(index as u16);
        let piece = pieces.iter().find(own);
        piece.map_or_else(String::new, |(text, _)| (*text).to_owned())
    };
    let calls = names.into_iter().enumerate();
    Some(calls.map(|(index, name)| (name, arguments(index))).collect())
}

/// Splits a text into content and tool-call arguments; `None` if it contains no valid call.
pub(super) fn split_output_channels(text: &str) -> Option<ChannelPiecesAndToolNames<'_>> {
    let (content, _) = text.split_once(CALL_OPEN_TAG)?;
    let mut pieces = vec![(content, OutputChannel::Content)];
    let mut names = Vec::new();
    // End of the last piece.
    let mut done = content.len();
    let mut from = done + CALL_OPEN_TAG.len();
    loop {
        let body = &text[from..];
        let body = body.split_once(CALL_CLOSE_TAG).map_or(body, |(body, _)| body);
        let call: WrittenCall<'_> = serde_json::from_str(body.trim()).ok()?;
        let arguments = call.arguments.get();
        // `arguments` borrows from `text`, so its address gives its offset.
        let start = (arguments.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
        let index = u16::try_from(names.len()).ok()?;
        pieces.push((text.get(done..start)?, OutputChannel::Marker));
        pieces.push((arguments, OutputChannel::Call(index)));
        names.push(call.name);
        done = start + arguments.len();
        match text[done..].find(CALL_OPEN_TAG) {
            Some(next) => from = done + next + CALL_OPEN_TAG.len(),
            None => break,
        }
    }
    pieces.push((&text[done..], OutputChannel::Marker));
    pieces.retain(|(piece, _)| !piece.is_empty());
    Some((pieces, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "Let me see. <tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n\
                       </tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>";

    fn joined(pieces: &[(&str, OutputChannel)], channel: OutputChannel) -> String {
        let of = pieces.iter().filter(|(_, c)| *c == channel);
        of.map(|(text, _)| *text).collect()
    }

    #[test]
    fn content_names_and_arguments_are_distinguished() {
        let (pieces, names) = split_output_channels(TWO).unwrap();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(joined(&pieces, OutputChannel::Content), "Let me see. ");
        assert_eq!(joined(&pieces, OutputChannel::Call(0)), "{\"x\": 1}");
        assert_eq!(joined(&pieces, OutputChannel::Call(1)), "{}");
        let all: String = pieces.iter().map(|(text, _)| *text).collect();
        assert_eq!(all, TWO);
    }

    #[test]
    fn a_call_that_is_not_closed_is_one() {
        let (_, names) =
            split_output_channels("<tool_call>{\"name\": \"a\", \"arguments\": {}}").unwrap();
        assert_eq!(names, ["a"]);
    }

    #[test]
    fn text_without_a_readable_call_stays_text() {
        for text in [
            "Hello.",
            "<tool_call>",
            "<tool_call>\n{\"name\": get_weather\n</tool_call>",
            "<tool_call>{\"name\": \"a\"}</tool_call>",
            "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call><tool_call>{",
        ] {
            assert_eq!(split_output_channels(text), None, "{text}");
        }
    }
}
