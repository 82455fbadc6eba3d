//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: the forms.
//!
//! Source: `vllm/entrypoints/speech_to_text/{transcription,translation}/protocol.py`.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python as python;

use super::validators::{Body, ValidatorResult, truthy};
use crate::check;
use crate::fault::{ErrorType, Fault};
use crate::sampling::SamplingParams;
use crate::schema::{ANY_LENGTH, FLOAT, INT, INT64, STR, Schema, Wire, wire_model};

/// What an upload looks like among the fields of a form.
const UPLOAD: &str = "upload";

/// What is done with speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Written down.
    Transcribe,
    /// Written down in another language.
    Translate,
}

/// A file of a form: its number among the files that came along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upload(pub usize);

impl Upload {
    /// How a form shows it.
    pub fn to_field(self) -> Value {
        Value::Object(Map::from_iter([(UPLOAD.to_owned(), self.0.into())]))
    }
}

impl Wire for Upload {
    const SCHEMA: Schema = Schema::Any;

    fn read(value: &Value) -> Option<Self> {
        let number = value.get(UPLOAD)?.as_u64()?;
        usize::try_from(number).ok().map(Self)
    }
}

/// Values of `vllm_xargs`.
static EXTRA: Schema = Schema::Union(&[STR, INT, FLOAT, Schema::List(&EXTRA_ITEM, ANY_LENGTH)]);
static EXTRA_ITEM: Schema = Schema::Union(&[STR, INT, FLOAT]);
static EXTRAS: Schema = Schema::Dict(&STR, &EXTRA);

wire_model! {
    /// Speech to write down.
    pub struct TranscriptionRequest: Wrapped "TranscriptionRequest" before [form] {
        /// The sound.
        file: Upload,
        /// Served name; null or empty for the base model.
        model: Option<String> = None,
        /// ISO 639-1 code of the language that is spoken; null: found out.
        language: Option<String> = None,
        /// Words to listen for.
        hotwords: Option<String> = None,
        /// Text that came before.
        prompt: String = String::new(),
        /// Shape of the answer.
        response_format: String [Schema::Literal(&["json", "text", "srt", "verbose_json", "vtt", "diarized_json"])] = "json".to_owned(),
        /// Which times are wanted.
        timestamp_granularities: Vec<String> [Schema::List(&Schema::Literal(&["word", "segment"]), ANY_LENGTH)] as "timestamp_granularities[]" = Vec::new(),
        /// Whether the answer comes in parts.
        stream: Option<bool> = Some(false),
        /// Whether the stream ends with usage.
        stream_include_usage: Option<bool> = Some(false),
        /// Whether every part has usage.
        stream_continuous_usage_stats: Option<bool> = Some(false),
        /// For extensions of the server.
        vllm_xargs: Option<IndexMap<String, Value>> [Schema::Nullable(&EXTRAS)] = None,
        /// Language of the answer.
        to_language: Option<String> = None,
        /// Whether beams are searched.
        use_beam_search: bool = false,
        /// How many.
        n: i128 = 1,
        /// Of beams.
        length_penalty: f64 = 1.0,
        /// Whether the stop text stays.
        include_stop_str_in_output: bool = false,
        /// 0 is greedy.
        temperature: f64 = 0.0,
        /// Whether the engine's watermark applies.
        watermarking: Option<bool> = None,
        /// Above 0, up to 1.
        top_p: Option<f64> = None,
        /// 0 or -1 for off.
        top_k: Option<i128> = None,
        /// 0 to 1.
        min_p: Option<f64> = None,
        /// Seed.
        seed: Option<i128> [Schema::Nullable(&INT64)] = None,
        /// -2 to 2.
        frequency_penalty: Option<f64> = Some(0.0),
        /// Above 0.
        repetition_penalty: Option<f64> = None,
        /// -2 to 2.
        presence_penalty: Option<f64> = Some(0.0),
        /// Most tokens of the answer.
        max_completion_tokens: Option<i128> = None,
    }
}

