//! Steps before generation that the routes of SGLang share.

use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::Value;

use super::disaggregation::PrefillBootstrapTarget;
use super::meta::{LogprobOptions, MetaInfoSettings};
use super::usage::EndedRequestCounter;
use crate::app::App;
use crate::body::RawRequest;
use crate::generation;
use crate::openai::chat;
use crate::request_head::names;
use vllm_sim_service::prompt::{PromptLengthLimit, PromptSource};
use vllm_sim_service::{
    GenerationJob, GenerationRequest, KvBlockSaltAndSession, KvTransfer, LoraAdapter,
    OutputTokenBudget, RejectedRequest, Reply, RequestSubmissionChecks, RequestedTools,
};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::sglang::sampling::SglangSamplingParams;

/// Fields of a generation request that SGLang's routes read from request bodies.
#[derive(Default)]
pub(super) struct SglangGenerationRequest {
    pub(super) id: Arc<str>,
    pub(super) prompts: PromptSource,
    pub(super) sampling: SglangSamplingParams,
    pub(super) logprobs: LogprobOptions,
    pub(super) rank: Option<i64>,
    pub(super) priority: Option<i64>,
    pub(super) cache_salt: Option<String>,
    pub(super) tools: Option<RequestedTools>,
    pub(super) parses_calls: bool,
    pub(super) reasoning: Option<f64>,
    pub(super) echo: bool,
    pub(super) stream: bool,
    pub(super) target: PrefillBootstrapTarget,
}

/// A started generation, with what the response of an SGLang route needs.
pub(super) struct StartedSglangGeneration {
    pub(super) reply: Reply,
    pub(super) job: Box<GenerationJob>,
    pub(super) meta: MetaInfoSettings,
    pub(super) counter: EndedRequestCounter,
}

/// Returns a new request id: 32 hex digits, as Python's `uuid4().hex`.
pub(super) fn new_request_id() -> Arc<str> {
    uuid::Uuid::new_v4().simple().to_string().into()
}

/// Returns the request id for an OpenAI route: the first id in `rid`, or a new one.
///
/// # Errors
/// SGLang's 400 for the id of a request that has not ended.
pub(super) fn given_or_new_request_id(app: &App, rid: Option<&Value>) -> Result<Arc<str>, Fault> {
    let given = rid.map(first_element_or_self).and_then(Value::as_str).filter(|id| !id.is_empty());
    let Some(id) = given else {
        return Ok(new_request_id());
    };
    check_unused_request_id(app, id)?;
    Ok(id.into())
}

/// Checks that no request with this id waits or runs.
///
/// Source: SGLang 0.5.23 `tokenizer_manager.py`, `_init_req_state`.
pub(super) fn check_unused_request_id(app: &App, id: &str) -> Result<(), Fault> {
    match app.service.has_request(id) {
        true => Err(Fault::bad_request(format!("Duplicate request ID detected: {id}"))),
        false => Ok(()),
    }
}

/// Returns the first element of a JSON list; a value that is not a list is returned unchanged.
pub(super) fn first_element_or_self(value: &Value) -> &Value {
    value.as_array().map_or(value, |items| items.first().unwrap_or(&Value::Null))
}

/// Returns the token ids of a conversation's prompt, however many they are.
pub(super) async fn conversation_token_ids(
    app: &App,
    mut chat: ChatRequest,
) -> Result<Vec<u32>, Fault> {
    let mut conversation = chat::chat_conversation(app, &mut chat);
    conversation.bound = PromptLengthLimit::None;
    Ok(app.service.tokenize_conversation(&app.rules, &mut conversation).await?.0)
}

/// Returns the salt of the prefix cache; `None` for an empty one.
pub(super) fn cache_salt(value: Option<&Value>) -> Option<String> {
    let salt = value?.as_str()?;
    (!salt.is_empty()).then(|| salt.to_owned())
}

/// Returns the data-parallel rank named in a request's `X-Data-Parallel-Rank` header, else in its
/// body.
///
/// # Errors
/// SGLang's 400 for a header that is not an integer, and for a rank that does not exist.
pub(super) fn data_parallel_rank(
    app: &App,
    headers: &HeaderMap,
    body: Option<i64>,
) -> Result<Option<i64>, Fault> {
    let header = headers.get(&names::DATA_PARALLEL_RANK_HEADER);
    let asked = match header.map(|value| String::from_utf8_lossy(value.as_bytes())) {
        None => body,
        Some(text) => Some(text.trim().parse::<i64>().map_err(|_| {
            Fault::bad_request(format!(
                "Invalid X-Data-Parallel-Rank header: must be an integer, got '{text}'"
            ))
        })?),
    };
    let ranks = i64::from(app.rules.limits.data_parallel_ranks);
    match asked {
        Some(rank) if rank < 0 || rank >= ranks => {
            Err(Fault::bad_request(format!("routed_dp_rank={rank} out of range [0, {ranks})")))
        }
        asked => Ok(asked),
    }
}

/// Returns the context length from the command line, in tokens; `None` if the context length comes
/// from the model's `config.json`.
pub(super) fn explicit_context_length(app: &App) -> Option<u32> {
    let length = app.rules.limits.max_model_len;
    let config = app.settings.model.hf_config.as_deref();
    let own = config.and_then(|config| config.get("max_position_embeddings"));
    Some(length).filter(|length| own.and_then(Value::as_u64) != Some(u64::from(*length)))
}

