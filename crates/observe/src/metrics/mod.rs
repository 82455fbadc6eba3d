//! Metric families that vLLM exposes on `/metrics`, in the text format of Python's
//! prometheus_client.
//!
//! Values are atomics that engines and handlers update; constant text is rendered at start. A
//! scrape takes no lock that a token waits for, because endpoint pickers scrape every 50 ms. Within
//! a family the first engine comes first: endpoint pickers read the first series.
//!
//! [`Settings::legacy`] adds deprecated names that share the cells of current ones:
//! `gpu_cache_usage_perc`, `gpu_prefix_cache_{queries,hits}_total`, `gpu_prefix_cache_hit_rate`,
//! `prefix_cache_{queries,hits}` without `_total`, `time_per_output_token_seconds`,
//! `max_num_generation_tokens` (all `vllm:`). They have no `_created` series.
//!
//! `request_success_total` has vLLM's label `finished_reason`; llm-d's simulator calls it
//! `finish_reason`. [`Settings::finish_reason_label`] adds the second label with the same value to
//! every series. The family then differs from vLLM's.
//!
//! Not exposed: metrics of hardware and connectors that are not simulated (Mooncake, HF3FS,
//! HiSparse, UMBP), of watermarks, NaN counting and diffusion.
//!
//! **Source:** vLLM 0.32 and 0.33, `vllm/v1/metrics`; texts of recorded servers are in
//! `tests/fixtures/metrics`.

mod block_lifetime;
mod buckets;
mod cache_config;
mod cell;
mod cells;
mod engine;
mod fake;
mod fake_state;
mod families;
mod faults;
mod frontend;
mod http;
mod lora;
mod mfu;
mod nixl;
mod number;
mod observer;
mod offload;
mod page;
mod process;
mod recent;
mod restart;
mod settings;
mod sockets;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use block_lifetime::BlockLifetime;
pub use cache_config::CacheConfig;
pub use engine::{
    DraftTotals, EngineMetrics, FinishReason, FinishedRequest, Rejection, SleepState, Totals,
};
pub use fake::{FakeGauge, FakeLora, FakeMetrics, RealMetrics, Waveform};
pub use frontend::{Operation, ToolMode, ToolOutcome, ToolRequest};
pub use http::{HandlerId, HttpMetrics};
pub use lora::LoraLoad;
pub use mfu::{MfuObserver, WorkModel};
pub use nixl::NixlTransfer;
pub use observer::{EngineFeatures, MetricsObserver};
pub use offload::OffloadInfo;
pub use page::ApiServers;
pub use recent::{Percentiles, RecentLatencies};
pub use settings::{Clock, Compat, Settings, wall_clock};

use cell::{Counter, Gauge};
use cells::{EngineCells, EngineFamilies};
use fake_state::FakeState;
use faults::FaultMetrics;
use frontend::{OperationMetrics, ToolParserMetrics};
use lora::LoraInfo;
use page::{FamilyGroup, Labels, Page, PageBuilder, Series};
use process::{ProcessInfo, PythonInfo};
use sockets::WebSocketMetrics;

/// Content type of Prometheus' text format.
pub const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// All metrics of a server.
pub struct Metrics {
    page: Page,
    engines: Vec<Arc<EngineMetrics>>,
    rejections: [Arc<Counter>; 2],
    http: HttpMetrics,
    tool_parser: ToolParserMetrics,
    operations: OperationMetrics,
    sockets: WebSocketMetrics,
    faults: Arc<FaultMetrics>,
    fake: Option<FakeState>,
    /// Series of empty adapter lists, shown before the first LoRA request.
    idle_lora: Option<Arc<LoraInfo>>,
    compat: Compat,
    clock: Clock,
    length: AtomicUsize,
}

fn shown_cells(settings: &Settings, real: &[EngineCells]) -> Vec<(Labels, EngineCells)> {
    let engines = settings.engines.iter().zip(real);
    let shown = engines.map(|(engine, cells)| {
        let cells = match settings.fake {
            Some(_) => cells.for_fake_metrics(settings),
            None => cells.clone(),
        };
        (engine_labels(settings, engine), cells)
    });
    shown.collect()
}

