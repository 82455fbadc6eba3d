//! Metric families that vLLM exposes on `/metrics`, in the text format of Python's
//! prometheus_client.
//!
//! The list of [`families`] declares each family once. Values are atomic [`cell`]s that engines and
//! handlers update; [`own`] families use the types of `prometheus`. Collectors in one
//! `prometheus::Registry` per server read them. A scrape takes no lock that a token waits for,
//! because endpoint pickers scrape every 50 ms. Within a family the first engine comes first:
//! endpoint pickers read the first series.
//!
//! [`MetricsSettings::legacy`] adds deprecated names that share the cells of current ones:
//! `gpu_cache_usage_perc`, `gpu_prefix_cache_{queries,hits}_total`, `gpu_prefix_cache_hit_rate`,
//! `prefix_cache_{queries,hits}` without `_total`, `time_per_output_token_seconds`,
//! `max_num_generation_tokens` (all `vllm:`). They have no `_created` series.
//!
//! `request_success_total` has vLLM's label `finished_reason`; llm-d's simulator calls it
//! `finish_reason`. [`MetricsSettings::finish_reason_label`] adds the second label with the same value to
//! every series. The family then differs from vLLM's.
//!
//! Not exposed: metrics of hardware and connectors that are not simulated (Mooncake, HF3FS,
//! HiSparse, UMBP), of watermarks, NaN counting and diffusion.
//!
//! **Source:** vLLM 0.32 and 0.33, `vllm/v1/metrics`; texts of recorded servers are in
//! `tests/fixtures/metrics`.

mod block_lifetime;
mod cache_config;
pub(crate) mod cell;
mod engine;
mod fake;
mod fake_state;
pub(crate) mod families;
pub(crate) mod family;
mod frontend;
mod http;
mod lora;
mod mfu;
mod number;
mod own;
pub(crate) mod own_metrics;
mod page;
mod process;
mod resident_adapters;
pub(crate) mod series;
pub(crate) mod settings;
#[cfg(test)]
mod tests;
mod text;
mod transfers;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use block_lifetime::KvBlockLifetimeObserver;
pub use cache_config::cache_config_labels;
pub use engine::{
    DraftTokenTotals, EngineFeatures, EngineMetrics, EngineMetricsObserver, EngineTotals,
    SleepState,
};
pub use fake::{FakeMetrics, FakeMetricsDisabled};
pub use frontend::{
    AdminOperation, RejectionReason, ToolParserApi, ToolParserMode, ToolParserOutcome,
};
pub use http::{HttpHandlerId, HttpMetrics};
pub use mfu::MfuObserver;
pub use own_metrics::FinishedRequest;
pub use resident_adapters::LoraSlotCounts;
pub use settings::{
    ApiServerCount, CpuOffloadInfo, MetricPreviewFeatures, MetricsCompat, MetricsSettings,
    UnixClock, unix_time_seconds,
};
pub use transfers::NixlTransferShape;

pub use crate::recent::{LatencyPercentiles, RecentLatencies};

use crate::imitated::create_own_metrics;
use crate::recent::latency_percentiles;
use fake_state::FakeMetricsState;
use families::{FAMILIES, Id};
use family::{Family, MetricOwner};
use frontend::{SLEEP_FAMILIES, WEIGHT_FAMILIES};
use lora::LoraRequestsInfo;
use own::SimulatorMetrics;
use own_metrics::OwnMetrics;
use page::MetricsPage;
use process::ProcessMetrics;
use resident_adapters::LoadedLoraSeries;
use series::{MetricCellVec, MetricCells};
use vllm_sim_engine::driver::EngineObserver;

/// Content type of Prometheus' text format.
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// Returns the exposed families of vLLM, in the order of the page.
fn exposed_families(settings: &MetricsSettings) -> Vec<&'static Family> {
    let mut families: Vec<_> = FAMILIES.iter().filter(|one| one.is_exposed(settings)).collect();
    if settings.api_servers == ApiServerCount::Several {
        families.sort_by_key(|family| family.group);
    }
    families
}

