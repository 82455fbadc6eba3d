//! State of a server that all HTTP handlers share, with the index and templates of its routes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::extract::State;
use axum::routing::MethodRouter;
use indexmap::IndexMap;
use tokio::sync::watch;

use super::admin_state::AdminState;
use super::dialect::{ApiDialect, ApiRules};
use super::live_trace::LiveRequestTrace;
use super::metric_history::MetricHistory;
use super::openai::responses::response_store::ResponseStore;
use super::peers::{DashboardPeer, DashboardPeers};
use super::request_history::RequestHistory;
use super::server_controls::ServerControls;
use super::settings::HttpSettings;
use super::sglang::disaggregation::PrefillOrDecodeServer;
use super::sglang::session_store::SglangServerState;
use super::transfer::KvTransferWarningLimits;
use super::transfer::params::engine_id_of_rank;
use vllm_sim_config::LoadedConfig;
use vllm_sim_observe::kv_events::KvEventLossSwitch;
use vllm_sim_observe::metrics::Metrics;
use vllm_sim_service::{
    InferenceService, RequestRules, ServerAvailability, ServerLoad, ServerLoadGuard,
};
use vllm_sim_wire::VllmVersion;

pub(crate) const CHAT_PATH: &str = "/v1/chat/completions";
/// Path of the Prometheus metrics; longer paths that start with it are served too.
pub(crate) const METRICS_PATH: &str = "/metrics";
/// Route template for one LoRA adapter in SageMaker's API.
pub(crate) const ADAPTER_PATH: &str = "/adapters/{adapter_name}";
pub(crate) const RESPONSE_PATH: &str = "/v1/responses/{response_id}";
pub(crate) const RESPONSE_CANCEL_PATH: &str = "/v1/responses/{response_id}/cancel";

/// The extractor by which a handler gets the server's state.
pub(crate) type AppState = State<Arc<App>>;

/// Path of a route, its methods as in the `Allow` header, and its handler.
pub(crate) type Route = (&'static str, &'static str, MethodRouter<Arc<App>>);

/// The values from which an [`App`] is created.
pub struct AppConstructorArgs {
    /// Settings of the HTTP API.
    pub settings: HttpSettings,
    /// The service that runs generation requests.
    pub service: Arc<InferenceService>,
    /// Rules of the imitated server's API.
    pub api: ApiRules,
    /// Limits and defaults of request fields.
    pub rules: RequestRules,
    /// The metrics that `GET /metrics` returns.
    pub metrics: Arc<Metrics>,
    /// Index of the served routes (`crate::routes`).
    pub routes: RouteIndex,
    /// Port of the server, which responses report in `x-inference-port`.
    pub port: u16,
    /// Time of the process's start.
    pub started: Instant,
    /// Run-time settings of all servers of the deployment that `/admin/config` can change.
    pub admin_state: Arc<AdminState>,
    /// Switch that makes the engines drop their KV events.
    pub event_loss: KvEventLossSwitch,
    /// Servers of `--dashboard-peers`, which the dashboard lists.
    pub peers: Vec<DashboardPeer>,
    /// Prefill or decode part of this server in an SGLang pair; `None` outside a pair.
    pub disaggregation: Option<Arc<PrefillOrDecodeServer>>,
}

/// The state of a server that all HTTP handlers share.
pub struct App {
    pub(super) settings: Arc<HttpSettings>,
    pub(super) service: Arc<InferenceService>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) port: u16,
    pub(super) started: Instant,
    pub(super) version: VllmVersion,
    pub(super) dialect: &'static dyn ApiDialect,
    pub(super) rules: RequestRules,
    pub(super) load: ServerLoad,
    pub(super) routes: RouteIndex,
    /// Version of the model weights that responses report.
    pub(super) weight_version: ArcSwap<String>,
    pub(super) responses: Arc<ResponseStore>,
    /// Recorded recent requests; `None` without `--request-history`.
    pub(super) history: Option<Arc<RequestHistory>>,
    pub(super) peers: DashboardPeers,
    pub(super) disaggregation: Option<Arc<PrefillOrDecodeServer>>,
    pub(super) fleet: OnceLock<Vec<Weak<App>>>,
    pub(super) records: DashboardRecords,
    pub(super) admin_state: Arc<AdminState>,
    pub(super) controls: Arc<ServerControls>,
    /// Cached body of `GET /openapi.json`.
    pub(super) openapi: OnceLock<Arc<str>>,
    pub(super) engine_id: Arc<str>,
    pub(super) transfer_warnings: KvTransferWarningLimits,
    pub(super) profiling: AtomicBool,
    pub(super) sglang: SglangServerState,
    stopping: AtomicBool,
}

/// Metric samples and request trace for the dashboard, recorded only after a client has opened the
/// dashboard.
#[derive(Default)]
pub(super) struct DashboardRecords {
    pub(super) metrics: MetricHistory,
    pub(super) trace: LiveRequestTrace,
}

impl App {
    /// Returns whether the server has a route for this request path.
    pub fn serves_path(&self, path: &str) -> bool {
        self.routes.serves_path(path)
    }

    /// Returns the engine id that KV transfer parameters contain for a data-parallel rank.
    pub fn kv_engine_id(&self, rank: u32) -> String {
        engine_id_of_rank(&self.engine_id, &self.settings, rank)
    }

