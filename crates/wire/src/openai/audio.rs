//! Multipart forms of `POST /v1/audio/transcriptions` and `/v1/audio/translations`.
//!
//! Source: `vllm/entrypoints/speech_to_text/{transcription,translation}/protocol.py`.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python as python;

use super::shared_request_fields::{JsonBody, ValidatorResult, is_truthy_member, reject_parameter};
use crate::body;
use crate::fault::{ErrorType, Fault};
use crate::sampling::SamplingParams;
use crate::schema::{ANY_LENGTH, FLOAT, INT, INT64, RequestField, STR, Schema, wire_model};

/// JSON key of the object that represents an uploaded file among the form fields.
const UPLOAD_KEY: &str = "upload";

/// Speech-to-text task of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeechTask {
    /// Transcription of speech in the spoken language.
    Transcribe,
    /// Translation of speech into another language.
    Translate,
}

/// An uploaded file of a multipart form, by its index among the form's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadedFileIndex(pub usize);

impl UploadedFileIndex {
    /// Returns the JSON value that represents the upload among the form fields.
    pub fn to_form_field(self) -> Value {
        Value::Object(Map::from_iter([(UPLOAD_KEY.to_owned(), self.0.into())]))
    }
}

impl RequestField for UploadedFileIndex {
    const SCHEMA: Schema = Schema::Any;

    fn read(value: &Value) -> Option<Self> {
        let number = value.get(UPLOAD_KEY)?.as_u64()?;
        usize::try_from(number).ok().map(Self)
    }
}

static EXTRA_VALUE: Schema =
    Schema::Union(&[STR, INT, FLOAT, Schema::List(&EXTRA_ITEM, ANY_LENGTH)]);
static EXTRA_ITEM: Schema = Schema::Union(&[STR, INT, FLOAT]);
static EXTRA_FIELDS: Schema = Schema::Dict(&STR, &EXTRA_VALUE);

wire_model! {
    /// The form fields of a `POST /v1/audio/transcriptions` request.
    pub struct TranscriptionRequest: Wrapped "TranscriptionRequest" before [validate_speech_form] {
        /// The uploaded audio file.
        file: UploadedFileIndex,
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// ISO 639-1 code of the spoken language; null detects it.
        language: Option<String> = None,
        /// Words favoured in speech recognition.
        hotwords: Option<String> = None,
        /// Text before the transcript, which guides style and spelling.
        prompt: String = String::new(),
        /// Format of the response body, such as `json` or `srt`.
        response_format: String [Schema::Literal(&["json", "text", "srt", "verbose_json", "vtt", "diarized_json"])] = "json".to_owned(),
        /// Granularities of returned timestamps: `word` or `segment`.
        timestamp_granularities: Vec<String> [Schema::List(&Schema::Literal(&["word", "segment"]), ANY_LENGTH)] as "timestamp_granularities[]" = Vec::new(),
        /// Whether to stream the response as server-sent events.
        stream: Option<bool> = Some(false),
        /// Whether the stream ends with a chunk of token usage.
        stream_include_usage: Option<bool> = Some(false),
        /// Whether every chunk of the stream reports token usage.
        stream_continuous_usage_stats: Option<bool> = Some(false),
        /// Custom sampling arguments for vLLM extensions (`vllm_xargs`).
        vllm_xargs: Option<IndexMap<String, Value>> [Schema::Nullable(&EXTRA_FIELDS)] = None,
        /// Language of the output text.
        to_language: Option<String> = None,
        /// Whether to use beam search.
        use_beam_search: bool = false,
        /// Number of beams of beam search.
        n: i128 = 1,
        /// Length penalty of beam search.
        length_penalty: f64 = 1.0,
        /// Whether the output includes the stop string that ended it.
        include_stop_str_in_output: bool = false,
        /// Sampling temperature; 0 is greedy.
        temperature: f64 = 0.0,
        /// Whether to apply the engine's watermark to generated tokens.
        watermarking: Option<bool> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: Option<i128> = None,
        /// Minimum probability of a sampled token relative to the most likely one, 0 to 1.
        min_p: Option<f64> = None,
        /// Seed of the sampler.
        seed: Option<i128> [Schema::Nullable(&INT64)] = None,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: Option<f64> = Some(0.0),
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: Option<f64> = None,
        /// Presence penalty, -2 to 2.
        presence_penalty: Option<f64> = Some(0.0),
        /// Maximum number of tokens to generate.
        max_completion_tokens: Option<i128> = None,
    }
}