/// All metrics of a server.
pub struct Metrics {
    page: MetricsPage,
    /// Families of vLLM, by [`Id`].
    vecs: Vec<Arc<MetricCellVec>>,
    engines: Vec<Arc<EngineMetrics>>,
    server: MetricCells,
    http: HttpMetrics,
    own: SimulatorMetrics,
    process: Option<ProcessMetrics>,
    fake: Option<FakeMetricsState>,
    /// Adapter lists on the page; `None` if no adapters are enabled.
    lora: Option<Arc<LoraRequestsInfo>>,
    /// Metrics of an imitated server whose families replace vLLM's; `None` for vLLM's.
    imitated: Option<Box<dyn OwnMetrics>>,
    length: AtomicUsize,
    clock: UnixClock,
}

impl Metrics {
    /// Creates all metric series that the settings select, at zero.
    pub fn new(mut settings: MetricsSettings) -> Arc<Self> {
        let imitated = create_own_metrics(&mut settings);
        let settings = &settings;
        let server = MetricCells::new(FAMILIES, settings, MetricOwner::Server);
        let engines = settings.engines.iter();
        let real: Vec<_> =
            engines.map(|_| MetricCells::new(FAMILIES, settings, MetricOwner::Engine)).collect();
        let shown: Vec<_> = match settings.fake {
            Some(_) => real.iter().map(|cells| cells.for_fake_metrics(settings)).collect(),
            None => real.clone(),
        };
        let vecs = MetricCellVec::from_family_list(FAMILIES, settings, &shown, &server);
        let vec = |id: Id| vecs[id as usize].clone();
        let shown_lora = Arc::new(LoraRequestsInfo::new(settings, vec(Id::LoraRequests)));
        let real_lora = match settings.fake {
            Some(_) => {
                let hidden = MetricCellVec::new(Id::LoraRequests.family(), settings);
                Arc::new(LoraRequestsInfo::new(settings, hidden))
            }
            None => shown_lora.clone(),
        };
        let loaded = Arc::new(LoadedLoraSeries::new(settings, vec(Id::LoraLoaded)));
        let engine = |(cells, name): (&MetricCells, &String)| {
            let loaded_adapters = (loaded.clone(), name.clone());
            EngineMetrics::new(cells.clone(), real_lora.clone(), loaded_adapters, settings)
        };
        let engines = real.iter().zip(&settings.engines).map(engine);
        let own = SimulatorMetrics::new();
        let metrics = Self {
            page: match &imitated {
                Some(own_metrics) => {
                    let families = own_metrics.families();
                    MetricsPage::new(settings, &families, own_metrics.vecs(), own.clone())
                }
                None => MetricsPage::new(settings, &exposed_families(settings), &vecs, own.clone()),
            },
            engines: engines.map(Arc::new).collect(),
            process: (settings.runtime_series && settings.api_servers == ApiServerCount::One)
                .then(ProcessMetrics::new),
            fake: settings.fake.as_ref().map(|(fake, refresh)| {
                let lora = shown_lora.clone();
                FakeMetricsState::new(fake, *refresh, shown, lora, settings.clock)
            }),
            lora: Id::LoraRequests.family().is_exposed(settings).then_some(shown_lora),
            imitated,
            http: HttpMetrics::new(settings, &vecs, &server),
            server,
            vecs,
            own,
            length: AtomicUsize::new(0),
            clock: settings.clock,
        };
        if let Some(lora) = metrics.lora.as_ref().filter(|_| metrics.fake.is_none()) {
            lora.reset_for_restart();
        }
        Arc::new(metrics)
    }

    /// Returns the metrics of one data-parallel rank.
    ///
    /// # Panics
    /// Panics if [`MetricsSettings::engines`] has no such rank.
    pub fn engine_metrics(&self, rank: usize) -> Arc<EngineMetrics> {
        self.engines[rank].clone()
    }

