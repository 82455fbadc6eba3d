//! Derenders one chunk of a token stream, using the state that the client sends back.

use serde_json::{Value, json};

use super::json_list::iter_array_field;
use super::options::DerenderOptions;
use super::parsed_text::{
    CHAT_REQUEST_REQUIRED_MESSAGE, OutputParsers, ParsedReplyText, ReplyTextCompleteness,
};
use super::reply::{
    add_weight_versions, chat_finish_reason, clamped_token_count, response_model_name, usage_json,
};
use super::token_choice::{GenerateResponseChoice, detokenize_output, given_prompt_token_ids};
use super::{bounds, logprobs};
use crate::app::App;
use crate::error::{HandlerResult, ok_json_response};
use crate::request_head::ToolCallIds;
use crate::token_ids::to_decodable_token_id;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::derender::{DerenderStreamRequest, DerenderStreamState};

/// Number of earlier tokens of the stream that are needed to detokenize a chunk.
const DETOKENIZE_WINDOW_TOKENS: usize = 8;
/// Number of earlier tokens of the stream on which a token's text in log probabilities may depend.
const LOGPROB_CONTEXT_TOKENS: usize = 4;

const STOPS_UNSUPPORTED: &str = "stop strings are not supported by streaming derender because text already sent cannot be cut. Use non-streaming derender or output_mode=text on /inference/v1/generate which holds stop strings back.";
const NEEDS_PROMPT_IDS: &str = "prompt_token_ids is required when a tool or reasoning parser is configured. Without it parse_delta cannot tell whether the prompt left reasoning open (e.g. a chat template that pre-opens <think>) and would misclassify reasoning content as plain content.";

/// State of a derendered stream, which the client sends with each chunk.
#[derive(Debug, Clone, Default)]
struct DerenderState {
    prev_tokens: Vec<String>,
    read_offset: usize,
    role_sent: bool,
    logprob_context_token_ids: Vec<u32>,
    logprob_text_offset: usize,
    output_token_ids: Vec<u32>,
    output_chunk_lens: Vec<u64>,
    tools_streamed: bool,
    last_tool_call_ids: Vec<String>,
}

impl DerenderState {
    fn from_wire(wire: Option<&DerenderStreamState>) -> Result<Self, Fault> {
        let Some(wire) = wire else {
            return Ok(Self::default());
        };
        let ids =
            |ids: &[u64]| ids.iter().copied().map(to_decodable_token_id).collect::<Result<_, _>>();
        let small = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Self {
            prev_tokens: wire.prev_tokens.clone(),
            read_offset: small(wire.read_offset),
            role_sent: wire.role_sent,
            logprob_context_token_ids: ids(&wire.logprob_context_token_ids)?,
            // Limits a value that no real stream reaches.
            logprob_text_offset: small(wire.logprob_text_offset).min(1 << 40),
            output_token_ids: ids(&wire.output_token_ids)?,
            output_chunk_lens: wire.output_chunk_lens.clone(),
            tools_streamed: wire.tools_streamed,
            last_tool_call_ids: wire.last_tool_call_ids.clone(),
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "prev_tokens": self.prev_tokens,
            "prefix_offset": 0,
            "read_offset": self.read_offset,
            "role_sent": self.role_sent,
            "logprob_context_token_ids": self.logprob_context_token_ids,
            "logprob_text_offset": self.logprob_text_offset,
            "output_token_ids": self.output_token_ids,
            "output_chunk_lens": self.output_chunk_lens,
            "tools_streamed": self.tools_streamed,
            "last_tool_call_ids": self.last_tool_call_ids,
        })
    }
}

