//! Metrics of NIXL transfers of prompts' KV blocks.

use std::time::Duration;

use super::families::Id;
use super::series::Cells;

/// Assumed time to post a NIXL transfer, and additional time per descriptor, in seconds.
const POST: (f64, f64) = (100e-6, 0.5e-6);

/// Shape of a NIXL transfer of a prompt from another engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NixlTransfer {
    /// Number of GPUs of the engine, each of which reads its own part of the blocks.
    pub workers: u32,
    /// Number of tokens per KV block.
    pub block_size: u32,
    /// KV bytes per token on one GPU; 0: unknown.
    pub token_bytes: f64,
    /// Number of memory regions per block: keys and values of each layer.
    pub regions: u32,
}

impl NixlTransfer {
    /// Records the NIXL transfer of a prompt of `tokens` tokens; all GPUs read their parts at the
    /// same time.
    ///
    /// **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py`.
    pub(super) fn record(&self, cells: &Cells, tokens: u32, took: Duration) {
        let blocks = f64::from(tokens.div_ceil(self.block_size.max(1)));
        let descriptors = blocks * f64::from(self.regions);
        let took = took.as_secs_f64();
        let post = (POST.0 + POST.1 * descriptors).min(took);
        for _ in 0..self.workers {
            cells[Id::NixlXferTime].observe(took);
            cells[Id::NixlPostTime].observe(post);
            if self.token_bytes > 0.0 {
                let block = f64::from(self.block_size) * self.token_bytes;
                cells[Id::NixlBytes].observe(blocks * block);
                cells[Id::NixlDescriptors].observe(descriptors);
            }
        }
    }

    pub(super) fn record_failure(&self, cells: &Cells) {
        cells[Id::NixlFailedTransfers].add(self.workers.into());
    }
}
