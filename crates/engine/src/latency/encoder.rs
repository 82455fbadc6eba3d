//! Estimates the time of image and audio encoders. No recorded run covers them.

use std::time::Duration;

use serde_json::Value;

use super::shape::{clamp_layer_size, read_config_size};
use super::{
    BatchWork, CudaGraphs, Gpu, MAX_SIMULATED_DELAY, ModelQuantization, ModelShape,
    RooflineCoefficients, RooflineError, RooflineModel, RooflineModelSetup, SlidingWindowLayers,
    divide_duration,
};
use crate::{MediaEncoderKind, PromptMediaItem};

/// Time of 1000 embeddings on an H100, in ms, for encoders of unknown size. 5 to 15 are usual for
/// vision transformers of 300 to 700 million weights.
const DEFAULT_ENCODER_MS: f64 = 10.0;
/// Dense bf16 peak of an H100, in TFLOP/s.
const H100_TFLOPS: f64 = 989.5;
/// Number of attention heads of an encoder; does not affect its time.
const ENCODER_HEADS: u32 = 16;
/// Number of encoder frames per embedding in audio models derived from Whisper (25 embeddings per
/// second).
const FRAMES_PER_EMBEDDING: u32 = 2;

/// Describes the transformer that encodes image patches or audio frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaEncoderShape {
    /// Hidden size of the image or audio encoder.
    pub hidden: u32,
    /// Number of layers of the image or audio encoder.
    pub layers: u32,
    /// Width of the encoder's MLP.
    pub intermediate: u32,
    /// Whether the encoder's MLP has a gate (three matrices instead of two).
    pub gated: bool,
    /// Number of patches or frames merged into one embedding, at least one.
    pub merged: u32,
    /// Number of patches per image tile; `None`: images are not tiled. Attention stays within a
    /// tile.
    pub tile: Option<u32>,
    /// Attention window of the encoder layers that have one, in patches.
    pub window: Option<SlidingWindowLayers>,
}

impl MediaEncoderShape {
    /// Reads the shape of the vision encoder from a `config.json`. Returns `None` if the model has
    /// no such encoder or the encoder's size is unknown.
    ///
    /// Supports Qwen2-VL, 2.5-VL and 3-VL, LLaVA, Gemma 3, Pixtral, Mistral 3, InternVL, Llama 4,
    /// Idefics 3, Kimi-VL and GLM-4V.
    pub fn vision_encoder_from_config(config: &Value) -> Option<Self> {
        let (config, part) = find_config_part(config, "vision_config")?;
        let hidden = read_config_size(part, &["embed_dim", "hidden_size"]).filter(|&n| n > 0)?;
        let layers =
            read_config_size(part, &["depth", "num_hidden_layers", "layers"]).filter(|&n| n > 0)?;
        let ratio = part["mlp_ratio"].as_f64().unwrap_or(4.0);
        let usual = (f64::from(hidden) * ratio) as u32;
        let kind = part["model_type"].as_str().unwrap_or_default();
        let patch = first_positive_size(&part["patch_size"]).unwrap_or(14).max(1);
        let square = |pixels: u32| (pixels / patch).saturating_mul(pixels / patch).max(1);
        // With a merge size, images keep their size.
        let is_tiled = part["spatial_merge_size"].is_null();
        let tile = first_positive_size(&part["image_size"]).filter(|_| is_tiled).map(square);
        let full = part["fullatt_block_indexes"].as_array().map(Vec::len);
        let window = first_positive_size(&part["window_size"]).zip(full);
        Some(Self {
            hidden,
            layers,
            intermediate: read_config_size(part, &["intermediate_size"]).unwrap_or(usual),
            gated: kind.starts_with("pixtral") || part["hidden_act"].as_str() == Some("silu"),
            merged: patches_per_embedding(config, part, tile).clamp(1, 1024),
            tile,
            window: window.map(|(pixels, full)| SlidingWindowLayers {
                tokens: square(pixels),
                layers: layers.saturating_sub(clamp_layer_size(full as u64)),
            }),
        })
    }

    /// Reads the shape of the audio encoder from a `config.json`. Supports the successors of
    /// Whisper (Qwen2-Audio, Qwen2.5-Omni, Ultravox).
    pub fn audio_encoder_from_config(config: &Value) -> Option<Self> {
        let (config, part) = find_config_part(config, "audio_config")?;
        let hidden = read_config_size(part, &["d_model", "hidden_size"]).filter(|&n| n > 0)?;
        let ffn = read_config_size(part, &["encoder_ffn_dim", "intermediate_size"]);
        Some(Self {
            hidden,
            layers: read_config_size(part, &["encoder_layers", "num_hidden_layers"])
                .filter(|&n| n > 0)?,
            intermediate: ffn.unwrap_or(hidden.saturating_mul(4)),
            gated: false,
            merged: read_config_size(config, &["stack_factor"])
                .unwrap_or(FRAMES_PER_EMBEDDING)
                .clamp(1, 1024),
            tile: read_config_size(part, &["max_source_positions"]).filter(|&n| n > 0),
            window: None,
        })
    }

