//! Computes the minimum kernel times that a GPU allows, from its data sheet.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GemmDtype {
    Bf16,
    Fp8,
    Fp8Block,
}

/// Limits of a GPU from its data sheet: bandwidths in B/s, compute in FLOP/s, latencies in s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GpuHardwareSpeed {
    pub(super) memory: f64,
    pub(super) reached: f64,
    pub(super) launch: f64,
    pub(super) bf16: f64,
    pub(super) fp8: f64,
    pub(super) link: f64,
}

impl GemmDtype {
    pub(super) fn ai_configurator_dtype_name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::Fp8 => "fp8",
            Self::Fp8Block => "fp8_block",
        }
    }

    pub(super) fn bytes_per_value(self) -> f64 {
        if self == Self::Bf16 { 2.0 } else { 1.0 }
    }
}

impl GpuHardwareSpeed {
    pub(super) fn memory_transfer_ms(&self, bytes: f64) -> f64 {
        (bytes / (self.memory * self.reached) + self.launch) * 1e3
    }

    pub(super) fn peak_flops(&self, dtype: GemmDtype) -> f64 {
        if dtype == GemmDtype::Bf16 { self.bf16 } else { self.fp8 }
    }

    pub(super) fn roofline_min_ms(&self, flops: f64, peak: f64, bytes: f64) -> f64 {
        (flops / peak).max(bytes / self.memory) * 1e3
    }

    pub(super) fn min_gemm_ms(&self, dtype: GemmDtype, m: u64, n: u64, k: u64) -> f64 {
        let (m, n, k) = (m as f64, n as f64, k as f64);
        let bytes = dtype.bytes_per_value() * (m * n + m * k + n * k);
        self.roofline_min_ms(2.0 * m * n * k, self.peak_flops(dtype), bytes)
    }
}
