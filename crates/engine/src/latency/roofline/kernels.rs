use super::{ExpertKernelCost, ExpertPopularity, GemmCost, RooflineModelSetup};
use crate::latency::all2all::InterconnectFabric;
use crate::latency::gpus::KernelEfficiency;
use crate::latency::memory::bytes_per_weight;
use crate::latency::{All2AllBackend, QuantizationScheme, all_reduce};

pub(super) struct KernelCostBuilder<'a> {
    setup: &'a RooflineModelSetup,
    pub(super) tp: f64,
    /// Bandwidth of GPU memory, in bytes/us.
    pub(super) bandwidth: f64,
    /// Peak of bf16 arithmetic, in FLOP/us.
    peak: f64,
}

impl<'a> KernelCostBuilder<'a> {
    pub(super) fn new(setup: &'a RooflineModelSetup) -> Self {
        Self {
            setup,
            tp: f64::from(setup.tp),
            bandwidth: setup.gpu.bandwidth_tbs * 1e6,
            peak: setup.gpu.bf16_tflops * 1e6,
        }
    }

    /// Returns the peak of fp8 arithmetic in FLOP/us. GPUs without fp8 units return `None`: they
    /// store fp8 weights but compute in bf16.
    fn fp8_peak_flops_per_us(&self) -> Option<f64> {
        let tflops = self.setup.gpu.fp8_tflops;
        (tflops > 0.0).then_some(tflops * 1e6)
    }

    fn fp4_peak_flops_per_us(&self) -> Option<f64> {
        let tflops = self.setup.gpu.fp4_tflops;
        (tflops > 0.0).then_some(tflops * 1e6)
    }

    fn dense_gemm_efficiency(&self, scheme: QuantizationScheme) -> (KernelEfficiency, f64) {
        let gpu = &self.setup.gpu;
        let weight_only = (gpu.gemm, self.peak);
        let memory = gpu.gemm.memory * 0.85;
        let int4 = (KernelEfficiency { memory, ..gpu.gemm }, self.peak);
        match scheme {
            QuantizationScheme::None => weight_only,
            QuantizationScheme::Fp8 => {
                self.fp8_peak_flops_per_us().map_or(weight_only, |f| (gpu.gemm_fp8, f))
            }
            QuantizationScheme::Fp8Block => {
                self.fp8_peak_flops_per_us().map_or(weight_only, |f| (gpu.gemm_fp8_block, f))
            }
            QuantizationScheme::Int8 => (gpu.gemm_fp8, 2.0 * self.peak),
            QuantizationScheme::Fp4 => {
                self.fp4_peak_flops_per_us().map_or(int4, |f| (gpu.gemm_fp4, f))
            }
            QuantizationScheme::Int4 | QuantizationScheme::Mxfp4 => int4,
        }
    }

    pub(super) fn gemm_cost(
        &self,
        times: f64,
        n: f64,
        k: f64,
        scheme: QuantizationScheme,
    ) -> GemmCost {
        let (fit, peak) = self.dense_gemm_efficiency(scheme);
        let memory_factor = match scheme {
            QuantizationScheme::Fp8 => self.setup.gpu.fp8_memory_factor_above_16_rows,
            _ => 1.0,
        };
        GemmCost {
            memory_factor_above_16_rows: memory_factor,
            ..self.matrix_product_cost(times, n, k, bytes_per_weight(scheme), fit, peak)
        }
    }

    fn matrix_product_cost(
        &self,
        times: f64,
        n: f64,
        k: f64,
        width: f64,
        fit: KernelEfficiency,
        peak: f64,
    ) -> GemmCost {
        let co = &self.setup.coefficients;
        let bandwidth = fit.memory * co.gemm_memory_scale * self.bandwidth;
        GemmCost {
            times,
            fixed: fit.fixed,
            memory_factor_above_16_rows: 1.0,
            weights: n * k * width / bandwidth,
            per_token: 2.0 * (n + k) / bandwidth,
            compute: 2.0 * n * k / (fit.compute * co.gemm_compute_scale * peak),
        }
    }

