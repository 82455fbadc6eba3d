//! Builds the response of `GET /tokenizer_info`: the arguments with which transformers created the
//! tokenizer.
//!
//! **Source:** `vllm/entrypoints/serve/tokenize/serving.py` (`TokenizerInfo`), and a recorded
//! response.

use serde_json::{Map, Value as Json};
use tokenizers::Tokenizer;

use super::files::{HfModelFiles, special_token_content};

/// Returns the fields of `GET /tokenizer_info` in vLLM's order: the class, `tokenizer_config.json`,
/// additions of vLLM and transformers.
pub(super) fn tokenizer_info_json(
    files: &HfModelFiles,
    tokenizer: &Tokenizer,
    template: Option<&str>,
    name: &str,
    local: bool,
) -> Json {
    let mut info = Map::new();
    info.insert("tokenizer_class".into(), vllm_tokenizer_class(files).into());
    for (key, value) in &files.tokenizer_config {
        match key.as_str() {
            "tokenizer_class"
            | "vocab_file"
            | "merges_file"
            | "additional_special_tokens"
            | "chat_template" => {}
            _ => {
                info.insert(key.clone(), plain_token_contents(value));
            }
        }
        if let (true, Some(template)) = (key == "chat_template", template) {
            info.insert(key.clone(), template.into());
        }
    }
    if let (false, Some(template)) = (info.contains_key("chat_template"), template) {
        info.insert("chat_template".into(), template.into());
    }
    info.insert("truncation_side".into(), "left".into());
    if let Some(extra) = files.tokenizer_config.get("additional_special_tokens") {
        info.insert("extra_special_tokens".into(), plain_token_contents(extra));
    }
    info.insert("name_or_path".into(), name.into());
    info.insert("is_local".into(), local.into());
    info.insert("local_files_only".into(), local.into());
    if !info.contains_key("added_tokens_decoder") {
        let mut added: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let added: Map<String, Json> =
            added.into_iter().map(|(id, token)| (id.to_string(), token.content.into())).collect();
        info.insert("added_tokens_decoder".into(), added.into());
    }
    info.insert("backend".into(), "tokenizers".into());
    info.into()
}

/// Returns the name of vLLM's class that wraps the tokenizer of transformers.
fn vllm_tokenizer_class(files: &HfModelFiles) -> String {
    let named = files.tokenizer_config.get("tokenizer_class").and_then(Json::as_str);
    let class = match named.map(|name| name.strip_suffix("Fast").unwrap_or(name)) {
        None | Some("PreTrainedTokenizer") => "TokenizersBackend",
        Some(name) => name,
    };
    format!("TokenizerPoolCached{class}")
}

fn plain_token_contents(value: &Json) -> Json {
    match value {
        Json::Object(members) => match special_token_content(value) {
            Some(text) => text.into(),
            None => members
                .iter()
                .map(|(key, value)| (key.clone(), plain_token_contents(value)))
                .collect(),
        },
        Json::Array(items) => items.iter().map(plain_token_contents).collect(),
        other => other.clone(),
    }
}
