//! Passes an engine's KV cache events to a publisher.

use super::encode::{is_host_memory_event, is_kv_event};
use super::publisher::KvEventPublisher;
use vllm_sim_engine::SchedulerEvent;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{EngineObserver, SequenceRecord};

/// Passes an engine's KV cache events to a [`KvEventPublisher`], one batch per engine step.
#[derive(Debug)]
pub struct KvEventObserver {
    publisher: KvEventPublisher,
    batch: Vec<SchedulerEvent>,
    /// Whether the engine emits step events; if not, a batch of KV events ends when the engine is
    /// idle.
    steps: bool,
}

impl KvEventObserver {
    /// Creates an observer that passes KV cache events to `publisher`.
    pub fn new(publisher: KvEventPublisher, has_engine_steps: bool) -> Self {
        Self { publisher, batch: Vec::new(), steps: has_engine_steps }
    }

    fn publish_step_events(&mut self) {
        if !self.batch.is_empty() {
            self.publisher
                .publish(std::mem::take(&mut self.batch), vllm_sim_engine::driver::unix_now_secs());
        }
    }
}

impl EngineObserver for KvEventObserver {
    fn on_sequence_event(
        &mut self,
        _: SimTime,
        _: &SchedulerEvent,
        _: &SequenceRecord,
        _: SimTime,
    ) {
    }

    fn on_engine_event(&mut self, _: SimTime, event: &SchedulerEvent) {
        if is_kv_event(event) {
            self.batch.push(event.clone());
        } else if self.steps && matches!(event, SchedulerEvent::Step { .. }) {
            self.publish_step_events();
        }
    }

    fn on_events_delivered(&mut self) {
        // Copies to CPU memory also end between steps, in which vLLM runs empty steps.
        if !self.steps || self.batch.last().is_some_and(is_host_memory_event) {
            self.publish_step_events();
        }
    }
}
