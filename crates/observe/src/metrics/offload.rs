//! Metrics of KV cache offloading to CPU memory.
//!
//! **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py`,
//! `vllm/v1/simple_kv_offload/metrics.py`.

use std::sync::Arc;
use std::time::Duration;

use super::buckets;
use super::cell::{Counter, CreatedAt, Gauge, Histogram};
use super::families as f;
use super::page::{FamilyDesc, Labels, PageBuilder, Series, Value};
use vllm_sim_engine::kv::HostChunkCounts;
use vllm_sim_engine::{HostCacheEvent, HostCopyDirection};

/// Description of a CPU memory tier for KV blocks, on `/metrics`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffloadInfo {
    /// Whether the tier belongs to a `SimpleCPUOffloadConnector`.
    pub simple: bool,
    /// Number of GPUs of one engine, each of which copies its part of the blocks.
    pub workers: u32,
    /// Capacity of the CPU memory tier, in chunks.
    pub chunks: u32,
    /// Number of KV blocks per chunk of the CPU memory tier.
    pub blocks_per_chunk: u32,
    /// Configured size of the CPU memory tier, in bytes.
    pub bytes: u64,
    /// Capacity of the CPU memory tier, in tokens.
    pub tokens: u64,
}

#[derive(Debug, Clone)]
struct CopyCells {
    bytes: Arc<Counter>,
    seconds: Arc<Gauge>,
    sizes: Arc<Histogram>,
    shown: Arc<CreatedAt>,
}

impl CopyCells {
    fn new() -> Self {
        Self {
            bytes: Arc::default(),
            seconds: Arc::default(),
            sizes: Arc::new(Histogram::new(buckets::OFFLOAD_SIZE)),
            shown: Arc::default(),
        }
    }

    fn ended(&self, bytes: u64, took: Duration, workers: u32, now: f64) {
        self.bytes.add(bytes);
        self.seconds.add(took.as_secs_f64() * f64::from(workers));
        let part = bytes as f64 / f64::from(workers);
        (0..workers).for_each(|_| self.sizes.observe(part));
        self.shown.show(now);
    }
}

/// Metric cells of one engine's CPU memory tier; clones share the cells.
#[derive(Debug, Clone)]
pub(super) struct OffloadCells {
    workers: u32,
    copies: [CopyCells; 2],
    loaded_blocks: Arc<Counter>,
    refused: Arc<Counter>,
    refused_shown: Arc<CreatedAt>,
    allocated: Arc<Histogram>,
    delays: Arc<Histogram>,
    /// Fractions of the tier that copies in progress use: all, written, read.
    usage: [Arc<Gauge>; 3],
    used: Arc<Gauge>,
    storing: Arc<Gauge>,
    one: Arc<Gauge>,
    bytes_per_block: f64,
}

impl OffloadCells {
    pub(super) fn new(info: Option<&OffloadInfo>) -> Self {
        let chunks = info.map_or(1, |info| info.chunks.max(1));
        let blocks = info.map_or(1, |info| info.blocks_per_chunk.max(1));
        let bytes = info.map_or(1, |info| info.bytes.max(1));
        Self {
            workers: info.map_or(1, |info| info.workers.max(1)),
            copies: [CopyCells::new(), CopyCells::new()],
            loaded_blocks: Arc::default(),
            refused: Arc::default(),
            refused_shown: Arc::default(),
            allocated: Arc::new(Histogram::new(&buckets::offload_chunks())),
            delays: Arc::new(Histogram::new(buckets::OFFLOAD_DELAY)),
            usage: std::array::from_fn(|_| Arc::default()),
            used: Arc::default(),
            storing: Arc::default(),
            one: Arc::new(Gauge::new(1.0)),
            bytes_per_block: bytes as f64 / f64::from(chunks) / f64::from(blocks),
        }
    }

    pub(super) fn on_event(&self, event: &HostCacheEvent, now: f64) {
        match event {
            HostCacheEvent::Copied { direction, bytes, took } => {
                let copies = &self.copies[*direction as usize];
                copies.ended(*bytes, *took, self.workers, now);
                if *direction == HostCopyDirection::ToDevice {
                    let blocks = (*bytes as f64 / self.bytes_per_block).round();
                    self.loaded_blocks.add(blocks as u64);
                }
            }
            HostCacheEvent::Allocated { chunks } => self.allocated.observe(f64::from(*chunks)),
            HostCacheEvent::Refused => {
                self.refused.add(1);
                self.refused_shown.show(now);
            }
            HostCacheEvent::Answered { waited } => self.delays.observe(waited.as_secs_f64()),
            HostCacheEvent::Stored { .. } | HostCacheEvent::Removed { .. } => {}
        }
    }

    pub(super) fn set(&self, counts: &HostChunkCounts) {
        if counts.total == 0 {
            return;
        }
        let HostChunkCounts { total, used, storing, loading } = *counts;
        let held = [storing + loading, storing, loading];
        for (cell, held) in self.usage.iter().zip(held) {
            cell.set(f64::from(held) / f64::from(total));
        }
        self.used.set(f64::from(used));
        self.storing.set(f64::from(storing));
    }

    /// Returns metric names and totals of the copies to and from CPU memory since the start, for
    /// the log.
    pub(super) fn totals(&self) -> Vec<(&'static str, f64)> {
        let mut totals = Vec::new();
        let names = [
            [f::OFFLOAD_STORE_BYTES, f::OFFLOAD_STORE_TIME],
            [f::OFFLOAD_LOAD_BYTES, f::OFFLOAD_LOAD_TIME],
        ];
        for (copies, [bytes, time]) in self.copies.iter().zip(names) {
            totals.push((bytes.name, copies.bytes.get() as f64));
            totals.push((time.name, copies.seconds.get()));
        }
        totals.push((f::OFFLOAD_REFUSED.name, self.refused.get() as f64));
        totals
    }
}

