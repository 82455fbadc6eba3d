//! Models the cost of computing draft tokens in speculative decoding.

use std::time::Duration;

use super::memory::weight_bytes;
use super::{
    BatchWork, MAX_SIMULATED_DELAY, ModelShape, MoeShape, RooflineCoefficients, RooflineError,
    RooflineModel, RooflineModelSetup, SimulationSpeedFactors, WeightShardingRanks,
    divide_duration,
};

/// Vocabulary size of EAGLE-3's own output head.
const EAGLE3_VOCAB: u32 = 32_000;
/// Number of layers of a draft model that drafts all tokens in one pass. Assumed from the published
/// models for 8 billion weights.
const PARALLEL_DRAFT_LAYERS: u32 = 5;
/// Time of a draft pass on the CPU, in us: vLLM prepares the attention of every single pass.
///
/// From vLLM pull request 32628: each further draft of EAGLE-3 makes a step 0.84 ms longer (3 to 8
/// drafts, one sequence), of which kernels take 0.3 ms.
const DRAFT_PASS_LAUNCH_US: f64 = 500.0;
/// Time of an n-gram lookup on the CPU, in us: fixed, and per sequence. Assumed: 0.1 to 1 ms are
/// usual for large batches.
const NGRAM_LOOKUP_US: (f64, f64) = (100.0, 3.0);
/// Time of an n-gram lookup on the GPU, in us. Assumed.
const NGRAM_GPU_LOOKUP_US: f64 = 100.0;

/// Method of proposing draft tokens in speculative decoding.
#[derive(Debug, Clone, PartialEq)]
pub enum Drafter {
    /// Lookup of drafts in the earlier text of the sequence (n-gram or suffix).
    Lookup {
        /// Whether the GPU, not the CPU, looks up draft tokens in earlier text.
        on_gpu: bool,
    },
    /// Drafts computed by extra layers or by a draft model.
    Layers(Box<DraftModelLayers>),
}

/// Describes the model layers that compute draft tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftModelLayers {
    shape: ModelShape,
    own_rows: u32,
    passes: u32,
    /// Number of tokens per sequence in the last pass of the draft layers.
    rows: u32,
}

impl Drafter {
    /// Creates the drafter of a speculative `method` with `num_drafts` tokens per step.
    ///
    /// `draft_model` is the shape of a draft model, if known. Returns `None` if the size of the
    /// draft layers is unknown.
    ///
    /// Heads on the target's hidden states (eagle, eagle3, mtp) have one layer like the target's
    /// and a projection. Eagle and mtp share the target's embeddings and output head. A draft model
    /// has its own.
    pub fn drafter_for_speculative_method(
        method: &str,
        target_model: &ModelShape,
        draft_model: Option<&ModelShape>,
        num_drafts: u32,
        parallel_drafting: bool,
    ) -> Option<Self> {
        let (shape, own_rows) = match method {
            "ngram" | "suffix" => return Some(Self::Lookup { on_gpu: false }),
            "ngram_gpu" => return Some(Self::Lookup { on_gpu: true }),
            "draft_model" => {
                let draft_model = draft_model?;
                (draft_model.clone(), draft_model.vocab)
            }
            "eagle" => (dense_draft_layers(target_model, draft_model, 1, 2), 0),
            "eagle3" => {
                let mut shape = dense_draft_layers(target_model, draft_model, 1, 3);
                shape.vocab = EAGLE3_VOCAB.min(target_model.vocab);
                let rows = shape.vocab;
                (shape, rows)
            }
            "dflash" | "dspark" => {
                (dense_draft_layers(target_model, draft_model, PARALLEL_DRAFT_LAYERS, 3), 0)
            }
            name if name.ends_with("mtp") => (mtp_draft_layer(target_model), 0),
            _ => return None,
        };
        let at_once = parallel_drafting || matches!(method, "dflash" | "dspark");
        let (passes, rows) = if at_once { (1, num_drafts + 1) } else { (num_drafts, 1) };
        Some(Self::Layers(Box::new(DraftModelLayers { shape, own_rows, passes, rows })))
    }

    /// Returns the weights of the draft layers, in bytes per GPU.
    pub fn draft_weight_bytes(&self, ranks: impl Into<WeightShardingRanks>) -> f64 {
        let Self::Layers(layers) = self else {
            return 0.0;
        };
        let shape = ModelShape { vocab: layers.own_rows, ..layers.shape.clone() };
        weight_bytes(&shape, ranks.into())
    }

    /// Returns the size of a token in the draft layers' KV cache on each of `tp` GPUs, in bytes; a
    /// cached number takes `bytes_per_value` bytes.
    pub fn draft_kv_bytes_per_token(&self, tp: u32, bytes_per_value: f64) -> f64 {
        match self {
            Self::Lookup { .. } => 0.0,
            Self::Layers(layers) => layers.shape.kv_bytes_per_token(tp, 1) as f64 * bytes_per_value,
        }
    }

