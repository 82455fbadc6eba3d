//! Models attention with compressed keys and values (MLA), from measured times of whole attention
//! blocks, or of the attention kernel alone.

use super::error::AiConfiguratorError;
use super::lookup::{AttentionTimeTable, LatencyCurve};
use super::speed::GemmDtype;
use super::tables::{ForwardPassPhase, KernelTableFolder};
use super::{AiConfiguratorStepTimes, LatentAttentionShape};

// Sizes of the measured attention, that of DeepSeek-V3.
const Q_RANK: u64 = 1536;
const KV_RANK: u64 = 512;
const ROPE_DIM: u64 = 64;
const NOPE_DIM: u64 = 128;
const V_DIM: u64 = 128;
/// Number of heads of the attention kernel, summed over all GPUs. As in AIConfigurator, this number
/// is also used for models with fewer heads (Kimi K2).
const KERNEL_HEADS: u64 = 128;

/// Kernel times of the attention of a layer with compressed keys and values (multi-head latent
/// attention, MLA).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LatentAttentionTimes {
    prefill: LatentAttentionTable,
    decode: LatentAttentionTable,
    kernel_heads: u64,
    /// Times, by number of tokens, of the two matrix products that replace the up-projection of
    /// keys and values in decode passes; none if the measured attention time contains them.
    absorbed: Vec<LatencyCurve>,
    /// Number of all-reduces in a layer, without the all-reduces of the layer's experts.
    pub(super) all_reduces: f64,
}

#[derive(Debug, Clone, PartialEq)]
struct LatentAttentionTable {
    times: AttentionTimeTable,
    scope: MeasuredScope,
    /// Data type of the attention kernel.
    dtype: GemmDtype,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MeasuredScope {
    /// Each measured time includes the attention kernel and the matrix products around it (the
    /// whole attention module).
    Block,
    /// Each measured time includes only the attention kernel.
    Kernel,
}

/// Returns whether the kernel-time tables hold attention with the sizes `mla`.
pub(super) fn has_measured_latent_attention(mla: LatentAttentionShape) -> bool {
    let sizes = [mla.q_rank, mla.kv_rank, mla.rope_dim, mla.nope_dim, mla.v_dim];
    sizes.map(u64::from) == [Q_RANK, KV_RANK, ROPE_DIM, NOPE_DIM, V_DIM]
}

impl LatentAttentionTimes {
    /// Reads the times of multi-head latent attention (MLA), for `heads` heads on each of `tp`
    /// GPUs. As in AIConfigurator, measurements of the whole attention module are preferred to
    /// those of its kernels. With fp8 weights, prompts use fp8 attention rather than bf16. For vLLM
    /// only bf16 measurements of modules are used.
    pub(super) fn read_latent_attention_times(
        folder: &KernelTableFolder,
        (kv_dtype, gemm_dtype): (&str, GemmDtype),
        (heads, tp): (u64, u64),
    ) -> Result<Self, AiConfiguratorError> {
        let vllm = folder.backend == "vllm";
        let scopes: &[MeasuredScope] = match vllm {
            true => &[MeasuredScope::Block],
            false => &[MeasuredScope::Block, MeasuredScope::Kernel],
        };
        let read = |phase, scope, dtype: GemmDtype| {
            let name = match (phase, scope) {
                (ForwardPassPhase::Prefill, MeasuredScope::Block) => "mla_context_module_perf",
                (ForwardPassPhase::Prefill, MeasuredScope::Kernel) => "context_mla_perf",
                (ForwardPassPhase::Decode, MeasuredScope::Block) => "mla_generation_module_perf",
                (ForwardPassPhase::Decode, MeasuredScope::Kernel) => "generation_mla_perf",
            };
            let mut key = vec![
                ("kv_cache_dtype", kv_dtype),
                ("mla_dtype", dtype.ai_configurator_dtype_name()),
            ];
            if scope == MeasuredScope::Block {
                key.push(("gemm_type", gemm_dtype.ai_configurator_dtype_name()));
            }
            let times = folder.read_latent_attention_table((name, phase), &key)?;
            Ok(LatentAttentionTable { times, scope, dtype })
        };
        let first_measured = |phase, dtypes: &[GemmDtype]| {
            let mut table = Err(folder.missing_table_error("mla", "compressed attention"));
            for (dtype, scope) in dtypes.iter().flat_map(|d| scopes.iter().map(move |s| (*d, *s))) {
                if matches!(table, Err(AiConfiguratorError::Missing { .. })) {
                    table = read(phase, scope, dtype);
                }
            }
            table
        };
        let fp8 = !vllm && gemm_dtype != GemmDtype::Bf16 && kv_dtype == "fp8";
        let prefill_dtypes = [GemmDtype::Fp8, GemmDtype::Bf16];
        let prefill =
            first_measured(ForwardPassPhase::Prefill, &prefill_dtypes[usize::from(!fp8)..])?;
        let decode = first_measured(ForwardPassPhase::Decode, &[GemmDtype::Bf16])?;
        let product_dtype = match gemm_dtype {
            GemmDtype::Bf16 => "bfloat16",
            GemmDtype::Fp8 | GemmDtype::Fp8Block => "fp8",
        };
        let products: &[&str] = match decode.scope {
            MeasuredScope::Block => &[],
            MeasuredScope::Kernel => &["mla_gen_pre", "mla_gen_post"],
        };
        let absorbed = products
            .iter()
            .map(|name| folder.read_mla_bmm_curve(name, product_dtype, heads))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            prefill,
            decode,
            kernel_heads: KERNEL_HEADS / tp,
            absorbed,
            all_reduces: if vllm { 2.0 } else { 0.0 },
        })
    }

    fn table(&self, phase: ForwardPassPhase) -> &LatentAttentionTable {
        match phase {
            ForwardPassPhase::Prefill => &self.prefill,
            ForwardPassPhase::Decode => &self.decode,
        }
    }
}

