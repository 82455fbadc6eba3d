//! Parses the fields and files of a multipart or URL-encoded form body, as Starlette does.
//!
//! Source: Starlette 1.10 `formparsers.py`; FastAPI 0.165 `dependencies/utils.py`.

use std::convert::Infallible;

use axum::body::Bytes;
use futures_util::stream;
use multer::{Field, Multipart};
use serde_json::{Map, Value};

use crate::body::RawRequest;
use crate::query;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::audio::UploadedFileIndex;

/// Maximum size of a form field that is not a file, in bytes.
const MAX_FIELD_BYTES: usize = 1 << 20;
/// Maximum number of files in a form, and maximum number of its other fields.
const MAX_FORM_PARTS: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct AudioUploadForm {
    /// Form fields in their order; a file is an [`UploadedFileIndex`], and the last of several fields with one
    /// name wins.
    pub(crate) fields: Map<String, Value>,
    pub(super) files: Vec<Bytes>,
    texts: usize,
}

impl AudioUploadForm {
    /// Parses a form body; a body of another media type has no fields.
    ///
    /// # Errors
    /// 400 for a form that is malformed or too large.
    pub(crate) async fn read_audio_upload_form(received: &RawRequest) -> Result<Self, Fault> {
        let kind = received.media_type().unwrap_or_default();
        let media = kind.split(';').next().unwrap_or_default().trim();
        if media.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            let mut form = Self::default();
            let text = String::from_utf8_lossy(&received.bytes);
            for (name, value) in query::decode_form_pairs(&text) {
                form.add_field(name, value.into());
            }
            return Ok(form);
        }
        if !media.eq_ignore_ascii_case("multipart/form-data") {
            return Ok(Self::default());
        }
        let Ok(boundary) = multer::parse_boundary(kind) else {
            return Err(starlette_error("Missing boundary in multipart."));
        };
        let whole = stream::iter([Ok::<_, Infallible>(received.bytes.clone())]);
        let mut parts = Multipart::new(whole, boundary);
        let mut form = Self::default();
        loop {
            match parts.next_field().await {
                Ok(Some(part)) => {
                    if !form.add_part(part).await? {
                        return Ok(form);
                    }
                }
                Ok(None) => return Ok(form),
                Err(error) if is_truncated_body(&error) => return Ok(form),
                Err(_) => return Err(starlette_error("Invalid multipart data.")),
            }
        }
    }

    /// Adds a part of a multipart form. If the body ends inside the part, discards the part and
    /// returns false.
    async fn add_part(&mut self, part: Field<'_>) -> Result<bool, Fault> {
        let Some(name) = part.name().map(str::to_owned) else {
            let text = "The Content-Disposition header field \"name\" must be provided.";
            return Err(starlette_error(text));
        };
        let is_file = part.file_name().is_some();
        let bytes = match part.bytes().await {
            Ok(bytes) => bytes,
            Err(error) if is_truncated_body(&error) => return Ok(false),
            Err(_) => return Err(starlette_error("Invalid multipart data.")),
        };
        if is_file {
            if self.files.len() == MAX_FORM_PARTS {
                return Err(too_many_parts("files"));
            }
            self.files.push(bytes);
            self.add_field(name, UploadedFileIndex(self.files.len() - 1).to_form_field());
            return Ok(true);
        }
        self.texts += 1;
        if self.texts > MAX_FORM_PARTS {
            return Err(too_many_parts("fields"));
        }
        if bytes.len() > MAX_FIELD_BYTES {
            return Err(starlette_error("Part exceeded maximum size of 1024KB."));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.add_field(name, text.into());
        Ok(true)
    }

    /// Adds a form field; fields whose name ends in `[]` are collected in a list.
    fn add_field(&mut self, name: String, value: Value) {
        if !name.ends_with("[]") {
            self.fields.insert(name, value);
            return;
        }
        let list = self.fields.entry(name).or_insert(Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(value);
        }
    }
}

/// Returns whether a multipart body ended too early; Starlette then keeps the complete parts.
fn is_truncated_body(error: &multer::Error) -> bool {
    use multer::Error;
    matches!(
        error,
        Error::IncompleteFieldData { .. } | Error::IncompleteHeaders | Error::IncompleteStream
    )
}

fn too_many_parts(what: &str) -> Fault {
    starlette_error(&format!("Too many {what}. Maximum number of {what} is {MAX_FORM_PARTS}."))
}

/// Returns the error of a Starlette exception, a body with `detail` instead of vLLM's error object.
fn starlette_error(text: &str) -> Fault {
    Fault::new(400, ErrorType::Detail, text)
}
