use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::condition::ReplyRuleCondition;
use super::{
    ReplyRule, ReplyRules, ScriptedError, ScriptedFailure, ScriptedFinishReason, ScriptedReply,
    ScriptedTokenPacing,
};
use crate::fault::InjectedFailure;
use crate::fields::{expect_mapping, non_null_field, text_field, whole_number_field};
use crate::generate::tools::ToolCall;
use vllm_sim_engine::duration;

const MAX_RULES: usize = 10_000;
/// Maximum number of prompt or output tokens that a scripted reply sets as its `usage`.
const MAX_TOKENS: u64 = 10_000_000;

const RULE_KEYS: &str = "when, say, call, reasoning, pace, times, usage, finish, fail";

/// Error in a rule of scripted replies, with the rule's index and field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScriptedReplyError(pub(super) String);

impl ReplyRules {
    /// Parses rules of scripted replies in YAML (JSON is YAML): a list of rules, or a mapping with
    /// the key `replies`.
    ///
    /// # Errors
    /// [`ScriptedReplyError`] with the rule and field in error.
    pub fn from_yaml(text: &str) -> Result<Self, ScriptedReplyError> {
        let value: Option<Value> = serde_saphyr::from_str(text)
            .map_err(|error| ScriptedReplyError(format!("replies: not YAML: {error}")))?;
        let value = value.unwrap_or_default();
        let list = match &value {
            Value::Object(fields) if fields.len() == 1 => fields.get("replies"),
            list => Some(list),
        };
        let Some(Value::Array(rules)) =
            list.filter(|list| list.as_array().is_some_and(|rules| rules.len() <= MAX_RULES))
        else {
            let words = format!("replies: a list of rules was expected, {MAX_RULES} at most");
            return Err(ScriptedReplyError(words));
        };
        let rules = rules.iter().enumerate().map(|(index, value)| {
            read_rule(value).map_err(|why| ScriptedReplyError(format!("replies[{index}]: {why}")))
        });
        let rules: Vec<ReplyRule> = rules.collect::<Result<_, _>>()?;
        let mut headers: Vec<Box<str>> = rules
            .iter()
            .flat_map(|rule| rule.condition.condition_header_names())
            .map(Into::into)
            .collect();
        headers.sort();
        headers.dedup();
        let reads_conversations =
            rules.iter().any(|rule| rule.condition.conversation_condition_key().is_some());
        Ok(Self { rules, headers, reads_conversations })
    }
}

fn read_rule(value: &Value) -> Result<ReplyRule, String> {
    let fields = expect_mapping(value, RULE_KEYS)?;
    let condition = match non_null_field(fields, "when") {
        None => ReplyRuleCondition::default(),
        Some(when) => ReplyRuleCondition::parse_rule_condition(when)
            .map_err(|why| format!("'when': {why}"))?,
    };
    let text = text_field(fields, "say")?;
    let calls = match non_null_field(fields, "call") {
        None => Vec::new(),
        Some(Value::Array(calls)) => calls.iter().map(read_tool_call).collect::<Result<_, _>>()?,
        Some(one) => vec![read_tool_call(one)?],
    };
    let speaks = text.is_some() || !calls.is_empty();
    let reasoning = text_field(fields, "reasoning")?;
    let pace = match non_null_field(fields, "pace") {
        None => None,
        Some(pace) => Some(read_pacing(pace).map_err(|why| format!("'pace': {why}"))?),
    };
    let times = whole_number_field(fields, "times", 1)?;
    let finish = match text_field(fields, "finish")?.as_deref() {
        None => None,
        Some("stop") => Some(ScriptedFinishReason::Stop),
        Some("length") => Some(ScriptedFinishReason::Length),
        Some(other) => return Err(format!("'finish' must be stop or length, not {other:?}")),
    };
    let (prompt_tokens, completion_tokens) = match non_null_field(fields, "usage") {
        None => (None, None),
        Some(usage) => read_usage(usage).map_err(|why| format!("'usage': {why}"))?,
    };
    let failure = match non_null_field(fields, "fail") {
        None => None,
        Some(fail) => Some(read_failure(fail)?),
    };
    if !speaks {
        if failure.is_none() {
            return Err("one of say, call and fail is required".to_owned());
        }
        for key in ["reasoning", "pace", "times", "usage", "finish"] {
            if non_null_field(fields, key).is_some() {
                return Err(format!("'{key}' needs say or call"));
            }
        }
    }
    let reply = speaks.then(|| {
        Arc::new(ScriptedReply {
            reasoning,
            text: text.unwrap_or_default(),
            calls,
            pace,
            finish,
            prompt_tokens,
            completion_tokens,
        })
    });
    Ok(ReplyRule {
        condition,
        reply,
        failure,
        times,
        failed: 0.into(),
        answered: 0.into(),
        source: value.clone(),
    })
}

