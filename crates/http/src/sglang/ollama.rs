//! The routes of Ollama that an SGLang server has, and its root.
//!
//! Source: SGLang 0.5.23 `ollama/serving.py`, `ollama/protocol.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::disaggregation::PrefillBootstrapTarget;
use super::endpoint;
use super::errors::SglangResult;
use super::loads::iso_time;
use super::request::{self, SglangGenerationRequest, StartedSglangGeneration, new_request_id};
use super::usage::EndedRequestCounter;
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{self, ok_json_response};
use crate::generation;
use crate::openai::chat;
use crate::stream::{self, StreamRenderer};
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::prompt::{
    PromptSource, PromptTextOrTokenIds, PromptTextsOrTokenIds, PromptTruncation,
};
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::sglang::ollama::{
    OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest, ollama_sampling_params,
};
use vllm_sim_wire::sglang::sampling::SglangSamplingParams;

/// Handles `GET /`: reports that SGLang is running.
pub(super) async fn get_root() -> Response<Body> {
    error::json_response(StatusCode::OK, "\"SGLang is running\"".to_owned())
}

/// Returns the current time in the format of Ollama's `created_at`.
fn timestamp() -> String {
    let time = iso_time(unix_now_secs());
    format!("{}Z", &time[..time.len() - "000+00:00".len()])
}

/// Ollama's reason for the end of a response.
const STOP: &str = "stop";

/// Member of an Ollama response that contains the generated text: `message` or `response`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextMember {
    Message,
    Response,
}

impl TextMember {
    /// Returns the members that every Ollama response has; the last response has the end reason.
    fn response(self, model: &str, text: &str, done_reason: Option<&str>) -> Value {
        let (name, value) = match self {
            Self::Message => {
                ("message", json!({"role": "assistant", "content": text, "images": null}))
            }
            Self::Response => ("response", text.into()),
        };
        json!({
            "model": model,
            "created_at": timestamp(),
            name: value,
            "done": done_reason.is_some(),
            "done_reason": done_reason,
        })
    }

    /// Returns the JSON of an Ollama response that is not a stream; `counts` is `None` for a
    /// request without a prompt.
    fn body(self, model: &str, text: &str, counts: Option<(u64, u32, u32)>) -> Value {
        let mut body = self.response(model, text, Some(STOP));
        if self == Self::Response {
            body["context"] = Value::Null;
        }
        body["total_duration"] = counts.map(|(nanoseconds, ..)| nanoseconds).into();
        body["load_duration"] = Value::Null;
        body["prompt_eval_count"] = counts.map(|(_, prompt, _)| prompt).into();
        body["prompt_eval_duration"] = Value::Null;
        body["eval_count"] = counts.map(|(.., output)| output).into();
        body["eval_duration"] = Value::Null;
        body
    }
}

/// Request to Ollama's `/api/chat` or `/api/generate`.
struct OllamaRequest {
    member: TextMember,
    prompts: PromptSource,
    stream: bool,
    sampling: SglangSamplingParams,
}

/// Handles `POST /api/chat`: generates the next message of a conversation, as Ollama does.
pub(super) async fn create_ollama_chat(State(app): AppState, received: RawRequest) -> SglangResult {
    let request = chat_request(&app, &received)?;
    generate_from(&app, &received, request).await
}

fn chat_request(app: &Arc<App>, received: &RawRequest) -> Result<OllamaRequest, Fault> {
    let request: OllamaChatRequest = endpoint::read_request(app, received, &endpoint::OLLAMA_CHAT)?;
    let messages = request.messages.iter();
    let messages: Vec<Value> =
        messages.map(|message| json!({"role": message.role, "content": message.content})).collect();
    let body = json!({"messages": messages});
    let mut conversation = ChatRequest::parse_chat_request(&body, &app.rules.defaults.bounds)?;
    let conversation = vec![chat::chat_conversation(app, &mut conversation)];
    Ok(OllamaRequest {
        member: TextMember::Message,
        prompts: PromptSource::Conversations(conversation),
        stream: request.stream,
        sampling: read_options(app, request.options.as_ref())?,
    })
}

fn read_options(
    app: &App,
    options: Option<&serde_json::Map<String, Value>>,
) -> Result<SglangSamplingParams, Fault> {
    let vocabulary = app.service.generator.tokenizer().vocab_size();
    SglangSamplingParams::parse_sampling_params(&ollama_sampling_params(options), vocabulary)
}

/// Handles `POST /api/generate`: continues a prompt, as Ollama does.
pub(super) async fn create_ollama_generation(
    State(app): AppState,
    received: RawRequest,
) -> SglangResult {
    let request: OllamaGenerateRequest =
        endpoint::read_request(&app, &received, &endpoint::OLLAMA_GENERATE)?;
    let system = request.system.as_deref().filter(|system| !system.is_empty());
    let prompt = match system {
        Some(system) => format!("{system}\n\n{}", request.prompt),
        None => request.prompt,
    };
    let member = TextMember::Response;
    if prompt.chars().all(vllm_sim_python::is_python_whitespace) {
        let body = member.body(app.service.models.displayed_model_name(), "", None);
        return Ok(match request.stream {
            true => lines_response(Body::from(format!("{body}\n"))),
            false => ok_json_response(&body),
        });
    }
    let request = OllamaRequest {
        member,
        prompts: PromptSource::Inputs(PromptTextsOrTokenIds {
            inputs: vec![PromptTextOrTokenIds::Text(prompt)],
            add_special_tokens: true,
            truncation: PromptTruncation::default(),
        }),
        stream: request.stream,
        sampling: read_options(&app, request.options.as_ref())?,
    };
    generate_from(&app, &received, request).await
}

