//! Every series that vLLM shows on `/metrics`, in the words of Python's prometheus_client.
//!
//! Numbers are atomics that engines and handlers add to; the page around them is rendered when
//! the server starts. A scrape takes no lock that a token waits for: endpoint pickers scrape
//! every 50 ms. Within a family the first engine comes first: they read the first series.
//!
//! [`Settings::legacy`] adds retired names as second views of the same numbers:
//! `gpu_cache_usage_perc`, `gpu_prefix_cache_{queries,hits}_total`,
//! `gpu_prefix_cache_hit_rate`, `prefix_cache_{queries,hits}` without `_total`,
//! `time_per_output_token_seconds`, `max_num_generation_tokens` (all `vllm:`). They have no
//! `_created` beside them. `request_success_total` carries vLLM's label `finished_reason`;
//! llm-d's simulator calls it `finish_reason`, and a family has one set of labels, so
//! [`Settings::finish_reason_label`] puts the second name on every series of it, beside the
//! first and with the same value. That family is then no longer vLLM's to the letter.
//!
//! Left out: series of hardware and connectors that nothing here stands for (Mooncake,
//! offloading, HF3FS, HiSparse, UMBP), of watermarks, NaN counting and diffusion.
//!
//! Source: vLLM 0.32 and 0.33, `vllm/v1/metrics`; a recorded server's texts are in
//! `tests/fixtures/metrics`.

mod block_lifetime;
mod buckets;
mod cache_config;
mod cell;
mod cells;
mod engine;
pub mod exposition;
pub mod fake;
mod families;
mod faults;
mod frontend;
mod http;
mod lora;
mod number;
mod observer;
mod page;
mod process;
mod restart;
mod sockets;
#[cfg(test)]
mod tests;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use block_lifetime::BlockLifetime;
pub use buckets::{BucketError, Buckets};
pub use cache_config::CacheConfig;
pub use engine::{
    EngineMetrics, Finished, NixlFailure, NixlTransfer, Reason, Rejection, SleepState, Totals,
};
pub use fake::{Fake, FakeError};
pub use frontend::{Operation, ToolMode, ToolOutcome, ToolRequest};
pub use http::{HandlerId, HttpMetrics};
pub use lora::LoraLoad;
pub use observer::{Hearing, Observer};
pub use work::{Model as WorkModel, WorkObserver};

use cell::{Counter, Gauge};
use cells::{Cells, Engines};
use frontend::{AllOperations, ToolParser};
use lora::LoraInfo;
use page::{Group, Labels, Page, PageBuilder, Series};

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// Tells the unix time, in seconds.
pub type Clock = fn() -> f64;

/// The time of this machine.
#[expect(
    clippy::disallowed_methods,
    reason = "an edge: wall-clock times are part of the text"
)]
pub fn wall_clock() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Whose habits decide where the two projects differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// vLLM: an adapter with requests is listed as running and waiting; tool calls and remote
    /// decodes count as `stop` and `length`.
    #[default]
    Vllm,
    /// llm-d's simulator: an adapter is listed where it is; those reasons count by name.
    Llmd,
}

