//! Images, audio and video in conversations.
//!
//! Nothing is fetched: an item counts by the rules of `--mm-tokens-per-item`, and its content hash
//! is that of its bytes when they came along, else that of its URL.
//! Texts of errors: vLLM 0.33 `multimodal/media/connector.py`, `multimodal/processing/context.py`.
//! Names of items under llm-d: llm-d-inference-sim `pkg/tokenizer` (simulated tokenizer).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::app::App;
use vllm_sim_service::generate::Mode;
use vllm_sim_tokenizer::{MediaFeature, MediaItem, Modality, data_url_head, fnv1a, media_marker};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::message::{Content, Message};

/// The media of a conversation.
#[derive(Debug, Default)]
pub(crate) struct ConversationMedia {
    /// Items that stand in the text as marks.
    pub(crate) marked: Vec<MediaItem>,
    /// Items that take no tokens of their own: their spans divide the prompt (llm-d).
    pub(crate) spread: Vec<(Modality, String)>,
}

impl ConversationMedia {
    /// Where the items stand among the tokens of the finished prompt.
    pub(crate) fn spread_over(self, tokens: usize) -> Vec<MediaFeature> {
        let items = self.spread.len().max(1);
        let span = (tokens / items) as u32;
        let spans = (0..).map(|i: u32| i * span);
        let places = self.spread.into_iter().zip(spans);
        places
            .map(|((modality, identifier), start)| MediaFeature {
                modality,
                identifier: identifier.into(),
                start,
                len: span,
            })
            .collect()
    }
}

/// Whether this deployment's model takes media as vLLM's multimodal models do.
pub(crate) fn accepts_media(app: &App) -> bool {
    app.config.content.takes_media || app.service.generator.tokenizer().is_multimodal()
}

/// Finds the media of `messages`. Where the model takes media, each becomes a text part with a
/// mark, to be handed to [`vllm_sim_tokenizer::Tokenizer::encode_media`].
///
/// # Errors
/// vLLM's 400 for too many items and for URLs it does not open.
pub(crate) fn find(
    app: &App,
    messages: &[Message],
) -> Result<Option<(Vec<Message>, ConversationMedia)>, Fault> {
    let has_media = |message: &Message| match message.content() {
        Content::Parts(parts) => parts.iter().any(|part| modality(part).is_some()),
        _ => false,
    };
    if !messages.iter().any(has_media) {
        return Ok(None);
    }
    let mut media = ConversationMedia::default();
    if accepts_media(app) {
        let marked = messages
            .iter()
            .map(|message| marked(app, message, &mut media.marked))
            .collect::<Result<_, _>>()?;
        check_limits(app, &media.marked)?;
        if let Some(hits) = app.media_cache.look_up(&media.marked) {
            let engine = app.metrics.engine(0);
            engine.on_mm_cache(media.marked.len() as u32, hits);
        }
        return Ok(Some((marked, media)));
    }
    if app.policy.mode.any_media {
        let parts = messages
            .iter()
            .filter_map(|message| match message.content() {
                Content::Parts(parts) => Some(parts),
                _ => None,
            });
        let items = parts
            .flatten()
            .filter_map(|part| Some((modality(part)?, part)));
        media.spread = items
            .enumerate()
            .map(|(i, (modality, part))| (modality, simulated_name(i, modality, part)))
            .collect();
        return Ok(Some((messages.to_vec(), media)));
    }
    Ok(None)
}

/// A message whose media became marks.
fn marked(app: &App, message: &Message, items: &mut Vec<MediaItem>) -> Result<Message, Fault> {
    let mut json = message.to_json().into_owned();
    if let Some(Value::Array(parts)) = json.get_mut("content") {
        for part in parts {
            let Some(modality) = modality(part) else {
                continue;
            };
            items.push(item(app, modality, part)?);
            *part = json!({"type": "text", "text": media_marker(items.len() - 1)});
        }
    }
    Ok(message.with_json(json))
}

