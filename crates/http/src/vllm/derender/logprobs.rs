//! Converts log probabilities with token ids to log probabilities with token texts.

use serde_json::{Map, Value, json};

use super::json_list::iter_array_field;
use super::options::DerenderOptions;
use super::token_choice::GenerateResponseChoice;
use crate::app::App;
use crate::openai::logprobs;

/// Log probability of a token, with its text and its alternative tokens.
struct TextLogprob {
    text: String,
    logprob: f64,
    top: Vec<(String, f64)>,
    /// Whether the token had alternative tokens before the request's limit on them was applied.
    had_top: bool,
}

/// Returns the log probabilities of a token response in the form of a chat choice.
pub(super) fn derendered_chat_logprobs(
    app: &App,
    choice: &GenerateResponseChoice<'_>,
    options: &DerenderOptions,
    before: &[u32],
) -> Option<Value> {
    let shown = |text: &str, logprob: f64| json!({"token": text, "logprob": logprob, "bytes": text.as_bytes()});
    let entries = text_logprobs(app, choice, options, before)?.into_iter();
    let content = entries.map(|entry| {
        let top = entry.top.iter().map(|(text, logprob)| shown(text, *logprob));
        let top: Vec<Value> = top.collect();
        let mut value = shown(&entry.text, entry.logprob);
        value["top_logprobs"] = top.into();
        value
    });
    Some(json!({"content": content.collect::<Vec<_>>()}))
}

/// Returns the log probabilities of a token response in the form of a completion choice, and the
/// text offset after the last token.
///
/// `offset` is the text offset of the first token, in characters.
pub(super) fn derendered_completion_logprobs(
    app: &App,
    choice: &GenerateResponseChoice<'_>,
    options: &DerenderOptions,
    before: &[u32],
    offset: usize,
) -> (Option<Value>, Option<usize>) {
    let Some(entries) = text_logprobs(app, choice, options, before) else {
        return (None, None);
    };
    let mut at = offset;
    let (mut offsets, mut values) = (Vec::new(), Vec::new());
    let (mut tokens, mut tops) = (Vec::new(), Vec::new());
    for entry in entries {
        offsets.push(at);
        at += entry.text.chars().count();
        values.push(entry.logprob);
        tokens.push(entry.text);
        let top: Map<String, Value> = entry.top.into_iter().map(|(t, l)| (t, l.into())).collect();
        tops.push(if entry.had_top { Value::Object(top) } else { Value::Null });
    }
    let lists = json!({
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": tops,
    });
    (Some(lists), Some(at))
}

fn text_logprobs(
    app: &App,
    choice: &GenerateResponseChoice<'_>,
    options: &DerenderOptions,
    before: &[u32],
) -> Option<Vec<TextLogprob>> {
    let logprobs = choice.json.get("logprobs").filter(|l| l.is_object())?;
    let mut context = before.to_vec();
    let tokenizer = app.service.generator.tokenizer();
    let text = |id: u32, context: &[u32]| {
        logprobs::logprob_token_text(tokenizer, id, &|| context.to_vec())
    };
    let logprob = |entry: &Value| entry.get("logprob").and_then(Value::as_f64).unwrap_or(-9999.0);
    let entries = iter_array_field(logprobs, "content").map(|entry| {
        let all: Vec<&Value> = iter_array_field(entry, "top_logprobs").collect();
        let kept = options.top.unwrap_or(all.len()).min(all.len());
        let top = all[..kept].iter();
        let top = top.map(|other| (text(token_id_of(other), &context), logprob(other)));
        let resolved = TextLogprob {
            text: text(token_id_of(entry), &context),
            logprob: logprob(entry),
            top: top.collect(),
            had_top: !all.is_empty(),
        };
        context.push(token_id_of(entry));
        resolved
    });
    Some(entries.collect())
}

fn token_id_of(entry: &Value) -> u32 {
    let id = entry.get("token_id").and_then(Value::as_u64);
    id.and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX)
}
