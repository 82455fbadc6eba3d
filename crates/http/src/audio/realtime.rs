//! `/v1/realtime`: transcribes audio that arrives over a WebSocket.
//!
//! Audio is not stored. Samples are counted and hashed into segments of five seconds, and each
//! segment is one sequence. In vLLM one request grows instead, which a simulation with scripted
//! replies cannot do.
//!
//! Source: vLLM 0.33 `entrypoints/speech_to_text/realtime/connection.py`;
//! `model_executor/models/qwen3_asr_realtime.py` for the segment length.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::Response;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use super::{
    PROMPT_TOKENS_PER_SECOND, SPEECH_TOKENS_PER_SECOND, special_token_id,
    start_speech_to_text_generation,
};
use crate::app::{App, AppState};
use crate::error;
use crate::generation;
use crate::request_head::new_random_hex_id;
use vllm_sim_engine::driver::SequenceState;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_python as python;
use vllm_sim_python::PythonValue;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::generate::request::{AudioInput, TokenizedPrompt};
use vllm_sim_service::{GenerationRequest, PrefixCacheReadRules, Reply};
use vllm_sim_wire::Fault;
use vllm_sim_wire::body;
use vllm_sim_wire::fault::sanitize_error_message;
use vllm_sim_wire::openai::audio::{AppendAudioEvent, CommitAudioEvent};