fn lora_info(settings: &Settings) -> [Arc<LoraInfo>; 2] {
    let max_lora = settings.lora.unwrap_or(1);
    let info = || Arc::new(LoraInfo::new(max_lora, settings.api_servers));
    let real = info();
    match settings.fake {
        Some(_) => [real, info()],
        None => [real.clone(), real],
    }
}

impl Metrics {
    /// Creates all metric series that the settings select, at zero.
    pub fn new(settings: Settings) -> Arc<Self> {
        let created = (settings.clock)();
        let llmd = settings.compat == Compat::Llmd;
        let mut page = PageBuilder::new(settings.api_servers, created);
        if llmd {
            page = page.with_whole_bounds();
        }
        if settings.runtime_series && settings.api_servers == ApiServers::One {
            page.live(FamilyGroup::Counter, Arc::new(PythonInfo));
            page.live(FamilyGroup::Gauge, Arc::new(ProcessInfo::new()));
        }

        let engines = settings.engines.iter();
        let real: Vec<_> = engines.map(|_| EngineCells::new(&settings)).collect();
        let shown = shown_cells(&settings, &real);
        let rejections: [Arc<Counter>; 2] = Default::default();
        let rejected = rejected_series(&settings, &rejections);
        let all = EngineFamilies { each: &shown, settings: &settings };
        if settings.engine_stats {
            all.register(&mut page, &rejected);
        }

        let [real_lora, shown_lora] = lora_info(&settings);
        let mut idle_lora = None;
        if settings.engine_stats && (settings.lora.is_some() || settings.fake.is_some()) {
            page.live(FamilyGroup::SummedGauge, shown_lora.clone());
            shown_lora.set_idle(settings.compat, created);
            idle_lora = Some(shown_lora.clone());
        }
        if settings.engine_stats {
            register_cache_config(&settings, &mut page);
        }

        let http = HttpMetrics::new(&settings.routes, settings.api_servers, settings.clock);
        http.register(&mut page);
        let tool_parser = ToolParserMetrics::new();
        if settings.tool_parser {
            tool_parser.register(&mut page, &settings.model_name);
        }
        let operations = OperationMetrics::new(&page, settings.clock);
        operations.register(&mut page);
        let sockets = WebSocketMetrics::new();
        if settings.sockets {
            sockets.register(&mut page);
        }
        let faults = Arc::new(FaultMetrics::new());
        page.live(FamilyGroup::Counter, faults.clone());
        if settings.engine_stats && settings.legacy {
            page.without_created();
            all.register_old_names(&mut page);
        }

        let fake = settings.fake.as_ref().map(|(fake, refresh)| {
            let shown = shown.into_iter().map(|(_, cells)| cells).collect();
            FakeState::new(fake, *refresh, shown, shown_lora, settings.clock)
        });
        let engines = real.into_iter().map(|cells| {
            let (rejections, lora) = (rejections.clone(), real_lora.clone());
            Arc::new(EngineMetrics::new(cells, rejections, lora, &settings))
        });
        Arc::new(Self {
            engines: engines.collect(),
            page: page.build(),
            rejections,
            http,
            tool_parser,
            operations,
            sockets,
            faults,
            fake,
            idle_lora,
            compat: settings.compat,
            clock: settings.clock,
            length: AtomicUsize::new(0),
        })
    }

    /// Returns the metrics of one data-parallel rank.
    ///
    /// # Panics
    /// Panics if [`Settings::engines`] has no such rank.
    pub fn engine(&self, rank: usize) -> Arc<EngineMetrics> {
        self.engines[rank].clone()
    }

    /// Returns the metrics of HTTP requests.
    pub fn http(&self) -> &HttpMetrics {
        &self.http
    }

    /// Counts a request that a queue limit rejected before an engine was chosen for it.
    pub fn on_rejected(&self, reason: Rejection) {
        self.rejections[reason as usize].add(1);
    }

    /// Counts `n` invocations of the tool-call parser.
    pub fn on_tool_parser(
        &self,
        mode: ToolMode,
        outcome: ToolOutcome,
        request: ToolRequest,
        n: u32,
    ) {
        self.tool_parser.add(mode, outcome, request, n);
    }

