//! Computes the number and position of tokens of images, audio and video in a prompt.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::Tokenizer;
use crate::SpecialTokens;

/// Delimiter of the marker that represents a media item in text before tokenization: a private-use
/// character, which splits no word of a user.
const MARKER_DELIMITER: char = '\u{10FFF0}';
const IMAGE_HEAD_BYTES: usize = 96 * 1024;
const MAX_ITEM_TOKENS: u32 = 1 << 20;

/// Type of a media item in a prompt: image, audio or video.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Modality {
    /// Image in a prompt.
    Image,
    /// Audio clip in a prompt.
    Audio,
    /// Video in a prompt.
    Video,
}

impl Modality {
    /// Returns vLLM's name of the modality, such as `image`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
        }
    }
}

/// Media item at its position in a tokenized prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaFeature {
    /// Type of the media item.
    pub modality: Modality,
    /// Content hash of the media item, or the identifier set by the client.
    pub identifier: Arc<str>,
    /// Index of the item's first placeholder token in the prompt.
    pub start: u32,
    /// Number of the item's placeholder tokens.
    pub len: u32,
}

/// Rule for the number of placeholder tokens of a media item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaRule {
    /// Fixed number of tokens per media item.
    Fixed(u32),
    /// Number of tokens in proportion to the area of an image.
    Area {
        /// Edge of the square of pixels that becomes one token, in pixels, at least one.
        patch: u32,
        /// Minimum number of tokens per image.
        least: u32,
        /// Maximum number of tokens per image.
        most: u32,
        /// Number of tokens of an image whose size cannot be read.
        unknown: u32,
    },
}

/// Rules for the number of placeholder tokens of a media item, by modality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaRules {
    /// Rule for the tokens of an image.
    pub image: MediaRule,
    /// Rule for the tokens of an audio clip.
    pub audio: MediaRule,
    /// Rule for the tokens of a video.
    pub video: MediaRule,
}

impl Default for MediaRules {
    /// Returns the rules of typical models for the tokens of media items.
    ///
    /// Images as in Qwen2-VL: 28 × 28 pixels per token, 4 to 16384 tokens, and 576 (LLaVA 1.5) for
    /// unknown sizes. Audio has 250 tokens (10 s of Qwen2-Audio), video 2048.
    fn default() -> Self {
        Self {
            image: MediaRule::Area {
                patch: 28,
                least: 4,
                most: 16_384,
                unknown: 576,
            },
            audio: MediaRule::Fixed(250),
            video: MediaRule::Fixed(2048),
        }
    }
}

impl MediaRules {
    /// Returns the media token rules of a model's `config.json`, with defaults for missing ones.
    ///
    /// Supported models: Gemma 3 (`mm_tokens_per_image`), LLaVA 1.5 and PaliGemma (a square of
    /// fixed size), Qwen-VL, GLM-4V, Pixtral and Mistral 3 (pixels per token).
    pub fn of_model(config: &Map<String, Value>) -> Self {
        let config = part(config, "thinker_config").unwrap_or(config);
        let vision = part(config, "vision_config");
        let usual = Self::default();
        Self {
            image: vision
                .and_then(|vision| image_of(config, vision))
                .unwrap_or(usual.image),
            ..usual
        }
    }

    /// Overrides media token rules by JSON such as `{"image": 576, "audio": 250}`; for images also
    /// `{"patch": 28, "least": 4, "most": 16384, "unknown": 576}`.
    ///
    /// # Errors
    /// A message with the invalid key and its allowed values.
    pub fn with(self, map: &Map<String, Value>) -> Result<Self, String> {
        let mut rules = self;
        for (name, value) in map {
            let rule = match name.as_str() {
                "image" => &mut rules.image,
                "audio" => &mut rules.audio,
                "video" => &mut rules.video,
                other => return Err(format!("{other:?} is not one of image, audio, video")),
            };
            *rule = match value {
                Value::Object(area) => self::area(name, area)?,
                fixed => MediaRule::Fixed(count(name, fixed)?),
            };
        }
        Ok(rules)
    }

    fn rule(&self, modality: Modality) -> MediaRule {
        match modality {
            Modality::Image => self.image,
            Modality::Audio => self.audio,
            Modality::Video => self.video,
        }
    }

    /// Returns the maximum number of placeholder tokens of a media item of this modality.
    pub fn most(&self, modality: Modality) -> u32 {
        match self.rule(modality) {
            MediaRule::Fixed(tokens) => tokens,
            MediaRule::Area { most, unknown, .. } => most.max(unknown),
        }
    }

    /// Returns the number of placeholder tokens of a media item; `bytes` is its content, if the
    /// request contains it.
    pub fn tokens(&self, modality: Modality, bytes: Option<&[u8]>) -> u32 {
        match self.rule(modality) {
            MediaRule::Fixed(tokens) => tokens,
            MediaRule::Area {
                patch,
                least,
                most,
                unknown,
            } => match bytes.and_then(|bytes| imagesize::blob_size(bytes).ok()) {
                Some(size) => {
                    let patches = |edge: usize| (edge as u64).div_ceil(u64::from(patch));
                    let area = patches(size.width).saturating_mul(patches(size.height));
                    u32::try_from(area)
                        .unwrap_or(most)
                        .clamp(least, most.max(least))
                }
                None => unknown,
            },
        }
    }
}