wire_model! {
    /// The form fields of a `POST /v1/audio/translations` request.
    pub struct TranslationRequest: Wrapped "TranslationRequest" before [validate_speech_form] {
        /// The uploaded audio file.
        file: UploadedFileIndex,
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Text before the transcript, which guides style and spelling.
        prompt: String = String::new(),
        /// Format of the response body, such as `json` or `srt`.
        response_format: String [Schema::Literal(&["json", "text", "srt", "verbose_json", "vtt"])] = "json".to_owned(),
        /// Whether to use beam search.
        use_beam_search: bool = false,
        /// Number of beams of beam search.
        n: i128 = 1,
        /// Length penalty of beam search.
        length_penalty: f64 = 1.0,
        /// Whether the output includes the stop string that ended it.
        include_stop_str_in_output: bool = false,
        /// Seed of the sampler.
        seed: Option<i128> [Schema::Nullable(&INT64)] = None,
        /// Sampling temperature; 0 is greedy.
        temperature: f64 = 0.0,
        /// Whether to apply the engine's watermark to generated tokens.
        watermarking: Option<bool> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: Option<i128> = None,
        /// Minimum probability of a sampled token relative to the most likely one, 0 to 1.
        min_p: Option<f64> = None,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: Option<f64> = Some(0.0),
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: Option<f64> = None,
        /// Presence penalty, -2 to 2.
        presence_penalty: Option<f64> = Some(0.0),
        /// ISO 639-1 code of the spoken language; null detects it.
        language: Option<String> = None,
        /// Words favoured in speech recognition.
        hotwords: Option<String> = None,
        /// Language of the output text.
        to_language: Option<String> = None,
        /// Whether to stream the response as server-sent events.
        stream: Option<bool> = Some(false),
        /// Whether the stream ends with a chunk of token usage.
        stream_include_usage: Option<bool> = Some(false),
        /// Whether every chunk of the stream reports token usage.
        stream_continuous_usage_stats: Option<bool> = Some(false),
        /// Maximum number of tokens to generate.
        max_completion_tokens: Option<i128> = None,
        /// Custom sampling arguments for vLLM extensions (`vllm_xargs`).
        vllm_xargs: Option<IndexMap<String, Value>> [Schema::Nullable(&EXTRA_FIELDS)] = None,
    }
}

wire_model! {
    /// An audio chunk sent over a `/v1/realtime` WebSocket.
    ///
    /// Source: `vllm/entrypoints/speech_to_text/realtime/protocol.py`.
    pub struct AppendAudioEvent: Plain "InputAudioBufferAppend" {
        /// The audio as 16-bit samples, 16 kHz, mono, in base64.
        audio: String,
    }
}

wire_model! {
    /// A request to transcribe the audio received so far.
    pub struct CommitAudioEvent: Plain "InputAudioBufferCommit" {
        /// Whether the audio sent so far is complete.
        is_final: bool as "final" = false,
    }
}

/// Checks the options of a transcription request against each other, as vLLM's
/// `validate_transcription_request` does.
///
/// Source: vLLM's `validate_transcription_request` and `validate_stream_options`.
///
/// Form values are strings, and a nonempty string counts as true.
fn validate_speech_form(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if body.get("file").is_some_and(Value::is_string) {
        let text = "Expected 'file' to be a file-like object, not 'str'.";
        return Err(Fault::new(422, ErrorType::UnprocessablePhrase, text).into());
    }
    let options = ["stream_include_usage", "stream_continuous_usage_stats"];
    let set = options.into_iter().find(|option| is_truthy_member(body, option));
    if let Some(option) = set.filter(|_| !is_truthy_member(body, "stream")) {
        let text = "Stream options can only be defined when `stream=True`.";
        return reject_parameter(text, option);
    }
    if let Some(Value::String(text)) = body.get("vllm_xargs") {
        let parsed = python::loads(text.as_bytes()).map_err(|error| {
            let place = error.error_message_with_position(text.as_bytes());
            let text = format!("Failed to parse vllm_xargs. Must be valid JSON: {place}");
            Fault::bad_parameter(text, "vllm_xargs")
        })?;
        body.to_mut().insert("vllm_xargs".to_owned(), parsed);
    }
    Ok(())
}

