//! Images, audio and video of prompts, as responses describe them.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::app::App;
use vllm_sim_tokenizer::{MediaModality, PlacedMediaItem};

/// Applies `show` to each media item and groups the results by modality.
fn group_by_modality(media: &[PlacedMediaItem], show: impl Fn(&PlacedMediaItem) -> Value) -> Value {
    let mut map = serde_json::Map::new();
    for item in media {
        let list = map.entry(item.modality.as_str()).or_insert(json!([]));
        if let Value::Array(list) = list {
            list.push(show(item));
        }
    }
    Value::Object(map)
}

/// Returns the positions of media items in a prompt by modality; null without media.
pub(crate) fn placeholders_json(media: &[PlacedMediaItem]) -> Value {
    if media.is_empty() {
        return Value::Null;
    }
    let place = |item: &PlacedMediaItem| json!({"offset": item.start, "length": item.len});
    group_by_modality(media, place)
}

/// Returns the `features` member of a rendered prompt: hashes and positions of its media by
/// modality; null without media.
pub(crate) fn media_features_json(media: &[PlacedMediaItem]) -> Value {
    if media.is_empty() {
        return Value::Null;
    }
    let data = |item: &PlacedMediaItem| json!(STANDARD.encode(&*item.identifier));
    json!({
        "mm_hashes": group_by_modality(media, |item| json!(&*item.identifier)),
        "mm_placeholders": placeholders_json(media),
        "kwargs_data": group_by_modality(media, data),
        "mm_metadata": null,
    })
}

/// Returns the media items in the `features` of a generate request.
pub(crate) fn parse_media_features(features: Option<&Value>) -> Vec<PlacedMediaItem> {
    let mut out = Vec::new();
    for modality in [MediaModality::Image, MediaModality::Audio, MediaModality::Video] {
        let list = |key: &str| {
            let lists = features.and_then(|features| features.get(key));
            lists
                .and_then(|lists| lists.get(modality.as_str())?.as_array())
                .map(Vec::as_slice)
                .unwrap_or_default()
        };
        for (hash, place) in list("mm_hashes").iter().zip(list("mm_placeholders")) {
            let number = |key: &str| {
                let number = place.get(key).and_then(Value::as_u64);
                number.and_then(|n| u32::try_from(n).ok())
            };
            if let (Some(hash), Some(start), Some(len)) =
                (hash.as_str(), number("offset"), number("length"))
            {
                out.push(PlacedMediaItem { modality, identifier: hash.into(), start, len });
            }
        }
    }
    out.sort_by_key(|item| item.start);
    out
}

/// Returns the number of media tokens by modality as JSON, for `usage`; `None` without media.
pub(crate) fn media_token_counts_json(media: &[PlacedMediaItem]) -> Option<Arc<str>> {
    let mut map = serde_json::Map::new();
    for item in media {
        let tokens = map.entry(item.modality.as_str()).or_insert(json!(0));
        *tokens = json!(tokens.as_u64().unwrap_or(0) + u64::from(item.len));
    }
    (!map.is_empty()).then(|| Value::Object(map).to_string().into())
}

/// Returns the KV transfer parameters of an encoder-only server (llm-d's `--mm-encoder-only`) as
/// JSON: the location of each encoded media item.
pub(crate) fn encoder_transfer_params_json(
    app: &App,
    media: &[PlacedMediaItem],
) -> Option<Arc<str>> {
    if !app.settings.model.is_encoder || media.is_empty() {
        return None;
    }
    let metadata = STANDARD.encode("NIXL_METADATA_PLACEHOLDER");
    let items = media.iter().map(|item| {
        let place = json!({
            "peer_host": "DUMMY",
            "peer_port": 1234,
            "size_bytes": 2_359_296,
            "nixl_agent_metadata_b64": metadata,
        });
        (item.identifier.to_string(), place)
    });
    Some(Value::Object(items.collect()).to_string().into())
}