    /// Builds the model of the time that the draft model of speculative decoding takes; `target` is
    /// the deployment of the target model.
    ///
    /// # Errors
    /// Returns the errors of [`RooflineModel::new`].
    pub fn draft_latency_model(
        &self,
        target: &RooflineModelSetup,
    ) -> Result<DraftLatencyModel, RooflineError> {
        Ok(match self {
            Self::Lookup { on_gpu: true } => DraftLatencyModel::Lookup(NGRAM_GPU_LOOKUP_US, 0.0),
            Self::Lookup { on_gpu: false } => {
                DraftLatencyModel::Lookup(NGRAM_LOOKUP_US.0, NGRAM_LOOKUP_US.1)
            }
            Self::Layers(layers) => {
                let setup = RooflineModelSetup {
                    shape: layers.shape.clone(),
                    pp: 1,
                    async_scheduling: true,
                    truncated_sampling: false,
                    penalized_sampling: false,
                    coefficients: RooflineCoefficients {
                        step_us: DRAFT_PASS_LAUNCH_US,
                        sequence_us: 0.0,
                        mixed_us: 0.0,
                        ..target.coefficients
                    },
                    ..target.clone()
                };
                DraftLatencyModel::Passes {
                    pass: Box::new(RooflineModel::new(&setup)?),
                    passes: layers.passes,
                    rows: layers.rows,
                }
            }
        })
    }
}

/// Returns the shape of `layers` dense draft layers like the target model's. They read `states`
/// hidden states of the target model. The projection of these states counts as a wider MLP with as
/// many weights.
fn dense_draft_layers(
    target: &ModelShape,
    own: Option<&ModelShape>,
    layers: u32,
    states: u32,
) -> ModelShape {
    if let Some(own) = own {
        let intermediate = own.intermediate + states * own.hidden / 3;
        return ModelShape { intermediate, tied: true, ..own.clone() };
    }
    ModelShape {
        layers,
        intermediate: target.intermediate + states * target.hidden / 3,
        gated: true,
        tied: true,
        moe: None,
        window: None,
        ..target.clone()
    }
}

/// Returns the shape of an MTP draft layer: one layer like the target's last, plus a projection of
/// two hidden states.
fn mtp_draft_layer(target: &ModelShape) -> ModelShape {
    let projection = 2 * target.hidden / 3;
    ModelShape {
        layers: 1,
        intermediate: target.intermediate + projection,
        tied: true,
        window: None,
        moe: target.moe.map(|moe| MoeShape { layers: 1, shared: moe.shared + projection, ..moe }),
        ..target.clone()
    }
}

/// Models the time to draft tokens in each step.
#[derive(Debug, Clone, PartialEq)]
pub enum DraftLatencyModel {
    /// Lookup of drafts in earlier text: fixed time and time per sequence, in us.
    Lookup(f64, f64),
    /// Drafting by forward passes through draft layers.
    Passes {
        /// Roofline model of the time of one pass through the draft layers.
        pass: Box<RooflineModel>,
        /// Number of passes through the draft layers; the first covers all tokens of the step to
        /// fill their KV cache.
        passes: u32,
        /// Number of tokens per sequence in the last pass through the draft layers: 1 if there are
        /// several passes. The first pass computes `rows - 1` tokens per sequence in addition to
        /// the tokens of the step.
        rows: u32,
    },
}

impl DraftLatencyModel {
    /// Returns the time to draft tokens after a step of the target model, divided by `speed`; at
    /// most [`MAX_SIMULATED_DELAY`].
    pub fn draft_time(&self, batch: &BatchWork, speed: SimulationSpeedFactors) -> Duration {
        let time = match self {
            _ if batch.is_empty() => Duration::ZERO,
            Self::Lookup(fixed, each) => {
                let us = fixed + each * f64::from(batch.sequence_count());
                Duration::from_nanos((us * 1e3) as u64)
            }
            Self::Passes { pass, passes, rows } => {
                let more = passes.saturating_sub(1);
                let mut first = *batch;
                if *rows > 1 {
                    first.decode_tokens += batch.sequence_count() * (rows - 1);
                }
                pass.step_time(&first) + pass.step_time(&one_token_per_sequence(batch)) * more
            }
        };
        divide_duration(time, speed.all).min(MAX_SIMULATED_DELAY)
    }
}

