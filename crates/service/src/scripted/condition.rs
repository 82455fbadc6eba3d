//! Conditions of a rule of scripted replies on a request.

use std::fmt;

use std::sync::Arc;

use regex::Regex;
use serde_json::Value;

use crate::fields::{expect_mapping, non_null_field, text_field, whole_number_field};
use vllm_sim_wire::openai::request_message::RequestMessage;

const KEYS: &str = "contains, matches, model, role, turn, system, tool_result, tool, header";
/// Roles of chat messages that a scripted-reply rule can match.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Conditions of a scripted-reply rule, all of which a request must satisfy.
#[derive(Debug, Default)]
pub(super) struct ReplyRuleCondition {
    contains: Option<String>,
    matches: Option<Regex>,
    model: Option<String>,
    /// Role of the last chat message, as a condition of a scripted-reply rule.
    role: Option<String>,
    /// Number of user messages in the conversation, as a condition of a scripted-reply rule.
    turn: Option<u64>,
    /// Text in a system or developer message, as a condition of a scripted-reply rule.
    system: Option<String>,
    /// Text in a tool message after the last assistant message, as a condition of a scripted-reply
    /// rule.
    tool_result: Option<String>,
    /// Tool names, as a condition of a scripted-reply rule: the request must have all of these
    /// tools.
    tools: Vec<String>,
    /// Request headers as a condition of a scripted-reply rule: names in lower case, and values.
    headers: Vec<(String, String)>,
}

/// Parts of a request, except its last message, that conditions of scripted replies examine.
#[derive(Debug, Default)]
pub struct MatchedRequest<'r> {
    /// Name of the model that the client asked for.
    pub model: &'r str,
    /// Headers of the request that any scripted-reply rule names: names in lower case, and values.
    pub headers: &'r [(Box<str>, Box<str>)],
    /// Messages and tools of each prompt; empty for prompts that are not conversations.
    pub conversations: Vec<ConversationMatchInput>,
}

/// The parts of a conversation's messages and tools that rules of scripted replies match.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConversationMatchInput {
    role: String,
    turn: u64,
    system: String,
    tool_results: Vec<String>,
    tools: Arc<[String]>,
}

impl ReplyRuleCondition {
    pub(super) fn parse_rule_condition(value: &Value) -> Result<Self, String> {
        let fields = expect_mapping(value, KEYS)?;
        let matches = match text_field(fields, "matches")? {
            None => None,
            Some(pattern) => {
                Some(Regex::new(&pattern).map_err(|error| format!("'matches': {error}"))?)
            }
        };
        let role = text_field(fields, "role")?;
        if let Some(role) = role.as_deref().filter(|role| !ROLES.contains(role)) {
            return Err(format!("'role' must be {}, not {role:?}", ROLES.join(", ")));
        }
        Ok(Self {
            contains: text_field(fields, "contains")?,
            matches,
            model: text_field(fields, "model")?,
            role,
            turn: whole_number_field(fields, "turn", 1)?,
            system: text_field(fields, "system")?,
            tool_result: text_field(fields, "tool_result")?,
            tools: match non_null_field(fields, "tool") {
                None => Vec::new(),
                Some(tools) => read_tool_names(tools)?,
            },
            headers: match non_null_field(fields, "header") {
                None => Vec::new(),
                Some(headers) => read_headers(headers)?,
            },
        })
    }

    /// Returns the names of the request headers in the conditions of a scripted-reply rule.
    pub(super) fn condition_header_names(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the key of a scripted-reply rule's first condition that only a conversation can
    /// satisfy, if there is one.
    pub(super) fn conversation_condition_key(&self) -> Option<&'static str> {
        let keys = [
            ("role", self.role.is_some()),
            ("turn", self.turn.is_some()),
            ("system", self.system.is_some()),
            ("tool_result", self.tool_result.is_some()),
            ("tool", !self.tools.is_empty()),
        ];
        keys.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
    }

