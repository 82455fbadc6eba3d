//! Run-time settings of one server, in the form in which they are applied.

use std::sync::Arc;

use serde_json::Value;

use super::media::ImageOutputSettings;
use super::server_controls::{ObservabilityFaults, ServerControls};
use vllm_sim_config::LoadedConfig;
use vllm_sim_engine::EngineCommand;
use vllm_sim_service::LiveFaultSettings;
use vllm_sim_service::fault::FaultScenarioAndPhase;

/// Run-time settings of one server, combined over its ranks and ready to apply.
#[derive(Clone)]
pub(super) struct RankCombinedRuntimeSettings {
    live: LiveFaultSettings,
    speed: f64,
    bounds: (u32, Option<u32>),
    fake_metrics: Option<Value>,
    image_output: Arc<ImageOutputSettings>,
    blind_spots: ObservabilityFaults,
    hangs_engine: bool,
}

impl RankCombinedRuntimeSettings {
    /// Combines the configurations of a server's data-parallel ranks into the run-time settings of
    /// the server.
    pub(super) fn combine_rank_settings(
        rank_configs: &[LoadedConfig],
        fault_origin: FaultScenarioAndPhase,
    ) -> Self {
        let first = &rank_configs[0].config;
        let engine = &first.engine;
        let delays = rank_configs.iter().map(|rank| &rank.config.engine.timing.delays);
        Self {
            live: LiveFaultSettings {
                rates: first.faults.rates.clone(),
                delays: delays.map(|delays| Arc::new(delays.clone())).collect(),
                admission: engine.queue.admission,
                health: first.faults.health_status,
                retry_after_seconds: first.faults.retry_after_seconds,
                origin: fault_origin,
            },
            speed: engine.total_step_speedup_ratio(),
            bounds: (engine.max_num_seqs, engine.queue.max_waiting_queue_length),
            fake_metrics: first.metrics.fake.clone(),
            image_output: Arc::new(ImageOutputSettings::from_config(first)),
            blind_spots: ObservabilityFaults {
                lose_kv_events: first.faults.lose_kv_events,
                kv_event_gaps: first.faults.kv_event_gaps,
                stale_metrics: first.faults.stale_metrics,
            },
            hangs_engine: first.faults.hang_engine,
        }
    }

    pub(super) fn apply_to_server(&self, server: &ServerControls) {
        for (rank, engine) in server.service.rank_engines().iter().enumerate() {
            if let Some(delays) = self.live.delays.get(rank) {
                engine.apply_command(EngineCommand::Delays(delays.clone()));
            }
            engine.apply_command(EngineCommand::Speed(self.speed));
            let (running, waiting) = self.bounds;
            engine.apply_command(EngineCommand::Bounds { running, waiting });
        }
        if let Some(fake) = &self.fake_metrics {
            server.set_fake_metrics(fake);
        }
        if let Some(images) = &server.image_output {
            images.replace_settings(self.image_output.clone());
        }
        server.set_observability_faults(self.blind_spots);
        server.service.set_engine_hang(self.hangs_engine);
        server.service.faults.replace_fault_settings(self.live.clone());
    }

    /// Applies the combined run-time settings to a server that has just started.
    pub(super) fn apply_at_server_start(self, server: &ServerControls) {
        server.set_observability_faults(self.blind_spots);
        server.service.set_engine_hang(self.hangs_engine);
        server.service.faults.set_initial_fault_settings(self.live);
    }
}
