//! From an engine to a publisher.

use super::encode::{is_host, is_kv};
use super::publisher::Publisher;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{Observer, SequenceRecord};
use vllm_sim_engine::{Event, Stats};

/// Hands an engine's cache events to a [`Publisher`], one batch per step.
#[derive(Debug)]
pub struct KvObserver {
    publisher: Publisher,
    batch: Vec<Event>,
    /// Whether the engine marks its steps; otherwise a batch ends when the engine comes to rest.
    steps: bool,
}

impl KvObserver {
    /// An observer that feeds `publisher`.
    pub fn new(publisher: Publisher, steps: bool) -> Self {
        Self {
            publisher,
            batch: Vec::new(),
            steps,
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
        if is_kv(event) {
            self.batch.push(event.clone());
        } else if self.steps && matches!(event, Event::Step { .. }) {
            self.publish();
        }
    }

    fn on_stats(&mut self, _: &Stats) {}

    fn on_rest(&mut self) {
        // Copies to the host end while no step runs, too; vLLM makes empty steps meanwhile.
        if !self.steps || self.batch.last().is_some_and(is_host) {
            self.publish();
        }
    }
}
