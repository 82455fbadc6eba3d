use std::sync::Arc;

use super::record::SequenceRecord;
use crate::{Event, SimTime, Stats};

/// Receiver of all events of an engine, called on the thread that runs the engine. Implementations
/// must not block.
pub trait Observer: Send {
    /// Handles the submission of a sequence, before its first event.
    fn on_queued(&mut self, record: &SequenceRecord);
    /// Handles an event of a sequence, after the update of its record. For token events, `since` is
    /// the time of the sequence's previous output.
    fn on_event(&mut self, at: SimTime, event: &Event, record: &SequenceRecord, since: SimTime);
    /// Handles an engine event without a sequence, such as a KV cache change or a step.
    fn on_engine(&mut self, at: SimTime, event: &Event);
    /// Handles a change of the engine's gauges.
    fn on_stats(&mut self, stats: &Stats);
    /// Handles a rejected request for a LoRA adapter, reported by [`LiveEngine::refuse`].
    ///
    /// [`LiveEngine::refuse`]: super::LiveEngine::refuse
    fn on_refused(&mut self, _lora: &Arc<str>) {}
    /// Handles the end of a batch of events, when no further events are pending.
    fn on_events_delivered(&mut self) {}
}

/// Forwards all engine events to several observers, in order.
pub struct Observers(pub Vec<Box<dyn Observer>>);

impl Observer for Observers {
    fn on_queued(&mut self, record: &SequenceRecord) {
        self.0.iter_mut().for_each(|o| o.on_queued(record));
    }

    fn on_event(&mut self, at: SimTime, event: &Event, record: &SequenceRecord, since: SimTime) {
        self.0
            .iter_mut()
            .for_each(|o| o.on_event(at, event, record, since));
    }

    fn on_engine(&mut self, at: SimTime, event: &Event) {
        self.0.iter_mut().for_each(|o| o.on_engine(at, event));
    }

    fn on_stats(&mut self, stats: &Stats) {
        self.0.iter_mut().for_each(|o| o.on_stats(stats));
    }

    fn on_refused(&mut self, lora: &Arc<str>) {
        self.0.iter_mut().for_each(|o| o.on_refused(lora));
    }

    fn on_events_delivered(&mut self) {
        self.0.iter_mut().for_each(|o| o.on_events_delivered());
    }
}
