//! Computes engine step times from NVIDIA's AIConfigurator kernel-time tables, as installed with
//! `aiconfigurator-core` or `aisimulate`. The tables are read at run time, not shipped.
//!
//! A step is the sum of its kernels. Each comes from a table, or from the data sheet if it only
//! moves memory. The tables exclude CPU time, sampling, scheduling and padding.

mod attention;
mod error;
mod latent_attention;
mod lookup;
mod parquet;
mod setup;
mod speed;
mod tables;

use std::path::Path;
use std::sync::Arc;

use super::{BatchWork, LatentAttentionShape, QuantizationScheme, StepOverhead};
use attention::LayerAttentionTimes;
pub use error::AiConfiguratorError;
use latent_attention::{LatentAttentionTimes, has_measured_latent_attention};
use lookup::{GemmTable, LatencyCurve};
pub use setup::{AiConfiguratorSetup, MixedStepTiming, find_installed_kernel_tables};
use speed::{GemmDtype, GpuHardwareSpeed};
use tables::{AiConfiguratorSystemSpec, ForwardPassPhase, KernelTableFolder};

/// Number of decode passes with precomputed kernel times (0 to 1024 tokens); covers most steps of a
/// replay.
const PRECOMPUTED_DECODE_ROWS: u64 = 1025;
/// Number of prefill passes with precomputed kernel times (0 to 8192 tokens); covers the token
/// budget of most servers.
const PRECOMPUTED_PROMPT_ROWS: u64 = 8193;

/// Models engine step times from AIConfigurator's kernel-time tables.
#[derive(Debug, Clone, PartialEq)]
pub struct AiConfiguratorStepTimes {
    /// Version of the inference engine whose kernel times the tables hold.
    pub version: String,
    speed: GpuHardwareSpeed,
    mixed: MixedStepTiming,
    overhead: StepOverhead,
    layers: f64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    kv_bytes: f64,
    qk_norm: bool,
    dtype: GemmDtype,
    dense: GemmTable,
    bf16: Option<GemmTable>,
    vocab: u64,
    width: u64,
    experts: Option<ExpertKernelTable>,
    /// Kernel times, without attention, of decode passes, in ms, by number of tokens.
    decode_rows: Arc<[f64]>,
    /// Kernel times, without attention and output head, of passes with prompts, in ms, by number of
    /// tokens.
    prompt_rows: Arc<[f64]>,
    attention: Vec<LayerAttentionTimes>,
    /// Attention of a model that compresses keys and values (MLA); replaces `attention`.
    latent: Option<Arc<LatentAttentionTimes>>,
    fp8_attention: bool,
    /// Width of the shared expert's MLP on one GPU; 0: no shared expert.
    shared: u64,
    reduce: Option<(u64, LatencyCurve)>,
}

#[derive(Debug, Clone, PartialEq)]
struct ExpertKernelTable {
    curve: LatencyCurve,
    dtype: GemmDtype,
    bytes_per_weight: f64,
    experts: u64,
    per_token: u64,
    width: u64,
    tp: u64,
    ep: u64,
}

