//! Splits the text of a reply into reasoning, content and tool calls.

use super::options::RequestOptions;
use crate::app::App;
use vllm_sim_service::generate::hermes;

/// vLLM's error for a derender request without the original chat request, in which parser markup
/// would leak.
pub(super) const NEEDS_REQUEST: &str = "chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak raw parser markup into content.";

const THOUGHT: (&str, &str) = ("<think>", "</think>");
const CALL: (&str, &str) = ("<tool_call>", "</tool_call>");

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ParsedText {
    pub(super) reasoning: Option<String>,
    pub(super) content: Option<String>,
    pub(super) calls: Vec<(String, String)>,
}

impl ParsedText {
    pub(super) fn plain(text: String) -> Self {
        Self {
            content: Some(text),
            ..Self::default()
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OutputParsers {
    reasoning: bool,
    tools: bool,
}

/// Selects whether a reply text is complete or a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextExtent {
    Whole,
    /// The text is a prefix of the reply; more text follows.
    Beginning,
}

impl OutputParsers {
    /// Returns the tool and reasoning parsers of the server; `None` if it has none.
    pub(super) fn of(app: &App, options: &RequestOptions) -> Option<Self> {
        let parsers = &app.settings.parsers;
        let configured = parsers.reasoning.is_some() || parsers.tools.is_some();
        configured.then(|| Self {
            reasoning: parsers.reasoning.is_some(),
            tools: options.tools && parsers.tools.is_some(),
        })
    }

    /// Splits a reply text into reasoning, content and tool calls; the end of a prefix is held back
    /// while it may be part of a tag such as `</think>`.
    pub(super) fn read(&self, text: &str, portion: TextExtent) -> ParsedText {
        let ended = portion == TextExtent::Whole;
        let mut parsed = ParsedText::default();
        let mut rest = text;
        if self.reasoning {
            let inside = text.strip_prefix(THOUGHT.0).unwrap_or(text);
            let Some((thought, behind)) = inside.split_once(THOUGHT.1) else {
                parsed.reasoning = some(shown(inside, THOUGHT.1, portion));
                return parsed;
            };
            parsed.reasoning = some(thought);
            rest = behind;
        }
        if !self.tools {
            parsed.content = some(rest);
            return parsed;
        }
        let Some((content, calls)) = rest.split_once(CALL.0) else {
            parsed.content = some(shown(rest, CALL.0, portion));
            return parsed;
        };
        let whole = match (ended, rest.rfind(CALL.1)) {
            (true, _) => rest,
            (false, Some(end)) => &rest[..end + CALL.1.len()],
            // The first call is incomplete.
            (false, None) => "",
        };
        match hermes::calls(whole) {
            Some(found) => parsed.calls = found,
            // Text that does not parse as a call is content.
            None if ended || calls.contains(CALL.1) => {
                parsed.content = some(rest);
                return parsed;
            }
            None => {}
        }
        parsed.content = some(content);
        parsed
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns a complete text unchanged, or a prefix without a possible start of the tag `marker` at
/// its end.
fn shown<'t>(text: &'t str, marker: &str, portion: TextExtent) -> &'t str {
    if portion == TextExtent::Whole {
        return text;
    }
    let held = (1..marker.len()).rev();
    let held = held.filter(|n| text.ends_with(&marker[..*n]));
    &text[..text.len() - held.max().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: OutputParsers = OutputParsers {
        reasoning: true,
        tools: true,
    };
    const TEXT: &str = "<think>Well.</think>Let me see. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";

    #[test]
    fn a_text_has_three_parts() {
        let parsed = BOTH.read(TEXT, TextExtent::Whole);
        assert_eq!(parsed.reasoning.as_deref(), Some("Well."));
        assert_eq!(parsed.content.as_deref(), Some("Let me see. "));
        assert_eq!(parsed.calls, [("f".to_owned(), "{\"x\": 1}".to_owned())]);
    }

    #[test]
    fn what_is_shown_of_a_beginning_stays() {
        let mut before = ParsedText::default();
        let grows = |a: &Option<String>, b: &Option<String>| {
            b.clone()
                .unwrap_or_default()
                .starts_with(a.as_deref().unwrap_or_default())
        };
        for end in 0..=TEXT.len() {
            let parsed = BOTH.read(&TEXT[..end], TextExtent::Beginning);
            // Text that resembles an opening marker is content once the text is complete.
            if end >= THOUGHT.0.len() {
                assert!(grows(&before.reasoning, &parsed.reasoning), "{end}");
                assert!(grows(&before.content, &parsed.content), "{end}");
                assert!(parsed.calls.starts_with(&before.calls), "{end}");
                before = parsed;
            }
        }
        assert_eq!(before, BOTH.read(TEXT, TextExtent::Whole));
    }
}
