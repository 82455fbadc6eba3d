//! Computes the number of tokens of images, audio and video in a prompt.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

const IMAGE_HEAD_BYTES: usize = 96 * 1024;
const MAX_MEDIA_ITEM_TOKENS: u32 = 1 << 20;

/// Type of a media item in a prompt: image, audio or video.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaModality {
    /// Image in a prompt.
    Image,
    /// Audio clip in a prompt.
    Audio,
    /// Video in a prompt.
    Video,
}

impl MediaModality {
    /// Returns vLLM's name of the modality, such as `image`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
        }
    }
}

/// Rule for the number of placeholder tokens of a media item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaTokenRule {
    /// Fixed number of tokens per media item.
    Fixed(u32),
    /// Number of tokens in proportion to the area of an image.
    Area {
        /// Edge length of the square that becomes one image token, in pixels, at least one.
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
pub struct MediaTokenRules {
    /// Rule for the number of placeholder tokens of an image.
    pub image: MediaTokenRule,
    /// Rule for the number of placeholder tokens of an audio clip.
    pub audio: MediaTokenRule,
    /// Rule for the number of placeholder tokens of a video.
    pub video: MediaTokenRule,
}

impl Default for MediaTokenRules {
    /// Returns rules, as for typical models, for the number of placeholder tokens of media items.
    ///
    /// Images as in Qwen2-VL: 28 × 28 pixels per token, 4 to 16384 tokens, and 576 (LLaVA 1.5) for
    /// unknown sizes. Audio has 250 tokens (10 s of Qwen2-Audio), video 2048.
    fn default() -> Self {
        Self {
            image: MediaTokenRule::Area { patch: 28, least: 4, most: 16_384, unknown: 576 },
            audio: MediaTokenRule::Fixed(250),
            video: MediaTokenRule::Fixed(2048),
        }
    }
}

impl MediaTokenRules {
    /// Returns the rules in a model's `config.json` for the number of placeholder tokens of media
    /// items, with defaults for missing rules.
    ///
    /// Supported models: Gemma 3 (`mm_tokens_per_image`), LLaVA 1.5 and PaliGemma (a square of
    /// fixed size), Qwen-VL, GLM-4V, Pixtral and Mistral 3 (pixels per token).
    pub fn from_model_config(config: &Map<String, Value>) -> Self {
        let config = config_section(config, "thinker_config").unwrap_or(config);
        let vision = config_section(config, "vision_config");
        let usual = Self::default();
        Self {
            image: vision
                .and_then(|vision| image_rule_of_model(config, vision))
                .unwrap_or(usual.image),
            ..usual
        }
    }

    /// Overrides the rules for placeholder tokens of media items by JSON such as `{"image": 576,
    /// "audio": 250}`; for images also `{"patch": 28, "least": 4, "most": 16384, "unknown": 576}`.
    ///
    /// # Errors
    /// A message with the invalid key and its allowed values.
    pub fn override_rules_from_json(self, map: &Map<String, Value>) -> Result<Self, String> {
        let mut rules = self;
        for (name, value) in map {
            let rule = match name.as_str() {
                "image" => &mut rules.image,
                "audio" => &mut rules.audio,
                "video" => &mut rules.video,
                other => return Err(format!("{other:?} is not one of image, audio, video")),
            };
            *rule = match value {
                Value::Object(area) => self::parse_area_rule(name, area)?,
                fixed => MediaTokenRule::Fixed(parse_token_count(name, fixed)?),
            };
        }
        Ok(rules)
    }

    fn rule_of(&self, modality: MediaModality) -> MediaTokenRule {
        match modality {
            MediaModality::Image => self.image,
            MediaModality::Audio => self.audio,
            MediaModality::Video => self.video,
        }
    }

    /// Returns the maximum number of placeholder tokens of a media item of the given modality.
    pub fn max_media_tokens(&self, modality: MediaModality) -> u32 {
        match self.rule_of(modality) {
            MediaTokenRule::Fixed(tokens) => tokens,
            MediaTokenRule::Area { most, unknown, .. } => most.max(unknown),
        }
    }

    /// Returns the number of placeholder tokens of a media item; `bytes` is its content, if the
    /// request contains it.
    pub fn media_token_count(&self, modality: MediaModality, bytes: Option<&[u8]>) -> u32 {
        match self.rule_of(modality) {
            MediaTokenRule::Fixed(tokens) => tokens,
            MediaTokenRule::Area { patch, least, most, unknown } => {
                match bytes.and_then(|bytes| imagesize::blob_size(bytes).ok()) {
                    Some(size) => {
                        let patches = |edge: usize| (edge as u64).div_ceil(u64::from(patch));
                        let area = patches(size.width).saturating_mul(patches(size.height));
                        u32::try_from(area).unwrap_or(most).clamp(least, most.max(least))
                    }
                    None => unknown,
                }
            }
        }
    }
}

fn config_section<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Map<String, Value>> {
    map.get(key)?.as_object()
}

fn image_rule_of_model(
    config: &Map<String, Value>,
    vision: &Map<String, Value>,
) -> Option<MediaTokenRule> {
    let number = |map: &Map<String, Value>, key: &str| {
        let number = u32::try_from(map.get(key)?.as_u64()?).ok();
        number.filter(|n| (1..=MAX_MEDIA_ITEM_TOKENS).contains(n))
    };
    if let Some(tokens) = number(config, "mm_tokens_per_image") {
        return Some(MediaTokenRule::Fixed(tokens));
    }
    let kind = |map: &Map<String, Value>, names: &[&str]| {
        let kind = map.get("model_type").and_then(Value::as_str);
        kind.is_some_and(|kind| names.contains(&kind))
    };
    let (patch, edge) = (number(vision, "patch_size")?, number(vision, "image_size"));
    let square = |edge: u32, patch: u32| {
        let tokens = edge.div_ceil(patch);
        tokens.saturating_mul(tokens).min(MAX_MEDIA_ITEM_TOKENS)
    };
    if kind(config, &["llava", "paligemma"]) {
        return edge.map(|edge| MediaTokenRule::Fixed(square(edge, patch)));
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
    Some(MediaTokenRule::Area { patch, least: 4.min(most), most, unknown: 576.min(most) })
}

fn parse_area_rule(name: &str, map: &Map<String, Value>) -> Result<MediaTokenRule, String> {
    let (mut patch, mut least, mut most, mut unknown) = (28, 4, 16_384, 576);
    for (key, value) in map {
        let field = match key.as_str() {
            "patch" => &mut patch,
            "least" => &mut least,
            "most" => &mut most,
            "unknown" => &mut unknown,
            other => {
                return Err(format!("{name}.{other} is not one of patch, least, most, unknown"));
            }
        };
        *field = parse_token_count(&format!("{name}.{key}"), value)?;
    }
    if most < least {
        return Err(format!("{name}.most ({most}) is less than {name}.least ({least})"));
    }
    Ok(MediaTokenRule::Area { patch, least, most, unknown })
}

fn parse_token_count(name: &str, value: &Value) -> Result<u32, String> {
    let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
    n.filter(|n| (1..=MAX_MEDIA_ITEM_TOKENS).contains(n)).ok_or_else(|| {
        format!("{name} is {value}, must be a whole number from 1 to {MAX_MEDIA_ITEM_TOKENS}")
    })
}

/// Returns whether a model's `config.json` describes images, audio or video.
pub fn config_accepts_media(config: &Map<String, Value>) -> bool {
    ["vision_config", "audio_config", "image_token_id"]
        .iter()
        .any(|key| config.get(*key).is_some_and(|value| !value.is_null()))
}

/// Decodes the first bytes of a `data:` URL, enough for the image size; `None` for other URLs.
pub fn data_url_first_bytes(url: &str) -> Option<Vec<u8>> {
    let (kind, data) = url.strip_prefix("data:")?.split_once(',')?;
    if !kind.ends_with(";base64") {
        return Some(data.as_bytes().iter().take(IMAGE_HEAD_BYTES).copied().collect());
    }
    let head = data.get(..(IMAGE_HEAD_BYTES * 4).min(data.len() / 4 * 4))?;
    STANDARD.decode(head).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PNG: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAARgAAAA4CAIAAAAAAAAA";

    fn read(value: Value) -> Result<MediaTokenRules, String> {
        MediaTokenRules::default().override_rules_from_json(value.as_object().expect("an object"))
    }

    #[test]
    fn image_tokens_follow_area_others_are_fixed() {
        let rules = MediaTokenRules::default();
        let bytes = data_url_first_bytes(PNG).expect("a data URL");
        assert_eq!(rules.media_token_count(MediaModality::Image, Some(&bytes)), 10 * 2);
        assert_eq!(rules.media_token_count(MediaModality::Image, None), 576);
        assert_eq!(rules.media_token_count(MediaModality::Image, Some(b"no picture")), 576);
        assert_eq!(rules.media_token_count(MediaModality::Audio, None), 250);
        let rules = read(json!({"image": {"patch": 14, "most": 50}, "video": 7})).expect("rules");
        assert_eq!(rules.media_token_count(MediaModality::Image, Some(&bytes)), 50);
        assert_eq!(rules.media_token_count(MediaModality::Video, None), 7);
    }

    #[test]
    fn media_rule_errors_name_the_field() {
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
    fn image_tokens_equal_hugging_face_processors() {
        let image = |config: Value| {
            MediaTokenRules::from_model_config(config.as_object().expect("an object")).image
        };
        let area = |patch, most| MediaTokenRule::Area { patch, least: 4, most, unknown: 576 };
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
        assert_eq!(image(gemma), MediaTokenRule::Fixed(256));
        let llava = json!({"model_type": "llava", "vision_config":
            {"image_size": 336, "patch_size": 14}});
        assert_eq!(image(llava), MediaTokenRule::Fixed(576));
        assert_eq!(image(of(json!({"hidden_size": 64}))), MediaTokenRules::default().image);
    }
}
