//! Splits the text of a reply into reasoning, content and tool calls.

use super::options::DerenderOptions;
use crate::app::App;
use vllm_sim_service::generate::hermes;

/// vLLM's error for a derender request without the original chat request, as parser markup would
/// remain in the content.
pub(super) const CHAT_REQUEST_REQUIRED_MESSAGE: &str = "chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak raw parser markup into content.";

const THINK_TAGS: (&str, &str) = ("<think>", "</think>");
const TOOL_CALL_TAGS: (&str, &str) = ("<tool_call>", "</tool_call>");

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ParsedReplyText {
    pub(super) reasoning: Option<String>,
    pub(super) content: Option<String>,
    pub(super) calls: Vec<(String, String)>,
}

impl ParsedReplyText {
    pub(super) fn from_plain_text(text: String) -> Self {
        Self { content: Some(text), ..Self::default() }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OutputParsers {
    reasoning: bool,
    tools: bool,
}

/// Selects whether a reply text is complete or a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyTextCompleteness {
    Whole,
    /// The text is a prefix of the reply; more text follows.
    Beginning,
}

impl OutputParsers {
    /// Returns the tool and reasoning parsers of the server; `None` if it has none.
    pub(super) fn parsers_of_server(app: &App, options: &DerenderOptions) -> Option<Self> {
        let parsers = &app.settings.parsers;
        let configured = parsers.reasoning.is_some() || parsers.tools.is_some();
        configured.then(|| Self {
            reasoning: parsers.reasoning.is_some(),
            tools: options.tools && parsers.tools.is_some(),
        })
    }

    /// Splits a reply text into reasoning, content and tool calls; the end of a prefix is held back
    /// while it may be part of a tag such as `</think>`.
    pub(super) fn parse_reply_text(
        &self,
        text: &str,
        portion: ReplyTextCompleteness,
    ) -> ParsedReplyText {
        let ended = portion == ReplyTextCompleteness::Whole;
        let mut parsed = ParsedReplyText::default();
        let mut rest = text;
        if self.reasoning {
            let inside = text.strip_prefix(THINK_TAGS.0).unwrap_or(text);
            let Some((thought, behind)) = inside.split_once(THINK_TAGS.1) else {
                parsed.reasoning =
                    nonempty_text(without_partial_tag(inside, THINK_TAGS.1, portion));
                return parsed;
            };
            parsed.reasoning = nonempty_text(thought);
            rest = behind;
        }
        if !self.tools {
            parsed.content = nonempty_text(rest);
            return parsed;
        }
        let Some((content, calls)) = rest.split_once(TOOL_CALL_TAGS.0) else {
            parsed.content = nonempty_text(without_partial_tag(rest, TOOL_CALL_TAGS.0, portion));
            return parsed;
        };
        let whole = match (ended, rest.rfind(TOOL_CALL_TAGS.1)) {
            (true, _) => rest,
            (false, Some(end)) => &rest[..end + TOOL_CALL_TAGS.1.len()],
            // The first call is incomplete.
            (false, None) => "",
        };
        match hermes::parse_tool_calls(whole) {
            Some(found) => parsed.calls = found,
            // Text that does not parse as a call is content.
            None if ended || calls.contains(TOOL_CALL_TAGS.1) => {
                parsed.content = nonempty_text(rest);
                return parsed;
            }
            None => {}
        }
        parsed.content = nonempty_text(content);
        parsed
    }
}

fn nonempty_text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns a complete text unchanged; cuts a possible start of the tag `marker` off the end of a
/// prefix.
fn without_partial_tag<'t>(text: &'t str, marker: &str, portion: ReplyTextCompleteness) -> &'t str {
    if portion == ReplyTextCompleteness::Whole {
        return text;
    }
    let held = (1..marker.len()).rev();
    let held = held.filter(|n| text.ends_with(&marker[..*n]));
    &text[..text.len() - held.max().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: OutputParsers = OutputParsers { reasoning: true, tools: true };
    const TEXT: &str = "<think>Well.</think>Let me see. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";

    #[test]
    fn text_splits_into_reasoning_content_and_calls() {
        let parsed = BOTH.parse_reply_text(TEXT, ReplyTextCompleteness::Whole);
        assert_eq!(parsed.reasoning.as_deref(), Some("Well."));
        assert_eq!(parsed.content.as_deref(), Some("Let me see. "));
        assert_eq!(parsed.calls, [("f".to_owned(), "{\"x\": 1}".to_owned())]);
    }

    #[test]
    fn shown_prefix_text_is_never_taken_back() {
        let mut before = ParsedReplyText::default();
        let grows = |a: &Option<String>, b: &Option<String>| {
            b.clone().unwrap_or_default().starts_with(a.as_deref().unwrap_or_default())
        };
        for end in 0..=TEXT.len() {
            let parsed = BOTH.parse_reply_text(&TEXT[..end], ReplyTextCompleteness::Beginning);
            // Text that resembles an opening marker is content once the text is complete.
            if end >= THINK_TAGS.0.len() {
                assert!(grows(&before.reasoning, &parsed.reasoning), "{end}");
                assert!(grows(&before.content, &parsed.content), "{end}");
                assert!(parsed.calls.starts_with(&before.calls), "{end}");
                before = parsed;
            }
        }
        assert_eq!(before, BOTH.parse_reply_text(TEXT, ReplyTextCompleteness::Whole));
    }
}
