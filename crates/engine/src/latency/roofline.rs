mod coefficients;
mod error;
mod kernels;
mod setup;

use std::time::Duration;

use super::cuda_graphs;
use super::{BatchWork, CudaGraphs, QuantizationScheme};
pub use coefficients::RooflineCoefficients;
pub use error::RooflineError;
use kernels::{All2AllCost, AllReduceCost, KernelCostBuilder};
pub use setup::RooflineModelSetup;

/// Models step times from the layer sizes of a model and the bandwidth and arithmetic peak of a
/// GPU.
///
/// The constructor folds all constants of a deployment, so a step costs a few dozen floating-point
/// operations. Times are in us, sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct RooflineModel {
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
    /// Time to sample a token from one row of logits, in us.
    per_row: f64,
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
    /// Times of large prompt steps, in us: the time added to their kernels, and the minimum time to
    /// launch the kernels without a CUDA graph.
    eager_prefill: (f64, f64),
    /// API server time of a request: fixed, per request in progress and per prompt token, in us.
    front_end: (f64, f64, f64),
    /// Factor of all step times.
    scale: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct GemmCost {
    times: f64,
    fixed: f64,
    memory_factor_above_16_rows: f64,
    weights: f64,
    per_token: f64,
    compute: f64,
}

impl GemmCost {
    #[inline]
    fn time_us(&self, tokens: f64) -> f64 {
        let factor = if tokens > 16.0 { self.memory_factor_above_16_rows } else { 1.0 };
        let memory = (self.weights + self.per_token * tokens) * factor;
        self.times * (self.fixed + smooth_max(memory, self.compute * tokens))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct ExpertKernelCost {
    times: f64,
    /// Time per layer of the MoE router (gate) in fp32, in us: for 64 tokens, and per token of a
    /// large step.
    router: (f64, f64),
    fixed: f64,
    /// Time to read the weights of all experts, in us.
    all: f64,
    popularity: ExpertPopularity,
    per_token: f64,
    compute: f64,
    /// Number of tokens that the data-parallel ranks together send to the experts of this engine,
    /// per token of the engine itself.
    fan_in: f64,
    exchange: All2AllCost,
}

/// Gamma distribution of how often tokens choose an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ExpertPopularity {
    shape: f64,
    /// Number of tokens in which an expert of average popularity is chosen `shape` times.
    scale: f64,
}

impl ExpertPopularity {
    /// Creates the distribution in which one token chooses the fraction `chosen` of the experts.
    fn new(shape: f64, chosen: f64) -> Self {
        Self { shape, scale: 1.0 / ((1.0 - chosen).max(0.0).powf(-1.0 / shape) - 1.0) }
    }

    /// Returns the fraction of the experts that none of `tokens` tokens chooses.
    fn unvisited_fraction(&self, tokens: f64) -> f64 {
        (1.0 + tokens / self.scale).powf(-self.shape)
    }
}

/// Number of tokens of one tile of a matrix product in fp32.
const ROUTER_TILE_TOKENS: f64 = 64.0;

impl ExpertKernelCost {
    fn time_us(&self, tokens: f64) -> f64 {
        if tokens == 0.0 {
            return 0.0;
        }
        let seen = tokens * self.fan_in;
        let active = 1.0 - self.popularity.unvisited_fraction(seen);
        let memory = self.all * active + self.per_token * tokens;
        let product = smooth_max(memory, self.compute * tokens);
        let (tile, per_token) = self.router;
        let router = (tile * (tokens / ROUTER_TILE_TOKENS).min(1.0)).max(per_token * tokens);
        self.times * (self.fixed + product + router) + self.exchange.all2all_time_us(tokens)
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

/// Duration of an engine step, split by component (matrix products, attention, ...), in us.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct StepTimeBreakdown {
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

impl StepTimeBreakdown {
    /// Returns the duration of the whole step, the sum of all components, in us.
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

    fn scaled_by(self, scale: f64) -> Self {
        Self {
            gemm: self.gemm * scale,
            moe: self.moe * scale,
            lm_head: self.lm_head * scale,
            decode_attention: self.decode_attention * scale,
            prefill_attention: self.prefill_attention * scale,
            all_reduce: self.all_reduce * scale,
            small: self.small * scale,
            overhead: self.overhead * scale,
        }
    }
}

impl RooflineModel {
    /// Builds the roofline model, with all constants of a deployment computed in advance.
    ///
    /// # Errors
    /// [`RooflineError`] names the number that cannot be used.
    pub fn new(setup: &RooflineModelSetup) -> Result<Self, RooflineError> {
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
            reduce: k.layer_all_reduce_cost(),
            small: (
                layers * (co.layer_us + if shape.qk_norm { co.qk_norm_us } else { 0.0 }),
                layers * (10.0 * h + 8.0 * width) / k.bandwidth,
            ),
            step: co.step_us + sync + (co.truncated_us + co.truncated_vocab_us * vocab) * truncated,
            eager_prefill: eager_prefill_us(setup),
            per_sequence: co.sequence_us + sync_sequence,
            per_row: (co.vocab_us * truncated + co.penalty_vocab_us * penalized)
                * vocab
                * (3.35e6 / k.bandwidth),
            mixed: co.mixed_us,
            mixed_again,
            stages: setup.pp,
            pcp: setup.pcp,
            graphs: setup.graphs.clone(),
            launch: layers * cuda_graphs::EAGER_LAYER_LAUNCH_US,
            // A transfer takes half as long as an all-reduce over two GPUs of one vector per token.
            stage_transfer: k.all_reduce_cost(borders / 2.0, 2),
            front_end: (co.front_end_us, co.front_end_sequence_us, co.front_end_token_us),
            scale: co.step_scale,
        })
    }