    /// Adds an image or audio input of `embeddings` embeddings to a batch. An encoder's attention
    /// is not causal, so the input has twice as many (query, key) pairs as a prompt.
    fn add_to_batch(&self, batch: &mut BatchWork, embeddings: u64) {
        let patches = embeddings.saturating_mul(self.merged.into());
        let seen = self.tile.map_or(patches, |tile| patches.min(tile.into()));
        let near = self.window.map_or(seen, |window| seen.min(window.tokens.into()));
        batch.chunks += 1;
        batch.chunk_tokens += patches;
        batch.chunk_pairs += patches.saturating_mul(seen).saturating_mul(2);
        batch.chunk_pairs_clipped += patches.saturating_mul(near).saturating_mul(2);
    }

    fn as_model_shape(&self) -> ModelShape {
        ModelShape {
            hidden: self.hidden,
            layers: self.layers,
            heads: ENCODER_HEADS,
            kv_heads: ENCODER_HEADS,
            head_dim: self.hidden.div_ceil(ENCODER_HEADS),
            intermediate: self.intermediate,
            vocab: 0,
            tied: true,
            gated: self.gated,
            mla: None,
            moe: None,
            window: self.window,
            state: None,
            qk_norm: false,
            quantization: ModelQuantization::default(),
            max_context: u32::MAX,
        }
    }
}

/// Returns the object `name` of a model configuration, and the object in which it is a member.
fn find_config_part<'a>(config: &'a Value, name: &str) -> Option<(&'a Value, &'a Value)> {
    let all = [config, &config["thinker_config"]];
    let found = all.into_iter().find(|config| config[name].is_object())?;
    Some((found, &found[name]))
}

fn first_positive_size(value: &Value) -> Option<u32> {
    let number = value.as_u64().or_else(|| value[0].as_u64());
    number.map(clamp_layer_size).filter(|&n| n > 0)
}

fn patches_per_embedding(config: &Value, part: &Value, tile: Option<u32>) -> u32 {
    let square = |n: u32| n.saturating_mul(n);
    let either = |key: &'static str| {
        read_config_size(part, &[key]).or_else(|| read_config_size(config, &[key]))
    };
    if let Some(edge) =
        either("spatial_merge_size").or_else(|| read_config_size(config, &["scale_factor"]))
    {
        return square(edge);
    }
    if let Some(edge) = first_positive_size(&part["merge_kernel_size"]) {
        return square(edge);
    }
    if let (Some(tokens), Some(tile)) = (read_config_size(config, &["mm_tokens_per_image"]), tile) {
        return tile / tokens.max(1);
    }
    let ratio = [&config["downsample_ratio"], &part["pixel_shuffle_ratio"]];
    let ratio = ratio.into_iter().find_map(Value::as_f64);
    ratio.map_or(1, |ratio| (1.0 / (ratio * ratio)).round() as u32)
}

/// Models the time of a deployment's image and audio encoders.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaEncoderLatency {
    vision: EncoderTiming,
    audio: EncoderTiming,
    /// Number of GPUs over which whole images and audio clips are distributed.
    spread: u32,
}

#[derive(Debug, Clone, PartialEq)]
enum EncoderTiming {
    Layers(MediaEncoderShape, Box<RooflineModel>),
    /// The size of the encoder is unknown; the value is the time per embedding, in us.
    Usual(f64),
}

