use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};

use super::openai::view::Wire;
use super::routes::{self, Index};
use crate::config::{Compat, Config, Fingerprint};
use crate::metrics::Metrics;
use crate::service::Service;
use crate::wire::Version;

/// What the server is made of.
pub struct Parts {
    /// What was chosen at start.
    pub config: Arc<Config>,
    /// The use cases.
    pub service: Arc<Service>,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// The port that answers name (`x-inference-port`).
    pub port: u16,
    /// When the process started.
    pub started: Instant,
}

/// State that every handler sees.
pub struct App {
    pub(super) config: Arc<Config>,
    pub(super) service: Arc<Service>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) port: u16,
    pub(super) started: Instant,
    pub(super) wire: Wire,
    pub(super) version: Version,
    pub(super) fingerprint: Option<Arc<str>>,
    pub(super) load: Arc<AtomicI64>,
    /// Routes that this configuration serves.
    pub(super) routes: Index,
    /// What answers name as the version of the weights.
    pub(super) weight_version: ArcSwap<String>,
    stopping: AtomicBool,
}

impl App {
    /// The state of a server made of `parts`.
    pub fn new(parts: Parts) -> Self {
        let Parts {
            config,
            service,
            metrics,
            port,
            started,
        } = parts;
        let version = Version::of(&config.model.vllm_version);
        let wire = if version == Version::V032 {
            Wire::V032
        } else {
            Wire::V033
        };
        Self {
            fingerprint: fingerprint(&config).map(Into::into),
            routes: routes::index(&config),
            weight_version: ArcSwap::from_pointee("default".to_owned()),
            config,
            service,
            metrics,
            port,
            started,
            wire,
            version,
            load: Arc::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// The use cases.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// From now on `/health` says 503.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.service.drain();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn is_llmd(&self) -> bool {
        self.config.model.compat == Compat::Llmd
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
        Fingerprint::Custom(text) => Some(text.clone()),
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

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "answers show the wall clock")]
pub(super) fn unix_now() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}
