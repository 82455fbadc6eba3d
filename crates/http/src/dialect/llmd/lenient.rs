//! Removes or repairs members that llm-d-inference-sim ignores and vLLM's schema would reject.
//!
//! Messages without role or content get defaults. A value that vLLM accepts is kept and takes
//! effect.
//!
//! Source: llm-d-inference-sim `pkg/api/request.go`; Go's JSON decoder skips fields that its
//! structs do not declare.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::ApiEndpoint;
use super::responses::json_type_field;
use vllm_sim_service::dialect::LlmdDialect;

/// A check whether vLLM's schema accepts a JSON value; null is always accepted.
type FieldCheck = fn(&Value) -> bool;

/// Request fields that llm-d-inference-sim ignores, and a check for the values that vLLM accepts.
const IGNORED_FIELDS: [(&str, FieldCheck); 22] = [
    ("temperature", |v| is_number_within(v, 0.0, 2.0)),
    ("top_p", |v| is_number_within(v, f64::MIN_POSITIVE, 1.0)),
    ("top_k", |v| v.as_i64().is_some_and(|k| k >= -1)),
    ("min_p", |v| is_number_within(v, 0.0, 1.0)),
    ("presence_penalty", |v| is_number_within(v, -2.0, 2.0)),
    ("frequency_penalty", |v| is_number_within(v, -2.0, 2.0)),
    ("repetition_penalty", |v| is_number_within(v, f64::MIN_POSITIVE, f64::MAX)),
    ("length_penalty", Value::is_number),
    ("min_tokens", |v| v.as_u64().is_some()),
    ("seed", |v| v.as_i64().is_some()),
    ("stop", is_stop),
    ("stop_token_ids", |v| all_items_fit(v, |id| id.as_u64().is_some())),
    ("logit_bias", is_logit_bias),
    ("bad_words", |v| all_items_fit(v, |word| !is_missing_text(word))),
    ("response_format", is_response_format),
    ("user", Value::is_string),
    ("suffix", |_| false),
    ("cache_salt", |v| !is_missing_text(v)),
    ("parallel_tool_calls", Value::is_boolean),
    ("prompt_logprobs", |v| v.as_u64().is_some_and(|n| n <= 20)),
    ("use_beam_search", |v| *v == false),
    ("truncate_prompt_tokens", |v| v.as_i64().is_some_and(|n| n >= -1)),
];

/// A change of a JSON member: its name and new value, or `None` to remove it.
type MemberEdit = (&'static str, Option<Value>);

/// Returns the request body without the values that vLLM rejects and llm-d-inference-sim ignores.
pub(super) fn remove_values_rejected_by_vllm(
    endpoint: ApiEndpoint,
    mut body: Cow<'_, Value>,
) -> Cow<'_, Value> {
    let inner = match endpoint {
        ApiEndpoint::Generate => Some("sampling_params"),
        _ => None,
    };
    let members = |body: &Value| match inner {
        Some(key) => body.get(key)?.as_object().map(|members| member_edits(endpoint, members)),
        None => body.as_object().map(|members| member_edits(endpoint, members)),
    };
    let edits = members(&body).unwrap_or_default();
    if !edits.is_empty() {
        let whole = body.to_mut();
        let part = match inner {
            Some(key) => whole.get_mut(key),
            None => Some(whole),
        };
        if let Some(members) = part.and_then(Value::as_object_mut) {
            for (key, value) in edits {
                match value {
                    Some(value) => members.insert(key.to_owned(), value),
                    None => members.shift_remove(key),
                };
            }
        }
    }
    body
}

