use std::sync::Arc;

use super::*;
use exposition::{Family, parse};
use vllm_sim_engine::driver::{
    EngineObserver, EngineObservers, ParentRequestCounters, PlannedFinishReason, SequenceRecord,
};
use vllm_sim_engine::{EngineStats, SchedulerEvent, SeqId, Sequence, SequenceEndReason, SimTime};
use vllm_sim_wire::VllmVersion;

mod exposition;
mod recorded;
mod traffic;

fn base() -> MetricsSettings {
    MetricsSettings {
        model_name: "tiny-llama".to_owned(),
        engines: vec!["0".to_owned()],
        engine_stats: true,
        max_model_len: 1024,
        cache_config: cache(50, "sha256_cbor", 1),
        routes: vec!["/v1/models".to_owned()],
        clock: UnixClock(|| 1.5e9),
        ..MetricsSettings::default()
    }
}

/// Returns the labels of a KV cache of the engines together.
fn cache(blocks: u32, algo: &str, engines: u32) -> Vec<(String, String)> {
    let fields = [
        ("block_size", "32"),
        ("cache_dtype", "auto"),
        ("effective_attention_block_size", "32"),
        ("enable_prefix_caching", "True"),
        ("gpu_memory_utilization", "0.92"),
        ("kv_cache_max_concurrency", &format!("{:?}", f64::from(blocks) / 32.0)),
        ("kv_cache_memory_bytes", "1073741824"),
        ("kv_cache_size_tokens", &(blocks * 32).to_string()),
        ("kv_offloading_backend", "native"),
        ("kv_offloading_size", "None"),
        ("num_gpu_blocks", &(blocks * engines).to_string()),
        ("num_gpu_blocks_override", &blocks.to_string()),
        ("prefix_cache_retention_interval", "0"),
        ("prefix_caching_hash_algo", algo),
        ("sliding_window", "None"),
        ("user_specified_block_size", "True"),
    ];
    let fields = fields.map(|(name, value)| (name, value.to_owned()));
    cache_config_labels(fields, VllmVersion::V032)
}

fn config_a() -> MetricsSettings {
    MetricsSettings { lora: Some(2), tool_parser: true, ..base() }
}

fn config_b() -> MetricsSettings {
    MetricsSettings { kv_cache_metrics: true, cache_config: cache(40, "sha256", 1), ..base() }
}

fn config_c() -> MetricsSettings {
    MetricsSettings { spec_positions: 3, cache_config: cache(40, "xxhash_cbor", 1), ..base() }
}

fn config_d() -> MetricsSettings {
    MetricsSettings {
        engines: vec!["0".to_owned(), "1".to_owned()],
        api_servers: ApiServerCount::Several,
        lora: Some(1),
        cache_config: cache(40, "sha256", 2),
        ..base()
    }
}

fn metrics(settings: MetricsSettings) -> Arc<Metrics> {
    Metrics::new(settings)
}

fn text(metrics: &Metrics) -> String {
    let mut out = String::new();
    metrics.encode_page(&mut out, 1.5e9);
    out
}

fn families(metrics: &Metrics) -> Vec<Family> {
    parse(&text(metrics)).unwrap()
}

/// Counts one `GET /v1/models`, which the recorded servers had answered.
fn get_models(metrics: &Metrics) {
    let handler = metrics.http_metrics().handler_id("/v1/models").unwrap();
    metrics.http_metrics().observe_request(handler, "GET", 200, 0, 900, 0.001);
}

/// Returns `name{other labels} value` for each series of these families, without `vllm:` and the
/// labels of every series.
fn series(metrics: &Metrics, names: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    for f in families(metrics) {
        let Some(name) = f.name.strip_prefix("vllm:").filter(|n| names.contains(n)) else {
            continue;
        };
        for s in f.samples.iter().filter(|s| s.suffix != "_bucket") {
            let labels = s.labels.iter().filter(|(n, _)| n != "engine" && n != "model_name");
            let labels: Vec<_> = labels.map(|(_, v)| v.as_str()).collect();
            out.push(format!("{name}{}{{{}}} {}", s.suffix, labels.join(","), s.value));
        }
    }
    out
}

/// Engine whose events a test sends to the observers of a rank, for one sequence of 100 prompt tokens
/// that arrives at the start.
pub(super) struct TestEngine {
    observers: EngineObservers,
    pub(super) record: SequenceRecord,
}

impl TestEngine {
    pub(super) fn new(metrics: &Metrics, rank: usize) -> Self {
        let sequence = Sequence::new(SeqId(1), 100, 5);
        let mut record = SequenceRecord::new("request".into(), SimTime::ZERO, &sequence);
        record.max_tokens = 16;
        record.parent = Some(Arc::new(ParentRequestCounters::new(2, 1)));
        let features = EngineFeatures { cache: true, steps: true, ..EngineFeatures::default() };
        Self { observers: EngineObservers(metrics.observers(rank, features)), record }
    }

    /// Schedules the sequence with these numbers of local and external prompt tokens.
    pub(super) fn schedule(&mut self, ms: u64, cached: u32, external: u32) {
        let record = &mut self.record;
        (record.scheduled, record.running) = (SimTime::from_millis(ms), true);
        (record.cached, record.external) = (cached, external);
        self.event(ms, &SchedulerEvent::Scheduled { id: SeqId(1), cached, external });
    }

    /// Releases `n` tokens, `gap_ms` after the previous ones.
    pub(super) fn tokens(&mut self, ms: u64, n: u32, gap_ms: u64) {
        let (at, record) = (SimTime::from_millis(ms), &mut self.record);
        if record.output == 0 {
            record.first = at;
        }
        record.output += n;
        record.last = at;
        let since = SimTime::from_millis(ms - gap_ms);
        let event = SchedulerEvent::Tokens { id: SeqId(1), n };
        self.observers.on_sequence_event(at, &event, &self.record, since);
    }

    pub(super) fn end(&mut self, end: SequenceEndReason) {
        self.event(1000, &SchedulerEvent::Ended { id: SeqId(1), end });
    }

    /// Reports an engine whose cache is half used.
    pub(super) fn stats(&mut self, running: usize, waiting: usize, deferred: usize) {
        let (used_blocks, total_blocks) = (5, 10);
        self.observers.on_engine_stats(&EngineStats {
            running,
            waiting,
            deferred,
            used_blocks,
            total_blocks,
            ..EngineStats::default()
        });
    }

    pub(super) fn step(&mut self, prompt_tokens: u32, output_tokens: u32) {
        let begun = SimTime::ZERO;
        let step = SchedulerEvent::Step { begun, prompt_tokens, output_tokens, count: 1 };
        self.observers.on_engine_event(SimTime::ZERO, &step);
    }

    pub(super) fn event(&mut self, ms: u64, event: &SchedulerEvent) {
        let at = SimTime::from_millis(ms);
        self.observers.on_sequence_event(at, event, &self.record, SimTime::ZERO);
    }
}
