//! Metric families that vLLM exposes on `/metrics`, in the text format of Python's
//! prometheus_client.
//!
//! The list of [`families`] declares each family once. Values are atomic [`cell`]s that engines and
//! handlers update; [`own`] families use the types of `prometheus`. Collectors in one
//! `prometheus::Registry` per server read them. A scrape takes no lock that a token waits for,
//! because endpoint pickers scrape every 50 ms. Within a family the first engine comes first:
//! endpoint pickers read the first series.
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

pub use block_lifetime::BlockLifetime;
pub use cache_config::cache_config_labels;
pub use engine::{DraftTotals, EngineFeatures, EngineMetrics, MetricsObserver, SleepState, Totals};
pub use fake::{FakeMetrics, RealMetrics};
pub use frontend::{Operation, Rejection, ToolMode, ToolOutcome, ToolRequest};
pub use http::{HandlerId, HttpMetrics};
pub use mfu::MfuObserver;
pub use resident_adapters::AdapterSlots;
pub use settings::{ApiServers, Clock, Compat, MetricPreviews, OffloadInfo, Settings, wall_clock};
pub use transfers::NixlTransfer;

pub use crate::recent::{Percentiles, RecentLatencies};
pub use crate::sglang::metrics::{SglangMetrics, SglangObserver, SglangRequest};

use crate::recent::percentiles;
use fake_state::FakeState;
use families::{FAMILIES, Id};
use family::{Family, Owner};
use frontend::{SLEEP_FAMILIES, WEIGHT_FAMILIES};
use lora::LoraInfo;
use own::OwnMetrics;
use page::Page;
use process::ProcessInfo;
use resident_adapters::LoadedAdapterSeries;
use series::{CellVec, Cells};
use vllm_sim_engine::driver::EngineObserver;

/// Content type of Prometheus' text format.
pub const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// Returns the exposed families of vLLM, in the order of the page.
fn exposed_families(settings: &Settings) -> Vec<&'static Family> {
    let mut families: Vec<_> = FAMILIES.iter().filter(|one| one.is_exposed(settings)).collect();
    if settings.api_servers == ApiServers::Several {
        families.sort_by_key(|family| family.group);
    }
    families
}

/// All metrics of a server.
pub struct Metrics {
    page: Page,
    /// Families of vLLM, by [`Id`].
    vecs: Vec<Arc<CellVec>>,
    engines: Vec<Arc<EngineMetrics>>,
    server: Cells,
    http: HttpMetrics,
    own: OwnMetrics,
    process: Option<ProcessInfo>,
    fake: Option<FakeState>,
    /// Adapter lists on the page; `None` if no adapters are enabled.
    lora: Option<Arc<LoraInfo>>,
    /// Metrics of SGLang; `None` without `--compat sglang`.
    sglang: Option<SglangMetrics>,
    length: AtomicUsize,
    clock: Clock,
}