impl MediaEncoderLatency {
    /// Builds the time model of a vision and an audio encoder. With `is_spread`, each GPU encodes
    /// whole inputs (`--mm-encoder-tp-mode data`) instead of a part of each.
    ///
    /// # Errors
    /// Returns the errors of [`RooflineModel::new`].
    pub fn new(
        (vision, audio): (Option<MediaEncoderShape>, Option<MediaEncoderShape>),
        setup: &RooflineModelSetup,
        is_spread: bool,
    ) -> Result<Self, RooflineError> {
        let (tp, spread) = if is_spread { (1, setup.tp) } else { (setup.tp, 1) };
        let timing = |shape: Option<MediaEncoderShape>| {
            let Some(shape) = shape else {
                let ms = DEFAULT_ENCODER_MS * H100_TFLOPS / setup.gpu.bf16_tflops / f64::from(tp);
                return Ok(EncoderTiming::Usual(ms));
            };
            let setup = RooflineModelSetup {
                shape: shape.as_model_shape(),
                tp,
                pp: 1,
                pcp: 1,
                expert_ranks: 1,
                async_scheduling: true,
                truncated_sampling: false,
                graphs: CudaGraphs::NO_CUDA_GRAPHS,
                // The times of eager steps are fitted to language models.
                gpu: Gpu { eager_prefill_us: (0.0, 0.0), ..setup.gpu.clone() },
                coefficients: RooflineCoefficients {
                    step_us: 0.0,
                    sequence_us: 0.0,
                    mixed_us: 0.0,
                    ..setup.coefficients
                },
                ..setup.clone()
            };
            Ok(EncoderTiming::Layers(shape, Box::new(RooflineModel::new(&setup)?)))
        };
        Ok(Self { vision: timing(vision)?, audio: timing(audio)?, spread })
    }

    /// Returns the time to encode the given images and audio clips together, divided by `speed`; at
    /// most [`MAX_SIMULATED_DELAY`].
    pub fn media_encoding_time(
        &self,
        inputs: impl Iterator<Item = PromptMediaItem> + Clone,
        speed: f64,
    ) -> Duration {
        let of = |kind: MediaEncoderKind, timing: &EncoderTiming| {
            let lens = inputs.clone().filter(|input| input.kind == kind);
            timing.encode_us(lens.map(|input| u64::from(input.len)), self.spread)
        };
        let us =
            of(MediaEncoderKind::Vision, &self.vision) + of(MediaEncoderKind::Audio, &self.audio);
        let time = Duration::try_from_secs_f64(us / 1e6).unwrap_or(MAX_SIMULATED_DELAY);
        divide_duration(time, speed).min(MAX_SIMULATED_DELAY)
    }
}

