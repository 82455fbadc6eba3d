//! `POST /v1/audio/transcriptions` of an SGLang server whose model does not transcribe speech.
//!
//! Source: SGLang 0.5.23 `http_server.py` (`openai_v1_audio_transcriptions`),
//! `openai/serving_transcription.py`, `openai/transcription_adapters/whisper.py`.

use axum::extract::State;
use serde_json::{Value, json};

use super::errors::SglangResult;
use super::{endpoint, errors};
use crate::app::{App, AppState};
use crate::audio::AudioUploadForm;
use crate::body::RawRequest;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::sglang::transcription::{TranscriptionForm, missing_file_error};

/// Handles `POST /v1/audio/transcriptions`: the error of a model that takes no speech.
///
/// SGLang passes parameters of speech to the model's sampling parameters, which do not know them.
pub(super) async fn create_transcription(
    State(app): AppState,
    received: RawRequest,
) -> SglangResult {
    let form = read_form(&app, &received).await?;
    if !matches!(form.response_format.as_str(), "json" | "text" | "verbose_json") {
        let text = "Only 'json', 'text', and 'verbose_json' formats supported";
        return Ok(errors::json_error(400, &json!({"error": {"message": text}})));
    }
    let argument = if form.language.is_some() { "language" } else { "_detect_language" };
    let text = format!("Internal server error: Unexpected keyword argument '{argument}'");
    Err(Fault::new(500, ErrorType::InternalServer, text).into())
}

async fn read_form(app: &App, received: &RawRequest) -> Result<TranscriptionForm, Fault> {
    let form = AudioUploadForm::read_audio_upload_form(received).await?;
    if !form.fields.contains_key("file") {
        return Err(missing_file_error().to_sglang_fault(&endpoint::TRANSCRIPTIONS));
    }
    let fields = Value::Object(form.fields);
    endpoint::read_parsed_body(app, Some(&fields), &endpoint::TRANSCRIPTIONS)
}
