//! The state that every handler sees.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::admin_state::AdminState;
use super::availability::Availability;
use super::openai::responses::store::ResponseStore;
use super::peers::{DashboardPeer, Peers};
use super::policy::Policy;
use super::request_history::RequestHistory;
use super::route_index::RouteIndex;
use super::server_controls::ServerControls;
use vllm_sim_config::{CliMode, Config, Fingerprint, Loaded};
use vllm_sim_observe::kv_events::EventLoss;
use vllm_sim_observe::metrics::Metrics;
use vllm_sim_service::{RequestRules, Service};
use vllm_sim_tokenizer::Tokenizer;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::{Limits, SamplingDefaults, Version};

/// What the server is made of.
pub struct AppParts {
    /// What was chosen at start.
    pub config: Arc<Config>,
    /// The use cases.
    pub service: Arc<Service>,
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
    pub(super) config: Arc<Config>,
    pub(super) service: Arc<Service>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) port: u16,
    pub(super) started: Instant,
    pub(super) version: Version,
    /// What llm-d and vLLM do differently over HTTP.
    pub(super) policy: Policy,
    /// What requests for generation meet.
    pub(super) rules: RequestRules,
    pub(super) fingerprint: Option<Arc<str>>,
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
            config,
            service,
            metrics,
            routes,
            port,
            started,
            admin_state,
            event_loss,
            peers,
        } = parts;
        let version = Version::of(&config.model.vllm_version);
        let controls = ServerControls::new(&config, service.clone(), metrics.clone(), event_loss);
        let limits = limits(&config, &service, version);
        let defaults = defaults(&config, &service);
        let policy = Policy::of(&config);
        Self {
            engine_id: engine_id(&config, &policy).into(),
            policy,
            rules: Policy::rules(&config, limits, defaults),
            fingerprint: fingerprint(&config).map(Into::into),
            openapi: OnceLock::new(),
            history: history(&config),
            peers: Peers::new(peers),
            fleet: OnceLock::new(),
            admin_state,
            controls: Arc::new(controls),
            weight_version: ArcSwap::from_pointee("default".to_owned()),
            config,
            service,
            metrics,
            routes,
            port,
            started,
            version,
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

    /// What was chosen at start.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
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
        let simulated = self.config.server.startup_duration;
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

/// `vllm-VERSION[-tpN][-ppN][-dpN][-ep]-HASH`, the same for all requests of a server.
fn fingerprint(config: &Config) -> Option<String> {
    let mut hasher = Sha256::new();
    hasher.update(format!(
        "{:?} {:?} {:?}",
        config.model.name, config.engine, config.lora.enabled
    ));
    let digest = hasher.finalize();
    let hash: String = digest
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let parallel = &config.engine.parallel;
    match &config.api.fingerprint {
        Fingerprint::None => None,
        Fingerprint::Custom => config.api.fingerprint_value.clone(),
        Fingerprint::Hash => Some(hash),
        Fingerprint::Full => {
            let mut text = format!("vllm-{}", config.model.vllm_version);
            for (name, degree) in [
                ("tp", parallel.tensor),
                ("pp", parallel.pipeline),
                ("dp", parallel.data),
            ] {
                if degree > 1 {
                    text.push_str(&format!("-{name}{degree}"));
                }
            }
            if parallel.expert {
                text.push_str("-ep");
            }
            Some(format!("{text}-{hash}"))
        }
    }
}

/// The history of `--request-history`.
fn history(config: &Config) -> Option<Arc<RequestHistory>> {
    let server = &config.server;
    let (keep, bodies) = (server.request_history, server.request_history_bodies);
    (keep > 0).then(|| {
        Arc::new(RequestHistory::new(
            keep,
            bodies,
            server.max_request_body_bytes,
        ))
    })
}

/// The engine's name among the engines of a deployment.
fn engine_id(config: &Config, policy: &Policy) -> String {
    let transfer = config.kv_transfer.as_ref();
    let given = transfer.and_then(|transfer| transfer.engine_id.clone());
    given.unwrap_or_else(|| policy.engine_id(config.engine.parallel.local_ranks.0))
}

/// What requests are checked against.
fn limits(config: &Config, service: &Service, version: Version) -> Limits {
    let tokenizer = service.generator.tokenizer();
    let known = matches!(**tokenizer, Tokenizer::Hf(_));
    let api = &config.api;
    Limits {
        max_model_len: config.model.max_model_len,
        max_logprobs: api.max_logprobs.map_or(-1, i64::from),
        vocab_size: known.then(|| tokenizer.vocab_size()),
        // llm-d calls tools without being told how the model writes them.
        has_tool_parser: api.tool_call_parser.is_some() || config.model.cli_mode == CliMode::Llmd,
        auto_tool_choice: api.enable_auto_tool_choice || config.model.cli_mode == CliMode::Llmd,
        reasoning_parser: api.reasoning_parser.is_some(),
        trust_request_chat_template: api.trust_request_chat_template,
        trust_request_mm_kwargs: config.model.cli_mode == CliMode::Llmd,
        prompt_embeds: false,
        speculative: config.engine.speculative.is_some(),
        data_parallel_ranks: service.ranks().len() as u32,
        served_name: service.models.displayed().to_string(),
        version,
    }
}

/// What is filled in where a request is silent: the model's generation config and what was laid
/// over it.
fn defaults(config: &Config, service: &Service) -> SamplingDefaults {
    let mut map = match (
        &**service.generator.tokenizer(),
        config.model.generation_config.as_str(),
    ) {
        (Tokenizer::Hf(hf), "auto") => hf.generation_config().clone(),
        _ => serde_json::Map::new(),
    };
    map.extend(config.model.generation_config_overrides.clone());
    let number = |key: &str| map.get(key).and_then(serde_json::Value::as_f64);
    let count = |key: &str| {
        map.get(key)
            .and_then(serde_json::Value::as_i64)
            .map(i128::from)
    };
    SamplingDefaults {
        temperature: number("temperature"),
        top_p: number("top_p"),
        top_k: count("top_k"),
        min_p: number("min_p"),
        repetition_penalty: number("repetition_penalty"),
        presence_penalty: number("presence_penalty"),
        frequency_penalty: number("frequency_penalty"),
        max_tokens: count("max_new_tokens"),
        skip_special_tokens: None,
        stop_token_ids: Vec::new(),
        bounds: bounds(config),
    }
}

/// What single requests may have.
fn bounds(config: &Config) -> RequestBounds {
    let limits = &config.api.limits;
    RequestBounds {
        n: limits.n.into(),
        prompts: limits.prompts as usize,
        stop_strings: limits.stop_strings as usize,
    }
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "answers show the wall clock")]
pub(super) fn unix_now() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}