    /// Returns the observers that update the metrics of the imitated server from the events of one
    /// data-parallel rank.
    ///
    /// # Panics
    /// Panics if [`MetricsSettings::engines`] has no such rank.
    pub fn observers(&self, rank: usize, features: EngineFeatures) -> Vec<Box<dyn EngineObserver>> {
        let mut observers: Vec<Box<dyn EngineObserver>> =
            vec![Box::new(EngineMetricsObserver::new(self.engine_metrics(rank), features))];
        observers.extend(self.imitated.iter().map(|imitated| imitated.observer(rank)));
        observers
    }

    /// Counts a request whose response has ended, for an imitated server whose families count
    /// requests then; vLLM's count them in the engine.
    pub fn on_finished_request(&self, request: &FinishedRequest) {
        if let Some(imitated) = &self.imitated {
            imitated.on_finished(request);
        }
    }

    /// Returns the value of a gauge of a rank that replaces vLLM's, by its name without prefix; 0 if
    /// there is none.
    pub fn own_gauge(&self, name: &str, rank: usize) -> f64 {
        self.imitated.as_ref().map_or(0.0, |imitated| imitated.gauge(name, rank))
    }

    /// Returns the metrics of HTTP requests.
    pub fn http_metrics(&self) -> &HttpMetrics {
        &self.http
    }

    /// Counts an injected fault that took effect on a client.
    ///
    /// `scenario` and `phase` are empty outside a scenario.
    pub fn on_fault(&self, kind: &str, scenario: &str, phase: &str) {
        self.own.count_fault(kind, scenario, phase);
    }

    /// Sets the active fault scenario and its phase; `None`: no scenario.
    pub fn on_scenario_phase(&self, phase: Option<(&str, &str)>) {
        self.own.set_scenario_phase(phase);
    }

    /// Applies a partial update to the fake metrics.
    ///
    /// # Errors
    /// [`FakeMetricsDisabled`] if the server exposes real metrics.
    pub fn update_fake_metrics(&self, update: &FakeMetrics) -> Result<(), FakeMetricsDisabled> {
        self.fake.as_ref().ok_or(FakeMetricsDisabled)?.update(update);
        Ok(())
    }

    /// Resets the counters of all metrics, as a process restart does.
    ///
    /// Fake metrics and the counts of injected faults are kept; the latter are the record of a
    /// scenario.
    pub fn reset_for_restart(&self) {
        if self.fake.is_some() {
            return;
        }
        let now = (self.clock)();
        for engine in &self.engines {
            engine.cells.reset_for_restart(now);
            engine.recent.clear();
        }
        self.server.reset_for_restart(now);
        if let Some(imitated) = &self.imitated {
            imitated.reset_for_restart(now);
        }
        self.http.restart(now);
        let operations = SLEEP_FAMILIES.iter().chain(&WEIGHT_FAMILIES);
        operations.for_each(|id| self.vecs[*id as usize].reset_for_restart(0.0));
        if let Some(process) = &self.process {
            process.record_restart(now);
        }
        if let Some(lora) = &self.lora {
            lora.reset_for_restart();
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
            ttft: latency_percentiles(recent().map(|recent| &recent.ttft)),
            itl: latency_percentiles(recent().map(|recent| &recent.itl)),
        })
    }

    /// Appends the text of `/metrics` for this Unix time, in seconds.
    pub fn encode_page(&self, out: &mut String, now_unix: f64) {
        if let Some(fake) = &self.fake {
            fake.update_gauges(now_unix);
        }
        if let Some(process) = &self.process {
            process.refresh_process_metrics(&self.server, now_unix);
        }
        let before = out.len();
        out.reserve(self.length.load(Ordering::Relaxed) + 1024);
        self.page.write(out);
        self.length.store(out.len() - before, Ordering::Relaxed);
    }
}
