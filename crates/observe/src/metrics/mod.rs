//! Metric families that vLLM exposes on `/metrics`, in the text format of Python's
//! prometheus_client.
//!
//! The list of [`families`] declares each family once. Values are atomic [`cell`]s that engines and
//! handlers update; [`own`] families use the types of `prometheus`. Collectors in one
//! `prometheus::Registry` per server read them. A scrape takes no lock that a token waits for,
//! because endpoint pickers scrape every 50 ms. Within a family the first engine comes first:
//! endpoint pickers read the first series.
//!
//! [`MetricsSettings::legacy`] adds deprecated names that share the cells of current ones, without
//! `_created` series. `request_success_total` has vLLM's label `finished_reason`; with llm-d's rules
//! it also has the label `finish_reason` of llm-d's simulator, with the same value.
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

pub use block_lifetime::KvBlockLifetimeObserver;
pub use cache_config::cache_config_labels;
pub use engine::{EngineFeatures, EngineMetrics, SleepState};
pub use fake::FakeMetricsDisabled;
pub use frontend::{AdminOperation, RejectionReason, ToolParserApi, ToolParserMode};
pub use http::{HttpHandlerId, HttpMetrics};
pub use mfu::MfuObserver;
pub use resident_adapters::LoraSlotCounts;
pub use settings::{
    ApiServerCount, CpuOffloadInfo, FakeMetrics, MetricsCompat, MetricsSettings,
    PreviewedMetricFamilies, UnixClock,
};
pub use transfers::NixlTransferMetricParams;

pub use crate::imitated::{FinishedRequest, OwnMetrics};
pub use crate::recent::{LatencyPercentiles, RecentLatencies};
pub use crate::waveform::Waveform;

use crate::imitated::create_own_metrics;
use engine::EngineMetricsObserver;
use fake::FakeMetricsState;
use families::{FAMILIES, Id};
use lora::{LoraObserver, LoraRequestsInfo};
use own::SimulatorMetrics;
use page::MetricsPage;
use process::ProcessMetrics;
use resident_adapters::ResidentLoraAdapters;
use series::{MetricCellVec, MetricCells};
use vllm_sim_engine::driver::EngineObserver;

/// Content type of Prometheus' text format.
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// All metrics of a server.
pub struct Metrics {
    page: MetricsPage,
    /// Families of vLLM, by [`Id`], with the values of the server.
    vecs: Vec<Arc<MetricCellVec>>,
    engines: Vec<Arc<EngineMetrics>>,
    server: MetricCells,
    http: HttpMetrics,
    own: SimulatorMetrics,
    process: Option<ProcessMetrics>,
    fake: Option<FakeMetricsState>,
    lora: Arc<LoraRequestsInfo>,
    imitated: Option<OwnMetrics>,
    settings: Arc<MetricsSettings>,
}

impl Metrics {
    /// Creates all metric series that the settings select, at zero.
    pub fn new(mut settings: MetricsSettings) -> Arc<Self> {
        let imitated = create_own_metrics(&mut settings);
        let settings = &Arc::new(settings);
        let mut vecs = MetricCellVec::from_family_list(FAMILIES, settings);
        let mut exposed = vecs.clone();
        exposed.retain(|vec| vec.family.is_exposed(settings));
        if let Some(imitated) = &imitated {
            exposed.retain(|vec| vec.family.is_own());
            exposed.splice(..0, imitated.vecs().iter().cloned());
        } else if settings.api_servers == ApiServerCount::Several {
            exposed.sort_by_key(|vec| vec.family.type_position());
        }
        let fake = settings.fake.as_ref();
        let fake = fake.map(|fake| FakeMetricsState::new(fake, settings, &mut vecs));
        let lora = Arc::new(LoraRequestsInfo::new(settings.clone(), &vecs));
        let engines = (0..settings.engines.len())
            .map(|rank| Arc::new(EngineMetrics::new(&vecs, settings.clone(), rank)));
        let own = SimulatorMetrics::new().expect("names and labels in the list are valid");
        Arc::new(Self {
            page: MetricsPage::new(settings.api_servers, exposed, own.clone()),
            engines: engines.collect(),
            server: MetricCells::of_engine(&vecs, 0),
            http: HttpMetrics::new(settings.clone(), &vecs),
            process: Id::StartTime.family().is_exposed(settings).then(ProcessMetrics::default),
            own,
            fake,
            lora,
            imitated,
            vecs,
            settings: settings.clone(),
        })
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
        let metrics = self.engine_metrics(rank);
        let resident = features.adapter_slots.map(|slots| {
            let vec = self.vecs[Id::LoraLoaded as usize].clone();
            ResidentLoraAdapters::new(slots, vec, metrics.clone())
        });
        let mut observers: Vec<Box<dyn EngineObserver>> =
            vec![Box::new(EngineMetricsObserver { metrics, features })];
        if self.settings.lora.is_some() {
            observers.push(Box::new(LoraObserver::new(self.lora.clone(), resident)));
        }
        observers.extend(self.imitated.iter().map(|imitated| imitated.observer(rank)));
        observers
    }

    /// Returns the metrics of an imitated server whose families replace vLLM's; `None` for vLLM's.
    pub fn imitated(&self) -> Option<&OwnMetrics> {
        self.imitated.as_ref()
    }

    /// Returns the metrics of HTTP requests.
    pub fn http_metrics(&self) -> &HttpMetrics {
        &self.http
    }

    /// Applies a partial update to the fake metrics.
    ///
    /// # Errors
    /// [`FakeMetricsDisabled`] if the server exposes real metrics.
    pub fn update_fake_metrics(&self, update: &FakeMetrics) -> Result<(), FakeMetricsDisabled> {
        self.fake.as_ref().ok_or(FakeMetricsDisabled)?.update_fake_metrics(update);
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
        let now = (self.settings.clock.0)();
        let imitated = self.imitated.iter().flat_map(|imitated| imitated.vecs());
        self.vecs.iter().chain(imitated).for_each(|vec| vec.reset_for_restart(now));
        self.engines.iter().for_each(|engine| engine.recent.clear_engine_samples());
        self.lora.replace_lora_series(&[]);
        if let Some(process) = &self.process {
            process.record_restart(now);
        }
    }

    /// Returns percentiles of recent latencies of all engines; `None` with fake metrics, which they
    /// would contradict.
    pub fn recent_latencies(&self) -> Option<RecentLatencies> {
        let recent: Vec<_> = self.engines.iter().map(|engine| &engine.recent).collect();
        self.fake.is_none().then(|| RecentLatencies::of_engines(&recent))
    }

    /// Appends the text of `/metrics` for this Unix time, in seconds.
    pub fn encode_page(&self, out: &mut String, now_unix: f64) {
        if let Some(fake) = &self.fake {
            fake.update_fake_gauges(now_unix);
        }
        if let Some(process) = &self.process {
            process.refresh_process_metrics(&self.server, now_unix);
        }
        // The page of one engine has 50 kB.
        out.reserve(64_000);
        self.page.write_metrics_page(out);
    }
}
