//! Size limits of the token ids and generate responses that clients send to the derender routes.

use serde_json::Value;

use super::json_list::iter_array_field;
use crate::app::App;
use vllm_sim_wire::fault::Fault;

/// Checks the size of a derender request: the responses, choices, tokens and log probabilities in
/// `generate_responses` must not exceed what this server can produce.
///
/// # Errors
/// vLLM's 400 for the first count above its limit.
pub(super) fn check_generate_responses(app: &App, replies: &[Value]) -> Result<(), Fault> {
    let most = app.settings.answers.max_choices as usize;
    let longest = app.settings.model.max_model_len as usize;
    let widest = app.settings.answers.max_logprobs.map(|n| n as usize);
    if replies.len() > most {
        return Err(Fault::bad_request(format!(
            "generate_responses count ({}) exceeds server maximum ({most}). Set \
             VLLM_MAX_N_SEQUENCES to increase this limit.",
            replies.len()
        )));
    }
    for reply in replies {
        let choices = iter_array_field(reply, "choices").count();
        if choices > most {
            let id = reply["request_id"].as_str().unwrap_or_default();
            return Err(Fault::bad_request(format!(
                "choices count ({choices}) in response '{id}' exceeds server maximum ({most})."
            )));
        }
        for (at, choice) in iter_array_field(reply, "choices").enumerate() {
            let index = choice.get("index").and_then(Value::as_u64);
            let index = index.unwrap_or(at as u64);
            let long = |what: &str, length: usize| {
                let text = format!(
                    "{what} length ({length}) in choice {index} exceeds max_model_len ({longest})."
                );
                (length > longest).then(|| Fault::bad_request(text))
            };
            let ids = iter_array_field(choice, "token_ids").count();
            let entries = choice.get("logprobs").map(|l| iter_array_field(l, "content"));
            let entries: Vec<&Value> = entries.into_iter().flatten().collect();
            let too_long =
                long("token_ids", ids).or_else(|| long("logprobs.content", entries.len()));
            if let Some(fault) = too_long {
                return Err(fault);
            }
            let tops = entries.iter().map(|entry| iter_array_field(entry, "top_logprobs").count());
            if let (Some(widest), Some(wide)) = (widest, tops.max())
                && wide > widest
            {
                return Err(Fault::bad_request(format!(
                    "top_logprobs count ({wide}) in choice {index} exceeds max_logprobs ({widest})."
                )));
            }
        }
    }
    Ok(())
}

/// Checks that the token ids of a prompt fit the context length.
///
/// # Errors
/// vLLM's 400 for a prompt that is too long.
pub(super) fn check_prompt_length(app: &App, ids: Option<&[u64]>) -> Result<(), Fault> {
    let longest = app.settings.model.max_model_len as usize;
    match ids.map(<[u64]>::len).filter(|length| *length > longest) {
        None => Ok(()),
        Some(length) => Err(Fault::bad_request(format!(
            "prompt_token_ids length ({length}) exceeds max_model_len ({longest})."
        ))),
    }
}
