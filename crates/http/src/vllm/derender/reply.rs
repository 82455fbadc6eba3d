//! Members that complete and streamed derendered responses share.

use serde_json::{Value, json};

use super::json_list::iter_array_field;
use super::parsed_text::ParsedReplyText;
use crate::app::App;
use crate::generation;
use vllm_sim_wire::VllmVersion;
use vllm_sim_wire::fault::Fault;

/// Returns the finish reason of a chat choice; a stop with tool calls is `tool_calls`.
pub(super) fn chat_finish_reason<'r>(reason: &'r str, parsed: &ParsedReplyText) -> &'r str {
    let called = !parsed.calls.is_empty() && reason == "stop";
    if called { "tool_calls" } else { reason }
}

/// Returns the model name of a derendered response: the requested one, else that of the token
/// response.
///
/// # Errors
/// vLLM's 404 for a model that is not served.
pub(super) fn response_model_name(
    app: &App,
    named: Option<&str>,
    reply: &Value,
) -> Result<String, Fault> {
    let asked = named.or_else(|| reply.get("model")?.as_str());
    let lora = generation::resolve_model_without_faults(app, asked)?;
    Ok(match named.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => app.service.models.model_name_in_responses(lora.as_deref()).to_string(),
    })
}

/// Adds the member `weight_versions`, which vLLM 0.32 does not have, to a choice.
pub(super) fn add_weight_versions(app: &App, choice: &mut Value, versions: Option<&Value>) {
    if app.rules.limits.version >= VllmVersion::V033 {
        choice["weight_versions"] = versions.cloned().unwrap_or(Value::Null);
    }
}

pub(super) fn count_output_tokens(reply: &Value) -> u64 {
    let each = iter_array_field(reply, "choices")
        .map(|choice| iter_array_field(choice, "token_ids").count() as u64);
    each.sum()
}

/// Returns a token count from the client, clamped to 64 bits.
pub(super) fn clamped_token_count(given: Option<i128>) -> u64 {
    u64::try_from(given.unwrap_or(0).max(0)).unwrap_or(u64::MAX)
}

pub(super) fn usage_json(prompt: u64, completion: u64) -> Value {
    json!({
        "prompt_tokens": prompt,
        "total_tokens": prompt.saturating_add(completion),
        "completion_tokens": completion,
        "prompt_tokens_details": null,
        "completion_tokens_details": null,
    })
}
