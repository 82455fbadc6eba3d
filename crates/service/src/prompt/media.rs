//! Images, audio and video in conversations.
//!
//! Nothing is downloaded. The token count of an item follows `--mm-tokens-per-item`; its hash
//! covers the inline data or the URL. Sources: error messages from vLLM 0.33
//! `multimodal/media/connector.py` and `multimodal/processing/context.py`; item names under llm-d
//! from `pkg/tokenizer`.

use std::path::{Component, Path};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::MediaSettings;
use crate::InferenceService;
use vllm_sim_tokenizer::{
    MediaItem, MediaModality, PlacedMediaItem, data_url_first_bytes, fnv1a_32, media_text_marker,
};
use vllm_sim_wire::Fault;
use vllm_sim_wire::openai::request_message::{ChatContent, RequestMessage};

#[derive(Debug, Default)]
pub(super) struct ConversationMedia {
    /// Media items of a conversation that have a marker in the prompt text.
    pub(super) marked: Vec<MediaItem>,
    /// Media items without tokens of their own; the prompt of the conversation is divided evenly
    /// among them (llm-d).
    pub(super) spread: Vec<(MediaModality, String)>,
}

impl ConversationMedia {
    /// Divides the tokens of the finished prompt evenly among the unmarked media items.
    pub(super) fn place_media_over_tokens(self, tokens: usize) -> Vec<PlacedMediaItem> {
        let items = self.spread.len().max(1);
        let span = (tokens / items) as u32;
        let spans = (0..).map(|i: u32| i * span);
        let places = self.spread.into_iter().zip(spans);
        places
            .map(|((modality, identifier), start)| PlacedMediaItem {
                modality,
                identifier: identifier.into(),
                start,
                len: span,
            })
            .collect()
    }
}

impl InferenceService {
    /// Returns whether the model accepts images, audio or video, as vLLM's multimodal models do.
    pub fn accepts_media(&self) -> bool {
        self.settings().prompts.media.accepted || self.generator.tokenizer().is_multimodal()
    }

    /// Finds the media of `messages`; if the model accepts media, replaces each item by a text
    /// marker.
    ///
    /// [`vllm_sim_tokenizer::Tokenizer::encode_text_with_media`] later expands each marker to the item's
    /// tokens.
    ///
    /// # Errors
    /// vLLM's status 400 for too many items and for unsupported URLs.
    pub(super) fn find_conversation_media(
        &self,
        messages: &[RequestMessage],
    ) -> Result<Option<(Vec<RequestMessage>, ConversationMedia)>, Fault> {
        let has_media = |message: &RequestMessage| match message.content() {
            ChatContent::Parts(parts) => parts.iter().any(|part| part_modality(part).is_some()),
            _ => false,
        };
        if !messages.iter().any(has_media) {
            return Ok(None);
        }
        let settings = &self.settings().prompts.media;
        let mut media = ConversationMedia::default();
        if self.accepts_media() {
            let marked = messages
                .iter()
                .map(|message| mark_media(settings, message, &mut media.marked))
                .collect::<Result<_, _>>()?;
            check_media_limits(settings, &media.marked)?;
            self.media_cache.cache_media_and_count_hits(&media.marked);
            return Ok(Some((marked, media)));
        }
        if settings.unchecked {
            let parts = messages.iter().filter_map(|message| match message.content() {
                ChatContent::Parts(parts) => Some(parts),
                _ => None,
            });
            let items = parts.flatten().filter_map(|part| Some((part_modality(part)?, part)));
            media.spread = items
                .enumerate()
                .map(|(i, (modality, part))| (modality, llmd_media_name(i, modality, part)))
                .collect();
            return Ok(Some((messages.to_vec(), media)));
        }
        Ok(None)
    }
}

/// Replaces the media of a message by text markers.
fn mark_media(
    settings: &MediaSettings,
    message: &RequestMessage,
    items: &mut Vec<MediaItem>,
) -> Result<RequestMessage, Fault> {
    let mut json = message.to_message_json().into_owned();
    if let Some(Value::Array(parts)) = json.get_mut("content") {
        for part in parts {
            let Some(modality) = part_modality(part) else {
                continue;
            };
            items.push(media_item(settings, modality, part)?);
            *part = json!({"type": "text", "text": media_text_marker(items.len() - 1)});
        }
    }
    Ok(message.with_message_json(json))
}