pub(super) fn derender_chat_chunk(app: &App, request: &DerenderStreamRequest) -> HandlerResult {
    let chunk = &request.generate_chunk;
    let model = response_model_name(app, request.model.as_deref(), &Value::Null)?;
    let options = DerenderOptions::read_derender_options(request.chat_request.as_ref());
    let parsers = OutputParsers::parsers_of_server(app, &options);
    if !options.stops.is_empty() {
        return Err(Fault::bad_request(STOPS_UNSUPPORTED));
    }
    if parsers.is_some() && request.chat_request.is_none() {
        return Err(Fault::bad_request(CHAT_REQUEST_REQUIRED_MESSAGE));
    }
    if parsers.is_some() && request.prompt_token_ids.is_none() {
        return Err(Fault::bad_request(NEEDS_PROMPT_IDS));
    }
    check_single_choice(chunk, "derender_chat_stream")?;
    let mut state = DerenderState::from_wire(request.stream_state.as_ref())?;
    check_context_length(app, request, &state)?;
    let mut choices = Vec::new();
    for choice in iter_array_field(chunk, "choices") {
        let choice = GenerateResponseChoice::parse_choice(choice)?;
        let (delta, finish_reason, stop_reason) = match &parsers {
            Some(parsers) => parsed_delta(app, request, &mut state, &choice, (&options, parsers)),
            None => plain_delta(app, request, &mut state, &choice, &options),
        }?;
        let hidden = options.hides_output_tokens(parsers.as_ref());
        let before = state.logprob_context_token_ids.clone();
        let logprobs =
            logprobs::derendered_chat_logprobs(app, &choice, &options, &before).filter(|_| !hidden);
        remember_context(&mut state, &choice);
        let mut shown_choice = json!({
            "index": choice.choice_index(0),
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "token_ids": choice.derendered_token_ids(&options, parsers.as_ref()),
        });
        add_weight_versions(app, &mut shown_choice, None);
        choices.push(shown_choice);
    }
    let shown = chunk.get("prompt_token_ids");
    Ok(ok_json_response(&json!({
        "chunk": {
            "id": chunk.get("request_id"),
            "object": "chat.completion.chunk",
            "created": unix_now_secs() as u64,
            "model": model,
            "choices": choices,
            "usage": chunk_usage(request),
            "system_fingerprint": null,
            "prompt_token_ids": shown.filter(|_| options.return_token_ids),
            "prompt_text": null,
            "metrics": chunk.get("metrics"),
            "kv_transfer_params": null,
        },
        "stream_state": state.to_json(),
    })))
}

pub(super) fn derender_completion_chunk(
    app: &App,
    request: &DerenderStreamRequest,
) -> HandlerResult {
    let chunk = &request.generate_chunk;
    let model = response_model_name(app, request.model.as_deref(), &Value::Null)?;
    let options = DerenderOptions::read_derender_options(request.completion_request.as_ref());
    if !options.stops.is_empty() {
        return Err(Fault::bad_request(STOPS_UNSUPPORTED));
    }
    bounds::check_prompt_length(app, request.prompt_token_ids.as_deref())?;
    check_single_choice(chunk, "derender_completion_stream")?;
    bounds::check_generate_responses(app, std::slice::from_ref(chunk))?;
    let mut state = DerenderState::from_wire(request.stream_state.as_ref())?;
    let mut choices = Vec::new();
    for choice in iter_array_field(chunk, "choices") {
        let choice = GenerateResponseChoice::parse_choice(choice)?;
        let (ids, stop_reason) = choice.output_token_ids(app, &options);
        let text = detokenize_chunk(app, request, &mut state, ids, options.special)?;
        let before = state.logprob_context_token_ids.clone();
        let offset = state.logprob_text_offset;
        let (logprobs, next) =
            logprobs::derendered_completion_logprobs(app, &choice, &options, &before, offset);
        state.logprob_text_offset = next.unwrap_or(offset + text.chars().count());
        remember_context(&mut state, &choice);
        let shown = chunk.get("prompt_token_ids");
        let mut shown_choice = json!({
            "index": choice.choice_index(0),
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason(),
            "stop_reason": stop_reason,
            "prompt_token_ids": shown.filter(|_| options.return_token_ids),
            "token_ids": choice.derendered_token_ids(&options, None),
        });
        add_weight_versions(app, &mut shown_choice, None);
        choices.push(shown_choice);
    }
    Ok(ok_json_response(&json!({
        "chunk": {
            "id": chunk.get("request_id"),
            "object": "text_completion",
            "created": unix_now_secs() as u64,
            "model": model,
            "choices": choices,
            "usage": chunk_usage(request),
            "system_fingerprint": null,
            "metrics": chunk.get("metrics"),
            "kv_transfer_params": null,
        },
        "stream_state": state.to_json(),
    })))
}