/// What decides which series there are.
#[derive(Debug, Clone)]
pub struct Settings {
    /// First served model name; requests to adapters count under it too.
    pub model_name: String,
    /// One per data-parallel rank, as the label `engine` shows it.
    pub engines: Vec<String>,
    /// Whether there is such a label; without, there must be one engine.
    pub engine_label: bool,
    /// Context length: bounds the histograms of lengths.
    pub max_model_len: u32,
    /// `--max-loras`; `None`: no adapters are enabled.
    pub lora: Option<u32>,
    /// Whose habits.
    pub compat: Compat,
    /// Retired names beside the new ones.
    pub legacy: bool,
    /// The label `finish_reason` beside `finished_reason`.
    pub finish_reason_label: bool,
    /// A tool-call parser is configured.
    pub tool_parser: bool,
    /// Whether engines are shown at all (not with `--disable-log-stats`).
    pub engine_stats: bool,
    /// `--kv-cache-metrics`.
    pub kv_cache_metrics: bool,
    /// Whether speech comes over WebSockets.
    pub sockets: bool,
    /// Draft tokens per step; zero: no speculation.
    pub spec_positions: u32,
    /// Prompts may come from other servers.
    pub kv_consumer: bool,
    /// They come by NIXL.
    pub nixl: bool,
    /// Per engine, the labels of `cache_config_info` without `engine` ([`CacheConfig::labels`]).
    pub cache_config: Vec<Vec<(String, String)>>,
    /// Bucket bounds.
    pub buckets: Buckets,
    /// `python_*` and `process_*`; never with several processes.
    pub runtime_series: bool,
    /// The text of several API servers (vLLM's data parallelism): no `_created`, no
    /// `python_*` and `process_*`, families by type, none without series.
    pub multiprocess: bool,
    /// Route templates that requests are counted under; one that redirects to another
    /// (`/v1/models/`) is one too.
    pub routes: Vec<String>,
    /// Shown instead of the truth, and how often moving values move.
    pub fake: Option<(Fake, Duration)>,
    /// The time.
    pub clock: Clock,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            model_name: String::new(),
            engines: vec!["0".to_owned()],
            engine_label: true,
            max_model_len: 1024,
            lora: None,
            compat: Compat::Vllm,
            legacy: false,
            finish_reason_label: false,
            tool_parser: false,
            engine_stats: true,
            kv_cache_metrics: false,
            sockets: false,
            spec_positions: 0,
            kv_consumer: false,
            nixl: false,
            cache_config: Vec::new(),
            buckets: Buckets::default(),
            runtime_series: true,
            multiprocess: false,
            routes: Vec::new(),
            fake: None,
            clock: wall_clock,
        }
    }
}

/// All metrics of a server.
pub struct Metrics {
    page: Page,
    engines: Vec<Arc<EngineMetrics>>,
    rejections: [Arc<Counter>; 2],
    http: HttpMetrics,
    tool_parser: ToolParser,
    operations: AllOperations,
    sockets: sockets::Sockets,
    faults: Arc<faults::Faults>,
    fake: Option<fake::FakeState>,
    /// Where a process without requests shows that it has no adapter (llm-d).
    idle_lora: Option<Arc<LoraInfo>>,
    clock: Clock,
    /// Length of the last text.
    length: AtomicUsize,
}

impl Metrics {
    /// All series that these settings ask for, at zero.
    ///
    /// # Errors
    /// [`FakeError`] when the fake metrics cannot be shown.
    pub fn new(settings: Settings) -> Result<Arc<Self>, FakeError> {
        let born = (settings.clock)();
        let mut page = PageBuilder::new(settings.multiprocess, born);
        if settings.runtime_series && !settings.multiprocess {
            page.live(Group::Counter, Arc::new(process::Python));
            page.live(Group::Gauge, Arc::new(process::Process::new()));
        }

        let real: Vec<Cells> = settings
            .engines
            .iter()
            .map(|_| Cells::new(&settings))
            .collect();
        let shown: Vec<(Labels, Cells)> = settings
            .engines
            .iter()
            .zip(&real)
            .map(|(engine, cells)| {
                let cells = match settings.fake {
                    Some(_) => cells.faked(&settings),
                    None => cells.clone(),
                };
                (engine_labels(&settings, engine), cells)
            })
            .collect();
        let rejections: [Arc<Counter>; 2] = Default::default();
        let rejected = rejected_series(&settings, &rejections);
        let all = Engines {
            each: &shown,
            settings: &settings,
        };
        if settings.engine_stats {
            all.register(&mut page, &rejected);
        }

        let max_lora = settings.lora.unwrap_or(1);
        let lora = || Arc::new(LoraInfo::new(max_lora, settings.multiprocess));
        let real_lora = lora();
        let shown_lora = settings
            .fake
            .as_ref()
            .map_or_else(|| real_lora.clone(), |_| lora());
        let mut idle_lora = None;
        if settings.engine_stats && (settings.lora.is_some() || settings.fake.is_some()) {
            page.live(Group::SummedGauge, shown_lora.clone());
            if settings.compat == Compat::Llmd {
                shown_lora.set("", "", born.trunc());
                idle_lora = Some(shown_lora.clone());
            }
        }
        if settings.engine_stats {
            register_cache_config(&settings, &mut page);
        }

        let http = HttpMetrics::new(&settings.routes, settings.multiprocess, settings.clock);
        http.register(&mut page);
        let tool_parser = ToolParser::new();
        if settings.tool_parser {
            tool_parser.register(&mut page, &settings.model_name);
        }
        let operations = AllOperations::new(&page, settings.clock);
        operations.register(&mut page);
        let sockets = sockets::Sockets::new();
        if settings.sockets {
            sockets.register(&mut page);
        }
        let faults = Arc::new(faults::Faults::default());
        page.live(Group::Counter, faults.clone());
        if settings.engine_stats && settings.legacy {
            page.without_created();
            all.register_old_names(&mut page);
        }

        let fake = settings
            .fake
            .as_ref()
            .map(|(fake, refresh)| {
                let shown = shown.iter().map(|(_, cells)| cells.clone()).collect();
                let buckets = settings.buckets.clone();
                fake::FakeState::new(fake, *refresh, shown, shown_lora, buckets, settings.clock)
            })
            .transpose()?;
        let engines = real.into_iter().map(|cells| {
            let (rejections, lora) = (rejections.clone(), real_lora.clone());
            Arc::new(EngineMetrics::new(cells, rejections, lora, &settings))
        });
        Ok(Arc::new(Self {
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
            clock: settings.clock,
            length: AtomicUsize::new(0),
        }))
    }