impl Metrics {
    /// Creates all metric series that the settings select, at zero.
    pub fn new(mut settings: Settings) -> Arc<Self> {
        if settings.compat == Compat::Sglang {
            // SGLang always has several processes.
            settings.api_servers = ApiServers::Several;
        }
        let settings = &settings;
        let server = Cells::new(FAMILIES, settings, Owner::Server);
        let engines = settings.engines.iter();
        let real: Vec<_> = engines.map(|_| Cells::new(FAMILIES, settings, Owner::Engine)).collect();
        let shown: Vec<_> = match settings.fake {
            Some(_) => real.iter().map(|cells| cells.for_fake_metrics(settings)).collect(),
            None => real.clone(),
        };
        let vecs = CellVec::of_list(FAMILIES, settings, &shown, &server);
        let vec = |id: Id| vecs[id as usize].clone();
        let shown_lora = Arc::new(LoraInfo::new(settings, vec(Id::LoraRequests)));
        let real_lora = match settings.fake {
            Some(_) => {
                let hidden = CellVec::new(Id::LoraRequests.family(), settings);
                Arc::new(LoraInfo::new(settings, hidden))
            }
            None => shown_lora.clone(),
        };
        let loaded = Arc::new(LoadedAdapterSeries::new(settings, vec(Id::LoraLoaded)));
        let engine = |(cells, name): (&Cells, &String)| {
            let loaded_adapters = (loaded.clone(), name.clone());
            EngineMetrics::new(cells.clone(), real_lora.clone(), loaded_adapters, settings)
        };
        let engines = real.iter().zip(&settings.engines).map(engine);
        let own = OwnMetrics::new();
        let sglang = (settings.compat == Compat::Sglang).then(|| SglangMetrics::new(settings));
        let metrics = Self {
            page: match &sglang {
                Some(sglang) => Page::new(settings, &sglang.families(), &sglang.vecs, own.clone()),
                None => Page::new(settings, &exposed_families(settings), &vecs, own.clone()),
            },
            engines: engines.map(Arc::new).collect(),
            process: (settings.runtime_series && settings.api_servers == ApiServers::One)
                .then(ProcessInfo::new),
            fake: settings.fake.as_ref().map(|(fake, refresh)| {
                let lora = shown_lora.clone();
                FakeState::new(fake, *refresh, shown, lora, settings.clock)
            }),
            lora: Id::LoraRequests.family().is_exposed(settings).then_some(shown_lora),
            sglang,
            http: HttpMetrics::new(settings, &vecs, &server),
            server,
            vecs,
            own,
            length: AtomicUsize::new(0),
            clock: settings.clock,
        };
        if let Some(lora) = metrics.lora.as_ref().filter(|_| metrics.fake.is_none()) {
            lora.restart();
        }
        Arc::new(metrics)
    }

    /// Returns the metrics of one data-parallel rank.
    ///
    /// # Panics
    /// Panics if [`Settings::engines`] has no such rank.
    pub fn engine(&self, rank: usize) -> Arc<EngineMetrics> {
        self.engines[rank].clone()
    }

    /// Returns the observers that update the metrics of the imitated server from the events of one
    /// data-parallel rank.
    ///
    /// # Panics
    /// Panics if [`Settings::engines`] has no such rank.
    pub fn observers(&self, rank: usize, features: EngineFeatures) -> Vec<Box<dyn EngineObserver>> {
        let mut observers: Vec<Box<dyn EngineObserver>> =
            vec![Box::new(MetricsObserver::new(self.engine(rank), features))];
        if let Some(sglang) = &self.sglang {
            observers.push(Box::new(sglang.observer(rank)));
        }
        observers
    }

    /// Returns the metrics of SGLang; `None` without `--compat sglang`.
    pub fn sglang(&self) -> Option<&SglangMetrics> {
        self.sglang.as_ref()
    }

    /// Returns the metrics of HTTP requests.
    pub fn http(&self) -> &HttpMetrics {
        &self.http
    }

    /// Counts an injected fault that took effect on a client.
    ///
    /// `scenario` and `phase` are empty outside a scenario.
    pub fn on_fault(&self, kind: &str, scenario: &str, phase: &str) {
        self.own.count(kind, scenario, phase);
    }

    /// Sets the active fault scenario and its phase; `None`: no scenario.
    pub fn on_phase(&self, phase: Option<(&str, &str)>) {
        self.own.set_phase(phase);
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
        for engine in &self.engines {
            engine.cells.restart(now);
            engine.recent.clear();
        }
        self.server.restart(now);
        if let Some(sglang) = &self.sglang {
            sglang.restart(now);
        }
        self.http.restart(now);
        let operations = SLEEP_FAMILIES.iter().chain(&WEIGHT_FAMILIES);
        operations.for_each(|id| self.vecs[*id as usize].restart(0.0));
        if let Some(process) = &self.process {
            process.restart(now);
        }
        if let Some(lora) = &self.lora {
            lora.restart();
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
            ttft: percentiles(recent().map(|recent| &recent.ttft)),
            itl: percentiles(recent().map(|recent| &recent.itl)),
        })
    }

    /// Appends the text of `/metrics` for this Unix time, in seconds.
    pub fn encode(&self, out: &mut String, now_unix: f64) {
        if let Some(fake) = &self.fake {
            fake.tick(now_unix);
        }
        if let Some(process) = &self.process {
            process.refresh(&self.server, now_unix);
        }
        let before = out.len();
        out.reserve(self.length.load(Ordering::Relaxed) + 1024);
        self.page.write(out);
        self.length.store(out.len() - before, Ordering::Relaxed);
    }
}