fn part<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Map<String, Value>> {
    map.get(key)?.as_object()
}

fn image_of(config: &Map<String, Value>, vision: &Map<String, Value>) -> Option<MediaRule> {
    let number = |map: &Map<String, Value>, key: &str| {
        let number = u32::try_from(map.get(key)?.as_u64()?).ok();
        number.filter(|n| (1..=MAX_ITEM_TOKENS).contains(n))
    };
    if let Some(tokens) = number(config, "mm_tokens_per_image") {
        return Some(MediaRule::Fixed(tokens));
    }
    let kind = |map: &Map<String, Value>, names: &[&str]| {
        let kind = map.get("model_type").and_then(Value::as_str);
        kind.is_some_and(|kind| names.contains(&kind))
    };
    let (patch, edge) = (number(vision, "patch_size")?, number(vision, "image_size"));
    let square = |edge: u32, patch: u32| {
        let tokens = edge.div_ceil(patch);
        tokens.saturating_mul(tokens).min(MAX_ITEM_TOKENS)
    };
    if kind(config, &["llava", "paligemma"]) {
        return edge.map(|edge| MediaRule::Fixed(square(edge, patch)));
    }
    let merge = number(vision, "spatial_merge_size");
    let merge = merge.or_else(|| number(config, "spatial_merge_size"));
    // Only Pixtral scales images down to this edge; in other models it is the training size.
    let bound = edge.filter(|_| kind(vision, &["pixtral"]));
    if merge.is_none() && bound.is_none() {
        return None;
    }
    let patch = patch.saturating_mul(merge.unwrap_or(1));
    let most = bound.map_or(16_384, |edge| square(edge, patch));
    Some(MediaRule::Area {
        patch,
        least: 4.min(most),
        most,
        unknown: 576.min(most),
    })
}

fn area(name: &str, map: &Map<String, Value>) -> Result<MediaRule, String> {
    let (mut patch, mut least, mut most, mut unknown) = (28, 4, 16_384, 576);
    for (key, value) in map {
        let field = match key.as_str() {
            "patch" => &mut patch,
            "least" => &mut least,
            "most" => &mut most,
            "unknown" => &mut unknown,
            other => {
                return Err(format!(
                    "{name}.{other} is not one of patch, least, most, unknown"
                ));
            }
        };
        *field = count(&format!("{name}.{key}"), value)?;
    }
    if most < least {
        return Err(format!(
            "{name}.most ({most}) is less than {name}.least ({least})"
        ));
    }
    Ok(MediaRule::Area {
        patch,
        least,
        most,
        unknown,
    })
}

fn count(name: &str, value: &Value) -> Result<u32, String> {
    let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
    n.filter(|n| (1..=MAX_ITEM_TOKENS).contains(n))
        .ok_or_else(|| {
            format!("{name} is {value}, must be a whole number from 1 to {MAX_ITEM_TOKENS}")
        })
}

/// Returns whether a model's `config.json` describes images, audio or video.
pub fn accepts_media(config: &Map<String, Value>) -> bool {
    ["vision_config", "audio_config", "image_token_id"]
        .iter()
        .any(|key| config.get(*key).is_some_and(|value| !value.is_null()))
}

/// Media item of a request before its position in the prompt is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaItem {
    /// Type of the media item.
    pub modality: Modality,
    /// Content hash of the media item, or the identifier set by the client.
    pub identifier: std::sync::Arc<str>,
    /// Number of the item's placeholder tokens in the prompt.
    pub tokens: u32,
}

/// Decodes the first bytes of a `data:` URL, enough for the image size; `None` for other URLs.
pub fn data_url_head(url: &str) -> Option<Vec<u8>> {
    let (kind, data) = url.strip_prefix("data:")?.split_once(',')?;
    if !kind.ends_with(";base64") {
        return Some(
            data.as_bytes()
                .iter()
                .take(IMAGE_HEAD_BYTES)
                .copied()
                .collect(),
        );
    }
    let head = data.get(..(IMAGE_HEAD_BYTES * 4).min(data.len() / 4 * 4))?;
    STANDARD.decode(head).ok()
}

/// Returns the text marker that represents media item `i` before tokenization.
pub fn media_marker(i: usize) -> String {
    format!("{MARKER_DELIMITER}{i}{MARKER_DELIMITER}")
}