fn member_edits(endpoint: ApiEndpoint, members: &Map<String, Value>) -> Vec<MemberEdit> {
    let given = |key: &str| members.get(key).filter(|value| !value.is_null());
    let mut edits: Vec<MemberEdit> = Vec::new();
    for (key, fits) in IGNORED_FIELDS {
        if given(key).is_some_and(|value| !fits(value)) {
            edits.push((key, None));
        }
    }
    let streams = given("stream").and_then(Value::as_bool) == Some(true);
    if given("stream_options").is_some() && !streams {
        edits.push(("stream_options", None));
    }
    if given("prompt_logprobs").is_some() && streams {
        edits.push(("prompt_logprobs", None));
    }
    let number = |key: &str| given(key).and_then(Value::as_f64);
    // vLLM rejects several choices with greedy sampling.
    if number("n").is_some_and(|n| n > 1.0) && number("temperature").is_some_and(|t| t < 1e-5) {
        edits.push(("temperature", None));
    }
    let most = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
    let most = most.into_iter().find_map(number);
    if let (Some(least), Some(most)) = (number("min_tokens"), most)
        && least > most
    {
        edits.push(("min_tokens", None));
    }
    edits.extend(limit_top_logprobs(endpoint, members));
    if endpoint == ApiEndpoint::Embeddings
        && given("encoding_format").is_some_and(|f| *f != "base64")
    {
        edits.push(("encoding_format", None));
    }
    if endpoint == ApiEndpoint::Messages {
        edits.extend(fix_anthropic_members(members));
    }
    if endpoint == ApiEndpoint::Chat {
        edits.extend(fix_tool_choice(members));
        edits.extend(fill_in_messages(members));
    }
    edits
}

/// Limits the requested number of alternative tokens; removes the number if no log probabilities
/// are requested.
fn limit_top_logprobs(endpoint: ApiEndpoint, members: &Map<String, Value>) -> Option<MemberEdit> {
    let key = match endpoint {
        ApiEndpoint::Completions | ApiEndpoint::Generate => "logprobs",
        _ => "top_logprobs",
    };
    let count = members.get(key).filter(|value| !value.is_null())?;
    let wanted =
        endpoint != ApiEndpoint::Chat || members.get("logprobs") == Some(&Value::Bool(true));
    match count.as_i64() {
        Some(count) if wanted && count > LlmdDialect::LLMD_MAX_TOP_LOGPROBS => {
            Some((key, Some(LlmdDialect::LLMD_MAX_TOP_LOGPROBS.into())))
        }
        Some(count) if wanted && count >= 0 => None,
        _ => Some((key, None)),
    }
}

/// Replaces an unknown `tool_choice` by `auto`; removes `tools` and `tool_choice` if there are no
/// tools.
fn fix_tool_choice(members: &Map<String, Value>) -> Vec<MemberEdit> {
    let tools = members.get("tools").filter(|tools| !tools.is_null());
    if tools.is_none_or(|tools| tools.as_array().is_some_and(Vec::is_empty)) {
        return vec![("tools", None), ("tool_choice", None)]
            .into_iter()
            .filter(|(key, _)| members.contains_key(*key))
            .collect();
    }
    let choice = members.get("tool_choice");
    if let Some(name) = choice.and_then(|choice| choice.get("name")?.as_str())
        && choice.is_some_and(|choice| choice["type"] == "function")
    {
        // The flat form of the Responses API.
        let nested = json!({"type": "function", "function": {"name": name}});
        return vec![("tool_choice", Some(nested))];
    }
    let known = match choice {
        None | Some(Value::Null) => true,
        Some(Value::String(word)) => ["none", "auto", "required"].contains(&word.as_str()),
        Some(choice) => choice["function"]["name"].as_str().is_some_and(|n| !n.is_empty()),
    };
    match known {
        true => Vec::new(),
        false => vec![("tool_choice", Some("auto".into()))],
    }
}

/// Removes or replaces unknown roles, content blocks and tool choices of an Anthropic message
/// request.
fn fix_anthropic_members(members: &Map<String, Value>) -> Vec<MemberEdit> {
    let mut edits = Vec::new();
    let known = ["auto", "any", "tool", "none"];
    if members
        .get("tool_choice")
        .is_some_and(|choice| choice.is_object() && !known.contains(&json_type_field(choice)))
    {
        edits.push(("tool_choice", None));
    }
    if members.contains_key("thinking") {
        edits.push(("thinking", None));
    }
    let Some(listed) = members.get("messages").and_then(Value::as_array) else {
        return edits;
    };
    let mut messages = listed.clone();
    for message in messages.iter_mut().filter(|message| message.is_object()) {
        if !["user", "assistant", "system"].contains(&message["role"].as_str().unwrap_or("")) {
            message["role"] = "user".into();
        }
        if let Some(Value::Array(blocks)) = message.get_mut("content") {
            let known = ["text", "image", "tool_use", "tool_result"];
            blocks.retain(|block| known.contains(&json_type_field(block)));
        }
    }
    if messages != *listed {
        edits.push(("messages", Some(messages.into())));
    }
    edits
}