/// Sample rate of the audio in Hz; a sample has two bytes.
const SAMPLE_RATE_HZ: u64 = 16_000;
const SEGMENT_SAMPLES: u64 = 5 * SAMPLE_RATE_HZ;
/// Maximum number of audio segments that wait for transcription (90 minutes).
const MAX_QUEUED_SEGMENTS: usize = 1080;
/// Maximum size of a WebSocket message, in bytes (uvicorn's `ws_max_size`).
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Maximum time to write one WebSocket message; after it, the client is considered disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle time of a WebSocket before a ping is sent (uvicorn's `ws_ping_interval`).
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Base64 decoder with Python's rules: padding is required, other characters are skipped.
const PYTHON_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

/// Handles the WebSocket upgrade of `/v1/realtime`; any other request gets a 404.
pub(crate) async fn open_realtime_websocket(
    State(app): AppState,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response<Body> {
    let Ok(upgrade) = upgrade else {
        return error::not_found_response();
    };
    upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES).on_upgrade(
        move |socket| async move {
            let opened = Instant::now();
            app.metrics.on_websocket_opened();
            let metrics = app.metrics.clone();
            let close = RealtimeSession::new(app).run_session(socket).await;
            metrics.on_websocket_closed(opened.elapsed().as_secs_f64());
            tracing::debug!(?close, "realtime connection ended");
        },
    )
}

#[derive(Debug)]
enum CloseReason {
    Gone,
    Binary,
    Stopping,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum QueuedAudio {
    Segment {
        key: u64,
        samples: u64,
    },
    /// Marker in the queue of audio segments: the client has sent all audio of one utterance.
    End,
}

#[derive(Default)]
struct Utterance {
    text: String,
    prompt: u32,
    completion: u32,
    reply: Option<Reply>,
}

struct RealtimeSession {
    app: Arc<App>,
    id: String,
    /// Whether the client of `/v1/realtime` has named a served model.
    validated: bool,
    queue: VecDeque<QueuedAudio>,
    /// Number of audio samples since the last complete segment; `key` is the hash of these samples.
    samples: u64,
    key: u64,
    utterance: Option<Utterance>,
    out: Vec<String>,
}

impl RealtimeSession {
    fn new(app: Arc<App>) -> Self {
        Self {
            app,
            id: format!("rt-ws-{}", uuid::Uuid::new_v4()),
            validated: false,
            queue: VecDeque::new(),
            samples: 0,
            key: 0,
            utterance: None,
            out: Vec::new(),
        }
    }

    /// Runs the `/v1/realtime` session until one side closes the WebSocket.
    async fn run_session(mut self, mut socket: WebSocket) -> CloseReason {
        let mut availability = self.app.controls.availability.subscribe();
        let id = new_random_hex_id();
        let created = json!({"type": "session.created", "id": format!("sess-{id}"), "created": unix_now_secs() as u64});
        self.out.push(created.to_string());
        let mut last_received = Instant::now();
        let mut pinged = false;
        let end = loop {
            if !self.send_queued(&mut socket).await {
                return CloseReason::Gone;
            }
            tokio::select! {
                message = socket.recv() => {
                    (last_received, pinged) = (Instant::now(), false);
                    match message {
                        Some(Ok(Message::Text(text))) => self.handle_event(&text).await,
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                        Some(Ok(Message::Binary(_))) => break CloseReason::Binary,
                        Some(Ok(Message::Close(_)) | Err(_)) | None => return CloseReason::Gone,
                    }
                }
                () = wait_for_progress(self.utterance.as_ref()) => self.queue_released_text().await,
                () = tokio::time::sleep_until(last_received + PING_INTERVAL) => {
                    if pinged {
                        return CloseReason::Gone;
                    }
                    (last_received, pinged) = (Instant::now(), true);
                    let ping = socket.send(Message::Ping(Bytes::new()));
                    if !matches!(timeout(SEND_TIMEOUT, ping).await, Ok(Ok(()))) {
                        return CloseReason::Gone;
                    }
                }
                changed = availability.changed() => {
                    if changed.is_err() || availability.borrow_and_update().stopping {
                        break CloseReason::Stopping;
                    }
                }
            }
        };
        let code = match end {
            CloseReason::Stopping => close_code::RESTART,
            _ => close_code::UNSUPPORTED,
        };
        let reason = "".into();
        let close = socket.send(Message::Close(Some(CloseFrame { code, reason })));
        let _ = timeout(SEND_TIMEOUT, close).await;
        end
    }

    /// Sends all queued WebSocket messages; returns false if the client does not read them in time.
    async fn send_queued(&mut self, socket: &mut WebSocket) -> bool {
        for text in self.out.drain(..) {
            let sent = socket.send(Message::Text(text.into()));
            if !matches!(timeout(SEND_TIMEOUT, sent).await, Ok(Ok(()))) {
                return false;
            }
        }
        true
    }

    fn queue_error(&mut self, text: impl AsRef<str>, code: &str) {
        let error = json!({"type": "error", "error": text.as_ref(), "code": code});
        self.out.push(error.to_string());
    }

    fn queue_fault(&mut self, fault: &Fault) {
        self.queue_error(sanitize_error_message(&fault.message), "processing_error");
    }

    async fn handle_event(&mut self, text: &str) {
        let event = match python::loads(text.as_bytes()) {
            Ok(Value::Object(event)) => event,
            Ok(other) => {
                let kind = PythonValue::from_json_value(&other).python_type_name();
                let text = format!("'{kind}' object has no attribute 'get'");
                return self.queue_error(text, "processing_error");
            }
            Err(_) => return self.queue_error("Invalid JSON", "invalid_json"),
        };
        let kind = event.get("type").cloned().unwrap_or(Value::Null);
        match kind.as_str() {
            Some("session.update") => self.update_session(&event),
            Some("input_audio_buffer.append") => self.append_audio(event).await,
            Some("input_audio_buffer.commit") => self.commit_audio(event).await,
            _ => {
                let shown = vllm_sim_python::python_str(&kind);
                self.queue_error(format!("Unknown event type: {shown}"), "unknown_event");
            }
        }
    }

    fn update_session(&mut self, event: &Map<String, Value>) {
        let model = match event.get("model") {
            None | Some(Value::Null) => {
                return self.queue_error("Missing required field: model", "invalid_event");
            }
            Some(model) => vllm_sim_python::python_str(model),
        };
        if self.app.service.models.resolve_model_name(&model).is_err() {
            let text = format!("The model `{model}` does not exist.");
            return self.queue_error(text, "model_not_found");
        }
        self.validated = true;
    }

    async fn append_audio(&mut self, event: Map<String, Value>) {
        let append: AppendAudioEvent = match body::read_json_value(&Value::Object(event)) {
            Ok(append) => append,
            Err(fault) => return self.queue_fault(&fault),
        };
        let text: Vec<u8> = append.audio.bytes().filter(is_base64).collect();
        let most = self.app.settings.speech.max_file_bytes;
        match PYTHON_BASE64.decode(text) {
            Ok(audio)
                if !audio.is_empty()
                    && audio.len() % 2 == 0
                    && audio.len() as u64 / 2 <= most
                    && self.queue.len() < MAX_QUEUED_SEGMENTS =>
            {
                self.split_into_segments(&audio);
                self.start_next_segment().await;
            }
            _ => self.queue_error("Invalid audio data", "invalid_audio"),
        }
    }

    /// Splits received audio samples into segments and queues the complete ones.
    fn split_into_segments(&mut self, mut audio: &[u8]) {
        while !audio.is_empty() {
            let room = (SEGMENT_SAMPLES - self.samples) * 2;
            let (now, later) = audio.split_at(audio.len().min(room as usize));
            let samples = now.chunks_exact(2);
            self.key = samples.fold(self.key, |key, s| {
                mix_u64_pair(key, u64::from(u16::from_le_bytes([s[0], s[1]])))
            });
            self.samples += now.len() as u64 / 2;
            if self.samples == SEGMENT_SAMPLES {
                self.queue_segment();
            }
            audio = later;
        }
    }

    fn queue_segment(&mut self) {
        let samples = std::mem::take(&mut self.samples);
        if samples > 0 {
            let key = std::mem::take(&mut self.key);
            self.queue.push_back(QueuedAudio::Segment { key, samples });
        }
    }

    async fn commit_audio(&mut self, event: Map<String, Value>) {
        if !self.validated {
            let text = "Model not validated. Make sure to validate the model by sending a session.update event.";
            return self.queue_error(text, "model_not_validated");
        }
        let commit: CommitAudioEvent = match body::read_json_value(&Value::Object(event)) {
            Ok(commit) => commit,
            Err(fault) => return self.queue_fault(&fault),
        };
        if commit.is_final {
            self.queue_segment();
            if self.queue.len() < MAX_QUEUED_SEGMENTS * 2 {
                self.queue.push_back(QueuedAudio::End);
            }
        } else if self.utterance.is_none() {
            self.utterance = Some(Utterance::default());
        }
        self.start_next_segment().await;
    }

    /// Queues WebSocket messages with the transcript tokens that the engine has output so far.
    async fn queue_released_text(&mut self) {
        let Some(utterance) = &mut self.utterance else {
            return;
        };
        if let Some(reply) = &mut utterance.reply {
            let choice = &mut reply.choices[0];
            // Reads the state first: an ended sequence releases no more tokens.
            let ended = matches!(choice.sequence_state(), SequenceState::Ended(_));
            while choice.sent < choice.released_tokens() {
                let Some(token) = choice.script.next_token(&mut choice.cursor) else {
                    break;
                };
                choice.sent += 1;
                utterance.completion += 1;
                let text = match token.channel {
                    OutputChannel::Content => token.text,
                    _ => "",
                };
                let parted = utterance.text.is_empty() || utterance.text.ends_with(' ');
                let blank = choice.sent == 1 && !parted && !text.is_empty();
                let delta = format!("{}{text}", if blank { " " } else { "" });
                utterance.text.push_str(&delta);
                let event = json!({"type": "transcription.delta", "delta": delta});
                self.out.push(event.to_string());
            }
            if !ended {
                return;
            }
            utterance.reply = None;
        }
        self.start_next_segment().await;
    }

    /// Starts transcribing the next audio segment if none is running, or ends the utterance.
    async fn start_next_segment(&mut self) {
        let idle = |u: &Utterance| u.reply.is_none();
        if !self.utterance.as_ref().is_some_and(idle) {
            return;
        }
        // Audio without a complete segment waits for more.
        match self.queue.pop_front() {
            None => {}
            Some(QueuedAudio::Segment { key, samples }) => {
                self.transcribe_segment(key, samples).await
            }
            Some(QueuedAudio::End) => self.finish_utterance(),
        }
    }

    async fn transcribe_segment(&mut self, key: u64, samples: u64) {
        let Some(utterance) = &mut self.utterance else {
            return;
        };
        let seconds = samples as f64 / SAMPLE_RATE_HZ as f64;
        let app = &self.app;
        let tokenizer = app.service.generator.tokenizer();
        let order = ["<|im_start|>", "user", "<|audio_start|>"];
        let mut tokens: Vec<u32> = order.iter().map(|p| special_token_id(tokenizer, p)).collect();
        let audio_tokens = (seconds * PROMPT_TOKENS_PER_SECOND).ceil() as usize;
        tokens.resize(tokens.len() + audio_tokens, special_token_id(tokenizer, "<|audio|>"));
        let order = ["<|audio_end|>", "<|im_end|>", "<|im_start|>", "assistant"];
        tokens.extend(order.iter().map(|p| special_token_id(tokenizer, p)));
        if utterance.prompt == 0 {
            utterance.prompt = tokens.len() as u32;
        }
        let prompt = TokenizedPrompt {
            tokens,
            audio: Some(AudioInput {
                key,
                tokens: (seconds * SPEECH_TOKENS_PER_SECOND).round().max(1.0) as u32,
            }),
            ..TokenizedPrompt::default()
        };
        let id = format!("{}-{}", self.id, uuid::Uuid::new_v4()).into();
        let model = app.service.models.displayed_model_name();
        let request = GenerationRequest {
            prefix_cache: PrefixCacheReadRules { skip: true, ..Default::default() },
            ..generation::generation_request_without_headers(app, id)
        };
        let started = match app.service.resolve_model(&app.rules, Some(model)) {
            Ok(lora) => start_speech_to_text_generation(app, lora, request, prompt).await,
            Err(refusal) => Err(generation::request_error_fault(app, refusal)),
        };
        match started {
            Ok(reply) => utterance.reply = Some(reply),
            Err(refused) => {
                self.utterance = None;
                self.queue_fault(&refused);
            }
        }
    }

    fn finish_utterance(&mut self) {
        let Some(utterance) = self.utterance.take() else {
            return;
        };
        let (prompt, completion) = (utterance.prompt, utterance.completion);
        let done = json!({
            "type": "transcription.done",
            "text": utterance.text,
            "usage": {
                "prompt_tokens": prompt,
                "total_tokens": prompt + completion,
                "completion_tokens": completion,
                "prompt_tokens_details": null,
                "completion_tokens_details": null,
            },
        });
        self.out.push(done.to_string());
        // Later audio belongs to no utterance.
        self.queue.clear();
        (self.samples, self.key) = (0, 0);
    }
}

fn is_base64(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

/// Waits until the sequence that transcribes the current audio segment has a new token or ends.
async fn wait_for_progress(utterance: Option<&Utterance>) {
    let Some(reply) = utterance.and_then(|u| u.reply.as_ref()) else {
        return pending().await;
    };
    let choice = &reply.choices[0];
    let due = || {
        choice.released_tokens() > choice.sent
            || matches!(choice.sequence_state(), SequenceState::Ended(_))
    };
    poll_fn(|cx| {
        if due() {
            return Poll::Ready(());
        }
        choice.register_waker(cx);
        if due() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