wire_model! {
    /// Speech to translate.
    pub struct TranslationRequest: Wrapped "TranslationRequest" before [form] {
        /// The sound.
        file: Upload,
        /// Served name; null or empty for the base model.
        model: Option<String> = None,
        /// Text that came before.
        prompt: String = String::new(),
        /// Shape of the answer.
        response_format: String [Schema::Literal(&["json", "text", "srt", "verbose_json", "vtt"])] = "json".to_owned(),
        /// Whether beams are searched.
        use_beam_search: bool = false,
        /// How many.
        n: i128 = 1,
        /// Of beams.
        length_penalty: f64 = 1.0,
        /// Whether the stop text stays.
        include_stop_str_in_output: bool = false,
        /// Seed.
        seed: Option<i128> [Schema::Nullable(&INT64)] = None,
        /// 0 is greedy.
        temperature: f64 = 0.0,
        /// Whether the engine's watermark applies.
        watermarking: Option<bool> = None,
        /// Above 0, up to 1.
        top_p: Option<f64> = None,
        /// 0 or -1 for off.
        top_k: Option<i128> = None,
        /// 0 to 1.
        min_p: Option<f64> = None,
        /// -2 to 2.
        frequency_penalty: Option<f64> = Some(0.0),
        /// Above 0.
        repetition_penalty: Option<f64> = None,
        /// -2 to 2.
        presence_penalty: Option<f64> = Some(0.0),
        /// ISO 639-1 code of the language that is spoken; null: found out.
        language: Option<String> = None,
        /// Words to listen for.
        hotwords: Option<String> = None,
        /// Language of the answer.
        to_language: Option<String> = None,
        /// Whether the answer comes in parts.
        stream: Option<bool> = Some(false),
        /// Whether the stream ends with usage.
        stream_include_usage: Option<bool> = Some(false),
        /// Whether every part has usage.
        stream_continuous_usage_stats: Option<bool> = Some(false),
        /// Most tokens of the answer.
        max_completion_tokens: Option<i128> = None,
        /// For extensions of the server.
        vllm_xargs: Option<IndexMap<String, Value>> [Schema::Nullable(&EXTRAS)] = None,
    }
}

wire_model! {
    /// Sound of a connection to `/v1/realtime`. Source:
    /// `vllm/entrypoints/speech_to_text/realtime/protocol.py`.
    pub struct Append: Plain "InputAudioBufferAppend" {
        /// 16-bit samples, 16 kHz, one channel, in base64.
        audio: String,
    }
}

wire_model! {
    /// What came so far is to be written down.
    pub struct Commit: Plain "InputAudioBufferCommit" {
        /// Whether nothing more will come.
        is_final: bool as "final" = false,
    }
}

/// `validate_transcription_request`, `validate_stream_options`. The values of a form are texts, and
/// a text is true unless it is empty.
fn form(body: &mut Cow<'_, Body>) -> ValidatorResult {
    if body.get("file").is_some_and(Value::is_string) {
        let text = "Expected 'file' to be a file-like object, not 'str'.";
        return Err(Fault::new(422, ErrorType::UnprocessablePhrase, text).into());
    }
    let options = ["stream_include_usage", "stream_continuous_usage_stats"];
    let set = options.into_iter().find(|option| truthy(body, option));
    if let Some(option) = set.filter(|_| !truthy(body, "stream")) {
        let text = "Stream options can only be defined when `stream=True`.";
        return Err(Fault::parameter(text, option).into());
    }
    if let Some(Value::String(text)) = body.get("vllm_xargs") {
        let parsed = python::loads(text.as_bytes()).map_err(|error| {
            let place = error.located(text.as_bytes());
            let text = format!("Failed to parse vllm_xargs. Must be valid JSON: {place}");
            Fault::parameter(text, "vllm_xargs")
        })?;
        body.to_mut().insert("vllm_xargs".to_owned(), parsed);
    }
    Ok(())
}

/// What both forms ask for.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechRequest {
    /// Written down or translated.
    pub task: Task,
    /// The sound.
    pub file: Upload,
    /// Served name; null or empty for the base model.
    pub model: Option<String>,
    /// ISO 639-1 code of the language that is spoken; `None`: found out.
    pub language: Option<String>,
    /// Language of the answer.
    pub to_language: Option<String>,
    /// Text that came before.
    pub prompt: String,
    /// Shape of the answer.
    pub response_format: String,
    /// Whether the answer comes in parts.
    pub stream: bool,
    /// Whether the stream ends with usage.
    pub include_usage: bool,
    /// Whether every part has usage.
    pub continuous_usage: bool,
    /// Whether beams are searched.
    pub use_beam_search: bool,
    /// 0 is greedy.
    pub temperature: f64,
    /// Most tokens of the answer.
    pub max_completion_tokens: Option<i128>,
    /// Sampling parameters, without the limit on the answer.
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
    /// Reads the fields of a form.
    ///
    /// # Errors
    /// vLLM's 400 and 422 for a form it does not take.
    pub fn parse(task: Task, fields: Map<String, Value>) -> Result<Self, Fault> {
        let value = Value::Object(ordered(task, fields));
        Ok(match task {
            Task::Transcribe => common!(task, check::body::<TranscriptionRequest>(&value)?),
            Task::Translate => common!(task, check::body::<TranslationRequest>(&value)?),
        })
    }
}

/// The fields as FastAPI hands them to pydantic: in the order of the class, empty ones left out,
/// and what the class does not know behind them (`_extract_form_body`).
fn ordered(task: Task, mut fields: Map<String, Value>) -> Map<String, Value> {
    let model = match task {
        Task::Transcribe => TranscriptionRequest::MODEL,
        Task::Translate => TranslationRequest::MODEL,
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