impl AiConfiguratorStepTimes {
    /// Loads the kernel times of a deployment from the tables in the folder `tables_folder`.
    ///
    /// # Errors
    /// [`AiConfiguratorError`] names the missing part.
    pub fn load_kernel_times(
        tables_folder: &Path,
        setup: &AiConfiguratorSetup,
    ) -> Result<Self, AiConfiguratorError> {
        check_model(setup)?;
        let shape = &setup.shape;
        let version = setup.version.as_deref();
        let (system, backend) = (&setup.system, &setup.backend);
        let folder =
            KernelTableFolder::open_kernel_tables(tables_folder, system, backend, version)?;
        let speed = hardware_speed(&folder.sheet);
        let tp = u64::from(setup.tp.max(1));
        let (heads, all_kv) = (u64::from(shape.heads) / tp, u64::from(shape.kv_heads));
        let kv_heads = all_kv.div_ceil(tp);
        let quantization = shape.quantization;
        let dtype = match quantization.keep_attention {
            true => GemmDtype::Bf16,
            false => gemm_type_of_scheme(quantization.scheme)?,
        };
        let sites = |dtype: GemmDtype| {
            folder.read_gemm_table(dtype.ai_configurator_dtype_name(), &|m, n, k| {
                speed.min_gemm_ms(dtype, m, n, k)
            })
        };
        let kv_dtype = match setup.kv_bytes {
            1 => "fp8",
            _ => "bfloat16",
        };
        let window = shape.window.map(|window| {
            let layers = window.layers.min(shape.layers);
            (layers, u64::from(window.tokens))
        });
        let window = window.unwrap_or_default();
        let kinds = [(shape.layers - window.0, 0), window];
        let mut aic = Self {
            version: folder.version.clone(),
            speed,
            mixed: setup.mixed,
            overhead: setup.overhead,
            layers: shape.layers.into(),
            hidden: shape.hidden.into(),
            heads,
            kv_heads,
            head_dim: shape.head_dim.into(),
            kv_bytes: setup.kv_bytes.into(),
            qk_norm: setup.qk_norm,
            dtype,
            dense: sites(dtype)?,
            bf16: match dtype {
                GemmDtype::Bf16 => None,
                GemmDtype::Fp8 | GemmDtype::Fp8Block => Some(sites(GemmDtype::Bf16)?),
            },
            vocab: u64::from(shape.vocab) / tp,
            width: u64::from(shape.intermediate) / tp,
            experts: None,
            decode_rows: Arc::default(),
            prompt_rows: Arc::default(),
            attention: Vec::new(),
            latent: None,
            fp8_attention: false,
            shared: shape.mla.and(shape.moe).map_or(0, |moe| u64::from(moe.shared) / tp),
            reduce: match tp {
                1 => None,
                _ => Some((tp, folder.read_all_reduce_curve(tp)?)),
            },
        };
        if shape.mla.is_some() {
            let read_times = LatentAttentionTimes::read_latent_attention_times;
            let latent = read_times(&folder, (kv_dtype, dtype), (heads, tp))?;
            aic.latent = Some(Arc::new(latent));
        } else {
            aic.read_layer_attention_times(&folder, &kinds, kv_dtype, dtype)?;
        }
        aic.experts = load_expert_table(&folder, setup, tp)?;
        aic.check_matrix_shapes(&folder)?;
        aic.decode_rows =
            (0..PRECOMPUTED_DECODE_ROWS).map(|rows| aic.decode_kernels_ms(rows)).collect();
        aic.prompt_rows = (0..PRECOMPUTED_PROMPT_ROWS).map(|x| aic.prompt_kernels_ms(x)).collect();
        Ok(aic)
    }

    /// Checks that the tables have a measured matrix product near every matrix product of the
    /// model.
    fn check_matrix_shapes(
        &mut self,
        folder: &KernelTableFolder,
    ) -> Result<(), AiConfiguratorError> {
        let (h, query) = (self.hidden, self.heads * self.head_dim);
        let qkv = query + 2 * self.kv_heads * self.head_dim;
        let mut products = vec![(GemmDtype::Bf16, self.vocab, h)];
        match &self.latent {
            None => products.extend([(self.dtype, qkv, h), (self.dtype, h, query)]),
            Some(latent) => {
                for phase in [ForwardPassPhase::Prefill, ForwardPassPhase::Decode] {
                    let shapes = self.latent_projection_shapes(latent, phase).into_iter();
                    products.extend(shapes.map(|(n, k)| (self.dtype, n, k)));
                }
            }
        }
        if self.shared > 0 {
            products.extend([(self.dtype, 2 * self.shared, h), (self.dtype, h, self.shared)]);
        }
        match &self.experts {
            Some(experts) => products.push((GemmDtype::Bf16, experts.experts, h)),
            None => products.extend([(self.dtype, 2 * self.width, h), (self.dtype, h, self.width)]),
        }
        for (dtype, n, k) in products {
            match &mut self.bf16 {
                Some(bf16) if dtype == GemmDtype::Bf16 => bf16.cache_nearby_gemm_shapes(n, k),
                _ => self.dense.cache_nearby_gemm_shapes(n, k),
            }
            let sol = |m, n, k| self.speed.min_gemm_ms(dtype, m, n, k);
            if self.gemm_table(dtype).gemm_time_ms((1, n, k), &sol).is_none() {
                let what = format!(
                    "n {n}, k {k} of {}, nor a shape near it",
                    dtype.ai_configurator_dtype_name()
                );
                return Err(folder.missing_table_error("gemm_perf", &what));
            }
        }
        Ok(())
    }