/// Returns the LoRA adapter that `model:adapter` or `lora_path` names; `Ok(None)` if neither does.
///
/// SGLang serves every other model name.
///
/// # Errors
/// An injected failure; SGLang's 400 for an adapter that is not loaded.
pub(super) fn resolve_model(
    app: &App,
    received: &RawRequest,
    model: Option<&str>,
    lora_path: Option<&Value>,
) -> Result<Option<Arc<LoraAdapter>>, Fault> {
    if !super::pooling::has_generation_model(app) {
        return Err(Fault::bad_request(
            "This server has an embedding model (--is-embedding), which generates no text.",
        ));
    }
    let served = &**app.service.models.displayed_model_name();
    let named = model.filter(|model| *model != served).and_then(|model| {
        let rest = model.strip_prefix(served).and_then(|rest| rest.strip_prefix(':'));
        rest.or_else(|| Some(model.split_once(':')?.1)).map(str::trim)
    });
    let listed = lora_path.map(first_element_or_self).and_then(Value::as_str);
    let is_given = |name: &&str| !name.is_empty();
    let adapter = named.filter(is_given).or(listed.filter(is_given));
    let Some(adapter) = adapter else {
        return generation::resolve_model(app, received, None, Ok(()));
    };
    generation::resolve_model(app, received, None, check_adapter(app, adapter))?;
    generation::resolve_model_without_faults(app, Some(adapter))
}

/// Checks that the LoRA adapter of a request is loaded.
///
/// Source: SGLang 0.5.23 `tokenizer_manager.py`, `_validate_and_resolve_lora`.
pub(super) fn check_adapter(app: &App, adapter: &str) -> Result<(), Fault> {
    if !app.settings.lora.enabled {
        return Err(Fault::bad_request(format!(
            "LoRA adapter '{adapter}' was requested, but LoRA is not enabled. Please launch the \
             server with --enable-lora flag and preload adapters using --lora-paths or \
             /load_lora_adapter endpoint."
        )));
    }
    let loaded = app.service.models.loaded_lora_adapters();
    if loaded.iter().any(|loaded| *loaded.name == *adapter) {
        return Ok(());
    }
    let names: Vec<String> = loaded.iter().map(|loaded| format!("'{}'", loaded.name)).collect();
    Err(Fault::bad_request(format!(
        "Got LoRA adapter that has never been loaded: {adapter}\n\
         All loaded adapters: dict_keys([{}]).",
        names.join(", ")
    )))
}

/// Admits a generation request and starts its generation, with a negotiated KV transfer on a server
/// of a prefill/decode pair.
///
/// # Errors
/// The error of a check, an injected failure, or a full queue; late errors are those of a pair.
pub(super) async fn start_sglang_generation(
    app: &App,
    received: &RawRequest,
    lora: Option<Arc<LoraAdapter>>,
    from: SglangGenerationRequest,
) -> Result<StartedSglangGeneration, RejectedRequest<Fault>> {
    let LogprobOptions { top, start } = from.logprobs;
    let grammar = from.sampling.output_grammar_kind();
    let ranks = app.rules.limits.data_parallel_ranks;
    let (transfer, room_rank) = match &app.disaggregation {
        None => (KvTransfer::Local, None),
        Some(pair) => (
            pair.kv_transfer_of_request(&from.id, &from.target)?,
            pair.rank_of_bootstrap_room(from.target.room, ranks),
        ),
    };
    let request = GenerationRequest {
        n: from.sampling.output_count().into(),
        // The engine generates at least one token.
        max_tokens: from.sampling.max_new_tokens().map(|limit| limit.max(1).into()),
        room: OutputTokenBudget::PerPrompt,
        checks: RequestSubmissionChecks::AllButSamplingRanges,
        sampling: Ok(Some(from.sampling.to_sampling_params(top, start.and(top)))).into(),
        stop_patterns: from.sampling.stop_patterns(),
        tools: from.tools,
        parses_calls: from.parses_calls,
        reasoning: from.reasoning,
        echo: from.echo,
        priority: from.priority.unwrap_or(0),
        kv_labels: KvBlockSaltAndSession {
            salt: from.cache_salt.map(Into::into),
            ..KvBlockSaltAndSession::default()
        },
        prompts: from.prompts,
        transfer,
        ..generation::new_generation_request(app, received, from.id, None)
    };
    let request = GenerationRequest { rank: from.rank.or(room_rank), ..request };
    let started = generation::start_generation(app, lora, request).await;
    let (reply, job) = started.map_err(|RejectedRequest { error, late }| match grammar {
        Some(kind) => RejectedRequest { error: grammar_fault(error, kind), late },
        None => RejectedRequest { error, late },
    })?;
    let meta = MetaInfoSettings::new(app, &job, from.logprobs, from.rank);
    let counter = EndedRequestCounter {
        metrics: app.metrics.clone(),
        streaming: from.stream,
        structured: grammar.is_some(),
        session: None,
    };
    Ok(StartedSglangGeneration { reply, job, meta, counter })
}

/// Returns SGLang's error for a structured-output grammar that does not compile.
///
/// Source: SGLang 0.5.23 `srt/constrained/grammar_manager.py`.
fn grammar_fault(fault: Fault, kind: &str) -> Fault {
    let starts =
        ["Grammar error", "Invalid grammar", "Invalid JSON grammar", "structured_outputs."];
    let is_of_grammar = starts.iter().any(|start| fault.message.starts_with(start));
    if fault.status != 400 || !is_of_grammar {
        return fault;
    }
    Fault { message: format!("Failed to compile {kind} grammar: {}", fault.message), ..fault }
}

/// Returns the error of a failed prefill/decode negotiation, which a stream reports in its body,
/// with status 200.
///
/// # Errors
/// Every other error.
pub(super) fn kv_negotiation_fault_or_other(
    rejected: RejectedRequest<Fault>,
) -> Result<Fault, Fault> {
    match rejected.late.is_some() && rejected.error.status == 500 {
        true => Ok(rejected.error),
        false => Err(rejected.error),
    }
}