    pub(super) fn layer_gemm_costs(&self) -> Vec<GemmCost> {
        let shape = &self.setup.shape;
        let q = shape.quantization;
        let kept = |keep: bool| {
            if keep { QuantizationScheme::None } else { q.scheme }
        };
        let h = f64::from(shape.hidden);
        let layers = f64::from(shape.layers);
        let moe_layers = shape.moe.map_or(0.0, |moe| f64::from(moe.layers));
        let mut gemms = self.attention_gemm_costs(layers, kept(q.keep_attention));
        let mut mlp = |times: f64, width: f64, scheme: QuantizationScheme| {
            if times > 0.0 && width > 0.0 {
                let up = if shape.gated { 2.0 * width } else { width };
                gemms.push(self.gemm_cost(times, up, h, scheme));
                gemms.push(self.gemm_cost(times, h, width, scheme));
            }
        };
        let width = f64::from(shape.intermediate) / self.tp;
        mlp(layers - moe_layers, width, kept(q.keep_mlp));
        if let Some(moe) = shape.moe.filter(|moe| moe.shared > 0) {
            let width = f64::from(moe.shared) / self.tp;
            let scheme = kept(q.keep_shared);
            let (fit, peak) = self.dense_gemm_efficiency(scheme);
            // Fitted with the launch time of bf16 for all weight types (two runs).
            let fit = KernelEfficiency { fixed: self.setup.gpu.gemm.fixed, ..fit };
            let bytes = bytes_per_weight(scheme);
            gemms.push(self.matrix_product_cost(moe_layers, 2.0 * width, h, bytes, fit, peak));
            gemms.push(self.matrix_product_cost(moe_layers, h, width, bytes, fit, peak));
        }
        gemms
    }

    fn attention_gemm_costs(&self, layers: f64, scheme: QuantizationScheme) -> Vec<GemmCost> {
        let shape = &self.setup.shape;
        let h = f64::from(shape.hidden);
        let hq = f64::from(shape.heads) / self.tp;
        let d = f64::from(shape.head_dim);
        let Some(mla) = shape.mla else {
            let hkv = (f64::from(shape.kv_heads) / self.tp).max(1.0);
            return vec![
                self.gemm_cost(layers, (hq + 2.0 * hkv) * d, h, scheme),
                self.gemm_cost(layers, h, hq * d, scheme),
            ];
        };
        let key = f64::from(mla.nope_dim + mla.rope_dim);
        let kv_rank = f64::from(mla.kv_rank);
        let down = f64::from(mla.q_rank) + kv_rank + f64::from(mla.rope_dim);
        let query_in = if mla.q_rank == 0 { h } else { f64::from(mla.q_rank) };
        vec![
            self.gemm_cost(layers, down, h, scheme),
            self.gemm_cost(layers, hq * key, query_in, scheme),
            self.gemm_cost(layers, hq * f64::from(mla.nope_dim + mla.v_dim), kv_rank, scheme),
            self.gemm_cost(layers, h, hq * f64::from(mla.v_dim), scheme),
        ]
    }