fn part_modality(part: &Value) -> Option<MediaModality> {
    let kind = part.get("type").and_then(Value::as_str);
    let named = |name: &str| kind == Some(name) || kind.is_none() && part.get(name).is_some();
    let one = |names: &[&str]| names.iter().any(|name| named(name));
    if one(&["image_url", "input_image", "image_pil", "image_embeds"]) {
        Some(MediaModality::Image)
    } else if one(&["audio_url", "input_audio", "audio_embeds"]) {
        Some(MediaModality::Audio)
    } else if one(&["video_url", "video_embeds"]) {
        Some(MediaModality::Video)
    } else {
        None
    }
}

/// Returns the URL or base64 data of a media content part.
fn media_source(part: &Value) -> &str {
    const SOURCE_MEMBERS: [&str; 8] = [
        "image_url",
        "audio_url",
        "video_url",
        "input_image",
        "input_audio",
        "image_embeds",
        "audio_embeds",
        "image_pil",
    ];
    let member = SOURCE_MEMBERS.iter().find_map(|name| part.get(*name));
    let text = member.and_then(|member| {
        let inner = member.get("url").or_else(|| member.get("data"));
        inner.unwrap_or(member).as_str()
    });
    text.unwrap_or_default()
}

fn media_item(
    settings: &MediaSettings,
    modality: MediaModality,
    part: &Value,
) -> Result<MediaItem, Fault> {
    let source = media_source(part);
    let inline = part.get("type").and_then(Value::as_str) == Some("input_audio");
    if !inline {
        check_media_url(settings, source, modality)?;
    }
    let bytes = data_url_first_bytes(source);
    let uuid = part.get("uuid").and_then(Value::as_str);
    let digest = || -> String {
        let digest = Sha256::digest(source.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    Ok(MediaItem {
        modality,
        identifier: uuid.map_or_else(digest, str::to_owned).into(),
        tokens: settings.rules.media_token_count(modality, bytes.as_deref()),
    })
}

/// Rejects media URLs that vLLM's media connector does not open.
fn check_media_url(
    settings: &MediaSettings,
    url: &str,
    modality: MediaModality,
) -> Result<(), Fault> {
    let refuse = |text: String| {
        let parameter = format!("{}_url", modality.as_str());
        Err(Fault::bad_parameter(text, &parameter))
    };
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        // An item identified by its uuid alone has no URL.
        _ if url.is_empty() => Ok(()),
        "http" | "https" => Ok(()),
        "data" => match url.split_once(',') {
            None => {
                let start: String = url.chars().take(32).collect();
                refuse(format!("Invalid data URL '{start}': missing ',' separator."))
            }
            Some((spec, _)) if !spec.ends_with(";base64") => {
                refuse("Only base64 data URLs are supported for now.".to_owned())
            }
            Some(_) if data_url_first_bytes(url).is_none() => {
                refuse("Invalid base64-encoded data in the data URL.".to_owned())
            }
            Some(_) => Ok(()),
        },
        "file" => match &settings.local_path {
            None => {
                refuse("Cannot load local files without `--allowed-local-media-path`.".to_owned())
            }
            Some(root) => {
                let path = Path::new(url.trim_start_matches("file://"));
                let up = path.components().any(|part| part == Component::ParentDir);
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

/// Rejects more media items than `--limit-mm-per-prompt` allows, with vLLM's status 400.
fn check_media_limits(settings: &MediaSettings, items: &[MediaItem]) -> Result<(), Fault> {
    let limits = settings.limits;
    for (modality, limit) in [
        (MediaModality::Image, limits.image),
        (MediaModality::Audio, limits.audio),
        (MediaModality::Video, limits.video),
    ] {
        let name = modality.as_str();
        let count = items.iter().filter(|item| item.modality == modality).count();
        if count as u64 > limit {
            return Err(Fault::bad_parameter(
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

/// Returns llm-d's name of a media item: modality, index, and FNV-1a hash of the URL.
fn llmd_media_name(i: usize, modality: MediaModality, part: &Value) -> String {
    let kind = match modality {
        MediaModality::Image => "img",
        MediaModality::Audio => "audio",
        MediaModality::Video => "video",
    };
    format!("sim_{kind}_{i}_{:x}", fnv1a_32(media_source(part).as_bytes()))
}
