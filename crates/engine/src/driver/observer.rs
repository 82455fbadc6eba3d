use std::sync::Arc;

use super::record::SequenceRecord;
use crate::{EngineStats, SchedulerEvent, SimTime};

/// Receiver of all events of an engine, called on the thread that runs the engine. Implementations
/// must not block.
pub trait EngineObserver: Send {
    /// Handles the submission of a sequence, before its first event.
    fn on_sequence_queued(&mut self, record: &SequenceRecord);
    /// Handles an event of a sequence, after the update of its record. For token events, `since` is
    /// the time of the sequence's previous output.
    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        since: SimTime,
    );
    /// Handles an engine event without a sequence, such as a KV cache change or a step.
    fn on_engine_event(&mut self, at: SimTime, event: &SchedulerEvent);
    /// Handles a change of the engine's gauges.
    fn on_engine_stats(&mut self, stats: &EngineStats);
    /// Handles a rejected request for a LoRA adapter, reported by [`LiveEngine::report_refused_lora`](super::LiveEngine::report_refused_lora).
    ///
    fn on_lora_refused(&mut self, _lora: &Arc<str>) {}
    /// Handles the end of a batch of events, when no further events are pending.
    fn on_events_delivered(&mut self) {}
}

/// Forwards all engine events to several observers, in order.
pub struct EngineObservers(pub Vec<Box<dyn EngineObserver>>);

impl EngineObserver for EngineObservers {
    fn on_sequence_queued(&mut self, record: &SequenceRecord) {
        self.0.iter_mut().for_each(|o| o.on_sequence_queued(record));
    }

    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        since: SimTime,
    ) {
        self.0.iter_mut().for_each(|o| o.on_sequence_event(at, event, record, since));
    }

    fn on_engine_event(&mut self, at: SimTime, event: &SchedulerEvent) {
        self.0.iter_mut().for_each(|o| o.on_engine_event(at, event));
    }

    fn on_engine_stats(&mut self, stats: &EngineStats) {
        self.0.iter_mut().for_each(|o| o.on_engine_stats(stats));
    }

    fn on_lora_refused(&mut self, lora: &Arc<str>) {
        self.0.iter_mut().for_each(|o| o.on_lora_refused(lora));
    }

    fn on_events_delivered(&mut self) {
        self.0.iter_mut().for_each(|o| o.on_events_delivered());
    }
}
