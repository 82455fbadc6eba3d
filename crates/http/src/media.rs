//! Images, audio and video of prompts, as responses describe them, and generated images in chat
//! replies (llm-d's `--omni`).
//!
//! Source of generated images: llm-d-inference-sim `pkg/llm-d-inference-sim/` (`X-Send-Image`,
//! `image-emission-rate`); the `modality` member of a chunk is vLLM-Omni's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::settings::RuntimeSettings;
use vllm_sim_config::Config;
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, mix_u64_pair, request_rng};
use vllm_sim_tokenizer::{MediaModality, PlacedMediaItem};
use vllm_sim_wire::fault::Fault;

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
pub(crate) fn media_placeholders_json(media: &[PlacedMediaItem]) -> Value {
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
        "mm_placeholders": media_placeholders_json(media),
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
pub(crate) fn encoder_transfer_params_json(media: &[PlacedMediaItem]) -> Option<Arc<str>> {
    if media.is_empty() {
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

pub(crate) const GREY_PIXEL_DATA_URL: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";

/// Rate and delay of images in chat replies, which `/admin/config` may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageOutputSettings {
    /// Percentage of chat replies with a generated image.
    rate: u8,
    /// Mean and standard deviation of the time to generate an image.
    delay: (Duration, Duration),
}

impl ImageOutputSettings {
    /// Reads the settings of images in replies from the configuration.
    pub fn from_config(config: &Config) -> Self {
        Self { rate: config.content.image_emission_rate, delay: config.content.image_delay }
    }
}

/// Selects the chat replies that contain an image.
#[derive(Debug)]
pub(crate) struct ImageOutputSampler {
    settings: ArcSwap<ImageOutputSettings>,
    /// Number of chat replies considered so far; it seeds the random choice.
    replies: AtomicU64,
}

impl ImageOutputSampler {
    /// Creates the selection of replies with images; `None` on a server that generates no images.
    pub(crate) fn new_if_images_enabled(settings: &RuntimeSettings) -> Option<Self> {
        settings.has_images.then(|| Self {
            settings: ArcSwap::from_pointee(settings.images),
            replies: AtomicU64::new(0),
        })
    }

    pub(crate) fn replace_settings(&self, settings: Arc<ImageOutputSettings>) {
        self.settings.store(settings);
    }

    /// Returns the delay of the image in a chat reply; `None` if the reply contains none.
    ///
    /// The header `X-Send-Image` decides, else the configured rate.
    ///
    /// # Errors
    /// 400 if the header is not a boolean.
    pub(crate) fn draw_image_delay(
        &self,
        headers: &HeaderMap,
        seed: u64,
    ) -> Result<Option<Duration>, Fault> {
        let settings = self.settings.load();
        let number = self.replies.fetch_add(1, Ordering::Relaxed);
        let mut rng = request_rng(seed, mix_u64_pair(number, 0x1a6e), RandomStreamPurpose::Content);
        let wanted = match headers.get("x-send-image") {
            Some(value) => {
                let text = String::from_utf8_lossy(value.as_bytes());
                parse_go_bool(text.trim()).ok_or_else(|| {
                    Fault::bad_request(format!(
                        "Invalid X-Send-Image header value {text:?}: must be a boolean"
                    ))
                })?
            }
            None => rng.draw_percent_chance(settings.rate.into()),
        };
        let (mean, std_dev) = settings.delay;
        Ok(wanted.then(|| rng.draw_clamped_delay(mean, std_dev)))
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(crate) fn parse_go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