    /// Returns the delay of a request with `prompt_tokens` tokens in the API server before the
    /// engine's queue, with `running_requests` other requests in progress.
    pub fn front_end_processing_delay(
        &self,
        prompt_tokens: u32,
        running_requests: u32,
    ) -> Duration {
        let (fixed, each, token) = self.front_end;
        let us = fixed + each * f64::from(running_requests) + token * f64::from(prompt_tokens);
        Duration::from_nanos((us * 1e3) as u64)
    }

    pub(super) fn remove_api_server(&mut self) {
        self.front_end = (0.0, 0.0, 0.0);
    }

    /// Returns the time of a step outside of its GPU kernels.
    pub fn step_overhead(&self) -> StepOverhead {
        StepOverhead {
            step: self.step,
            sequence: self.per_sequence + self.per_row,
            mixed: self.mixed,
        }
    }

    /// Returns the sliding window in tokens, if some layers have one.
    pub fn sliding_window(&self) -> Option<u32> {
        self.window
    }

    /// Returns whether additional work can never shorten a step with decodes. False with pipeline
    /// stages, and without CUDA graphs, where large steps hide kernel launches.
    pub fn step_time_grows_with_batch(&self) -> bool {
        self.stages <= 1 && !self.graphs.cudagraph_capture_sizes().is_empty()
    }

    /// Returns the time that experts spread over data-parallel ranks take in a step in which each
    /// rank computes `tokens` tokens. Zero if experts are not spread, or with pipeline or prefill
    /// context parallelism.
    pub fn distributed_expert_time(&self, tokens: f64) -> Duration {
        match self.experts {
            Some(experts) if experts.fan_in > 1.0 && self.stages == 1 && self.pcp <= 1 => {
                let us = experts.time_us(tokens) * self.scale;
                Duration::from_nanos((us * 1e3).round() as u64)
            }
            _ => Duration::ZERO,
        }
    }

    /// Returns the duration of an engine step over `batch`.
    pub fn step_time(&self, batch: &BatchWork) -> Duration {
        if batch.is_empty() {
            return Duration::ZERO;
        }
        Duration::from_nanos((self.step_time_breakdown(batch).total_us() * 1e3).round() as u64)
    }

    /// Returns the duration of an engine step over `batch`, split by component.
    pub fn step_time_breakdown(&self, batch: &BatchWork) -> StepTimeBreakdown {
        // There are as many batches in flight as stages. Each sequence is in one of them and waits
        // for all stages, with only a part of the other sequences.
        let batch = &match batch.sequence_count().min(self.stages) {
            0 | 1 => *batch,
            parts => batch.work_per_equal_part(parts),
        };
        let batch = &match self.pcp {
            0 | 1 => *batch,
            ranks => batch.work_per_context_parallel_rank(ranks),
        };
        let tokens = self.graphs.padded_tokens(batch.computed_tokens()) as f64;
        let sequences = f64::from(batch.sequence_count());
        // Each draft token is verified by logits of its own.
        let rows = f64::from(batch.logit_rows());
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
        let mut parts = StepTimeBreakdown {
            gemm: self.gemms.iter().map(|g| g.time_us(tokens)).sum(),
            // Padding rows are equal and visit the same few experts.
            moe: self.experts.map_or(0.0, |e| e.time_us(batch.computed_tokens() as f64)),
            lm_head: self.head.time_us(rows),
            decode_attention,
            prefill_attention,
            all_reduce: self.reduce.all_reduce_time_us(tokens)
                + self.stage_transfer.all_reduce_time_us(tokens),
            small: self.small.0 + self.small.1 * tokens,
            overhead: 0.0,
        };
        parts.overhead += self.step
            + self.launch_time_us(batch, parts.total_us())
            + self.per_sequence * sequences
            + self.per_row * rows
            + if prefill { self.mixed } else { 0.0 };
        parts.scaled_by(self.scale)
    }

    /// Returns the time that the launch of a step's kernels adds to `kernels`, the time that the
    /// GPU computes, in us.
    fn launch_time_us(&self, batch: &BatchWork, kernels: f64) -> f64 {
        let tokens = batch.computed_tokens();
        let launch = if self.graphs.is_launch_bound(tokens) { self.launch } else { 0.0 };
        if batch.chunks == 0 {
            return launch;
        }
        let (more, least) = self.eager_prefill;
        let more = if self.graphs.exceeds_launch_bound_or_graph(tokens) { more } else { 0.0 };
        let wait = match self.graphs.exceeds_largest_graph(tokens) {
            true => smooth_max(kernels, least) - kernels,
            false => 0.0,
        };
        launch.max(more + wait)
    }
}

/// Returns the times of large prompt steps of all layers, in us: added to their kernels, and the
/// minimum to launch the kernels without a CUDA graph.
fn eager_prefill_us(setup: &RooflineModelSetup) -> (f64, f64) {
    let (added, least) = setup.gpu.eager_prefill_us;
    let [fp4, others] = setup.gpu.eager_experts_us;
    let least = match setup.shape.quantization.scheme {
        _ if setup.shape.moe.is_none() => least,
        QuantizationScheme::Fp4 => least.max(fp4),
        _ => least.max(others),
    };
    let layers = f64::from(setup.shape.layers);
    (added * layers, least * layers)
}

fn check_setup(setup: &RooflineModelSetup) -> Result<(), RooflineError> {
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
    setup.coefficients.check_coefficient_ranges()
}

#[cfg(test)]
mod tests;
