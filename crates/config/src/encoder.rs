//! Settings of the multimodal encoders: images, video and audio.

use super::api::ApiConfig;
use super::choices::EncoderTensorParallelMode;
use super::error::{ConfigError, bail};
use super::flags::engine;
use super::latency_source::StepLatencySource;
use super::model::ModelConfig;
use super::values::FlagValues;
use vllm_sim_engine::latency::MediaEncoderShape;
use vllm_sim_tokenizer::{MediaModality, MediaTokenRules};

/// Settings of the encoders of a model that accepts images, audio or video.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaEncoderConfig {
    /// Maximum number of encoder embeddings that one scheduler step may compute, at least 1; also
    /// the size of the encoder cache.
    pub budget: u32,
    /// Whether a step may encode a part of an image, audio or video.
    pub chunked_input: bool,
    /// Description of the rule for the default encoder budget (embeddings per scheduler step).
    pub rule: String,
    /// Layer sizes of the image and audio encoders, if `config.json` describes them.
    pub shapes: (Option<MediaEncoderShape>, Option<MediaEncoderShape>),
    /// Whether each GPU of a tensor-parallel group encodes whole items instead of a part of each
    /// item.
    pub spreads_items: bool,
}

impl MediaEncoderConfig {
    /// Returns the encoder settings if the model accepts media and the scheduler supports encoders.
    ///
    /// **Source:** vLLM 0.33 `vllm/v1/core/encoder_cache_manager.py`, `compute_mm_encoder_budget`.
    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &ModelConfig,
        api: &ApiConfig,
        encoded: Option<(MediaTokenRules, u32)>,
        latency_source: &StepLatencySource,
    ) -> Result<Option<Self>, ConfigError> {
        let flag = &engine::DISABLE_CHUNKED_MM_INPUT;
        let whole = v.get(flag)?;
        let mode_flag = &engine::MM_ENCODER_TP_MODE;
        let mode = v.get_choice(mode_flag)?.unwrap_or_default();
        let found = encoded.and_then(|(rules, tokens)| {
            let (modality, largest) = largest_media_item(model, api, &rules)?;
            Some((modality, largest, tokens))
        });
        let Some((modality, largest, tokens)) = found else {
            for (name, given) in [(flag.name, whole), (mode_flag.name, v.is_flag_set(mode_flag))] {
                if given {
                    v.add_no_effect_warning(format!(
                        "--{name} has no effect: it needs the vllm scheduler and a model that takes \
                         media"
                    ));
                }
            }
            return Ok(None);
        };
        if v.is_flag_set(mode_flag) && !latency_source.step_times_depend_on_gpu() {
            v.add_warning(format!(
                "--{} has no effect: without --gpu encoders take no time",
                mode_flag.name
            ));
        }
        if whole && largest > tokens {
            bail!(
                "Chunked MM input disabled but max_tokens_per_mm_item={largest} is larger than \
                 max_num_batched_tokens={tokens}. Please increase max_num_batched_tokens."
            );
        }
        Ok(Some(Self {
            budget: tokens.max(largest),
            chunked_input: !whole,
            shapes: model.hf_config.as_deref().map_or((None, None), |config| {
                (
                    MediaEncoderShape::vision_encoder_from_config(config),
                    MediaEncoderShape::audio_encoder_from_config(config),
                )
            }),
            spreads_items: mode == EncoderTensorParallelMode::Data,
            rule: format!(
                "the larger of max-num-batched-tokens, {tokens}, and the largest item, {largest} \
                 tokens of {}",
                match modality {
                    MediaModality::Image => "an image",
                    MediaModality::Audio => "audio",
                    MediaModality::Video => "a video",
                }
            ),
        }))
    }
}

fn largest_media_item(
    model: &ModelConfig,
    api: &ApiConfig,
    rules: &MediaTokenRules,
) -> Option<(MediaModality, u32)> {
    let has = |part: &str| {
        let config = model.hf_config.as_deref();
        let part = config.map(|config| &config[part]);
        part.is_some_and(|part| part.is_object())
    };
    let (sees, hears) = (has("vision_config"), has("audio_config"));
    // A model without a known encoder may have both.
    let unknown = !sees && !hears;
    let modalities =
        [(MediaModality::Image, sees), (MediaModality::Video, sees), (MediaModality::Audio, hears)];
    let taken = modalities.into_iter().filter(|(modality, has)| {
        (*has || unknown) && api.max_media_items_per_prompt(*modality) > 0
    });
    let sizes = taken.map(|(modality, _)| (modality, rules.max_media_tokens(modality)));
    // `max_by_key` returns the last maximum, so the order is reversed.
    sizes.rev().max_by_key(|(_, tokens)| *tokens)
}