fn plain_delta(
    app: &App,
    request: &DerenderStreamRequest,
    state: &mut DerenderState,
    choice: &GenerateResponseChoice<'_>,
    options: &DerenderOptions,
) -> Result<(Value, Option<String>, Value), Fault> {
    let (ids, stop_reason) = choice.output_token_ids(app, options);
    let text = detokenize_chunk(app, request, state, ids, options.special)?;
    let content = (!text.is_empty()).then_some(text);
    let delta = json!({"role": first_delta_role(state), "content": content, "reasoning": null});
    Ok((delta, choice.finish_reason().map(str::to_owned), stop_reason))
}

/// Returns the delta of a streamed chat chunk on a server with parsers: the text parsed so far,
/// without the text of earlier chunks.
fn parsed_delta(
    app: &App,
    request: &DerenderStreamRequest,
    state: &mut DerenderState,
    choice: &GenerateResponseChoice<'_>,
    (options, parsers): (&DerenderOptions, &OutputParsers),
) -> Result<(Value, Option<String>, Value), Fault> {
    let prompt =
        given_prompt_token_ids(request.prompt_token_ids.as_deref(), &request.generate_chunk)?;
    let (ids, stop_reason) = choice.output_token_ids(app, options);
    let before =
        detokenize_output(app, &state.output_token_ids, &prompt, SpecialTokenHandling::With);
    let whole = [&state.output_token_ids[..], ids].concat();
    let before = parsers.parse_reply_text(&before, ReplyTextCompleteness::Beginning);
    let portion = match choice.finish_reason() {
        Some(_) => ReplyTextCompleteness::Whole,
        None => ReplyTextCompleteness::Beginning,
    };
    let now = parsers.parse_reply_text(
        &detokenize_output(app, &whole, &prompt, SpecialTokenHandling::With),
        portion,
    );
    let reasoning = text_after(&before.reasoning, &now.reasoning);
    let mut delta = json!({
        "role": first_delta_role(state),
        "content": text_after(&before.content, &now.content),
        "reasoning": reasoning.filter(|_| options.include_reasoning),
    });
    let ids = ToolCallIds::with_random_hex_ids();
    let mut calls = Vec::new();
    for (index, (name, arguments)) in now.calls.iter().enumerate().skip(before.calls.len()) {
        while state.last_tool_call_ids.len() <= index {
            state.last_tool_call_ids.push(ids.tool_call_id(0, index));
        }
        calls.push(json!({
            "id": state.last_tool_call_ids[index],
            "type": "function",
            "index": index,
            "function": {"name": name, "arguments": arguments},
        }));
    }
    if !calls.is_empty() {
        delta["tool_calls"] = calls.into();
        state.tools_streamed = true;
    }
    let text = ParsedReplyText { calls: now.calls, ..ParsedReplyText::default() };
    let finish_reason =
        choice.finish_reason().map(|reason| chat_finish_reason(reason, &text).to_owned());
    if !choice.ids.is_empty() {
        state.output_token_ids.extend(&choice.ids);
        state.output_chunk_lens.push(choice.ids.len() as u64);
    }
    Ok((delta, finish_reason, stop_reason))
}

/// Returns the part of the text `now` after its prefix `before`; `None` if that part is empty.
fn text_after(before: &Option<String>, now: &Option<String>) -> Option<String> {
    let before = before.as_deref().unwrap_or_default();
    let rest = now.as_deref()?.strip_prefix(before)?;
    (!rest.is_empty()).then(|| rest.to_owned())
}

/// Returns the role `assistant` for the first delta of a stream, and `None` for all others.
fn first_delta_role(state: &mut DerenderState) -> Option<&'static str> {
    let first = !std::mem::replace(&mut state.role_sent, true);
    first.then_some("assistant")
}