    fn gemm_table(&self, dtype: GemmDtype) -> &GemmTable {
        match &self.bf16 {
            Some(bf16) if dtype == GemmDtype::Bf16 => bf16,
            _ => &self.dense,
        }
    }

    /// Returns the times of the prefill and decode work of a step, with the step's overhead, in ms.
    /// A combined step with prompts counts as prefill work only.
    pub fn prefill_decode_step_ms(&self, batch: &BatchWork) -> (f64, f64) {
        if batch.is_empty() {
            return (0.0, 0.0);
        }
        let beside = &self.overhead;
        let mixed = if batch.chunks > 0 { beside.mixed } else { 0.0 };
        let us = beside.step + beside.sequence * f64::from(batch.sequence_count()) + mixed;
        let (prompts, decodes) = self.prefill_decode_ms(batch);
        match batch.chunks {
            0 => (0.0, decodes + us / 1e3),
            _ => (prompts + us / 1e3, decodes),
        }
    }

    fn prefill_decode_ms(&self, batch: &BatchWork) -> (f64, f64) {
        let (prompts, decodes) = (u64::from(batch.chunks), u64::from(batch.decodes));
        let each = |tokens: u64| tokens.checked_div(prompts).unwrap_or(0);
        // Dynamo's mocker looks up the means of total lengths and of cached tokens.
        let prefix = each(batch.chunk_past);
        let new = each(batch.chunk_past + batch.chunk_tokens) - prefix;
        // The context includes the token being computed. The mocker counts it as one of the tokens
        // before and adds another.
        let own = u64::from(self.mixed == MixedStepTiming::Sum);
        let context = batch.context.checked_div(decodes).map_or(0, |each| each + own);
        let rows = u64::from(batch.decode_tokens);
        match (prompts, decodes) {
            (0, 0) => (0.0, 0.0),
            (_, 0) => (self.prefill_ms(prompts, new.max(1), prefix), 0.0),
            (0, _) => (0.0, self.decode_ms(rows, decodes, context)),
            _ => match self.mixed {
                MixedStepTiming::Sum => (
                    self.prefill_ms(prompts, new.max(1), prefix),
                    self.decode_ms(rows, decodes, context),
                ),
                MixedStepTiming::Combined => {
                    let prompts = (prompts, new.max(1), prefix);
                    (self.combined_forward_pass_ms(prompts, (rows, decodes, context)), 0.0)
                }
            },
        }
    }

    /// Returns the time of a forward pass that computes `new` prompt tokens after `prefix` cached
    /// ones for each of `requests` requests, in ms.
    pub fn prefill_ms(&self, requests: u64, new: u64, prefix: u64) -> f64 {
        let attention = self.prefill_attention_ms(requests, new, prefix);
        self.prompt_kernels_ms(requests * new) + self.prompt_head_ms(requests) + attention
    }

    /// Returns the time of a forward pass that decodes `decoded_tokens` tokens of `requests`
    /// sequences of `context_tokens` tokens, in ms.
    pub fn decode_ms(&self, decoded_tokens: u64, requests: u64, context_tokens: u64) -> f64 {
        let known = usize::try_from(decoded_tokens).ok();
        let known = known.and_then(|rows| self.decode_rows.get(rows)).copied();
        known.unwrap_or_else(|| self.decode_kernels_ms(decoded_tokens))
            + self.decode_attention_ms(requests, context_tokens)
    }

    /// Returns the kernel time of a forward pass of `x` tokens with prompts, in ms, without
    /// attention and output head.
    fn prompt_kernels_ms(&self, x: u64) -> f64 {
        let known = usize::try_from(x).ok();
        let known = known.and_then(|x| self.prompt_rows.get(x)).copied();
        known.unwrap_or_else(|| self.token_kernels_ms(x, ForwardPassPhase::Prefill))
    }

    fn decode_kernels_ms(&self, rows: u64) -> f64 {
        self.token_kernels_ms(rows, ForwardPassPhase::Decode) + self.output_head_ms(rows)
    }

    /// Returns the time of prefill and decode work in one forward pass, in ms.
    pub fn combined_forward_pass_ms(
        &self,
        (prompts, new, prefix): (u64, u64, u64),
        (rows, requests, length): (u64, u64, u64),
    ) -> f64 {
        self.prompt_kernels_ms(prompts * new + rows)
            + self.prompt_head_ms(1)
            + match self.latent.is_some() {
                // For compressed keys and values the estimator looks up one prompt with all tokens.
                true => self.prefill_attention_ms(1, prompts * new + rows, prompts * prefix),
                false => {
                    self.prefill_attention_ms(prompts, new, prefix)
                        + self.decode_attention_ms(requests, length)
                }
            }
    }