/// Adds missing roles and contents to the messages of a request.
fn fill_in_messages(members: &Map<String, Value>) -> Option<MemberEdit> {
    let listed = members.get("messages")?.as_array()?;
    let lacks = |message: &Value, key: &str| {
        message.is_object() && message.get(key).is_none_or(Value::is_null)
    };
    let says = |message: &Value| message.get("tool_calls").is_some_and(|calls| !calls.is_null());
    let silent = |message: &Value| lacks(message, "content") && !says(message);
    if !listed.iter().any(|m| lacks(m, "role") || silent(m)) {
        return None;
    }
    let mut listed = listed.clone();
    for message in &mut listed {
        if silent(message) {
            message["content"] = "".into();
        }
        if lacks(message, "role") {
            message["role"] = "user".into();
        }
    }
    Some(("messages", Some(listed.into())))
}

fn is_number_within(value: &Value, least: f64, most: f64) -> bool {
    value.as_f64().is_some_and(|v| (least..=most).contains(&v))
}

fn all_items_fit(value: &Value, fits: FieldCheck) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(fits))
}

/// Returns whether a JSON value is anything but a nonempty string.
fn is_missing_text(value: &Value) -> bool {
    value.as_str().is_none_or(str::is_empty)
}

fn is_stop(value: &Value) -> bool {
    !is_missing_text(value) || all_items_fit(value, |text| !is_missing_text(text))
}

fn is_logit_bias(value: &Value) -> bool {
    let pairs = value.as_object();
    pairs.is_some_and(|pairs| {
        let fits = |(id, bias): (&String, &Value)| id.parse::<u32>().is_ok() && bias.is_number();
        pairs.iter().all(fits)
    })
}

fn is_response_format(value: &Value) -> bool {
    match value.get("type").and_then(Value::as_str) {
        Some("text" | "json_object") => true,
        Some("json_schema") => {
            let named = value["json_schema"]["name"].is_string();
            named && value["json_schema"]["schema"].is_object()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(endpoint: ApiEndpoint, given: Value) -> Value {
        remove_values_rejected_by_vllm(endpoint, Cow::Owned(given)).into_owned()
    }

    #[test]
    fn fields_that_vllm_accepts_are_kept() {
        let good = json!({"temperature": 0.5, "top_p": 1, "top_k": -1, "stop": ["a"], "seed": 3,
            "stream": true, "stream_options": {"include_usage": true}, "top_logprobs": 3,
            "logprobs": true, "tools": [{}], "tool_choice": "auto",
            "messages": [{"role": "user", "content": "x"}]});
        assert_eq!(read(ApiEndpoint::Chat, good.clone()), good);
        assert!(matches!(
            remove_values_rejected_by_vllm(ApiEndpoint::Chat, Cow::Borrowed(&good)),
            Cow::Borrowed(_)
        ));
    }

    #[test]
    fn fields_that_only_vllm_rejects_are_removed() {
        let odd = json!({"temperature": 5, "top_p": 7, "top_k": "x", "stop": [""], "n": 2,
            "stream_options": {}, "top_logprobs": 30, "tool_choice": "sometimes"});
        assert_eq!(read(ApiEndpoint::Chat, odd), json!({"n": 2}));
        let params = json!({"sampling_params": {"temperature": -1, "max_tokens": 3}});
        let kept = json!({"sampling_params": {"max_tokens": 3}});
        assert_eq!(read(ApiEndpoint::Generate, params), kept);
        let many = json!({"logprobs": 1_000_000});
        assert_eq!(read(ApiEndpoint::Completions, many), json!({"logprobs": 100}));
    }

    #[test]
    fn missing_message_fields_are_filled_in() {
        let bare = json!({"messages": [{"content": "a"}, {"role": "user", "content": null},
            {"role": "assistant", "content": null, "tool_calls": []}]});
        let whole = json!({"messages": [{"content": "a", "role": "user"},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": null, "tool_calls": []}]});
        assert_eq!(read(ApiEndpoint::Chat, bare), whole);
    }
}