/// Detokenizes the new tokens of a chunk, continuing from the state of the stream.
///
/// The state holds recent tokens. The text of the first `read_offset` was sent; later ones wait for
/// the rest of a character.
fn detokenize_chunk(
    app: &App,
    request: &DerenderStreamRequest,
    state: &mut DerenderState,
    ids: &[u32],
    special: SpecialTokenHandling,
) -> Result<String, Fault> {
    let tokenizer = app.service.generator.tokenizer();
    let mut window: Vec<u32> = match &request.stream_state {
        Some(_) => {
            let pieces = state.prev_tokens.iter();
            pieces.map(|piece| id_of_piece(app, piece)).collect()
        }
        None => {
            let prompt = given_prompt_token_ids(
                request.prompt_token_ids.as_deref(),
                &request.generate_chunk,
            )?;
            let tail = prompt.len().saturating_sub(DETOKENIZE_WINDOW_TOKENS);
            state.read_offset = prompt.len() - tail;
            prompt[tail..].to_vec()
        }
    };
    let read = state.read_offset.min(window.len());
    let mut decoder = tokenizer.detokenizer_after(&window[..read], special);
    for id in &window[read..] {
        // The text appears once its character is complete.
        let _ = decoder.decode_token(*id);
    }
    let mut out = String::new();
    let mut shown = read;
    for id in ids {
        let length = out.len();
        decoder.decode_token_into(*id, &mut out);
        window.push(*id);
        if out.len() > length {
            shown = window.len();
        }
    }
    let from = shown
        .saturating_sub(DETOKENIZE_WINDOW_TOKENS)
        .max(window.len().saturating_sub(2 * DETOKENIZE_WINDOW_TOKENS));
    state.read_offset = shown.saturating_sub(from);
    let kept = window[from..].iter();
    state.prev_tokens = kept.map(|id| piece_of_id(app, *id)).collect();
    Ok(out)
}

/// Returns the vocabulary entry of a token id, else `token_id:N`.
fn piece_of_id(app: &App, id: u32) -> String {
    let piece = app.service.generator.tokenizer().vocabulary_entry(id);
    piece.unwrap_or_else(|| format!("token_id:{id}"))
}

fn id_of_piece(app: &App, piece: &str) -> u32 {
    let known = app.service.generator.tokenizer().token_id_of_entry(piece);
    let numbered = || piece.strip_prefix("token_id:")?.parse().ok();
    known.or_else(numbered).unwrap_or(u32::MAX)
}

/// Stores the last tokens of a chunk in the state of the derendered stream, as context for the next
/// log probabilities.
fn remember_context(state: &mut DerenderState, choice: &GenerateResponseChoice<'_>) {
    let all = [&state.logprob_context_token_ids[..], &choice.ids].concat();
    let from = all.len().saturating_sub(LOGPROB_CONTEXT_TOKENS);
    state.logprob_context_token_ids = all[from..].to_vec();
}

/// Returns the usage of a derendered chunk, with the client's prompt length if given.
fn chunk_usage(request: &DerenderStreamRequest) -> Option<Value> {
    let given = request.generate_chunk.get("usage").filter(|u| u.is_object())?;
    let count = |key: &str| given.get(key).and_then(Value::as_u64).unwrap_or(0);
    let prompt = match request.prompt_tokens {
        Some(_) => clamped_token_count(request.prompt_tokens),
        None => count("prompt_tokens"),
    };
    Some(usage_json(prompt, count("completion_tokens")))
}

fn check_single_choice(chunk: &Value, what: &str) -> Result<(), Fault> {
    match iter_array_field(chunk, "choices").count() {
        0 | 1 => Ok(()),
        many => Err(Fault::bad_request(format!(
            "{what} expects at most one choice per chunk (got {many})."
        ))),
    }
}

/// Checks that prompt and output tokens of a derendered stream fit the context length.
fn check_context_length(
    app: &App,
    request: &DerenderStreamRequest,
    state: &DerenderState,
) -> Result<(), Fault> {
    let prompt = request.prompt_token_ids.as_ref().map_or(0, Vec::len);
    let before = state.output_token_ids.len();
    let choices = iter_array_field(&request.generate_chunk, "choices");
    let delta: usize = choices.map(|c| iter_array_field(c, "token_ids").count()).sum();
    let longest = app.settings.model.max_model_len as usize;
    if prompt + before + delta <= longest {
        return Ok(());
    }
    Err(Fault::bad_request(format!(
        "prompt_token_ids length ({prompt}) plus output_token_ids length ({before}) plus delta \
         ({delta}) exceeds max_model_len ({longest})."
    )))
}