    /// Returns the kernel time of a forward pass of `x` tokens, in ms, without output head and
    /// attention. In decode passes the shared expert runs in parallel with the routed experts.
    fn token_kernels_ms(&self, x: u64, phase: ForwardPassPhase) -> f64 {
        let (h, tokens) = (self.hidden, x as f64);
        let dense = |n: u64, k: u64| self.gemm_ms(self.dtype, x, n, k);
        let mlp = |width: u64| {
            let gate = self.speed.memory_transfer_ms(tokens * (6 * width) as f64);
            dense(2 * width, h) + gate + dense(h, width)
        };
        let norms = 2.0 * self.speed.memory_transfer_ms(tokens * 8.0 * h as f64);
        let reduce = self.all_reduce_ms(x * h);
        let (projections, all_reduces) = match &self.latent {
            Some(latent) => (self.latent_projections_ms(latent, x, phase), latent.all_reduces),
            None => {
                let query = self.heads * self.head_dim;
                let qkv = query + 2 * self.kv_heads * self.head_dim;
                (dense(qkv, h) + dense(h, query), 2.0)
            }
        };
        let mlp = match &self.experts {
            None => mlp(self.width),
            Some(experts) => {
                let router = self.gemm_ms(GemmDtype::Bf16, x, experts.experts, h);
                let routed = router + self.expert_ms(experts, x);
                match self.shared {
                    0 => routed,
                    // Two more all-reduces move tokens to the experts and back.
                    width if phase == ForwardPassPhase::Decode => {
                        (routed + 2.0 * reduce).max(mlp(width))
                    }
                    width => routed + 2.0 * reduce + mlp(width),
                }
            }
        };
        let layer = norms + projections + mlp + all_reduces * reduce;
        let embedding = self.speed.memory_transfer_ms(tokens * 2.0 * h as f64);
        let gather = if self.latent.is_some() { 0.0 } else { reduce };
        self.layers * layer + embedding + gather
    }

    /// Returns the time of the output head in a pass with prompts, in ms; 0 for mixture-of-experts
    /// models without compressed attention, as in AIConfigurator.
    fn prompt_head_ms(&self, rows: u64) -> f64 {
        match self.experts.is_some() && self.latent.is_none() {
            true => 0.0,
            false => self.output_head_ms(rows),
        }
    }

    fn output_head_ms(&self, rows: u64) -> f64 {
        self.gemm_ms(GemmDtype::Bf16, rows, self.vocab, self.hidden)
    }

    fn gemm_ms(&self, dtype: GemmDtype, m: u64, n: u64, k: u64) -> f64 {
        let sol = |m, n, k| self.speed.min_gemm_ms(dtype, m, n, k);
        // `open` rejects shapes that are far from all measured ones.
        let sites = self.gemm_table(dtype);
        sites.gemm_time_ms((m, n, k), &sol).unwrap_or_else(|| sol(m, n, k))
    }

    fn expert_ms(&self, experts: &ExpertKernelTable, tokens: u64) -> f64 {
        let sol = |tokens: u64| self.min_expert_ms(experts, tokens);
        experts.curve.time_or_minimum_ms(tokens, &sol)
    }

    fn min_expert_ms(&self, e: &ExpertKernelTable, tokens: u64) -> f64 {
        let (h, i, pairs) = (self.hidden, e.width, tokens * e.per_token);
        let flops = pairs * h * i * 3 * 2 / e.ep / e.tp;
        let own = pairs / e.ep;
        let bytes =
            own * h * 2 + own * i * 3 / e.tp + h * i * 3 / e.tp * (e.experts / e.ep).min(own);
        let peak = self.speed.peak_flops(e.dtype);
        self.speed.roofline_min_ms(flops as f64, peak, e.bytes_per_weight * bytes as f64)
    }

    fn all_reduce_ms(&self, elements: u64) -> f64 {
        let Some((gpus, curve)) = &self.reduce else {
            return 0.0;
        };
        let gpus = *gpus as f64;
        let sol =
            |elements: u64| 4.0 * elements as f64 * (gpus - 1.0) / gpus / self.speed.link * 1e3;
        curve.time_or_minimum_ms(elements, &sol)
    }
}