/// Reads the numbers of prompt and of output tokens in the `usage` of a scripted reply.
fn read_usage(value: &Value) -> Result<(Option<u32>, Option<u32>), String> {
    let fields = expect_mapping(value, "prompt_tokens, completion_tokens")?;
    let number = |key: &str, least: u64| match whole_number_field(fields, key, least)? {
        Some(tokens) if tokens > MAX_TOKENS => {
            Err(format!("'{key}' must be at most {MAX_TOKENS}, not {tokens}"))
        }
        tokens => Ok(tokens.map(|tokens| tokens as u32)),
    };
    Ok((number("prompt_tokens", 0)?, number("completion_tokens", 1)?))
}

/// Reads a scripted tool call `{name: N, arguments: {…}}`; arguments are printed with spaces, as
/// models print them.
fn read_tool_call(value: &Value) -> Result<ToolCall, String> {
    let fields =
        expect_mapping(value, "name, arguments").map_err(|why| format!("'call': {why}"))?;
    let name = text_field(fields, "name")?.filter(|name| !name.is_empty());
    let arguments = match non_null_field(fields, "arguments") {
        None => "{}".to_owned(),
        // A string is used verbatim, so that invalid JSON can be tested.
        Some(Value::String(text)) => text.clone(),
        Some(value) => vllm_sim_python::json::dumps(value),
    };
    Ok(ToolCall { name: name.ok_or("'call' needs a 'name'")?, arguments })
}

fn read_pacing(value: &Value) -> Result<ScriptedTokenPacing, String> {
    let fields = expect_mapping(value, "first_token, between_tokens")?;
    let time = |key: &str| match non_null_field(fields, key) {
        None => Ok(Duration::ZERO),
        Some(value) => {
            let typed = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            duration::parse_duration(&typed)
                .map_err(|why| format!("'{key}': {value} is not a duration such as 20ms: {why}"))
        }
    };
    Ok(ScriptedTokenPacing {
        first_token: time("first_token")?,
        between_tokens: time("between_tokens")?,
    })
}

fn read_failure(value: &Value) -> Result<ScriptedFailure, String> {
    let keys = "times, error, retry_after";
    let fields = expect_mapping(value, keys).map_err(|why| format!("'fail': {why}"))?;
    let given_error = non_null_field(fields, "error");
    let named =
        given_error.and_then(Value::as_str).and_then(InjectedFailure::from_injected_failure_name);
    let status = given_error.and_then(Value::as_u64);
    let error = match (named, status) {
        (Some(failure), _) => ScriptedError::Failure(failure),
        (None, Some(status @ 400..=599)) => ScriptedError::Status(status as u16),
        _ => {
            let names = InjectedFailure::ALL_INJECTED_FAILURES
                .map(InjectedFailure::injected_failure_name)
                .join(", ");
            let shown = given_error.cloned().unwrap_or_default();
            return Err(format!(
                "'error' must be {names} or a status from 400 to 599, not {shown}"
            ));
        }
    };
    let seconds = whole_number_field(fields, "retry_after", 0)?;
    let seconds = seconds.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
    Ok(ScriptedFailure {
        times: whole_number_field(fields, "times", 1)?.unwrap_or(u64::MAX),
        error,
        retry_after_seconds: seconds,
    })
}
