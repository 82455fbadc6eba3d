//! Metrics of KV cache offloading to CPU memory.
//!
//! **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py`,
//! `vllm/v1/simple_kv_offload/metrics.py`.

use std::time::Duration;

use super::families::{FAMILIES, Id};
use super::series::Cells;
use super::settings::OffloadInfo;
use vllm_sim_engine::kv::HostChunkCounts;
use vllm_sim_engine::{HostCacheEvent, HostCopyDirection};

/// Records the copies between the GPU and CPU memory of one engine.
pub(super) struct OffloadRecorder {
    workers: u32,
    bytes_per_block: f64,
}

impl OffloadRecorder {
    pub(super) fn new(info: &OffloadInfo) -> Self {
        let [chunks, blocks] = [info.chunks, info.blocks_per_chunk].map(|n| f64::from(n.max(1)));
        Self {
            workers: info.workers.max(1),
            bytes_per_block: info.bytes.max(1) as f64 / chunks / blocks,
        }
    }

    pub(super) fn on_event(&self, cells: &Cells, event: &HostCacheEvent, now: f64) {
        match event {
            HostCacheEvent::Copied { direction, bytes, took } => {
                self.on_copied(cells, *direction, *bytes as f64, *took, now);
            }
            HostCacheEvent::Allocated { chunks } => {
                cells[Id::AllocationSize].observe(f64::from(*chunks));
            }
            HostCacheEvent::Refused => {
                cells[Id::AllocationFailures].add(1.0);
                cells[Id::AllocationFailures].show(now);
            }
            HostCacheEvent::Answered { waited } => {
                cells[Id::LookupDelay].observe(waited.as_secs_f64())
            }
            HostCacheEvent::Stored { .. } | HostCacheEvent::Removed { .. } => {}
        }
    }

    fn on_copied(
        &self,
        cells: &Cells,
        way: HostCopyDirection,
        bytes: f64,
        took: Duration,
        now: f64,
    ) {
        let (total, time, sizes) = match way {
            HostCopyDirection::ToHost => (Id::StoreBytes, Id::StoreTime, Id::StoreSize),
            HostCopyDirection::ToDevice => (Id::LoadBytes, Id::LoadTime, Id::LoadSize),
        };
        let by_way = |id: Id| &cells.series_cells(id)[way as usize];
        let workers = f64::from(self.workers);
        for (id, deprecated, n) in
            [(total, Id::CopiedBytes, bytes), (time, Id::CopyTime, took.as_secs_f64() * workers)]
        {
            cells[id].add(n);
            cells[id].show(now);
            by_way(deprecated).add(n);
        }
        for _ in 0..self.workers {
            cells[sizes].observe(bytes / workers);
            by_way(Id::CopySize).observe(bytes / workers);
        }
        if way == HostCopyDirection::ToDevice {
            cells[Id::SimpleLoadBlocks].add((bytes / self.bytes_per_block).round());
        }
    }
}

/// Sets the gauges of the CPU memory tier.
pub(super) fn set_counts(cells: &Cells, counts: &HostChunkCounts) {
    let HostChunkCounts { total, used, storing, loading } = *counts;
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

/// Returns metric names and totals of the copies to and from CPU memory since the start, for the
/// log.
pub(super) fn totals(cells: &Cells) -> Vec<(&'static str, f64)> {
    let ids = [Id::StoreBytes, Id::StoreTime, Id::LoadBytes, Id::LoadTime, Id::AllocationFailures];
    ids.map(|id| (FAMILIES[id as usize].name, cells[id].get())).to_vec()
}
