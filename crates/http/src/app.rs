//! The state that every handler sees.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::admin_state::AdminState;
use super::availability::Availability;
use super::dialect::{self, ApiDialect};
use super::openai::responses::store::ResponseStore;
use super::peers::{DashboardPeer, Peers};
use super::request_history::RequestHistory;
use super::route_index::RouteIndex;
use super::server_controls::ServerControls;
use super::settings::{ServerSettings, Settings};
use vllm_sim_config::Loaded;
use vllm_sim_observe::kv_events::EventLoss;
use vllm_sim_observe::metrics::Metrics;
use vllm_sim_service::{RequestRules, Service};
use vllm_sim_wire::Version;

/// What the server is made of.
pub struct AppParts {
    /// The settings of the API.
    pub settings: Settings,
    /// The use cases.
    pub service: Arc<Service>,
    /// The bounds and defaults of requests.
    pub rules: RequestRules,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// Which routes there are ([`crate::routes`]).
    pub routes: RouteIndex,
    /// The port that answers name (`x-inference-port`).
    pub port: u16,
    /// When the process started.
    pub started: Instant,
    /// Where the settings of all ranks of the deployment are kept; a server that nobody joins to it
    /// cannot be changed while it runs.
    pub admin_state: Arc<AdminState>,
    /// Makes the KV events of the engines get lost.
    pub event_loss: EventLoss,
    /// The servers of `--dashboard-peers`.
    pub peers: Vec<DashboardPeer>,
}

/// State that every handler sees.
pub struct App {
    pub(super) settings: Arc<Settings>,
    pub(super) service: Arc<Service>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) port: u16,
    pub(super) started: Instant,
    pub(super) version: Version,
    /// What llm-d and vLLM do differently over HTTP.
    pub(super) dialect: &'static dyn ApiDialect,
    /// What requests for generation meet.
    pub(super) rules: RequestRules,
    pub(super) load: Arc<AtomicI64>,
    /// Routes that this configuration serves.
    pub(super) routes: RouteIndex,
    /// What answers name as the version of the weights.
    pub(super) weight_version: ArcSwap<String>,
    pub(super) responses: Arc<ResponseStore>,
    /// The newest requests; `None`: nobody wants them.
    pub(super) history: Option<Arc<RequestHistory>>,
    /// Other servers that the dashboard shows.
    pub(super) peers: Peers,
    /// The servers of this process, itself among them.
    pub(super) fleet: OnceLock<Vec<Weak<App>>>,
    /// Settings that an operator may change.
    pub(super) admin_state: Arc<AdminState>,
    /// What these settings act on.
    pub(super) controls: Arc<ServerControls>,
    /// `/openapi.json`, once somebody asked.
    pub(super) openapi: OnceLock<Arc<str>>,
    /// Who this server is to the one that decodes what it prefilled.
    pub(super) engine_id: Arc<str>,
    /// Whether a profiling session is under way.
    pub(super) profiling: AtomicBool,
    stopping: AtomicBool,
}

impl App {
    /// The state of a server made of `parts`.
    pub fn new(parts: AppParts) -> Self {
        let AppParts {
            settings,
            service,
            rules,
            metrics,
            routes,
            port,
            started,
            admin_state,
            event_loss,
            peers,
        } = parts;
        let (service_of, metrics_of) = (service.clone(), metrics.clone());
        let controls = ServerControls::new(&settings.controls, service_of, metrics_of, event_loss);
        let dialect = dialect::of(settings.compat);
        Self {
            engine_id: engine_id(&settings, dialect).into(),
            dialect,
            openapi: OnceLock::new(),
            history: history(&settings.server),
            peers: Peers::new(peers),
            fleet: OnceLock::new(),
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
            load: Arc::default(),
            responses: Arc::default(),
            profiling: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }
    }

    /// The use cases.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Whether clients can connect.
    pub fn availability(&self) -> &watch::Sender<Availability> {
        &self.controls.availability
    }

    /// Settings that an operator may change.
    pub fn admin_state(&self) -> &Arc<AdminState> {
        &self.admin_state
    }

    /// Lets an operator change its settings from now on: they begin as `loaded` has them.
    pub fn join_admin_state(&self, loaded: Loaded) {
        self.admin_state.join(&self.controls, loaded);
    }

    /// Shows all servers of this process, itself among them, on its dashboard; told once.
    pub fn set_fleet(&self, fleet: Vec<Weak<App>>) {
        let _ = self.fleet.set(fleet);
    }

    /// Whether it takes requests.
    pub fn is_up(&self) -> bool {
        !self.is_stopping() && self.is_ready()
    }

    /// From now on `/health` says 503.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.service.drain();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether the simulated start-up is over.
    #[expect(clippy::disallowed_methods, reason = "start-up takes real time")]
    pub(super) fn is_ready(&self) -> bool {
        let simulated = self.settings.server.startup_duration;
        simulated <= Duration::ZERO || Instant::now().duration_since(self.started) >= simulated
    }

    /// Counts a request in `/load` until the guard is dropped.
    pub(super) fn load_guard(&self) -> LoadGuard {
        self.load.fetch_add(1, Ordering::Relaxed);
        LoadGuard(self.load.clone())
    }
}

/// A request that `/load` counts.
pub(super) struct LoadGuard(Arc<AtomicI64>);

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The history of `--request-history`.
fn history(server: &ServerSettings) -> Option<Arc<RequestHistory>> {
    let (keep, bodies) = (server.request_history, server.request_history_bodies);
    (keep > 0).then(|| Arc::new(RequestHistory::new(keep, bodies, server.max_body_bytes)))
}

/// The engine's name among the engines of a deployment.
fn engine_id(settings: &Settings, dialect: &dyn ApiDialect) -> String {
    let transfer = settings.kv_transfer.as_ref();
    let given = transfer.and_then(|transfer| transfer.engine_id.clone());
    given.unwrap_or_else(|| dialect.engine_id(settings.parallel.local_ranks.0))
}