async fn generate_from(
    app: &Arc<App>,
    received: &RawRequest,
    request: OllamaRequest,
) -> SglangResult {
    let OllamaRequest { member, prompts, stream, sampling } = request;
    let lora = request::resolve_model(app, received, None, None)?;
    let generation = SglangGenerationRequest {
        id: new_request_id(),
        prompts,
        sampling,
        stream,
        // These bodies cannot name another server.
        target: PrefillBootstrapTarget::from_request_body([&None; 3], None, &received.headers, 0)?,
        ..SglangGenerationRequest::default()
    };
    let started = request::start_sglang_generation(app, received, lora, generation).await;
    let StartedSglangGeneration { reply, counter, .. } =
        started.map_err(|refused| refused.error)?;
    let model = app.service.models.displayed_model_name().to_string();
    if stream {
        let render = LineStream { member, model, counter };
        let mut response =
            stream::stream_reply_without_keep_alive(app, received, reply, render).await;
        set_line_type(&mut response);
        return Ok(response);
    }
    let body = generation::render_finished_reply(reply, move |reply| {
        counter.count_ended_reply(reply);
        let choice = &reply.choices[0];
        let released = choice.released_tokens();
        let text = choice.script.channel_text(OutputChannel::Content, released);
        let progress = choice.sequence_progress();
        let [_, _, last] = progress.admission_first_latest_token_times();
        let elapsed = u64::try_from((last - progress.arrived).as_nanos()).unwrap_or(u64::MAX);
        member.body(&model, &text, Some((elapsed, reply.prompt_token_count(), released)))
    });
    Ok(error::json_response(StatusCode::OK, body.await?.to_string()))
}

fn set_line_type(response: &mut Response<Body>) {
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
}

fn lines_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    set_line_type(&mut response);
    response
}

/// Renders a streamed Ollama response as lines of JSON.
struct LineStream {
    member: TextMember,
    model: String,
    counter: EndedRequestCounter,
}

impl StreamRenderer for LineStream {
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let mut delta = String::new();
        for token in choice.script.next_tokens(&mut choice.cursor, tokens) {
            if token.channel == OutputChannel::Content {
                delta.push_str(token.text);
            }
        }
        let done = choice.sent_end.is_some();
        let text = if done { "" } else { &delta };
        out.push_str(&format!(
            "{}\n",
            self.member.response(&self.model, text, done.then_some(STOP))
        ));
    }

    fn write_closing(&mut self, _out: &mut String, reply: &Reply) {
        self.counter.count_ended_reply(reply);
    }

    fn write_failure(&mut self, _out: &mut String) -> bool {
        false
    }
}

/// Handles `GET /api/tags`: lists the models, as Ollama does.
pub(super) async fn list_ollama_models(State(app): AppState) -> Response<Body> {
    let name = &**app.service.models.displayed_model_name();
    let body = json!({"models": [{
        "name": name,
        "model": name,
        "modified_at": timestamp(),
        "size": 0,
        "digest": format!("sha256:sglang{}", "0".repeat(58)),
        "details": {"format": "sglang", "family": last_part(name), "parameter_size": "unknown"},
    }]});
    ok_json_response(&body)
}

fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Handles `POST /api/show`: describes a model, as Ollama does.
pub(super) async fn show_ollama_model(app: Arc<App>, request: OllamaShowRequest) -> SglangResult {
    let model = request.model;
    let family = last_part(&model);
    let suffixes = ["-Instruct", "-Chat", "-Base"];
    let family = suffixes.iter().find_map(|end| family.strip_suffix(end)).unwrap_or(family);
    let context = app.settings.model.max_model_len;
    let mut info = json!({
        "general.architecture": family,
        "general.name": model,
        "general.parameter_count": 0,
    });
    info[format!("{family}.context_length")] = context.into();
    for name in ["block_count", "embedding_length", "attention.head_count"] {
        info[format!("{family}.{name}")] = 0.into();
    }
    Ok(ok_json_response(&json!({
        "license": "",
        "modelfile": format!("FROM {model}\nPARAMETER num_ctx {context}\n"),
        "parameters": format!("num_ctx {context}"),
        "template": "",
        "modified_at": timestamp(),
        "details": {
            "parent_model": "",
            "format": "sglang",
            "family": family,
            "families": [family],
            "parameter_size": "unknown",
            "quantization_level": "",
        },
        "model_info": info,
        "capabilities": ["completion"],
    })))
}