fn one_token_per_sequence(batch: &BatchWork) -> BatchWork {
    let prompts = batch.chunk_past + batch.chunk_tokens;
    BatchWork {
        decodes: batch.sequence_count(),
        decode_tokens: batch.sequence_count(),
        context: batch.context + prompts,
        clipped: batch.clipped + prompts,
        ..BatchWork::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::latency::{find_gpu, known_model_shape};

    use super::*;

    fn share(target: &str, tp: u32, method: &str, own: Option<&str>) -> f64 {
        let shape = known_model_shape(target).unwrap();
        let own = own.map(|name| known_model_shape(name).unwrap());
        let setup = RooflineModelSetup {
            tp,
            ..RooflineModelSetup::new(shape.clone(), find_gpu("H100").unwrap().clone())
        };
        let drafter =
            Drafter::drafter_for_speculative_method(method, &shape, own.as_ref(), 1, false)
                .unwrap();
        let mut batch = BatchWork::default();
        batch.add_decoding_sequence(1000, 1, None);
        let speed = SimulationSpeedFactors::default();
        let drafting = drafter.draft_latency_model(&setup).unwrap().draft_time(&batch, speed);
        let step = RooflineModel::new(&setup).unwrap().step_time(&batch);
        drafting.as_secs_f64() / step.as_secs_f64()
    }

    /// Against the shares of a decode step that are usual at batch 1.
    #[test]
    fn draft_pass_takes_a_realistic_share_of_a_step() {
        let llama = "meta-llama/Llama-3.1-8B";
        let eagle = share(llama, 1, "eagle3", None);
        assert!((0.08..0.17).contains(&eagle), "{eagle}");
        let large = share("meta-llama/Llama-3.1-70B", 4, "eagle3", None);
        assert!(large < 0.07, "{large}");
        let small = share(llama, 1, "draft_model", Some("meta-llama/Llama-3.2-1B"));
        assert!((0.2..0.4).contains(&small), "{small}");
        assert!(share(llama, 1, "ngram", None) < 0.03);
    }

    #[test]
    fn more_drafts_take_more_passes_unless_drafted_together() {
        let shape = known_model_shape("meta-llama/Llama-3.1-8B").unwrap();
        let setup = RooflineModelSetup::new(shape.clone(), find_gpu("H100").unwrap().clone());
        let mut batch = BatchWork::default();
        batch.add_decoding_sequence(1000, 4, None);
        let time = |method: &str, drafts: u32| {
            let drafter =
                Drafter::drafter_for_speculative_method(method, &shape, None, drafts, false)
                    .unwrap();
            let drafting = drafter.draft_latency_model(&setup).unwrap();
            drafting.draft_time(&batch, SimulationSpeedFactors::default()).as_secs_f64()
        };
        assert!(time("eagle3", 4) > 3.0 * time("eagle3", 1));
        assert!(time("dflash", 8) < 1.2 * time("dflash", 1));
        let fast = SimulationSpeedFactors { all: 2.0, ..SimulationSpeedFactors::default() };
        let eagle =
            Drafter::drafter_for_speculative_method("eagle3", &shape, None, 4, false).unwrap();
        let halved =
            eagle.draft_latency_model(&setup).unwrap().draft_time(&batch, fast).as_secs_f64();
        assert!((halved * 2.0 / time("eagle3", 4) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn draft_time_has_a_bound_at_any_speed() {
        let shape = known_model_shape("meta-llama/Llama-3.1-8B").unwrap();
        let setup = RooflineModelSetup::new(shape.clone(), find_gpu("H100").unwrap().clone());
        let mut batch = BatchWork::default();
        batch.add_decoding_sequence(1000, 4, None);
        let drafter =
            Drafter::drafter_for_speculative_method("eagle3", &shape, None, 4, false).unwrap();
        let slow = SimulationSpeedFactors { all: 1e-300, ..SimulationSpeedFactors::default() };
        let time = drafter.draft_latency_model(&setup).unwrap().draft_time(&batch, slow);
        assert_eq!(time, MAX_SIMULATED_DELAY);
    }

    #[test]
    fn draft_heads_take_one_layer_of_weights_and_kv() {
        let shape = known_model_shape("meta-llama/Llama-3.1-8B").unwrap();
        let layer = shape.kv_bytes_per_token(1, 2) as f64 / 32.0;
        let of = |method: &str| {
            Drafter::drafter_for_speculative_method(method, &shape, None, 3, false).unwrap()
        };
        for method in ["eagle", "eagle3", "mtp"] {
            assert_eq!(of(method).draft_kv_bytes_per_token(1, 2.0), layer, "{method}");
        }
        // 218 million weights of a layer; a projection of 2 or 3 states; a head of 32000 rows.
        let gb = |method: &str| of(method).draft_weight_bytes(1) / 1e9;
        assert!((gb("eagle") - 0.50).abs() < 0.02, "{}", gb("eagle"));
        assert!((gb("eagle3") - 0.80).abs() < 0.03, "{}", gb("eagle3"));
        assert_eq!(of("ngram").draft_weight_bytes(1), 0.0);
        let deepseek = known_model_shape("deepseek-ai/DeepSeek-V3").unwrap();
        let mtp =
            Drafter::drafter_for_speculative_method("mtp", &deepseek, None, 1, false).unwrap();
        assert!((mtp.draft_weight_bytes(1) / 1e9 - 11.7).abs() < 0.5);
        assert_eq!(
            Drafter::drafter_for_speculative_method("draft_model", &shape, None, 3, false),
            None
        );
    }
}