/// What a part is, if it is no text.
fn modality(part: &Value) -> Option<Modality> {
    let kind = part.get("type").and_then(Value::as_str);
    let named = |name: &str| kind == Some(name) || kind.is_none() && part.get(name).is_some();
    let one = |names: &[&str]| names.iter().any(|name| named(name));
    if one(&["image_url", "input_image", "image_pil", "image_embeds"]) {
        Some(Modality::Image)
    } else if one(&["audio_url", "input_audio", "audio_embeds"]) {
        Some(Modality::Audio)
    } else if one(&["video_url", "video_embeds"]) {
        Some(Modality::Video)
    } else {
        None
    }
}

/// Where the content of a part is: a URL, or base64 text.
fn source(part: &Value) -> &str {
    const NAMES: [&str; 8] = [
        "image_url",
        "audio_url",
        "video_url",
        "input_image",
        "input_audio",
        "image_embeds",
        "audio_embeds",
        "image_pil",
    ];
    let member = NAMES.iter().find_map(|name| part.get(*name));
    let text = member.and_then(|member| {
        let inner = member.get("url").or_else(|| member.get("data"));
        inner.unwrap_or(member).as_str()
    });
    text.unwrap_or_default()
}

fn item(app: &App, modality: Modality, part: &Value) -> Result<MediaItem, Fault> {
    let source = source(part);
    let inline = part.get("type").and_then(Value::as_str) == Some("input_audio");
    if !inline {
        check_url(app, source, modality)?;
    }
    let bytes = data_url_head(source);
    let rules = app.config.content.media;
    let uuid = part.get("uuid").and_then(Value::as_str);
    let digest = || -> String {
        let digest = Sha256::digest(source.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    Ok(MediaItem {
        modality,
        identifier: uuid.map_or_else(digest, str::to_owned).into(),
        tokens: rules.tokens(modality, bytes.as_deref()),
    })
}

/// Refuses URLs that vLLM's media connector does not open.
fn check_url(app: &App, url: &str, modality: Modality) -> Result<(), Fault> {
    let refuse = |text: String| {
        let parameter = format!("{}_url", modality.as_str());
        Err(Fault::parameter(text, &parameter))
    };
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        // An item known by its uuid alone brings no URL.
        _ if url.is_empty() => Ok(()),
        "http" | "https" => Ok(()),
        "data" => match url.split_once(',') {
            None => {
                let start: String = url.chars().take(32).collect();
                refuse(format!(
                    "Invalid data URL '{start}': missing ',' separator."
                ))
            }
            Some((spec, _)) if !spec.ends_with(";base64") => {
                refuse("Only base64 data URLs are supported for now.".to_owned())
            }
            Some(_) if data_url_head(url).is_none() => {
                refuse("Invalid base64-encoded data in the data URL.".to_owned())
            }
            Some(_) => Ok(()),
        },
        "file" => match &app.config.api.allowed_local_media_path {
            None => {
                refuse("Cannot load local files without `--allowed-local-media-path`.".to_owned())
            }
            Some(root) => {
                let path = std::path::Path::new(url.trim_start_matches("file://"));
                let up = path
                    .components()
                    .any(|part| part == std::path::Component::ParentDir);
                if path.starts_with(root) && !up {
                    return Ok(());
                }
                refuse(format!(
                    "The file path {} must be a subpath of `--allowed-local-media-path {}`.",
                    path.display(),
                    root.display()
                ))
            }
        },
        _ => refuse("The URL must be either a HTTP, data or file URL.".to_owned()),
    }
}

/// vLLM's 400 for more items than `--limit-mm-per-prompt` allows.
fn check_limits(app: &App, items: &[MediaItem]) -> Result<(), Fault> {
    for modality in [Modality::Image, Modality::Audio, Modality::Video] {
        let name = modality.as_str();
        let limit = app.config.api.media_limit(modality);
        let count = items
            .iter()
            .filter(|item| item.modality == modality)
            .count();
        if count as u64 > limit {
            return Err(Fault::parameter(
                format!(
                    "At most {limit} {name}(s) may be provided in one prompt. Set \
                     `--limit-mm-per-prompt` to increase this limit."
                ),
                name,
            ));
        }
    }
    Ok(())
}

/// llm-d's name of an item: what it is, the how-manieth, and the FNV-1a hash of its URL.
fn simulated_name(i: usize, modality: Modality, part: &Value) -> String {
    let kind = match modality {
        Modality::Image => "img",
        Modality::Audio => "audio",
        Modality::Video => "video",
    };
    format!("sim_{kind}_{i}_{:x}", fnv1a(source(part).as_bytes()))
}

/// One list per modality of what `show` says of its items.
fn by_modality(media: &[MediaFeature], show: impl Fn(&MediaFeature) -> Value) -> Value {
    let mut map = serde_json::Map::new();
    for item in media {
        let list = map.entry(item.modality.as_str()).or_insert(json!([]));
        if let Value::Array(list) = list {
            list.push(show(item));
        }
    }
    Value::Object(map)
}

/// Where the items of a prompt stand, by modality; null for text.
pub(crate) fn placeholders(media: &[MediaFeature]) -> Value {
    if media.is_empty() {
        return Value::Null;
    }
    let place = |item: &MediaFeature| json!({"offset": item.start, "length": item.len});
    by_modality(media, place)
}

/// `features` of a rendered prompt: hashes and places by modality; null for text.
pub(crate) fn features(media: &[MediaFeature]) -> Value {
    if media.is_empty() {
        return Value::Null;
    }
    let data = |item: &MediaFeature| json!(STANDARD.encode(&*item.identifier));
    json!({
        "mm_hashes": by_modality(media, |item| json!(&*item.identifier)),
        "mm_placeholders": placeholders(media),
        "kwargs_data": by_modality(media, data),
        "mm_metadata": null,
    })
}

/// The items that the `features` of a generate request name, whose shape is checked.
pub(crate) fn given(features: Option<&Value>) -> Vec<MediaFeature> {
    let mut out = Vec::new();
    for modality in [Modality::Image, Modality::Audio, Modality::Video] {
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
                out.push(MediaFeature {
                    modality,
                    identifier: hash.into(),
                    start,
                    len,
                });
            }
        }
    }
    out.sort_by_key(|item| item.start);
    out
}