    /// Creates the state of an HTTP server.
    pub fn new(args: AppConstructorArgs) -> Self {
        let AppConstructorArgs {
            settings,
            service,
            api: ApiRules(dialect),
            rules,
            metrics,
            routes,
            port,
            started,
            admin_state,
            event_loss,
            peers,
            disaggregation,
        } = args;
        let (service_of, metrics_of) = (service.clone(), metrics.clone());
        let controls = ServerControls::new(&settings.controls, service_of, metrics_of, event_loss);
        Self {
            engine_id: kv_transfer_engine_id(&settings, dialect).into(),
            dialect,
            transfer_warnings: KvTransferWarningLimits::default(),
            openapi: OnceLock::new(),
            history: RequestHistory::new_if_enabled(&settings.server),
            peers: DashboardPeers::new(peers),
            disaggregation,
            fleet: OnceLock::new(),
            records: DashboardRecords::default(),
            admin_state,
            controls: Arc::new(controls),
            weight_version: ArcSwap::from_pointee("default".to_owned()),
            settings: Arc::new(settings),
            service,
            metrics,
            routes,
            port,
            started,
            version: rules.limits.version,
            rules,
            load: ServerLoad::default(),
            responses: Arc::default(),
            profiling: AtomicBool::new(false),
            sglang: SglangServerState::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Returns the service that runs generation requests.
    pub fn service(&self) -> &Arc<InferenceService> {
        &self.service
    }

    /// Returns the sender of changes of the server's simulated availability.
    pub fn availability_sender(&self) -> &watch::Sender<ServerAvailability> {
        &self.controls.availability
    }

    /// Returns the run-time settings of the deployment.
    pub fn admin_state(&self) -> &Arc<AdminState> {
        &self.admin_state
    }

    /// Makes the settings of this server changeable at run time; `initial_config` holds their initial
    /// values.
    pub fn add_server_to_admin_state(&self, initial_config: LoadedConfig) {
        self.admin_state.add_managed_server(&self.controls, initial_config);
    }

    /// Sets the servers of this process that the dashboard lists; only the first call has an
    /// effect.
    pub fn set_dashboard_fleet(&self, fleet: Vec<Weak<App>>) {
        let _ = self.fleet.set(fleet);
    }

    /// Returns whether the server is ready and not shutting down.
    pub fn is_serving(&self) -> bool {
        !self.is_shutting_down() && self.is_startup_complete()
    }

    /// Marks the server as shutting down, so that `/health` returns 503 and no new requests start.
    pub fn begin_shutdown(&self) {
        self.fail_health_checks();
        self.service.start_draining();
    }

    /// Makes `/health` return 503; new requests still start.
    pub fn fail_health_checks(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    #[expect(clippy::disallowed_methods, reason = "start-up takes real time")]
    pub(super) fn is_startup_complete(&self) -> bool {
        let simulated = self.settings.server.timeouts.startup;
        simulated <= Duration::ZERO || Instant::now().duration_since(self.started) >= simulated
    }

    /// Returns whether an engine has requests but no progress, which fails the readiness check.
    pub(super) fn has_stalled_engine(&self) -> bool {
        let Some(check) = self.settings.server.timeouts.ready_check else {
            return false;
        };
        self.service.rank_engines().iter().any(|engine| {
            let progress = engine.engine_progress();
            progress.is_stalled(engine.now(), check.first_output, check.next_output)
        })
    }

    /// Counts a request in the load that `GET /load` reports, until the guard is dropped; `None`
    /// without `--enable-server-load-tracking`.
    pub(super) fn count_request_in_load(&self) -> Option<ServerLoadGuard> {
        self.settings.server.routes.load_tracking.then(|| self.load.count_request())
    }
}

fn kv_transfer_engine_id(settings: &HttpSettings, dialect: &dyn ApiDialect) -> String {
    let transfer = settings.kv_transfer.as_ref();
    let given = transfer.and_then(|transfer| transfer.engine_id.clone());
    given.unwrap_or_else(|| dialect.generated_engine_id(settings.parallel.local_ranks.0))
}

/// Served paths in the order of the route table, with their methods as in the `Allow` header.
#[derive(Debug)]
pub struct RouteIndex(IndexMap<&'static str, &'static str>);

impl RouteIndex {
    pub(crate) fn new(
        paths_and_methods: impl Iterator<Item = (&'static str, &'static str)>,
    ) -> Self {
        Self(paths_and_methods.collect())
    }

    pub(crate) fn allowed_methods(&self, path: &str) -> Option<&'static str> {
        self.0.get(route_template(path)).copied()
    }

    pub(crate) fn serves_path(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Returns the paths of all routes, and the paths that redirect to them.
    pub fn served_paths(&self) -> Vec<String> {
        let paths = self.0.keys();
        paths.flat_map(|path| [(*path).to_owned(), format!("{path}/")]).collect()
    }
}

/// Returns the route template that serves a request path, as the `http_*` metrics report it; the
/// path itself if it has no template.
pub(crate) fn route_template(path: &str) -> &str {
    if let Some(name) = path.strip_prefix("/adapters/") {
        let one = !name.is_empty() && !name.contains('/');
        return if one { ADAPTER_PATH } else { path };
    }
    let Some(rest) = path.strip_prefix("/v1/responses/") else {
        return path;
    };
    match rest.split_once('/') {
        None if !rest.is_empty() => RESPONSE_PATH,
        Some((id, "cancel")) if !id.is_empty() => RESPONSE_CANCEL_PATH,
        _ => path,
    }
}

/// Returns whether the HTTP route at a request path accepts HEAD requests.
pub(crate) fn accepts_head_method(path: &str) -> bool {
    matches!(path, "/" | "/openapi.json" | "/docs" | "/redoc" | "/docs/oauth2-redirect")
        || path.starts_with(METRICS_PATH)
}
