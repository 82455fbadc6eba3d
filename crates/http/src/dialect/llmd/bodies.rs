//! Checks of request bodies that llm-d-inference-sim makes before others.
//!
//! Source: llm-d-inference-sim `pkg/api/request.go`, `pkg/llm-d-inference-sim/messages.go`.

use serde_json::{Map, Value, json};

use vllm_sim_wire::fault::{ErrorType, Fault};

/// Checks the prompt of a completion request as llm-d-inference-sim does.
///
/// # Errors
/// llm-d's 400 for a missing or empty prompt.
pub(super) fn check_completion_prompt(prompt: &Value) -> Result<(), Fault> {
    let words = match prompt {
        Value::Null => "prompt array must contain at least one prompt",
        Value::String(text) if text.is_empty() => "prompt must not contain an empty string",
        Value::Array(items) if items.is_empty() => "prompt array must contain at least one prompt",
        Value::Array(items) if items.iter().any(|item| *item == *"") => {
            "prompt must not contain an empty string"
        }
        Value::Array(items) if items.iter().any(|i| i.as_array().is_some_and(Vec::is_empty)) => {
            "prompt must not contain an empty token-id array"
        }
        _ => return Ok(()),
    };
    Err(Fault::bad_request(words))
}

/// Checks the required members of a `/v1/messages` body as llm-d-inference-sim does.
///
/// # Errors
/// llm-d's 400.
pub(super) fn check_messages_body(body: &Value) -> Result<(), Fault> {
    let messages = body.get("messages").and_then(Value::as_array);
    let blocks = messages.into_iter().flatten();
    let blocks = blocks.filter_map(|message| message.get("content")?.as_array());
    let lacks = |value: &Value, key: &str| value.get(key).is_none_or(Value::is_null);
    let image = |block: &Value| block.get("type").is_some_and(|kind| kind == "image");
    if blocks.flatten().any(|block| image(block) && lacks(block, "source")) {
        let words = "image content block is missing required 'source' field";
        return Err(Fault::bad_request(words));
    }
    if let Some(choice) = body.get("tool_choice").filter(|c| c["type"] == "tool")
        && (lacks(choice, "name") || choice["name"] == "")
    {
        let words = "tool_choice of type 'tool' requires a non-empty 'name'";
        return Err(Fault::bad_request(words));
    }
    let says = |message: &Value| match message.get("content") {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(blocks)) => !blocks.is_empty(),
        _ => false,
    };
    if !messages.into_iter().flatten().any(says) && lacks(body, "system") {
        return Err(Fault::bad_request("messages must not be empty"));
    }
    if lacks(body, "max_tokens") {
        return Err(Fault::bad_request("max_tokens is required"));
    }
    Ok(())
}

/// Checks that a tool that a chat request forces is one of the request's tools.
///
/// # Errors
/// llm-d's 500 for an unknown tool (`pkg/api/tool_choice.go`).
pub(super) fn check_forced_tool(body: &Value) -> Result<(), Fault> {
    let tools = body["tools"].as_array().filter(|tools| !tools.is_empty());
    let forced = body["tool_choice"]["function"]["name"].as_str().filter(|name| !name.is_empty());
    let (Some(tools), Some(forced)) = (tools, forced) else { return Ok(()) };
    if tools.iter().any(|tool| tool["function"]["name"] == forced) {
        return Ok(());
    }
    let message = format!(
        "tool with name '{forced}' requested in tool_choice but not found in the tools list"
    );
    Err(Fault::new(500, ErrorType::InternalServer, message))
}

/// Checks the required members of a generate body (`/inference/v1/generate`) as llm-d does.
///
/// # Errors
/// llm-d's 400.
pub(super) fn check_generate_body(body: &Value) -> Result<(), Fault> {
    let ids = body.get("token_ids").and_then(Value::as_array);
    if ids.is_none_or(Vec::is_empty) {
        return Err(Fault::bad_request("Missing input token_ids"));
    }
    match body.get("sampling_params") {
        Some(Value::Object(_)) => Ok(()),
        _ => Err(Fault::bad_request("Missing sampling_params field")),
    }
}

/// Moves sampling parameters from the root of a generate body to `sampling_params`, and adds
/// missing placeholders for media.
pub(super) fn nest_root_sampling_params(body: &mut Value) {
    let Some(root) = body.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(features)) = root.get_mut("features")
        && let Some(Value::Object(hashes)) = features.get("mm_hashes")
        && !features.contains_key("mm_placeholders")
    {
        let place = json!({"offset": 0, "length": 1});
        let places = |list: &Value| vec![place.clone(); list.as_array().map_or(0, Vec::len)];
        let lists = hashes.iter().map(|(kind, list)| (kind.clone(), places(list).into()));
        let lists: Map<String, Value> = lists.collect();
        features.insert("mm_placeholders".to_owned(), lists.into());
    }
    let outer: Vec<(&str, Value)> = ["n", "ignore_eos"]
        .into_iter()
        .filter_map(|key| Some((key, root.get(key)?.clone())))
        .collect();
    if let Some(Value::Object(params)) = root.get_mut("sampling_params") {
        for (key, value) in outer {
            params.entry(key).or_insert(value);
        }
    }
}

/// Checks the `input` of an embeddings request as llm-d-inference-sim does.
///
/// # Errors
/// llm-d's 400 for missing, empty or mixed input.
pub(super) fn check_embeddings_input(body: &Value) -> Result<(), Fault> {
    let empty = |v: &Value| match v {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => v.is_null(),
    };
    let required = "input is required and must be a non-empty string or array";
    let input = body.get("input");
    let items = || input.and_then(Value::as_array).into_iter().flatten();
    // Items are all texts, all ids or all lists of ids.
    let kinds = [Value::is_string, Value::is_number, Value::is_array];
    let mixed = kinds.iter().filter(|is| items().any(*is)).count() > 1;
    if input.is_some_and(|input| *input == *"") || items().any(empty) && !mixed {
        return Err(Fault::bad_request("input cannot be an empty string"));
    }
    if mixed || input.is_none_or(empty) && body.get("messages").is_none() {
        return Err(Fault::bad_request(required));
    }
    if body.get("dimensions").and_then(Value::as_i64).is_some_and(|n| n < 1) {
        return Err(Fault::bad_request("dimensions must be at least 1"));
    }
    Ok(())
}

/// Checks that a tokenize body does not have both `prompt` and `messages`.
///
/// # Errors
/// llm-d's 400.
pub(super) fn check_prompt_xor_messages(body: &Value) -> Result<(), Fault> {
    let given = |key: &str| body.get(key).is_some_and(|value| !value.is_null());
    if given("prompt") && given("messages") {
        let words = "both prompt and messages fields in tokenize request";
        return Err(Fault::bad_request(words));
    }
    Ok(())
}
