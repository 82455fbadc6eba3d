//! Reads the model configuration files next to a `tokenizer.json`.

use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::error::TokenizerError;

#[derive(Debug, Default)]
pub(super) struct HfModelFiles {
    pub(super) tokenizer_config: Map<String, Json>,
    pub(super) generation_config: Map<String, Json>,
    pub(super) config: Map<String, Json>,
    pub(super) templates: Vec<(String, String)>,
}

impl HfModelFiles {
    /// Reads the configuration files and chat templates that exist in `folder`.
    ///
    /// # Errors
    /// [`TokenizerError::Broken`] for a configuration file that is not valid.
    pub(super) fn read_model_folder(folder: &Path) -> Result<Self, TokenizerError> {
        let mut files = Self {
            tokenizer_config: read_json_object(folder, "tokenizer_config.json")?,
            generation_config: read_json_object(folder, "generation_config.json")?,
            config: read_json_object(folder, "config.json")?,
            templates: Vec::new(),
        };
        files.templates = read_chat_templates(folder, files.tokenizer_config.get("chat_template"))?;
        Ok(files)
    }

    /// Returns the text of a special token in `tokenizer_config.json`, given as text or as an
    /// object.
    pub(super) fn special_token_text(&self, name: &str) -> Option<&str> {
        special_token_content(self.tokenizer_config.get(name)?)
    }

    /// Returns the special tokens that chat templates may use: all names that end in `_token`.
    pub(super) fn template_special_tokens(&self) -> Map<String, Json> {
        let extra = self.tokenizer_config.get("extra_special_tokens").and_then(Json::as_object);
        self.tokenizer_config
            .iter()
            .chain(extra.into_iter().flatten())
            .filter(|(name, _)| name.ends_with("_token"))
            .filter_map(|(name, token)| Some((name.clone(), special_token_content(token)?.into())))
            .collect()
    }

    pub(super) fn all_special_token_texts(&self) -> Vec<String> {
        let lists = ["additional_special_tokens", "extra_special_tokens"];
        let listed = lists.iter().filter_map(|name| self.tokenizer_config.get(*name)?.as_array());
        self.template_special_tokens()
            .values()
            .chain(listed.flatten())
            .filter_map(special_token_content)
            .map(str::to_owned)
            .collect()
    }

    /// Returns the end-of-sequence token ids of `generation_config.json`, else of `config.json`.
    pub(super) fn eos_token_ids(&self) -> Vec<u32> {
        let ids = [&self.generation_config, &self.config]
            .into_iter()
            .find_map(|file| file.get("eos_token_id").filter(|ids| !ids.is_null()));
        let id = |json: &Json| json.as_u64().and_then(|id| u32::try_from(id).ok());
        match ids {
            Some(Json::Array(ids)) => ids.iter().filter_map(id).collect(),
            Some(one) => id(one).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// Returns the size of the model's vocabulary, in tokens, which padding may make larger than
    /// the tokenizer's vocabulary.
    pub(super) fn vocab_size(&self) -> Option<u32> {
        let text = self.config.get("text_config").and_then(|text| text.get("vocab_size"));
        self.config.get("vocab_size").or(text)?.as_u64()?.try_into().ok()
    }
}

/// Returns the text of a special token, given as text or as `{"content": text, …}`.
pub(super) fn special_token_content(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

fn read_json_object(folder: &Path, name: &str) -> Result<Map<String, Json>, TokenizerError> {
    let Some(text) = read_optional_file(folder, name)? else {
        return Ok(Map::new());
    };
    serde_json::from_str(&text).map_err(|error| broken_file_error(folder, name, error))
}

fn read_optional_file(folder: &Path, name: &str) -> Result<Option<String>, TokenizerError> {
    match std::fs::read_to_string(folder.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(broken_file_error(folder, name, error)),
    }
}

fn broken_file_error(folder: &Path, name: &str, reason: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Broken { file: folder.join(name), reason: reason.to_string() }
}

/// Reads the chat templates of a model. `chat_template.jinja` and `additional_chat_templates/`
/// override `tokenizer_config.json`, which overrides `chat_template.json` of multimodal processors.
///
/// **Source:** `transformers/tokenization_utils_base.py`, `from_pretrained`.
fn read_chat_templates(
    folder: &Path,
    configured: Option<&Json>,
) -> Result<Vec<(String, String)>, TokenizerError> {
    const DEFAULT_TEMPLATE_NAME: &str = "default";
    let own = |text: String| (DEFAULT_TEMPLATE_NAME.to_owned(), text);
    let mut templates: Vec<(String, String)> =
        read_optional_file(folder, "chat_template.jinja")?.map(own).into_iter().collect();
    if let Ok(entries) = std::fs::read_dir(folder.join("additional_chat_templates")) {
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if path.extension().is_some_and(|extension| extension == "jinja") {
                let source = std::fs::read_to_string(&path).map_err(|error| {
                    broken_file_error(folder, &path.display().to_string(), error)
                })?;
                templates.push((stem.to_owned(), source));
            }
        }
    }
    if !templates.is_empty() {
        return Ok(templates);
    }
    match configured {
        Some(Json::String(text)) => return Ok(vec![own(text.clone())]),
        Some(Json::Array(list)) => {
            let member = |entry: &Json, name: &str| entry.get(name)?.as_str().map(str::to_owned);
            return Ok(list
                .iter()
                .filter_map(|entry| Some((member(entry, "name")?, member(entry, "template")?)))
                .collect());
        }
        _ => {}
    }
    match read_json_object(folder, "chat_template.json")?.remove("chat_template") {
        Some(Json::String(text)) => Ok(vec![own(text)]),
        _ => Ok(Vec::new()),
    }
}
