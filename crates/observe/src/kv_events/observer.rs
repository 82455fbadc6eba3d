//! Passes an engine's KV cache events to a publisher.

use super::encode::{is_host_event, is_kv_event};
use super::publisher::Publisher;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{Observer, SequenceRecord};
use vllm_sim_engine::{Event, Stats};

/// Passes an engine's KV cache events to a [`Publisher`], one batch per engine step.
#[derive(Debug)]
pub struct KvObserver {
    publisher: Publisher,
    batch: Vec<Event>,
    /// Whether the engine emits step events; else a batch ends when the engine is idle.
    steps: bool,
    /// Whether the engine emits KV events only when they are to be published, also between steps.
    withholds: bool,
}

impl KvObserver {
    /// Creates an observer that passes KV cache events to `publisher`.
    pub fn new(publisher: Publisher, steps: bool) -> Self {
        Self {
            publisher,
            batch: Vec::new(),
            steps,
            withholds: false,
        }
    }

    /// Publishes events immediately that no step event follows. The vLLM scheduler keeps its KV
    /// events until vLLM would publish them, sometimes in a step without sequences.
    #[must_use]
    pub fn for_vllm_scheduler(self) -> Self {
        Self {
            withholds: true,
            ..self
        }
    }

    fn publish(&mut self) {
        if !self.batch.is_empty() {
            self.publisher.publish(
                std::mem::take(&mut self.batch),
                vllm_sim_engine::driver::unix_now(),
            );
        }
    }
}

impl Observer for KvObserver {
    fn on_queued(&mut self, _: &SequenceRecord) {}

    fn on_event(&mut self, _: SimTime, _: &Event, _: &SequenceRecord, _: SimTime) {}

    fn on_engine(&mut self, _: SimTime, event: &Event) {
        if is_kv_event(event) {
            self.batch.push(event.clone());
        } else if self.steps && matches!(event, Event::Step { .. }) {
            self.publish();
        }
    }

    fn on_stats(&mut self, _: &Stats) {}

    fn on_events_delivered(&mut self) {
        // Copies to CPU memory also end between steps, in which vLLM runs empty steps.
        if !self.steps || self.withholds || self.batch.last().is_some_and(is_host_event) {
            self.publish();
        }
    }
}
