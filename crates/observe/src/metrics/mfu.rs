//! Estimates the work of an engine: floating-point operations, bytes read and bytes written
//! (`--enable-mfu-metrics`).

use std::sync::Arc;

use super::engine::{EngineFeatures, EngineMetrics};
use super::families::Id;
use vllm_sim_engine::driver::{EngineObserver, SequenceRecord};
use vllm_sim_engine::latency::{MfuStepTokens, MfuWorkModel};
use vllm_sim_engine::{SchedulerEvent, SimTime};

/// Observer of one engine: accumulates its estimated operations and bytes for the MFU metrics.
pub struct MfuObserver {
    metrics: Arc<EngineMetrics>,
    model: MfuWorkModel,
    features: EngineFeatures,
    load: MfuStepTokens,
}

impl MfuObserver {
    /// Creates an observer that estimates the work of an engine that runs `model`.
    pub fn new(metrics: Arc<EngineMetrics>, model: MfuWorkModel, features: EngineFeatures) -> Self {
        Self { metrics, model, features, load: MfuStepTokens::default() }
    }

    /// Counts the work of equal steps, `times` in number.
    fn flush(&mut self, times: u32) {
        let load = std::mem::take(&mut self.load);
        if load.computed_tokens() > 0.0 {
            let work = self.model.step_flops_read_written_bytes(&load);
            for (id, n) in [Id::Flops, Id::ReadBytes, Id::WriteBytes].into_iter().zip(work) {
                self.metrics.cells[id].add(n * f64::from(times));
            }
        }
    }
}

impl EngineObserver for MfuObserver {
    fn on_sequence_event(
        &mut self,
        _: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        _: SimTime,
    ) {
        let (mut tokens, steps) = match event {
            SchedulerEvent::Tokens { n, .. } => (*n, 1),
            SchedulerEvent::Decoded { n, .. } => (1, *n),
            _ => return,
        };
        if record.output == tokens {
            let computed = record.prompt.saturating_sub(record.cached + record.external);
            self.load.add_prompt(computed, record.prompt);
            tokens -= 1;
        }
        // The mean of the steps: the work grows linearly with the context.
        let context = f64::from(record.prompt + record.output) - f64::from(steps - 1) / 2.0;
        self.load.add_decode(tokens, context);
        // Without step events, each output counts as a step.
        if !self.features.steps {
            self.flush(1);
        }
    }

    fn on_engine_event(&mut self, _: SimTime, event: &SchedulerEvent) {
        if let SchedulerEvent::Step { count, .. } = event {
            self.flush(*count);
        }
    }

    fn on_events_delivered(&mut self) {
        self.flush(1);
    }
}