/// Tokens of media by modality as JSON, the way `usage` shows them; `None` for text.
pub(crate) fn counts(media: &[MediaFeature]) -> Option<Arc<str>> {
    let mut map = serde_json::Map::new();
    for item in media {
        let tokens = map.entry(item.modality.as_str()).or_insert(json!(0));
        *tokens = json!(tokens.as_u64().unwrap_or(0) + u64::from(item.len));
    }
    (!map.is_empty()).then(|| Value::Object(map).to_string().into())
}

/// What a server that only encodes media tells the one that uses them (llm-d's
/// `--mm-encoder-only`), as JSON: where each item waits, by its name.
pub(crate) fn encoded(app: &App, media: &[MediaFeature]) -> Option<Arc<str>> {
    if app.config.content.mode != Mode::Encoder || media.is_empty() {
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

/// Keeps the items that are whole after `gone` tokens were cut from one side and `left` remain.
pub(crate) fn cut(media: &mut Vec<MediaFeature>, gone: usize, left: usize, side: Option<&str>) {
    if gone == 0 {
        return;
    }
    let shift = if side == Some("right") {
        0
    } else {
        u32::try_from(gone).unwrap_or(u32::MAX)
    };
    media.retain_mut(|item| {
        let start = item.start.checked_sub(shift);
        let end = start.map(|start| u64::from(start) + u64::from(item.len));
        item.start = start.unwrap_or(0);
        end.is_some_and(|end| end <= left as u64)
    });
}