    /// The series of one data-parallel rank.
    ///
    /// # Panics
    /// When there is no such rank in [`Settings::engines`].
    pub fn engine(&self, rank: usize) -> Arc<EngineMetrics> {
        self.engines[rank].clone()
    }

    /// The series of HTTP requests.
    pub fn http(&self) -> &HttpMetrics {
        &self.http
    }

    /// A queue limit turned a request away before it had an engine.
    pub fn on_rejected(&self, reason: Rejection) {
        self.rejections[reason as usize].add(1);
    }

    /// The tool-call parser was invoked `n` times.
    pub fn on_tool_parser(
        &self,
        mode: ToolMode,
        outcome: ToolOutcome,
        request: ToolRequest,
        n: u32,
    ) {
        self.tool_parser.add(mode, outcome, request, n);
    }

    /// An operation began; [`Self::operation_ended`] must follow.
    pub fn operation_started(&self, operation: Operation) {
        self.operations.started(operation);
    }

    /// An operation ended, well or not.
    pub fn operation_ended(&self, operation: Operation, seconds: f64) {
        self.operations.ended(operation, seconds);
    }

    /// A WebSocket was opened; [`Self::socket_closed`] must follow.
    pub fn socket_opened(&self) {
        self.sockets.opened();
    }

    /// A WebSocket was closed after so many seconds.
    pub fn socket_closed(&self, seconds: f64) {
        self.sockets.closed(seconds);
    }

    /// A client got to feel a fault of this kind, dealt by a scenario's phase (both empty outside
    /// a drill).
    pub fn on_fault(&self, kind: &'static str, scenario: &str, phase: &str) {
        self.faults.add(kind, scenario, phase);
    }

    /// The scenario and phase that are played; `None`: none.
    pub fn on_phase(&self, place: Option<(&str, &str)>) {
        self.faults.play(place);
    }

    /// The fake metrics that are shown, if any are.
    pub fn fake(&self) -> Option<Fake> {
        self.fake.as_ref().map(fake::FakeState::config)
    }

    /// Lays an update over the fake metrics; all of it or nothing.
    ///
    /// # Errors
    /// [`FakeError::RealMetrics`] when none are shown, or what is wrong with the result.
    pub fn update_fake(&self, update: &Fake) -> Result<(), FakeError> {
        let fake = self.fake.as_ref().ok_or(FakeError::RealMetrics)?;
        fake.update(update)
    }

    /// Counts begin again at zero, as in a process that starts now. Fake metrics stay as they are,
    /// and so does what is counted of faults: it is the record of the drill.
    pub fn restart(&self) {
        if self.fake.is_some() {
            return;
        }
        let now = (self.clock)();
        self.page.restart(now);
        if let Some(lora) = &self.idle_lora {
            lora.set("", "", now.trunc());
        }
    }

    /// Appends the whole text, as of this unix time.
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

/// One series per reason for which a queue limit turns requests away.
fn rejected_series(settings: &Settings, cells: &[Arc<Counter>; 2]) -> Vec<Series> {
    let each = Rejection::LABELS.iter().zip(cells);
    each.map(|(reason, cell)| {
        let labels = [
            ("model_name", settings.model_name.as_str()),
            ("reason", reason),
        ];
        Series::new(Labels::new(labels), cell)
    })
    .collect()
}

fn engine_labels(settings: &Settings, engine: &str) -> Labels {
    let labels = Labels::new([("model_name", settings.model_name.as_str())]);
    if settings.engine_label {
        labels.with("engine", engine)
    } else {
        labels
    }
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
