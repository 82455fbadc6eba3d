//! What an operator may change of a running server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::availability::Availability;
use super::image_output::ImageOutput;
use super::settings::ControlSettings;
use vllm_sim_engine::driver::unix_now;
use vllm_sim_engine::{Command, Reset};
use vllm_sim_observe::kv_events::EventLoss;
use vllm_sim_observe::metrics::{FakeMetrics, Metrics, SleepState};
use vllm_sim_service::scenario::Action;
use vllm_sim_service::{LoadMode, Service};

/// The data that a server hides from its observers.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlindSpots {
    /// Records whether KV events are lost.
    pub(super) lose_kv_events: bool,
    /// Records whether `/metrics` stays as it is.
    pub(super) stale_metrics: bool,
}

/// The parts of a server that settings and phases act on. Kept as long as the server runs.
pub struct ServerControls {
    /// The use cases.
    pub(crate) service: Arc<Service>,
    /// What `/metrics` shows.
    pub(crate) metrics: Arc<Metrics>,
    /// Whether clients can connect.
    pub(crate) availability: watch::Sender<Availability>,
    /// Images in replies.
    pub(crate) image_output: ImageOutput,
    /// The fake metrics that were last set.
    fake_metrics: Mutex<Value>,
    /// The page that `/metrics` has shown since it became stale on purpose.
    stale_page: Mutex<Option<String>>,
    event_loss: EventLoss,
    /// Records whether the engines have a prefix cache.
    caches: bool,
}

impl ServerControls {
    /// The controls of a server with these parts.
    pub fn new(
        settings: &ControlSettings,
        service: Arc<Service>,
        metrics: Arc<Metrics>,
        event_loss: EventLoss,
    ) -> Self {
        Self {
            service,
            metrics,
            availability: watch::Sender::default(),
            image_output: ImageOutput::new(settings),
            fake_metrics: Mutex::new(settings.fake_metrics.clone()),
            stale_page: Mutex::default(),
            event_loss,
            caches: settings.finds_prefixes,
        }
    }

    /// Follows whether clients can connect.
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.availability.subscribe()
    }

    /// Sets what differs from the fake metrics that were set before: requests may have moved the
    /// rest since, and functions of time go on.
    pub(crate) fn set_fake_metrics(&self, new: &Value) {
        let mut last = self.fake_metrics.lock();
        let changed = changes(&last, new);
        last.clone_from(new);
        // What the engines count meanwhile would be lost, or what is set here.
        let _locks = self.service.lock_engines();
        if let Ok(fake) = serde_json::from_value::<FakeMetrics>(changed)
            && let Err(error) = self.metrics.update_fake(&fake)
        {
            tracing::warn!(%error, "fake metrics not changed");
        }
    }

    /// Hides from now on what observers are not to see.
    pub(crate) fn set_blind_spots(&self, hidden: BlindSpots) {
        self.event_loss.set(hidden.lose_kv_events);
        let mut stale = self.stale_page.lock();
        match (hidden.stale_metrics, &*stale) {
            (true, None) => *stale = Some(self.fresh_page()),
            (true, Some(_)) => {}
            (false, _) => *stale = None,
        }
    }

    /// What `/metrics` shows.
    pub(crate) fn metrics_page(&self) -> String {
        let stale = self.stale_page.lock().clone();
        stale.unwrap_or_else(|| self.fresh_page())
    }

    fn fresh_page(&self) -> String {
        let mut page = String::new();
        self.metrics.encode(&mut page, unix_now());
        page
    }

    /// Does what the begin of a phase asks for.
    pub(crate) fn run(self: &Arc<Self>, action: &Action) {
        match action {
            Action::ResetPrefixCache => {
                self.service
                    .command(&Command::ResetPrefixCache(Reset::Forget));
            }
            Action::AbortRequests => {
                self.service.abort(None);
            }
            Action::LoadLora { name, path } => {
                if let Err(error) = self
                    .service
                    .models
                    .load(name, path, None, LoadMode::InPlace)
                {
                    tracing::warn!(%error, "adapter not loaded");
                }
            }
            Action::UnloadLora(name) => {
                self.service.models.unload(name);
            }
            Action::Restart(time) => self.restart(*time),
        }
    }

    /// The process goes away, as far as clients can tell, and comes back after `time`.
    fn restart(self: &Arc<Self>, time: Duration) {
        let down = !time.is_zero();
        let mut life = 0;
        self.availability.send_modify(|availability| {
            availability.lives = availability.lives.wrapping_add(1);
            availability.down = down;
            life = availability.lives;
        });
        self.service.restart();
        if self.caches {
            // llm-d's sleep had them switched off.
            self.service.command(&Command::Caching(true));
        }
        {
            // What is counted meanwhile would count on from before.
            let _locks = self.service.lock_engines();
            self.metrics.restart();
            for rank in 0..self.service.ranks().len() {
                self.metrics.engine(rank).set_sleep_state(SleepState::Awake);
            }
        }
        if down {
            let server = Arc::downgrade(self);
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                if let Some(server) = server.upgrade() {
                    // A later restart ends at its own time.
                    server.availability.send_if_modified(|availability| {
                        let ends = availability.lives == life && availability.down;
                        availability.down &= !ends;
                        ends
                    });
                }
            });
        }
    }
}

/// The members of `new` that `last` has not.
fn changes(last: &Value, new: &Value) -> Value {
    let (Value::Object(last), Value::Object(all)) = (last, new) else {
        return new.clone();
    };
    let differ = all
        .iter()
        .filter(|(key, value)| last.get(*key) != Some(value));
    Value::Object(differ.map(|(k, v)| (k.clone(), v.clone())).collect())
}