    pub(super) fn expert_kernel_cost(&self) -> Option<ExpertKernelCost> {
        let shape = &self.setup.shape;
        let moe = shape.moe?;
        let co = &self.setup.coefficients;
        let scheme = shape.quantization.scheme;
        let table = &self.setup.gpu.experts;
        let (rows, peak) = match scheme {
            QuantizationScheme::None => (&table.bf16, self.peak),
            QuantizationScheme::Fp8 | QuantizationScheme::Fp8Block => {
                match self.fp8_peak_flops_per_us() {
                    Some(peak) if scheme == QuantizationScheme::Fp8 => (&table.fp8, peak),
                    Some(peak) => (&table.fp8_block, peak),
                    None => (&table.bf16, self.peak),
                }
            }
            QuantizationScheme::Int8 => (&table.fp8, 2.0 * self.peak),
            QuantizationScheme::Fp4 => match self.fp4_peak_flops_per_us() {
                Some(peak) => (&table.fp4, peak),
                None => (&table.int4, self.peak),
            },
            QuantizationScheme::Int4 => (&table.int4, self.peak),
            QuantizationScheme::Mxfp4 => (&table.mxfp4, self.peak),
        };
        let fit = interpolate_expert_efficiency(rows, moe.experts);
        let ranks = f64::from(self.setup.expert_ranks);
        let (e, k) = (f64::from(moe.experts), f64::from(moe.per_token));
        let h = f64::from(shape.hidden);
        let width = f64::from(moe.intermediate) / self.tp;
        // Every rank with a slice of an expert reads the expert's tokens.
        let readers = if self.setup.expert_parallel { 1.0 } else { ranks };
        let bandwidth = fit.memory * self.bandwidth / co.moe_scale;
        let (router, rate) = self.setup.gpu.fp32_router;
        let slow_router = moe.fp32_router && !self.setup.tf32_products && rate > 0.0;
        Some(ExpertKernelCost {
            times: f64::from(moe.layers),
            router: if slow_router { (router, 2.0 * e * h / (rate * 1e6)) } else { (0.0, 0.0) },
            fixed: fit.fixed * co.moe_scale,
            all: e / ranks * 3.0 * h * width * bytes_per_weight(scheme) / bandwidth,
            popularity: ExpertPopularity::new(co.expert_popularity / e, k / e),
            per_token: (4.0 * k * h * readers + 6.0 * k * width) / bandwidth,
            compute: 6.0 * k * h * width / (fit.compute * peak / co.moe_scale),
            fan_in: ranks,
            exchange: self.exchange_cost(f64::from(moe.layers), k),
        })
    }

    fn exchange_cost(&self, times: f64, chosen: f64) -> All2AllCost {
        let ranks = self.setup.expert_ranks;
        // Slices of experts need the tokens of all ranks.
        let (backend, copies) = match self.setup.expert_parallel {
            true => (self.setup.all2all, f64::from(ranks).min(chosen)),
            false => (All2AllBackend::AllGatherReduceScatter, f64::from(ranks)),
        };
        All2AllCost {
            backend,
            times: if ranks > 1 { times } else { 0.0 },
            fabric: self.setup.gpu.interconnect_fabric(),
            gpus: ranks.saturating_mul(self.setup.tp),
            chosen,
            hidden: f64::from(self.setup.shape.hidden),
            wait_us: self.setup.gpu.expert_wait_us,
            copies,
            gather: self.all_reduce_cost(1.0, ranks),
        }
    }

    /// Returns the cost of the all-reduces of all layers; where vLLM fuses an all-reduce with a
    /// norm, the cost of the fused kernel.
    pub(super) fn layer_all_reduce_cost(&self) -> AllReduceCost {
        let (shape, tp) = (&self.setup.shape, self.setup.tp);
        let reduce = self.all_reduce_cost(2.0 * f64::from(shape.layers), tp);
        match self.setup.gpu.fused_all_reduce {
            // The padded outputs of MXFP4 experts are cut before the norm.
            Some(fused) if shape.quantization.scheme != QuantizationScheme::Mxfp4 => {
                AllReduceCost { table: fused[all_reduce::all_reduce_row_index(tp)], ..reduce }
            }
            _ => reduce,
        }
    }

    pub(super) fn all_reduce_cost(&self, all_reduces: f64, gpus: u32) -> AllReduceCost {
        let scale = self.setup.coefficients.all_reduce_scale;
        AllReduceCost {
            times: if gpus > 1 { all_reduces * scale } else { 0.0 },
            bytes_per_token: 2.0 * f64::from(self.setup.shape.hidden),
            table: self.setup.gpu.all_reduce[all_reduce::all_reduce_row_index(gpus)],
            fabric: self.setup.gpu.interconnect_fabric(),
            gpus,
        }
    }

    /// Returns the decode attention time `(us, us per token of context)` of the full-attention
    /// layers, then of the window layers.
    pub(super) fn decode_attention_us(&self) -> [(f64, f64); 2] {
        let shape = &self.setup.shape;
        let (fixed, share) = self.setup.gpu.decode_attention;
        let per_layer = shape.kv_bytes_per_token(self.setup.tp, self.setup.kv_bytes) as f64
            / f64::from(shape.attention_layer_count());
        let cache = match self.setup.kv_bytes {
            1 => self.setup.gpu.fp8_cache_bandwidth,
            _ => 1.0,
        };
        let bandwidth = share * cache * self.setup.coefficients.attention_scale * self.bandwidth;
        self.attention_layer_counts().map(|layers| (layers * fixed, layers * per_layer / bandwidth))
    }

