//! Settings of a running server that an operator may change.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::media::ImageOutputSampler;
use super::settings::RuntimeSettings;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_engine::{EngineCommand, PrefixCacheResetScope};
use vllm_sim_observe::kv_events::{KvEventLoss, KvEventLossSchedule, KvEventLossSwitch};
use vllm_sim_observe::metrics::{FakeMetrics, Metrics, SleepState};
use vllm_sim_service::scenario::ScenarioPhaseAction;
use vllm_sim_service::{InferenceService, LoraAdapterLoadMode, ServerAvailability};

/// Injected faults that hide the server's state from schedulers and monitoring: lost KV events and
/// stale metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObservabilityFaults {
    /// Whether KV events are dropped instead of published.
    pub(super) lose_kv_events: bool,
    /// Schedule of lost KV event messages, if any.
    pub(super) kv_event_gaps: Option<KvEventLossSchedule>,
    /// Whether `/metrics` returns an old page, as stored when the fault began.
    pub(super) stale_metrics: bool,
}

/// The objects of a running server that run-time settings and scenario phases change.
pub struct ServerControls {
    pub(crate) service: Arc<InferenceService>,
    pub(crate) metrics: Arc<Metrics>,
    /// Simulated availability of the server to its clients.
    pub(crate) availability: watch::Sender<ServerAvailability>,
    pub(crate) image_output: Option<ImageOutputSampler>,
    /// Fake metrics as last configured, by name.
    fake_metrics: Mutex<Value>,
    /// The old page that `/metrics` returns while the fault of stale metrics is active.
    stale_page: Mutex<Option<String>>,
    event_loss: KvEventLossSwitch,
    caches: bool,
}

impl ServerControls {
    /// Creates the objects of a running server that settings and fault scenarios change.
    pub fn new(
        settings: &RuntimeSettings,
        service: Arc<InferenceService>,
        metrics: Arc<Metrics>,
        event_loss: KvEventLossSwitch,
    ) -> Self {
        Self {
            service,
            metrics,
            availability: watch::Sender::default(),
            image_output: ImageOutputSampler::new_if_images_enabled(settings),
            fake_metrics: Mutex::new(settings.fake_metrics.clone()),
            stale_page: Mutex::default(),
            event_loss,
            caches: settings.finds_prefixes,
        }
    }

    /// Returns a receiver of changes of the server's simulated availability.
    pub fn availability_receiver(&self) -> watch::Receiver<ServerAvailability> {
        self.availability.subscribe()
    }

    /// Applies those configured fake metrics that differ from the previous configuration.
    ///
    /// Other metrics keep their values, because requests may have changed them and functions of
    /// time go on.
    pub(crate) fn set_fake_metrics(&self, new: &Value) {
        let mut last = self.fake_metrics.lock();
        let changed = changed_members(&last, new);
        // Locks the engines, so that counts made at the same time are not lost.
        let _locks = self.service.lock_engines();
        let Ok(fake) = serde_json::from_value::<FakeMetrics>(changed) else { return };
        match self.metrics.update_fake_metrics(&fake) {
            Ok(()) => last.clone_from(new),
            Err(error) => tracing::warn!(%error, "fake metrics not changed"),
        }
    }

    pub(crate) fn set_observability_faults(&self, faults: ObservabilityFaults) {
        self.event_loss.set_kv_event_loss(match (faults.lose_kv_events, faults.kv_event_gaps) {
            (true, _) => KvEventLoss::All,
            (false, Some(gaps)) => KvEventLoss::Gaps(gaps),
            (false, None) => KvEventLoss::None,
        });
        let mut stale = self.stale_page.lock();
        match (faults.stale_metrics, &*stale) {
            (true, None) => *stale = Some(self.current_metrics_page()),
            (true, Some(_)) => {}
            (false, _) => *stale = None,
        }
    }

    pub(crate) fn metrics_page(&self) -> String {
        let stale = self.stale_page.lock().clone();
        stale.unwrap_or_else(|| self.current_metrics_page())
    }

    fn current_metrics_page(&self) -> String {
        let mut page = String::new();
        self.metrics.encode_page(&mut page, unix_now_secs());
        page
    }

    /// Runs an action at the start of a scenario phase, such as a reset of the prefix cache.
    pub(crate) fn run_phase_action(self: &Arc<Self>, action: &ScenarioPhaseAction) {
        match action {
            ScenarioPhaseAction::ResetPrefixCache => {
                self.service.command_all_engines(&EngineCommand::ResetPrefixCache(
                    PrefixCacheResetScope::Forget,
                ));
            }
            ScenarioPhaseAction::AbortRequests => {
                self.service.abort_requests(None);
            }
            ScenarioPhaseAction::LoadLora { name, path } => {
                if let Err(error) =
                    self.service.load_lora_adapter(name, path, LoraAdapterLoadMode::InPlace)
                {
                    tracing::warn!(%error, "adapter not loaded");
                }
            }
            ScenarioPhaseAction::UnloadLora(name) => {
                self.service.models.unload_lora_adapter(name);
            }
            ScenarioPhaseAction::Restart(time) => self.simulate_restart(*time),
        }
    }

    /// Simulates a restart of the server process; clients cannot connect for `time`.
    fn simulate_restart(self: &Arc<Self>, time: Duration) {
        let down = !time.is_zero();
        let mut life = 0;
        self.availability.send_modify(|availability| {
            availability.lives = availability.lives.wrapping_add(1);
            availability.down = down;
            life = availability.lives;
        });
        self.service.reset_for_restart();
        if self.caches {
            // llm-d's sleep may have disabled the prefix cache.
            self.service.command_all_engines(&EngineCommand::Caching(true));
        }
        {
            // Locks the engines, so that no earlier count survives the reset.
            let _locks = self.service.lock_engines();
            self.metrics.reset_for_restart();
            for rank in 0..self.service.rank_engines().len() {
                self.metrics.engine_metrics(rank).set_sleep_state(SleepState::Awake);
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

/// Returns the members of the JSON object `new` that differ from `last`.
fn changed_members(last: &Value, new: &Value) -> Value {
    let (Value::Object(last), Value::Object(all)) = (last, new) else {
        return new.clone();
    };
    let differ = all.iter().filter(|(key, value)| last.get(*key) != Some(value));
    Value::Object(differ.map(|(k, v)| (k.clone(), v.clone())).collect())
}
