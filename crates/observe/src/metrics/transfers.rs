//! Metrics of KV blocks that come from other servers by NIXL, or from CPU memory.
//!
//! **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py`,
//! `…/v1/offloading/metrics.py`, `vllm/v1/simple_kv_offload/metrics.py`.

use std::time::Duration;

use super::families::Id;
use super::series::MetricCells;
use super::settings::CpuOffloadInfo;
use vllm_sim_engine::kv::HostCacheChunkCounts;
use vllm_sim_engine::{HostCacheEvent, HostCopyDirection};

/// Assumed time to post a NIXL transfer, and additional time per descriptor, in seconds.
const POST: (f64, f64) = (100e-6, 0.5e-6);

/// Parameters for the metrics of a NIXL transfer of a prompt's KV cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NixlTransferMetricParams {
    /// Number of GPUs of the engine, each of which reads its own part of the blocks.
    pub workers: u32,
    /// Number of tokens per KV block.
    pub block_size: u32,
    /// Size of a token's KV cache on one GPU, in bytes; 0: unknown.
    pub token_bytes: f64,
    /// Number of memory regions per KV block: keys and values of each layer.
    pub regions: u32,
}

impl NixlTransferMetricParams {
    /// Records the NIXL transfer of a prompt of `tokens` tokens; all GPUs read their parts at the
    /// same time.
    pub(super) fn record_nixl_transfer(&self, cells: &MetricCells, tokens: u32, took: Duration) {
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
}

impl CpuOffloadInfo {
    /// Records copies between the GPU and the CPU memory tier, and other events of the tier.
    pub(super) fn record_host_cache_event(
        &self,
        cells: &MetricCells,
        event: &HostCacheEvent,
        now: f64,
    ) {
        let add_shown = |id: Id, n: f64| {
            cells[id].add(n);
            cells[id].expose_metric_series(now);
        };
        match event {
            HostCacheEvent::Copied { direction, bytes, took } => {
                let workers = self.workers.max(1);
                let (bytes, share) = (*bytes as f64, *bytes as f64 / f64::from(workers));
                let seconds = took.as_secs_f64() * f64::from(workers);
                let (total, time, size) = match direction {
                    HostCopyDirection::ToHost => (Id::StoreBytes, Id::StoreTime, Id::StoreSize),
                    HostCopyDirection::ToDevice => (Id::LoadBytes, Id::LoadTime, Id::LoadSize),
                };
                let deprecated = |id: Id| &cells.series_cells(id)[*direction as usize];
                for (id, old, n) in [(total, Id::CopiedBytes, bytes), (time, Id::CopyTime, seconds)]
                {
                    add_shown(id, n);
                    deprecated(old).add(n);
                }
                for _ in 0..workers {
                    cells[size].observe(share);
                    deprecated(Id::CopySize).observe(share);
                }
                if *direction == HostCopyDirection::ToDevice {
                    let [chunks, blocks] =
                        [self.chunks, self.blocks_per_chunk].map(|n| f64::from(n.max(1)));
                    let block = self.bytes.max(1) as f64 / chunks / blocks;
                    cells[Id::SimpleLoadBlocks].add((bytes / block).round());
                }
            }
            HostCacheEvent::Allocated { chunks } => {
                cells[Id::AllocationSize].observe(f64::from(*chunks));
            }
            HostCacheEvent::Refused => add_shown(Id::AllocationFailures, 1.0),
            HostCacheEvent::Answered { waited } => {
                cells[Id::LookupDelay].observe(waited.as_secs_f64());
            }
            HostCacheEvent::Stored { .. } | HostCacheEvent::Removed { .. } => {}
        }
    }
}

/// Sets the gauges of the CPU memory tier.
pub(super) fn set_host_chunk_gauges(cells: &MetricCells, counts: &HostCacheChunkCounts) {
    let HostCacheChunkCounts { total, used, storing, loading } = *counts;
    if total == 0 {
        return;
    }
    let share = |chunks: u32| f64::from(chunks) / f64::from(total);
    cells[Id::OffloadUsage].set(share(storing + loading));
    cells[Id::OffloadWriteUsage].set(share(storing));
    cells[Id::OffloadReadUsage].set(share(loading));
    cells[Id::SimpleUsedBlocks].set(f64::from(used));
    cells[Id::SimplePendingBlocks].set(f64::from(storing));
}