impl EncoderTiming {
    fn encode_us(&self, lens: impl Iterator<Item = u64> + Clone, spread: u32) -> f64 {
        let items = lens.clone().count() as u64;
        if items == 0 {
            return 0.0;
        }
        // The GPU with the most work has the largest item, or an equal part of all.
        let all: u64 = lens.clone().sum();
        let largest = lens.clone().max().unwrap_or(0);
        let share = largest.max(all.div_ceil(spread.into())) as f64 / all.max(1) as f64;
        match self {
            Self::Usual(us) => us * all as f64 * share,
            Self::Layers(shape, roofline) => {
                let mut batch = BatchWork::default();
                lens.for_each(|len| shape.add_to_batch(&mut batch, len));
                let part = |n: u64| (n as f64 * share).ceil() as u64;
                batch.chunks = part(batch.chunks.into()) as u32;
                batch.chunk_tokens = part(batch.chunk_tokens);
                batch.chunk_pairs = part(batch.chunk_pairs);
                batch.chunk_pairs_clipped = part(batch.chunk_pairs_clipped);
                roofline.step_time_breakdown(&batch).total_us()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::latency::{find_gpu, known_model_shape};

    fn qwen25_vl() -> MediaEncoderShape {
        let config = json!({"vision_config": {
            "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420,
            "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31]
        }});
        MediaEncoderShape::vision_encoder_from_config(&config).unwrap()
    }

    fn images(lens: &[u32]) -> Vec<PromptMediaItem> {
        let inputs = lens.iter().enumerate().map(|(at, &len)| PromptMediaItem {
            key: at as u64,
            kind: MediaEncoderKind::Vision,
            start: 0,
            len,
        });
        inputs.collect()
    }

    fn ms(latency: &MediaEncoderLatency, lens: &[u32]) -> f64 {
        latency.media_encoding_time(images(lens).into_iter(), 1.0).as_secs_f64() * 1e3
    }

    fn setup(gpu_name: &str, tp: u32) -> RooflineModelSetup {
        let shape = known_model_shape("Qwen/Qwen2.5-7B-Instruct").unwrap();
        RooflineModelSetup {
            tp,
            ..RooflineModelSetup::new(shape, find_gpu(gpu_name).unwrap().clone())
        }
    }

    #[test]
    fn encoder_shapes_of_all_model_families_are_read() {
        assert_eq!(
            qwen25_vl(),
            MediaEncoderShape {
                hidden: 1280,
                layers: 32,
                intermediate: 3420,
                gated: true,
                merged: 4,
                tile: None,
                window: Some(SlidingWindowLayers { tokens: 64, layers: 28 }),
            }
        );
        let merged = |config: Value| {
            let shape = MediaEncoderShape::vision_encoder_from_config(&config).unwrap();
            (shape.hidden, shape.layers, shape.intermediate, shape.merged, shape.tile)
        };
        let qwen2 = json!({"vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584,
            "mlp_ratio": 4, "patch_size": 14, "spatial_merge_size": 2}});
        assert_eq!(merged(qwen2), (1280, 32, 5120, 4, None));
        let gemma3 = json!({"mm_tokens_per_image": 256, "vision_config": {"hidden_size": 1152,
            "image_size": 896, "intermediate_size": 4304, "num_hidden_layers": 27,
            "patch_size": 14}});
        assert_eq!(merged(gemma3), (1152, 27, 4304, 16, Some(4096)));
        let intern = json!({"downsample_ratio": 0.5, "vision_config": {"hidden_size": 1024,
            "image_size": [448, 448], "intermediate_size": 4096, "num_hidden_layers": 24,
            "patch_size": [14, 14]}});
        assert_eq!(merged(intern), (1024, 24, 4096, 4, Some(1024)));
        let llava = json!({"vision_config": {"hidden_size": 1024, "image_size": 336,
            "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14}});
        assert_eq!(merged(llava), (1024, 24, 4096, 1, Some(576)));
        let audio = json!({"thinker_config": {"audio_config": {"d_model": 1280,
            "encoder_layers": 32, "encoder_ffn_dim": 5120, "max_source_positions": 1500}}});
        let audio = MediaEncoderShape::audio_encoder_from_config(&audio).unwrap();
        assert_eq!(
            (audio.hidden, audio.layers, audio.merged, audio.tile),
            (1280, 32, 2, Some(1500))
        );
        assert_eq!(
            MediaEncoderShape::vision_encoder_from_config(&json!({"vision_config": {"depth": 3}})),
            None
        );
        assert_eq!(
            MediaEncoderShape::audio_encoder_from_config(&json!({"vision_config": {"depth": 3}})),
            None
        );
    }

    /// By hand: 4000 patches of 32 layers of 4 x 1280^2 + 3 x 1280 x 3420 weights, twice each, on
    /// 59.1 % of 989.5 TFLOP/s are 8.6 ms; attention and small kernels come on top.
    #[test]
    fn encoder_time_is_close_to_its_matrix_products() {
        let latency =
            MediaEncoderLatency::new((Some(qwen25_vl()), None), &setup("H100", 1), false).unwrap();
        let matrices = 4000.0 * 32.0 * 2.0 * (4.0 * 1280.0_f64.powi(2) + 3.0 * 1280.0 * 3420.0);
        let matrices = matrices / (0.591 * 989.5e12) * 1e3;
        let all = ms(&latency, &[1000]);
        assert!(matrices < all && all < 1.6 * matrices, "{all} ms, matrices {matrices}");
        assert!((5.0..15.0).contains(&all), "{all} ms");
    }

    #[test]
    fn an_encoder_of_unknown_shape_takes_a_typical_time() {
        let on = |name: &str, tp| {
            MediaEncoderLatency::new((None, None), &setup(name, tp), false).unwrap()
        };
        assert!((ms(&on("H100", 1), &[600, 400]) - 10.0).abs() < 1e-6);
        assert!((ms(&on("H100", 2), &[600, 400]) - 5.0).abs() < 1e-6);
        assert!(ms(&on("A100", 1), &[1000]) > 30.0);
    }

    #[test]
    fn distributed_items_are_encoded_in_parallel_and_a_single_one_is_not() {
        let (whole, parts) = (true, false);
        let of = |tp, is_spread, lens: &[u32]| {
            let setup = setup("H100", tp);
            let latency = MediaEncoderLatency::new((Some(qwen25_vl()), None), &setup, is_spread);
            ms(&latency.unwrap(), lens)
        };
        let (one, four) = (of(1, parts, &[1000]), of(1, parts, &[1000; 4]));
        assert_eq!(of(4, whole, &[1000]), one);
        assert_eq!(of(4, whole, &[1000; 4]), one);
        // Parts of items are summed over all GPUs in every layer.
        assert!(of(4, whole, &[1000; 4]) < 0.6 * of(4, parts, &[1000; 4]));
        assert!(3.4 * one < four && four < 4.0 * one, "{one} {four}");
    }

    #[test]
    fn twice_the_speed_is_half_the_time() {
        let latency = MediaEncoderLatency::new((None, None), &setup("H100", 1), false).unwrap();
        let time = |speed| latency.media_encoding_time(images(&[1000]).into_iter(), speed);
        assert_eq!((time(1.0), time(2.0)), (Duration::from_millis(10), Duration::from_millis(5)));
    }
}