    /// Records the start of an administrator's operation; [`Self::operation_ended`] must follow.
    pub fn operation_started(&self, operation: Operation) {
        self.operations.started(operation);
    }

    /// Records the end and duration of an administrator's operation, successful or not.
    pub fn operation_ended(&self, operation: Operation, seconds: f64) {
        self.operations.ended(operation, seconds);
    }

    /// Records an opened WebSocket; [`Self::socket_closed`] must follow.
    pub fn socket_opened(&self) {
        self.sockets.opened();
    }

    /// Records a closed WebSocket and the duration of its connection, in seconds.
    pub fn socket_closed(&self, seconds: f64) {
        self.sockets.closed(seconds);
    }

    /// Counts an injected fault that took effect on a client.
    ///
    /// `scenario` and `phase` are empty outside a scenario.
    pub fn on_fault(&self, kind: &str, scenario: &str, phase: &str) {
        self.faults.count(kind, scenario, phase);
    }

    /// Sets the active fault scenario and its phase; `None`: no scenario.
    pub fn on_phase(&self, phase: Option<(&str, &str)>) {
        self.faults.set_phase(phase);
    }

    /// Applies a partial update to the fake metrics.
    ///
    /// # Errors
    /// [`RealMetrics`] if the server exposes real metrics.
    pub fn update_fake(&self, update: &FakeMetrics) -> Result<(), RealMetrics> {
        self.fake.as_ref().ok_or(RealMetrics)?.update(update);
        Ok(())
    }

    /// Resets the counters of all metrics, as a process restart does.
    ///
    /// Fake metrics and the counts of injected faults are kept; the latter are the record of a
    /// scenario.
    pub fn restart(&self) {
        if self.fake.is_some() {
            return;
        }
        let now = (self.clock)();
        self.page.restart(now);
        for engine in &self.engines {
            engine.recent.clear();
        }
        if let Some(lora) = &self.idle_lora {
            lora.set_idle(self.compat, now);
        }
    }

    /// Returns percentiles of recent latencies of all engines; `None` with fake metrics, which they
    /// would contradict.
    pub fn recent_latencies(&self) -> Option<RecentLatencies> {
        if self.fake.is_some() {
            return None;
        }
        let recent = || self.engines.iter().map(|engine| &engine.recent);
        Some(RecentLatencies {
            ttft: recent::percentiles(recent().map(|recent| &recent.ttft)),
            itl: recent::percentiles(recent().map(|recent| &recent.itl)),
        })
    }

    /// Appends the text of `/metrics` for this Unix time, in seconds.
    pub fn encode(&self, out: &mut String, now_unix: f64) {
        if let Some(fake) = &self.fake {
            fake.tick(now_unix);
        }
        let before = out.len();
        out.reserve(self.length.load(Ordering::Relaxed) + 1024);
        self.page.write(out, now_unix);
        self.length.store(out.len() - before, Ordering::Relaxed);
    }
}

fn rejected_series(settings: &Settings, cells: &[Arc<Counter>; 2]) -> Vec<Series> {
    let each = Rejection::LABELS.iter().zip(cells);
    each.map(|(reason, cell)| {
        let labels = [("model_name", settings.model_name.as_str()), ("reason", reason)];
        Series::new(Labels::new(labels), cell)
    })
    .collect()
}

fn engine_labels(settings: &Settings, engine: &str) -> Labels {
    Labels::new([("model_name", settings.model_name.as_str()), ("engine", engine)])
}

fn register_cache_config(settings: &Settings, page: &mut PageBuilder) {
    let one = Arc::new(Gauge::new(1.0));
    let engines = settings.engines.iter().zip(&settings.cache_config);
    let series: Vec<Series> = engines
        .map(|(engine, config)| {
            let labels = Labels::new(config.iter().cloned()).with("engine", engine);
            Series::new(labels, &one)
        })
        .collect();
    if !series.is_empty() {
        page.gauge(families::CACHE_CONFIG, &series);
    }
}
