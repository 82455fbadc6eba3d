mod coefficients;
mod error;
mod kernels;
mod setup;

use std::time::Duration;

use super::cuda_graphs;
use super::{BatchWork, CudaGraphs, QuantizationScheme};
pub use coefficients::RooflineCoefficients;
pub use error::RooflineError;
use kernels::{AllReduceCost, KernelCostBuilder};
pub use setup::RooflineSetup;

/// Models step times from the layer sizes of a model and the bandwidth and arithmetic peak of a
/// GPU.
///
/// The constructor folds all constants of a deployment, so a step costs a few dozen floating-point
/// operations. Times are in us, sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Roofline {
    gemms: Vec<GemmCost>,
    head: GemmCost,
    experts: Option<ExpertKernelCost>,
    decode: [(f64, f64); 2],
    /// Prefill attention: launch time, and time per two (query, key) pairs in full-attention and in
    /// window layers, in us.
    prefill: (f64, [f64; 2]),
    window: Option<u32>,
    reduce: AllReduceCost,
    small: (f64, f64),
    step: f64,
    per_sequence: f64,
    mixed: f64,
    /// Fraction of the KV cache that decode attention reads again in steps with a prompt chunk.
    mixed_again: f64,
    stages: u32,
    pcp: u32,
    graphs: CudaGraphs,
    /// Time to launch the kernels of a step without CUDA graphs, in us.
    launch: f64,
    /// Time of the transfers between pipeline stages, summed over all stages.
    stage_transfer: AllReduceCost,
    /// API server time of a request: fixed, and per request in progress, in us.
    front_end: (f64, f64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct GemmCost {
    times: f64,
    fixed: f64,
    weights: f64,
    per_token: f64,
    compute: f64,
}

impl GemmCost {
    #[inline]
    fn time_us(&self, tokens: f64) -> f64 {
        let memory = self.weights + self.per_token * tokens;
        self.times * (self.fixed + smooth_max(memory, self.compute * tokens))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct ExpertKernelCost {
    times: f64,
    fixed: f64,
    /// Time to read the weights of all experts, in us.
    all: f64,
    /// Logarithm of the probability that a token does not visit a given expert.
    miss: f64,
    per_token: f64,
    compute: f64,
    /// Number of tokens from all ranks at this engine's experts, per token of its own.
    fan_in: f64,
    /// Time of the expert-parallel exchange as one all-reduce: gather of the tokens of all ranks
    /// and scatter of the sums.
    exchange: AllReduceCost,
}

impl ExpertKernelCost {
    fn time_us(&self, tokens: f64) -> f64 {
        if tokens == 0.0 {
            return 0.0;
        }
        let seen = tokens * self.fan_in;
        let active = 1.0 - (self.miss * seen).exp();
        let memory = self.all * active + self.per_token * tokens;
        let product = smooth_max(memory, self.compute * tokens);
        self.times * (self.fixed + product) + self.exchange.time_us(seen)
    }
}

/// Time of a step outside of its GPU kernels, in us.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepOverhead {
    /// Fixed time per step, in us.
    pub step: f64,
    /// Time per sequence of a step, in us.
    pub sequence: f64,
    /// Additional time of a step with a prompt chunk, in us.
    pub mixed: f64,
}

/// Returns a smooth maximum of compute and memory time near the corner of the roofline
/// (fourth-power mean).
#[inline]
fn smooth_max(a: f64, b: f64) -> f64 {
    let (a2, b2) = (a * a, b * b);
    (a2 * a2 + b2 * b2).sqrt().sqrt()
}

/// Duration of a step, split by cause, in us.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct StepBreakdown {
    /// Time of matrix products in the layers, in us.
    pub gemm: f64,
    /// Time of mixture-of-experts kernels, in us.
    pub moe: f64,
    /// Time of the output head (logits), in us.
    pub lm_head: f64,
    /// Time of attention over decoding sequences, in us.
    pub decode_attention: f64,
    /// Time of attention over prompt chunks, in us.
    pub prefill_attention: f64,
    /// Time of tensor-parallel all-reduces and of transfers between pipeline stages, in us.
    pub all_reduce: f64,
    /// Time of small kernels, in us: norms, rotary embedding, activation, cache writes.
    pub small: f64,
    /// Time outside of kernels, in us: scheduling, sampling, kernel launches.
    pub overhead: f64,
}

impl StepBreakdown {
    /// Returns the duration of the whole step, the sum of all causes, in us.
    pub fn total_us(&self) -> f64 {
        self.gemm
            + self.moe
            + self.lm_head
            + self.decode_attention
            + self.prefill_attention
            + self.all_reduce
            + self.small
            + self.overhead
    }
}

impl Roofline {
    /// Builds the roofline model, with all constants of a deployment computed in advance.
    ///
    /// # Errors
    /// [`RooflineError`] names the number that cannot be used.
    pub fn new(setup: &RooflineSetup) -> Result<Self, RooflineError> {
        check_setup(setup)?;
        let k = KernelCostBuilder::new(setup);
        let (shape, gpu, co) = (&setup.shape, &setup.gpu, &setup.coefficients);
        let layers = f64::from(shape.layers);
        let h = f64::from(shape.hidden);
        let hq = f64::from(shape.heads) / k.tp;
        let d = f64::from(shape.head_dim);
        let width = hq * shape.mla.map_or(d, |mla| f64::from(mla.v_dim));
        let vocab = f64::from(shape.vocab);
        let truncated = if setup.truncated_sampling { 1.0 } else { 0.0 };
        let penalized = if setup.penalized_sampling { 1.0 } else { 0.0 };
        let (sync, sync_sequence) =
            if setup.async_scheduling { (0.0, 0.0) } else { (co.sync_us, co.sync_sequence_us) };
        let borders = f64::from(setup.pp.saturating_sub(1));
        let mixed_again = match gpu.flash_attention {
            // With more GPUs than key/value heads, each GPU has one whole head.
            2 => {
                let group = hq / (f64::from(shape.kv_heads) / k.tp).max(1.0);
                co.mixed_group_share * (group - 1.0).max(0.0)
            }
            _ => 0.0,
        };
        Ok(Self {
            gemms: k.layer_gemm_costs(),
            head: k.gemm_cost(1.0, vocab / k.tp, h, QuantizationScheme::None),
            experts: k.expert_kernel_cost(),
            decode: k.decode_attention_us(),
            prefill: k.prefill_attention_us(),
            window: shape.window.map(|w| w.tokens),
            reduce: k.all_reduce_cost(2.0 * layers, setup.tp),
            small: (
                layers * (co.layer_us + if shape.qk_norm { co.qk_norm_us } else { 0.0 }),
                layers * (10.0 * h + 8.0 * width) / k.bandwidth,
            ),
            step: co.step_us + sync + (co.truncated_us + co.truncated_vocab_us * vocab) * truncated,
            per_sequence: co.sequence_us
                + sync_sequence
                + (co.vocab_us * truncated + co.penalty_vocab_us * penalized)
                    * vocab
                    * (3.35e6 / k.bandwidth),
            mixed: co.mixed_us,
            mixed_again,
            stages: setup.pp,
            pcp: setup.pcp,
            graphs: setup.graphs.clone(),
            launch: layers * cuda_graphs::EAGER_LAYER_US,
            // A transfer takes half as long as an all-reduce over two GPUs of one vector per token.
            stage_transfer: k.all_reduce_cost(borders / 2.0, 2),
            front_end: (co.front_end_us, co.front_end_sequence_us),
        })
    }

    /// Returns the delay of a request in the API server before the engine's queue, with `running`
    /// other requests in progress.
    pub fn front_end_delay(&self, running: u32) -> Duration {
        let (fixed, each) = self.front_end;
        Duration::from_nanos(((fixed + each * f64::from(running)) * 1e3) as u64)
    }

    /// Returns the time of a step outside of its GPU kernels.
    pub fn step_overhead(&self) -> StepOverhead {
        StepOverhead { step: self.step, sequence: self.per_sequence, mixed: self.mixed }
    }

    /// Returns the sliding window in tokens, if some layers have one.
    pub fn sliding_window(&self) -> Option<u32> {
        self.window
    }

    /// Returns whether additional work never shortens a step with decodes. It can with pipeline
    /// stages, whose batches get smaller, and without CUDA graphs, since large steps hide kernel
    /// launches.
    pub fn grows_with_batch(&self) -> bool {
        self.stages <= 1 && !self.graphs.captured_sizes().is_empty()
    }

    /// Returns the time in a step of experts that are spread over data-parallel ranks, if each rank
    /// computes `tokens` tokens. Zero if they are not spread, or with pipeline or prefill context
    /// parallelism.
    pub fn spread_expert_time(&self, tokens: f64) -> Duration {
        match self.experts {
            Some(experts) if experts.fan_in > 1.0 && self.stages == 1 && self.pcp <= 1 => {
                Duration::from_nanos((experts.time_us(tokens) * 1e3).round() as u64)
            }
            _ => Duration::ZERO,
        }
    }

    /// Returns the duration of an engine step over `batch`.
    pub fn step_time(&self, batch: &BatchWork) -> Duration {
        if batch.is_empty() {
            return Duration::ZERO;
        }
        Duration::from_nanos((self.step_breakdown(batch).total_us() * 1e3).round() as u64)
    }

    /// Returns the duration of an engine step over `batch`, split by cause.
    pub fn step_breakdown(&self, batch: &BatchWork) -> StepBreakdown {
        // There are as many batches in flight as stages. Each sequence is in one of them and waits
        // for all stages, with only a part of the other sequences.
        let batch = &match batch.sequence_count().min(self.stages) {
            0 | 1 => *batch,
            parts => batch.equal_share(parts),
        };
        let batch = &match self.pcp {
            0 | 1 => *batch,
            ranks => batch.with_shared_chunks(ranks),
        };
        let tokens = self.graphs.padded_tokens(batch.computed_tokens()) as f64;
        let launch = match self.graphs.is_launch_bound(batch.computed_tokens()) {
            true => self.launch,
            false => 0.0,
        };
        let sequences = f64::from(batch.sequence_count());
        let prefill = batch.chunks > 0;
        let decode_attention = if batch.decodes > 0 {
            let [(fixed, per_token), (window_fixed, window_per_token)] = self.decode;
            let reading =
                per_token * batch.context as f64 + window_per_token * batch.clipped as f64;
            let again = if prefill { self.mixed_again } else { 0.0 };
            fixed + window_fixed + reading * (1.0 + again)
        } else {
            0.0
        };
        let prefill_attention = if prefill {
            let half = if batch.decodes > 0 { 0.5 } else { 1.0 };
            self.prefill.0 * half
                + self.prefill.1[0] * batch.chunk_pairs as f64
                + self.prefill.1[1] * batch.chunk_pairs_clipped as f64
        } else {
            0.0
        };
        StepBreakdown {
            gemm: self.gemms.iter().map(|g| g.time_us(tokens)).sum(),
            // Padding rows are equal and visit the same few experts.
            moe: self.experts.map_or(0.0, |e| e.time_us(batch.computed_tokens() as f64)),
            lm_head: self.head.time_us(sequences),
            decode_attention,
            prefill_attention,
            all_reduce: self.reduce.time_us(tokens) + self.stage_transfer.time_us(tokens),
            small: self.small.0 + self.small.1 * tokens,
            overhead: self.step
                + launch
                + self.per_sequence * sequences
                + if prefill { self.mixed } else { 0.0 },
        }
    }
}

fn check_setup(setup: &RooflineSetup) -> Result<(), RooflineError> {
    for (what, n) in [
        ("tensor-parallel size", setup.tp),
        ("pipeline-parallel size", setup.pp),
        ("prefill-context-parallel size", setup.pcp),
        ("expert ranks", setup.expert_ranks),
        ("KV bytes", setup.kv_bytes),
    ] {
        if n == 0 {
            return Err(RooflineError::Zero { what });
        }
    }
    setup.coefficients.check_ranges()
}

#[cfg(test)]
mod tests {
    use crate::latency::{find_gpu, known_model_shape};

    use super::*;

    #[test]
    fn pipeline_stages_split_sequences_and_pay_transfers() {
        let time = |pp: u32, sequences: u32| {
            let setup = RooflineSetup { pp, ..llama(1) };
            let mut batch = BatchWork::default();
            (0..sequences).for_each(|_| batch.add_decode(1000, 1, None));
            Roofline::new(&setup).unwrap().step_time(&batch).as_secs_f64()
        };
        // One sequence passes through all stages in turn, which takes slightly longer.
        let alone = time(4, 1) / time(1, 1);
        assert!((1.0..1.05).contains(&alone), "{alone}");
        // Four batches of 64 are in flight.
        let many = time(4, 256) / time(1, 64);
        assert!((1.0..1.05).contains(&many), "{many}");
        assert!(time(4, 256) < 0.8 * time(1, 256));
    }

    #[test]
    fn ranks_share_only_prompt_chunks() {
        let time = |pcp: u32, batch: &BatchWork| {
            let setup = RooflineSetup { pcp, ..llama(1) };
            Roofline::new(&setup).unwrap().step_time(batch).as_secs_f64()
        };
        let mut prompt = BatchWork::default();
        prompt.add_prompt_chunk(8192, 8192, None);
        let share = time(4, &prompt) / time(1, &prompt);
        assert!((0.25..0.27).contains(&share), "{share}");
        assert_eq!(time(4, &decodes(64, 1000)), time(1, &decodes(64, 1000)));
    }

    #[test]
    fn more_work_never_shortens_a_step() {
        for (model_name, tp) in [
            ("meta-llama/Llama-3.1-8B-Instruct", 1),
            ("meta-llama/Llama-3.1-8B-Instruct", 4),
            ("Qwen/Qwen3-30B-A3B", 2),
        ] {
            for gpu_name in ["H100", "L40S"] {
                let setup = RooflineSetup {
                    tp,
                    ..RooflineSetup::new(
                        known_model_shape(model_name).unwrap(),
                        find_gpu(gpu_name).unwrap().clone(),
                    )
                };
                let roofline = Roofline::new(&setup).unwrap();
                assert!(roofline.grows_with_batch());
                let mut batch = BatchWork::default();
                batch.add_decode(700, 1, roofline.sliding_window());
                for n in 0..300 {
                    let before = roofline.step_time(&batch);
                    match n % 3 {
                        0 => batch.add_prompt_chunk(1 + 3 * n, 40 * n, roofline.sliding_window()),
                        _ => batch.add_decode(1 + 90 * n, 1, roofline.sliding_window()),
                    }
                    assert!(before <= roofline.step_time(&batch), "{model_name} {gpu_name} {n}");
                }
            }
        }
    }

    fn llama(tp: u32) -> RooflineSetup {
        let shape = known_model_shape("meta-llama/Llama-3.1-8B-Instruct").unwrap();
        RooflineSetup { tp, ..RooflineSetup::new(shape, find_gpu("H100").unwrap().clone()) }
    }

    fn decodes(n: u32, context: u32) -> BatchWork {
        let mut batch = BatchWork::default();
        (0..n).for_each(|_| batch.add_decode(context, 1, None));
        batch
    }

    /// Computes a step with explicit numbers, to check the folded constants.
    #[test]
    fn a_decode_step_is_the_sum_of_its_kernels() {
        let roofline = Roofline::new(&llama(1)).unwrap();
        let (nd, context, bw, f) = (64.0, 1000.0, 3.35e6, 989.5e6);
        let gemm = |n: f64, k: f64, t: f64| {
            let bytes = n * k * 2.0 + 2.0 * t * (n + k);
            let flops = 2.0 * t * n * k;
            let (a, b) = (bytes / (0.924 * bw), flops / (0.591 * f));
            3.9 + (a.powi(4) + b.powi(4)).powf(0.25)
        };
        let layer = gemm(6144.0, 4096.0, nd)
            + gemm(4096.0, 4096.0, nd)
            + gemm(28672.0, 4096.0, nd)
            + gemm(4096.0, 14336.0, nd);
        let attention = 13.0 + nd * context * 4.0 * 8.0 * 128.0 / (0.934 * bw);
        let small = 15.1 + nd * (10.0 * 4096.0 + 8.0 * 4096.0) / bw;
        let head = gemm(128256.0, 4096.0, nd);
        let overhead = 81.5 + 4.51 * nd;
        let us = 32.0 * (layer + attention + small) + head + overhead;
        let step = roofline.step_time(&decodes(64, 1000)).as_nanos() as f64 / 1e3;
        assert!((step - us).abs() < 0.01, "{step} us, by hand {us} us");
    }

    #[test]
    fn front_end_delay_grows_with_running_requests() {
        let roofline = Roofline::new(&llama(1)).unwrap();
        assert_eq!(roofline.front_end_delay(0), Duration::from_micros(5600));
        assert_eq!(roofline.front_end_delay(20), Duration::from_micros(6500));
    }

    #[test]
    fn top_p_costs_time_per_step_and_sequence() {
        let plain = Roofline::new(&llama(1)).unwrap();
        let cut = Roofline::new(&RooflineSetup { truncated_sampling: true, ..llama(1) }).unwrap();
        for n in [1, 64] {
            let more = cut.step_time(&decodes(n, 500)) - plain.step_time(&decodes(n, 500));
            let us = 201.8 + 2.69e-3 * 128_256.0 + f64::from(n) * 38.8e-6 * 128_256.0;
            assert!((more.as_secs_f64() * 1e6 - us).abs() < 0.01, "{more:?}");
        }
    }

    #[test]
    fn repetition_penalty_costs_time_per_sequence() {
        let plain = Roofline::new(&llama(1)).unwrap();
        let penalized =
            Roofline::new(&RooflineSetup { penalized_sampling: true, ..llama(1) }).unwrap();
        for n in [1, 64] {
            let more = penalized.step_time(&decodes(n, 500)) - plain.step_time(&decodes(n, 500));
            let us = f64::from(n) * 25.4e-6 * 128_256.0;
            assert!((more.as_secs_f64() * 1e6 - us).abs() < 0.01, "{more:?}");
        }
    }

    #[test]
    fn flash_attention_2_rereads_kv_in_mixed_steps() {
        let more = |gpu_name: &str, repo: &str, tp: u32| {
            let setup = RooflineSetup {
                tp,
                ..RooflineSetup::new(
                    known_model_shape(repo).unwrap(),
                    find_gpu(gpu_name).unwrap().clone(),
                )
            };
            let once = RooflineSetup {
                coefficients: RooflineCoefficients {
                    mixed_group_share: 0.0,
                    ..RooflineCoefficients::default()
                },
                ..setup.clone()
            };
            let mut mixed = decodes(20, 700);
            mixed.add_prompt_chunk(16, 500, None);
            let time = |setup: &RooflineSetup| Roofline::new(setup).unwrap().step_time(&mixed);
            assert_eq!(
                Roofline::new(&setup).unwrap().step_time(&decodes(20, 700)),
                Roofline::new(&once).unwrap().step_time(&decodes(20, 700))
            );
            time(&setup) - time(&once)
        };
        assert!(more("A100", "meta-llama/Llama-3.1-8B", 1) > Duration::from_micros(500));
        assert!(more("A100", "meta-llama/Llama-2-7b-hf", 1).is_zero());
        assert!(more("H100", "meta-llama/Llama-3.1-8B", 1).is_zero());
        // There are 12 query heads in 2 groups: each of 4 GPUs has 3 of them and one whole
        // key/value head.
        let small = "Qwen/Qwen2.5-1.5B";
        let (two, four) = (more("A100", small, 2), more("A100", small, 4));
        let share = four.as_secs_f64() / two.as_secs_f64();
        assert!((share - 2.0 / 5.0).abs() < 0.01, "{share}");
    }

    #[test]
    fn more_work_takes_longer_and_more_gpus_less() {
        let one = Roofline::new(&llama(1)).unwrap();
        let two = Roofline::new(&llama(2)).unwrap();
        assert!(one.step_time(&decodes(8, 500)) < one.step_time(&decodes(16, 500)));
        assert!(one.step_time(&decodes(8, 500)) < one.step_time(&decodes(8, 900)));
        assert!(two.step_time(&decodes(8, 500)) < one.step_time(&decodes(8, 500)));
        assert_eq!(one.step_time(&BatchWork::default()), Duration::ZERO);
    }

    #[test]
    fn fp4_is_multiplied_natively_on_gpus_with_fp4_units() {
        let step = |repo: &str, on: &str, tokens: u32| {
            let setup =
                RooflineSetup::new(known_model_shape(repo).unwrap(), find_gpu(on).unwrap().clone());
            let mut batch = BatchWork::default();
            batch.add_prompt_chunk(tokens, 0, None);
            Roofline::new(&setup).unwrap().step_breakdown(&batch).gemm
        };
        let (plain, fp4, int4) =
            ("meta-llama/Llama-3.1-8B", "nvidia/Llama-3.1-8B-FP4", "meta-llama/Llama-3.1-8B-AWQ");
        assert!(step(fp4, "B200", 4096) < 0.5 * step(plain, "B200", 4096));
        assert!(step(int4, "B200", 4096) > 0.9 * step(plain, "B200", 4096));
        assert!(step(fp4, "H100", 4096) > 0.9 * step(plain, "H100", 4096));
    }

    #[test]
    fn window_layer_time_is_bounded_by_the_window() {
        let setup = RooflineSetup::new(
            known_model_shape("openai/gpt-oss-20b").unwrap(),
            find_gpu("H100").unwrap().clone(),
        );
        let roofline = Roofline::new(&setup).unwrap();
        let mut near = BatchWork::default();
        near.add_decode(4000, 1, None);
        let mut clipped = BatchWork::default();
        clipped.add_decode(4000, 1, roofline.sliding_window());
        assert_eq!((clipped.context, clipped.clipped), (4000, 128));
        assert!(roofline.step_time(&clipped) < roofline.step_time(&near));
    }

    #[test]
    fn unusable_roofline_setups_name_the_field() {
        let error = |setup: RooflineSetup| Roofline::new(&setup).unwrap_err().to_string();
        assert_eq!(error(llama(0)), "tensor-parallel size is 0, must be at least 1");
        let mut setup = llama(1);
        setup.coefficients.gemm_memory_scale = 0.0;
        assert_eq!(
            error(setup),
            "coefficient gemm_memory_scale is 0, must be a finite number, more than 0"
        );
    }

    #[test]
    fn every_known_model_has_a_step_on_every_gpu() {
        for name in crate::latency::known_model_names() {
            for gpu in crate::latency::GPUS {
                let setup = RooflineSetup {
                    tp: 8,
                    ..RooflineSetup::new(known_model_shape(name).unwrap(), gpu.clone())
                };
                let mut batch = decodes(32, 700);
                batch.add_prompt_chunk(500, 20, None);
                let total = Roofline::new(&setup).unwrap().step_breakdown(&batch).total_us();
                assert!(total.is_finite() && total > 600.0, "{name} on {}: {total}", gpu.name);
            }
        }
    }
}
