//! Form of `POST /v1/audio/transcriptions` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `http_server.py`, `openai_v1_audio_transcriptions`.

use serde_json::Value;

use super::completion::DEFAULT_MODEL_NAME;
use crate::fastapi::BodySchemaErrors;
use crate::lax::PydanticError;
use crate::report::{ErrorLocationItem, SchemaError};
use crate::schema::{Schema, ValidatorError, wire_model};

wire_model! {
    /// The fields of a transcription form.
    pub struct TranscriptionForm: Plain "form" {
        /// The uploaded file.
        file: Value [Schema::After(check_uploaded_file, &Schema::Any)],
        /// Name of the model.
        model: String = DEFAULT_MODEL_NAME.to_owned(),
        /// Code of the spoken language; `None` detects it.
        language: Option<String> = None,
        /// Format of the response: `json`, `text` or `verbose_json`.
        response_format: String = "json".to_owned(),
        /// Sampling temperature.
        temperature: f64 = 0.0,
        /// Whether to stream the transcript.
        stream: bool = false,
    }
}

fn check_uploaded_file(value: &Value) -> Result<Option<Value>, ValidatorError> {
    match value.is_string() {
        true => Err(ValidatorError::ValueError(
            "Expected UploadFile, received: <class 'str'>".to_owned(),
        )),
        false => Ok(None),
    }
}

/// Returns the error of a form without file.
pub fn missing_file_error() -> BodySchemaErrors {
    let missing = PydanticError::new("missing", "Field required");
    let location = [ErrorLocationItem::Key("body"), ErrorLocationItem::Key("file")];
    BodySchemaErrors(SchemaError::new_fastapi_error(missing, &location, &Value::Null).into())
}