    fn attention_layer_counts(&self) -> [f64; 2] {
        let shape = &self.setup.shape;
        let all = shape.attention_layer_count();
        let windowed = shape.window.map_or(0, |w| w.layers.min(all));
        [f64::from(all - windowed), f64::from(windowed)]
    }

    /// Returns the launch time of prefill attention and the time per two (query, key) pairs
    /// ([`BatchWork::chunk_pairs`](crate::latency::BatchWork::chunk_pairs)) in full-attention and
    /// in window layers, in us.
    pub(super) fn prefill_attention_us(&self) -> (f64, [f64; 2]) {
        let shape = &self.setup.shape;
        let (fixed, share) = self.setup.gpu.prefill_attention;
        let hq = f64::from(shape.heads) / self.tp;
        let widths = shape.mla.map_or(2.0 * f64::from(shape.head_dim), |mla| {
            f64::from(mla.nope_dim + mla.rope_dim + mla.v_dim)
        });
        let per_layer = hq * widths / (share * self.peak);
        let layers = self.attention_layer_counts();
        (f64::from(shape.layers) * fixed, layers.map(|n| n * per_layer))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AllReduceCost {
    times: f64,
    bytes_per_token: f64,
    table: all_reduce::AllReduceRow,
    fabric: InterconnectFabric,
    gpus: u32,
}

impl AllReduceCost {
    pub(super) fn all_reduce_time_us(&self, tokens: f64) -> f64 {
        if self.times == 0.0 {
            return 0.0;
        }
        let bytes = self.bytes_per_token * tokens;
        let network = self.fabric.network_all_reduce_us(self.gpus, bytes);
        self.times * (all_reduce::all_reduce_us(&self.table, bytes) + network)
    }
}

/// Cost to exchange the tokens of expert-parallel ranks in all layers of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct All2AllCost {
    backend: All2AllBackend,
    times: f64,
    fabric: InterconnectFabric,
    /// Number of GPUs with experts.
    gpus: u32,
    /// Number of experts per token.
    chosen: f64,
    hidden: f64,
    /// Time per layer in which a rank waits for the slowest one, in us.
    wait_us: f64,
    /// Number of tokens that a gather brings to this engine, per token of the engine itself. It is
    /// the number of ranks, but with whole experts at most the number of experts per token.
    copies: f64,
    /// Cost of the gather and the scatter of expert inputs and outputs in one layer. Together they
    /// send as many bytes as an all-reduce.
    gather: AllReduceCost,
}

impl All2AllCost {
    pub(super) fn all2all_time_us(&self, tokens: f64) -> f64 {
        let (gpus, chosen, hidden) = (self.gpus, self.chosen, self.hidden);
        let layer = match self.backend {
            All2AllBackend::AllGatherReduceScatter => {
                self.wait_us + self.gather.all_reduce_time_us(tokens * self.copies)
            }
            All2AllBackend::LowLatency => {
                self.fabric.low_latency_all2all_us(gpus, tokens, chosen, hidden)
            }
            All2AllBackend::HighThroughput => {
                self.fabric.high_throughput_all2all_us(gpus, tokens, chosen, hidden)
            }
        };
        self.times * layer
    }
}

/// Interpolates the efficiency of expert kernels between 16 and 64 experts, by the logarithm of
/// their number.
fn interpolate_expert_efficiency(
    [few, many]: &[KernelEfficiency; 2],
    experts: u32,
) -> KernelEfficiency {
    let t = (f64::from(experts.max(1)).log2() - 4.0).clamp(0.0, 2.0) / 2.0;
    let mix = |a: f64, b: f64| a + (b - a) * t;
    KernelEfficiency {
        fixed: mix(few.fixed, many.fixed),
        memory: mix(few.memory, many.memory),
        compute: mix(few.compute, many.compute),
    }
}