/// A speech-to-text request, with the fields of both transcriptions and translations.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechRequest {
    /// Speech-to-text task of the request.
    pub task: SpeechTask,
    /// The uploaded audio file.
    pub file: UploadedFileIndex,
    /// Name of the served model or LoRA adapter; null or empty selects the base model.
    pub model: Option<String>,
    /// ISO 639-1 code of the spoken language; `None` detects it.
    pub language: Option<String>,
    /// Language of the output text.
    pub to_language: Option<String>,
    /// Text before the transcript, which guides style and spelling.
    pub prompt: String,
    /// Format of the response body, such as `json` or `srt`.
    pub response_format: String,
    /// Whether to stream the response as server-sent events.
    pub stream: bool,
    /// Whether the stream ends with a chunk of token usage.
    pub include_usage: bool,
    /// Whether every chunk of the stream reports token usage.
    pub continuous_usage: bool,
    /// Whether to use beam search.
    pub use_beam_search: bool,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Maximum number of tokens to generate.
    pub max_completion_tokens: Option<i128>,
    /// Sampling parameters of the request, without the output limit.
    pub sampling: SamplingParams,
}

macro_rules! common {
    ($task:expr, $form:expr) => {{
        let form = $form;
        SpeechRequest {
            task: $task,
            file: form.file,
            model: form.model,
            language: form.language,
            to_language: form.to_language,
            prompt: form.prompt,
            response_format: form.response_format,
            stream: form.stream.unwrap_or(false),
            include_usage: form.stream_include_usage.unwrap_or(false),
            continuous_usage: form.stream_continuous_usage_stats.unwrap_or(false),
            use_beam_search: form.use_beam_search,
            temperature: form.temperature,
            max_completion_tokens: form.max_completion_tokens,
            sampling: SamplingParams {
                n: 1,
                temperature: form.temperature,
                top_p: form.top_p.unwrap_or(1.0),
                top_k: form.top_k.unwrap_or(0),
                min_p: form.min_p.unwrap_or(0.0),
                seed: form.seed,
                frequency_penalty: form.frequency_penalty.unwrap_or(0.0),
                repetition_penalty: form.repetition_penalty.unwrap_or(1.0),
                presence_penalty: form.presence_penalty.unwrap_or(0.0),
                watermarking: form.watermarking,
                ..SamplingParams::default()
            },
        }
    }};
}

impl SpeechRequest {
    /// Validates and reads the fields of a speech-to-text form.
    ///
    /// # Errors
    /// vLLM's 400 or 422 if the form does not match the schema.
    pub fn parse_form_fields(task: SpeechTask, fields: Map<String, Value>) -> Result<Self, Fault> {
        let value = Value::Object(order_form_fields(task, fields));
        Ok(match task {
            SpeechTask::Transcribe => {
                common!(task, body::validate_and_read_body::<TranscriptionRequest>(&value)?)
            }
            SpeechTask::Translate => {
                common!(task, body::validate_and_read_body::<TranslationRequest>(&value)?)
            }
        })
    }
}

/// Orders the form fields as FastAPI passes them to pydantic: declared fields in class order
/// without empty ones, then unknown fields (`_extract_form_body`).
fn order_form_fields(task: SpeechTask, mut fields: Map<String, Value>) -> Map<String, Value> {
    let model = match task {
        SpeechTask::Transcribe => TranscriptionRequest::MODEL,
        SpeechTask::Translate => TranslationRequest::MODEL,
    };
    let mut whole = Map::new();
    for field in model.fields {
        let empty = |value: &Value| value.as_str().is_some_and(str::is_empty);
        let given = fields.shift_remove(field.name);
        if let Some(value) = given.filter(|value| !empty(value)) {
            whole.insert(field.name.to_owned(), value);
        }
    }
    whole.extend(fields);
    whole
}