pub(super) fn register(
    page: &mut PageBuilder,
    info: &OffloadInfo,
    each: &[(&Labels, &OffloadCells)],
) {
    match info.simple {
        true => register_simple(page, info, each),
        false => register_native(page, info, each),
    }
}

type Tier<'a> = (&'a Labels, &'a OffloadCells);

fn series(each: &[Tier<'_>], pick: impl Fn(&OffloadCells) -> Value) -> Vec<Series> {
    let each = each.iter();
    each.map(|(labels, cells)| Series::new((*labels).clone(), pick(cells))).collect()
}

/// Returns one offloading series per engine, each exposed from its first observation.
fn observed(
    each: &[Tier<'_>],
    pick: impl Fn(&OffloadCells) -> (Value, &Arc<CreatedAt>),
) -> Vec<Series> {
    let series = each.iter().map(|(labels, cells)| {
        let (value, shown) = pick(cells);
        Series { shown: Some(shown.clone()), ..Series::new((*labels).clone(), value) }
    });
    series.collect()
}

fn histogram(
    page: &mut PageBuilder,
    desc: FamilyDesc,
    each: &[Tier<'_>],
    pick: impl Fn(&OffloadCells) -> &Arc<Histogram>,
) {
    let each = each.iter();
    let series = each.map(|(labels, cells)| ((*labels).clone(), pick(cells).clone()));
    page.histogram(desc, &series.collect::<Vec<_>>());
}

fn register_native(page: &mut PageBuilder, info: &OffloadInfo, each: &[Tier<'_>]) {
    let families = [
        (f::OFFLOAD_STORE_BYTES, f::OFFLOAD_STORE_TIME, f::OFFLOAD_STORE_SIZE),
        (f::OFFLOAD_LOAD_BYTES, f::OFFLOAD_LOAD_TIME, f::OFFLOAD_LOAD_SIZE),
    ];
    for (way, (bytes, time, size)) in families.into_iter().enumerate() {
        let copied = observed(each, |c| ((&c.copies[way].bytes).into(), &c.copies[way].shown));
        page.counter(bytes, copied);
        let spent = observed(each, |c| ((&c.copies[way].seconds).into(), &c.copies[way].shown));
        page.counter(time, spent);
        histogram(page, size, each, |c| &c.copies[way].sizes);
    }
    let refused = observed(each, |c| ((&c.refused).into(), &c.refused_shown));
    page.counter(f::OFFLOAD_REFUSED, refused);
    histogram(page, f::OFFLOAD_DELAY, each, |c| &c.delays);
    histogram(page, f::OFFLOAD_ALLOCATED, each, |c| &c.allocated);
    let usage = [f::OFFLOAD_USAGE, f::OFFLOAD_WRITE_USAGE, f::OFFLOAD_READ_USAGE];
    for (i, desc) in usage.into_iter().enumerate() {
        page.gauge(desc, &series(each, |c| (&c.usage[i]).into()));
    }
    register_deprecated(page, each);
    let labels = [
        ("cpu_blocks_per_chunk", info.blocks_per_chunk.to_string()),
        ("cpu_kv_cache_size_bytes", info.bytes.to_string()),
        ("cpu_kv_cache_size_tokens", info.tokens.to_string()),
        ("cpu_num_chunks", info.chunks.to_string()),
    ];
    register_info(page, f::OFFLOAD_CONFIG, &labels, each);
}

fn register_deprecated(page: &mut PageBuilder, each: &[Tier<'_>]) {
    let ways = ["GPU_to_CPU", "CPU_to_GPU"];
    let by_way: Vec<(Labels, &CopyCells)> = each
        .iter()
        .flat_map(|(labels, cells)| {
            let copies = ways.into_iter().zip(&cells.copies);
            copies.map(|(way, copies)| (labels.with("transfer_type", way), copies))
        })
        .collect();
    let all = |value: fn(&CopyCells) -> Value| -> Vec<Series> {
        let each = by_way.iter();
        each.map(|(labels, copies)| Series::new(labels.clone(), value(copies))).collect()
    };
    page.counter(f::OFFLOAD_TOTAL_BYTES, all(|copies| (&copies.bytes).into()));
    page.counter(f::OFFLOAD_TOTAL_TIME, all(|copies| (&copies.seconds).into()));
    let sizes = by_way.iter();
    let sizes = sizes.map(|(labels, copies)| (labels.clone(), copies.sizes.clone()));
    page.histogram(f::OFFLOAD_SIZE, &sizes.collect::<Vec<_>>());
}

fn register_simple(page: &mut PageBuilder, info: &OffloadInfo, each: &[Tier<'_>]) {
    page.counter(f::SIMPLE_LOAD_BLOCKS, series(each, |c| (&c.loaded_blocks).into()));
    page.gauge(f::SIMPLE_USED, &series(each, |c| (&c.used).into()));
    page.gauge(f::SIMPLE_PENDING, &series(each, |c| (&c.storing).into()));
    let labels = [
        ("backend", "cpu".to_owned()),
        ("capacity_blocks", info.chunks.to_string()),
        ("lazy_offload", "False".to_owned()),
        ("page_cache", "False".to_owned()),
    ];
    register_info(page, f::SIMPLE_INFO, &labels, each);
}

fn register_info(
    page: &mut PageBuilder,
    desc: FamilyDesc,
    values: &[(&str, String)],
    each: &[Tier<'_>],
) {
    let mut all = series(each, |c| (&c.one).into());
    for one in &mut all {
        for (name, value) in values {
            one.labels = one.labels.with(name, value);
        }
    }
    page.gauge(desc, &all);
}