/// Returns an error for models whose kernels AIConfigurator's tables do not hold.
fn check_model(setup: &AiConfiguratorSetup) -> Result<(), AiConfiguratorError> {
    let shape = &setup.shape;
    let one_shared_expert = shape.moe.is_some_and(|moe| moe.shared == moe.intermediate);
    if shape.mla.is_some_and(|mla| !one_shared_expert || !has_measured_latent_attention(mla)) {
        return Err(AiConfiguratorError::Model(
            "compressed attention (MLA) is supported with DeepSeek-V3's ranks, head sizes and one \
             shared expert only",
        ));
    }
    if !shape.gated {
        return Err(AiConfiguratorError::Model("an MLP without a gate is not supported"));
    }
    // For DeepSeek every layer counts as one with experts.
    let uneven = |moe: super::MoeShape| moe.shared > 0 || moe.layers != shape.layers;
    if shape.mla.is_none() && shape.moe.is_some_and(uneven) {
        return Err(AiConfiguratorError::Model(
            "shared experts, and models with and without experts in different layers, are \
             supported for DeepSeek only",
        ));
    }
    Ok(())
}

fn load_expert_table(
    folder: &KernelTableFolder,
    setup: &AiConfiguratorSetup,
    tp: u64,
) -> Result<Option<ExpertKernelTable>, AiConfiguratorError> {
    let Some(moe) = setup.shape.moe else {
        return Ok(None);
    };
    let ep = u64::from(setup.moe_ep.max(1));
    let (name, dtype, bytes_per_weight) = match setup.shape.quantization.scheme {
        QuantizationScheme::None => ("bfloat16", GemmDtype::Bf16, 2.0),
        QuantizationScheme::Fp8 => ("fp8", GemmDtype::Fp8, 1.0),
        QuantizationScheme::Fp8Block => ("fp8_block", GemmDtype::Fp8Block, 1.0),
        QuantizationScheme::Int4 | QuantizationScheme::Mxfp4 => {
            ("w4a16_mxfp4", GemmDtype::Bf16, 0.5)
        }
        QuantizationScheme::Int8 | QuantizationScheme::Fp4 => {
            return Err(AiConfiguratorError::Model(
                "experts with 8-bit integer or fp4 weights are not supported",
            ));
        }
    };
    let table = ExpertKernelTable {
        curve: LatencyCurve::default(),
        dtype,
        bytes_per_weight,
        experts: moe.experts.into(),
        per_token: moe.per_token.into(),
        width: moe.intermediate.into(),
        tp: tp / ep,
        ep,
    };
    // Distribution of tokens over experts.
    let distribution = match setup.shape.mla.is_some() {
        true => "power_law_1.01",
        false => "power_law_1.2",
    };
    let curve = folder.read_expert_kernel_curve(
        (name, distribution),
        [
            ("topk", table.per_token),
            ("num_experts", table.experts),
            ("hidden_size", setup.shape.hidden.into()),
            ("inter_size", table.width),
            ("moe_tp_size", table.tp),
            ("moe_ep_size", ep),
        ],
    )?;
    Ok(Some(ExpertKernelTable { curve, ..table }))
}

fn gemm_type_of_scheme(scheme: QuantizationScheme) -> Result<GemmDtype, AiConfiguratorError> {
    match scheme {
        QuantizationScheme::None => Ok(GemmDtype::Bf16),
        QuantizationScheme::Fp8 => Ok(GemmDtype::Fp8),
        QuantizationScheme::Fp8Block => Ok(GemmDtype::Fp8Block),
        QuantizationScheme::Int8
        | QuantizationScheme::Int4
        | QuantizationScheme::Mxfp4
        | QuantizationScheme::Fp4 => Err(AiConfiguratorError::Model(
            "dense weights of 4 bits or 8-bit integers are not supported",
        )),
    }
}

fn hardware_speed(sheet: &AiConfiguratorSystemSpec) -> GpuHardwareSpeed {
    GpuHardwareSpeed {
        memory: sheet.gpu.mem_bw,
        reached: sheet.gpu.mem_bw_empirical_scaling_factor,
        launch: sheet.gpu.mem_empirical_constant_latency,
        bf16: sheet.gpu.bfloat16_tc_flops,
        fp8: sheet.gpu.fp8_tc_flops.unwrap_or(0.0),
        link: sheet.node.intra_node_bw,
    }
}