impl Tokenizer {
    /// Encodes text with media markers, which are replaced by the placeholder tokens of their
    /// items.
    pub fn encode_media(
        &self,
        text: &str,
        mut special: SpecialTokens,
        items: &[MediaItem],
    ) -> (Vec<u32>, Vec<MediaFeature>) {
        let mut tokens = Vec::new();
        let mut media = Vec::with_capacity(items.len());
        for (i, piece) in text.split(MARKER_DELIMITER).enumerate() {
            // Every second piece is the number of an item, between two delimiters.
            let item = (i % 2 == 1)
                .then(|| items.get(piece.parse::<usize>().ok()?))
                .flatten();
            match item {
                Some(item) => {
                    media.push(MediaFeature {
                        modality: item.modality,
                        identifier: item.identifier.clone(),
                        start: tokens.len() as u32,
                        len: item.tokens,
                    });
                    let id = self.placeholder(item.modality);
                    tokens.extend(std::iter::repeat_n(id, item.tokens as usize));
                }
                None if piece.is_empty() && special == SpecialTokens::Without => {}
                None => {
                    tokens.extend(self.encode(piece, special));
                    special = SpecialTokens::Without;
                }
            }
        }
        (tokens, media)
    }

    /// Returns the placeholder token id of a modality: from `config.json`, else by a usual token
    /// name.
    fn placeholder(&self, modality: Modality) -> u32 {
        let name = modality.as_str();
        let configured = match self {
            Self::Hf(hf) => ["token_id", "token_index"].iter().find_map(|key| {
                let id = hf.config().get(&format!("{name}_{key}"))?.as_u64()?;
                u32::try_from(id).ok()
            }),
            Self::Simulated(_) => None,
        };
        configured
            .or_else(|| self.id_of(&format!("<|{name}_pad|>")))
            .or_else(|| self.id_of(&format!("<{name}>")))
            .unwrap_or(0)
    }

    /// Returns whether the model's configuration describes images, audio or video.
    pub fn is_multimodal(&self) -> bool {
        match self {
            Self::Hf(hf) => accepts_media(hf.config()),
            Self::Simulated(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PNG: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAARgAAAA4CAIAAAAAAAAA";

    fn read(value: Value) -> Result<MediaRules, String> {
        MediaRules::default().with(value.as_object().expect("an object"))
    }

    #[test]
    fn images_count_by_area_and_others_by_the_piece() {
        let rules = MediaRules::default();
        let bytes = data_url_head(PNG).expect("a data URL");
        assert_eq!(rules.tokens(Modality::Image, Some(&bytes)), 10 * 2);
        assert_eq!(rules.tokens(Modality::Image, None), 576);
        assert_eq!(rules.tokens(Modality::Image, Some(b"no picture")), 576);
        assert_eq!(rules.tokens(Modality::Audio, None), 250);
        let rules = read(json!({"image": {"patch": 14, "most": 50}, "video": 7})).expect("rules");
        assert_eq!(rules.tokens(Modality::Image, Some(&bytes)), 50);
        assert_eq!(rules.tokens(Modality::Video, None), 7);
    }

    #[test]
    fn wrong_rules_are_named() {
        for (rules, word) in [
            (json!({"smell": 3}), "\"smell\""),
            (json!({"image": 0}), "image is 0"),
            (json!({"image": {"edge": 3}}), "image.edge"),
            (json!({"image": {"least": 9, "most": 3}}), "image.most (3)"),
        ] {
            assert!(read(rules).expect_err("wrong").contains(word));
        }
    }

    #[test]
    fn items_are_placed_at_their_markers() {
        let tokenizer = Tokenizer::simulated();
        let item = |tokens| MediaItem {
            modality: Modality::Image,
            identifier: "x".into(),
            tokens,
        };
        let text = format!("look {}and {}", media_marker(0), media_marker(1));
        let (tokens, media) =
            tokenizer.encode_media(&text, SpecialTokens::With, &[item(3), item(2)]);
        let places: Vec<_> = media.iter().map(|m| (m.start, m.len)).collect();
        assert_eq!(places, [(1, 3), (5, 2)]);
        assert_eq!(tokens.len(), 7);
        assert_eq!(tokens[1..4], [tokens[1]; 3]);
    }

    #[test]
    fn images_of_known_families_take_what_their_processors_make_of_them() {
        let image =
            |config: Value| MediaRules::of_model(config.as_object().expect("an object")).image;
        let area = |patch, most| MediaRule::Area {
            patch,
            least: 4,
            most,
            unknown: 576,
        };
        let of = |vision: Value| json!({"vision_config": vision});
        let qwen3 = of(json!({"patch_size": 16, "spatial_merge_size": 2}));
        assert_eq!(image(qwen3.clone()), area(32, 16_384));
        assert_eq!(image(json!({"thinker_config": qwen3})), area(32, 16_384));
        let glm = json!({"image_size": 336, "patch_size": 14, "spatial_merge_size": 2});
        assert_eq!(image(of(glm)), area(28, 16_384));
        let mistral = json!({"spatial_merge_size": 2, "vision_config":
            {"model_type": "pixtral", "image_size": 1540, "patch_size": 14}});
        assert_eq!(image(mistral), area(28, 3025));
        let gemma = json!({"mm_tokens_per_image": 256, "vision_config": {"patch_size": 14}});
        assert_eq!(image(gemma), MediaRule::Fixed(256));
        let llava = json!({"model_type": "llava", "vision_config":
            {"image_size": 336, "patch_size": 14}});
        assert_eq!(image(llava), MediaRule::Fixed(576));
        assert_eq!(
            image(of(json!({"hidden_size": 64}))),
            MediaRules::default().image
        );
    }
}