impl AiConfiguratorStepTimes {
    /// Returns the time of attention in all layers, in ms, for `[length, requests]` in the prefill
    /// phase and `[requests, length]` in the decode phase.
    pub(super) fn latent_attention_ms(
        &self,
        latent: &LatentAttentionTimes,
        phase: ForwardPassPhase,
        [second, third]: [u64; 2],
    ) -> f64 {
        let table = latent.table(phase);
        let heads = match table.scope {
            MeasuredScope::Block => self.heads,
            MeasuredScope::Kernel => latent.kernel_heads,
        };
        let min = |at| match phase {
            ForwardPassPhase::Prefill => self.min_latent_prefill_ms(table.dtype, at),
            ForwardPassPhase::Decode => self.min_latent_decode_ms(table.scope, at),
        };
        let at = [heads, second, third];
        self.layers * table.times.time_or_minimum_ms(at, &min)
    }

    /// Returns the shapes (outputs, inputs) of the matrix products of a layer's attention that the
    /// measured attention time does not contain.
    pub(super) fn latent_projection_shapes(
        &self,
        latent: &LatentAttentionTimes,
        phase: ForwardPassPhase,
    ) -> Vec<(u64, u64)> {
        if latent.table(phase).scope == MeasuredScope::Block {
            return Vec::new();
        }
        let (h, heads) = (self.hidden, self.heads);
        let mut shapes = vec![
            (Q_RANK + KV_RANK + ROPE_DIM, h),
            (heads * (NOPE_DIM + ROPE_DIM), Q_RANK),
            (h, heads * V_DIM),
        ];
        if phase == ForwardPassPhase::Prefill {
            shapes.push((heads * (NOPE_DIM + V_DIM), KV_RANK));
        }
        shapes
    }

    /// Returns the time of the matrix products of a layer's attention that the measured attention
    /// time does not contain, for `x` tokens, in ms.
    pub(super) fn latent_projections_ms(
        &self,
        latent: &LatentAttentionTimes,
        x: u64,
        phase: ForwardPassPhase,
    ) -> f64 {
        let shapes = self.latent_projection_shapes(latent, phase);
        let dense: f64 = shapes.iter().map(|(n, k)| self.gemm_ms(self.dtype, x, *n, *k)).sum();
        if phase == ForwardPassPhase::Prefill {
            return dense;
        }
        let min = |x| {
            let (compute, memory) = self.absorbed_product_limits(self.heads, x);
            compute.max(memory) * 1e3
        };
        let absorbed = latent.absorbed.iter().map(|curve| curve.time_or_minimum_ms(x, &min));
        dense + absorbed.sum::<f64>()
    }

    /// Returns the minimum times of a product of `tokens` tokens with each head's part of the
    /// up-projection of keys or values, by compute and by memory, in s.
    fn absorbed_product_limits(&self, heads: u64, tokens: u64) -> (f64, f64) {
        let (n, tokens) = (heads as f64, tokens as f64);
        let weights = (NOPE_DIM * KV_RANK) as f64;
        let values = tokens * (NOPE_DIM + KV_RANK) as f64;
        let bytes = self.dtype.bytes_per_value() * n * (weights + values);
        let flops = 2.0 * tokens * n * weights;
        (flops / self.speed.peak_flops(self.dtype), bytes / self.speed.memory)
    }

    /// Returns the minimum time of decode attention that the hardware allows, in ms, for `[heads,
    /// requests, length]`. For a whole attention module, the time includes the absorbed matrix
    /// products.
    fn min_latent_decode_ms(
        &self,
        scope: MeasuredScope,
        [heads, requests, length]: [u64; 3],
    ) -> f64 {
        let (n, b, s) = (heads as f64, requests as f64, length as f64);
        let peak = if self.kv_bytes == 1.0 { self.speed.fp8 } else { self.speed.bf16 };
        let query_and_output = n * (2 * KV_RANK + ROPE_DIM) as f64;
        let cached = (length.saturating_sub(1) * (KV_RANK + ROPE_DIM)) as f64 * self.kv_bytes;
        let mut compute = 2.0 * b * query_and_output * s / peak;
        let mut memory = b * (2.0 * query_and_output + cached) / self.speed.memory;
        if scope == MeasuredScope::Block {
            let product = self.absorbed_product_limits(heads, requests);
            compute += 2.0 * product.0;
            memory += 2.0 * product.1;
        }
        compute.max(memory) * 1e3
    }

    /// Returns the minimum time of prefill attention that the hardware allows, in ms, for `[heads,
    /// length, requests]`.
    fn min_latent_prefill_ms(&self, dtype: GemmDtype, [heads, length, requests]: [u64; 3]) -> f64 {
        let (n, b, s) = (heads as f64, requests as f64, length as f64);
        let width = b * n * s * (NOPE_DIM + ROPE_DIM + V_DIM) as f64;
        let bytes = width * (2.0 + self.kv_bytes);
        self.speed.roofline_min_ms(width * s, self.speed.peak_flops(dtype), bytes)
    }
}