    /// Returns the key of a scripted-reply rule's first condition that token ids alone, sent by
    /// another API server, cannot satisfy.
    pub(super) fn api_server_condition_key(&self) -> Option<&'static str> {
        let header = (!self.headers.is_empty()).then_some("header");
        self.conversation_condition_key().or(header)
    }

    /// Returns whether a request satisfies all conditions of a scripted-reply rule; `prompt` is the
    /// index of the prompt, `text` its last message.
    pub(super) fn is_satisfied_by_request(
        &self,
        text: &str,
        prompt: usize,
        request: &MatchedRequest<'_>,
    ) -> bool {
        let contains = self.contains.as_ref();
        let matches = self.matches.as_ref();
        let mut headers = self.headers.iter();
        contains.is_none_or(|part| text.contains(part.as_str()))
            && matches.is_none_or(|regex| regex.is_match(text))
            && self.model.as_ref().is_none_or(|name| name == request.model)
            && headers.all(|(name, value)| request.has_header(name, value))
            && (self.conversation_condition_key().is_none()
                || (request.conversations.get(prompt))
                    .is_some_and(|facts| self.matches_conversation(facts)))
    }

    fn matches_conversation(&self, facts: &ConversationMatchInput) -> bool {
        let system = self.system.as_ref();
        let result = self.tool_result.as_ref();
        let mut results = facts.tool_results.iter();
        self.role.as_ref().is_none_or(|role| *role == facts.role)
            && self.turn.is_none_or(|turn| turn == facts.turn)
            && system.is_none_or(|part| facts.system.contains(part.as_str()))
            && result.is_none_or(|part| results.any(|text| text.contains(part.as_str())))
            && self.tools.iter().all(|name| facts.tools.contains(name))
    }
}

impl MatchedRequest<'_> {
    fn has_header(&self, name: &str, value: &str) -> bool {
        let mut headers = self.headers.iter();
        headers.any(|(known, given)| **known == *name && **given == *value)
    }
}

impl ConversationMatchInput {
    /// Reads the facts of a conversation that conditions of scripted replies examine; `tool_names`
    /// has the names of the request's tools.
    pub fn new(messages: &[RequestMessage], tool_names: Arc<[String]>) -> Self {
        Self { tools: tool_names, ..Self::of_messages(messages) }
    }

    fn of_messages(messages: &[RequestMessage]) -> Self {
        let mut facts = Self::default();
        for message in messages {
            let role = message.role();
            match role {
                "user" => facts.turn += 1,
                "system" | "developer" => {
                    if !facts.system.is_empty() {
                        facts.system.push('\n');
                    }
                    facts.system.push_str(&message.content_text());
                }
                "tool" | "function" => facts.tool_results.push(message.content_text().into_owned()),
                // Only results that the model has not answered yet count.
                _ => facts.tool_results.clear(),
            }
        }
        facts.role = messages.last().map_or("", RequestMessage::role).to_owned();
        facts
    }
}

impl fmt::Display for ConversationMatchInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "role {}, turn {}", self.role, self.turn)?;
        if !self.tools.is_empty() {
            write!(f, ", tools {}", self.tools.join(", "))?;
        }
        Ok(())
    }
}

/// Reads the condition `tool` of a scripted-reply rule: the name of a tool, or a list of names.
fn read_tool_names(value: &Value) -> Result<Vec<String>, String> {
    let wrong = || format!("'tool' must be the name of a tool or a list of names, not {value}");
    let name = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(wrong);
    match value {
        Value::Array(names) => names.iter().map(name).collect(),
        one => Ok(vec![name(one)?]),
    }
}

/// Reads the condition `header` of a scripted-reply rule: header names, in lower case as HTTP
/// compares them, and values.
fn read_headers(value: &Value) -> Result<Vec<(String, String)>, String> {
    let wrong = || format!("'header' must be a mapping of names to values, not {value}");
    let fields = value.as_object().ok_or_else(wrong)?;
    let pair = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => return Err(wrong()),
        };
        Ok((name.to_ascii_lowercase(), value))
    };
    fields.iter().map(pair).collect()
}
