//! Models attention times from measured tables of attention kernels.

use std::sync::Arc;

use super::lookup::{AttentionTimeTable, LatencyCurve};
use super::speed::GemmDtype;
use super::tables::{ForwardPassPhase, KernelTableFolder};
use super::{AiConfiguratorError, AiConfiguratorStepTimes, PRECOMPUTED_DECODE_ROWS};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct LayerAttentionTimes {
    layers: f64,
    window: u64,
    decode: Arc<AttentionTimeTable>,
    context: Arc<AttentionTimeTable>,
    /// Curves of measured decode-attention times over the context length, one per number of
    /// requests. Most steps of a replay look up five context lengths in these curves.
    rows: Arc<[LatencyCurve]>,
}

impl LayerAttentionTimes {
    fn new(
        (layers, window): (u32, u64),
        heads: u64,
        decode: AttentionTimeTable,
        context: AttentionTimeTable,
    ) -> Self {
        Self {
            layers: layers.into(),
            window,
            rows: (0..PRECOMPUTED_DECODE_ROWS)
                .map(|requests| decode.curve_along_last_axis(heads, requests))
                .collect(),
            decode: Arc::new(decode),
            context: Arc::new(context),
        }
    }
}

impl AiConfiguratorStepTimes {
    /// Reads the attention tables for the layers `kinds`: pairs of a number of layers and their
    /// sliding window. As in AIConfigurator, fp8 weights imply an fp8 KV cache. For vLLM, prompts
    /// then use fp8 attention if the tables have it.
    pub(super) fn read_layer_attention_times(
        &mut self,
        folder: &KernelTableFolder,
        kinds: &[(u32, u64)],
        kv_dtype: &str,
        dtype: GemmDtype,
    ) -> Result<(), AiConfiguratorError> {
        let shared = match self.kv_heads == self.heads {
            true => 0,
            false => self.kv_heads,
        };
        let fp8 = folder.backend != "vllm" && dtype != GemmDtype::Bf16 && kv_dtype == "fp8";
        for &(layers, window) in kinds.iter().filter(|(layers, _)| *layers > 0) {
            let key = (kv_dtype, shared, self.head_dim, window);
            let mut decode = folder.read_attention_table(None, key)?;
            let in_fp8 = match fp8 {
                true => folder.read_attention_table(Some("fp8"), key).ok(),
                false => None,
            };
            self.fp8_attention = in_fp8.is_some();
            let context = match in_fp8 {
                Some(context) => context,
                None => folder.read_attention_table(Some("bfloat16"), key)?,
            };
            decode.raise_to_hardware_minimum(&|at| self.min_decode_attention_ms(window, at));
            let kind = LayerAttentionTimes::new((layers, window), self.heads, decode, context);
            self.attention.push(kind);
        }
        Ok(())
    }

    /// Returns the minimum time of decode attention that the hardware allows, in ms, for `[heads,
    /// requests, length]`.
    fn min_decode_attention_ms(&self, window: u64, [heads, requests, length]: [u64; 3]) -> f64 {
        let seen = length.saturating_sub(1);
        let seen = if window > 0 { seen.min(window) } else { seen } as f64;
        let (n, b, h) = (heads as f64, requests as f64, self.head_dim as f64);
        let kv = if self.kv_heads == self.heads { n } else { self.kv_heads as f64 };
        let bytes = b * (4.0 * n * h + 2.0 * kv * seen * h * self.kv_bytes);
        self.speed.roofline_min_ms(4.0 * b * n * h * seen, self.speed.bf16, bytes)
    }

    /// Returns the minimum time of prefill attention that the hardware allows, in ms, for `[heads,
    /// length, requests]`.
    fn min_prefill_attention_ms(&self, window: u64, [heads, length, requests]: [u64; 3]) -> f64 {
        let (n, b, h) = (heads as f64, requests as f64, self.head_dim as f64);
        let s = length as f64;
        let kv = if self.kv_heads == self.heads { n } else { self.kv_heads as f64 };
        let flops = match window > 0 && window < length {
            true => 4.0 * b * s * window as f64 * n * h,
            false => 2.0 * b * s * s * n * h,
        };
        let bytes = 4.0 * b * n * s * h + self.kv_bytes * 2.0 * b * kv * s * h;
        let peak = match self.fp8_attention {
            true => self.speed.fp8,
            false => self.speed.bf16,
        };
        self.speed.roofline_min_ms(flops, peak, bytes)
    }

    fn qk_norm_ms(&self) -> f64 {
        if !self.qk_norm {
            return 0.0;
        }
        let (q, kv) = ((self.heads * self.head_dim) as f64, (self.kv_heads * self.head_dim) as f64);
        let speed = &self.speed;
        1.1 * 2.0
            * (2.0 * speed.memory_transfer_ms(2.0 * q) + 2.0 * speed.memory_transfer_ms(2.0 * kv))
    }

    pub(super) fn decode_attention_ms(&self, requests: u64, length: u64) -> f64 {
        if let Some(latent) = &self.latent {
            return self.latent_attention_ms(latent, ForwardPassPhase::Decode, [requests, length]);
        }
        let low = ((length as f64 * 0.9) as u64).max(1);
        let high = ((length as f64 * 1.1) as u64).max(low);
        let lengths = [0, 1, 2, 3, 4].map(|i| low + (high - low) * i / 4);
        let row = usize::try_from(requests).unwrap_or(usize::MAX);
        let times = self.attention.iter().map(|kind| {
            let known = kind.rows.get(row).and_then(|row| row.sum_of_times_ms(&lengths));
            let sum = known.unwrap_or_else(|| {
                let sol = |at| self.min_decode_attention_ms(kind.window, at);
                let at = lengths.map(|length| [self.heads, requests, length]);
                at.iter().map(|at| kind.decode.time_or_minimum_ms(*at, &sol)).sum()
            });
            kind.layers * (sum / 5.0 + self.qk_norm_ms())
        });
        times.sum()
    }

    pub(super) fn prefill_attention_ms(&self, requests: u64, new: u64, prefix: u64) -> f64 {
        let all = new + prefix;
        let share = ((all * all - prefix * prefix) as f64) / ((all * all) as f64);
        if let Some(latent) = &self.latent {
            return share
                * self.latent_attention_ms(latent, ForwardPassPhase::Prefill, [all, requests]);
        }
        let (q, kv) = ((self.heads * self.head_dim) as f64, (self.kv_heads * self.head_dim) as f64);
        let speed = &self.speed;
        // Add rotary embedding and the write to the cache.
        let width = if self.fp8_attention { 1.0 } else { 2.0 };
        let extra = 1.1
            * (2.0 * speed.memory_transfer_ms(2.0 * q + 2.0 * kv)
                + 2.0 * speed.memory_transfer_ms(width * kv));
        let times = self.attention.iter().map(|kind| {
            let sol = |at| self.min_prefill_attention_ms(kind.window, at);
            let at = [self.heads, all, requests];
            let time = kind.context.time_or_minimum_ms(at, &sol);
            kind.layers * (time * share + extra + self.qk_norm_ms())
        });
        times.sum()
    }
}
