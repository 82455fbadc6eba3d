use std::sync::Arc;

use super::record::SequenceRecord;
use crate::{Event, SimTime, Stats};

/// Hears everything an engine does, on the thread that runs it. It must not block.
pub trait Observer: Send {
    /// A sequence entered the engine; called before its first event.
    fn on_queued(&mut self, record: &SequenceRecord);
    /// An event of a sequence, after its record was brought up to date. For tokens, `since` is the
    /// instant of the previous output.
    fn on_event(&mut self, at: SimTime, event: &Event, record: &SequenceRecord, since: SimTime);
    /// An event of no sequence (cache, steps).
    fn on_engine(&mut self, at: SimTime, event: &Event);
    /// Gauges, after each look at the engine that changed anything.
    fn on_stats(&mut self, stats: &Stats);
    /// A request for this adapter was refused in the place of its turn ([`LiveEngine::refuse`]).
    ///
    /// [`LiveEngine::refuse`]: super::LiveEngine::refuse
    fn on_refused(&mut self, _lora: &Arc<str>) {}
    /// The engine has said all it has to say for now.
    fn on_rest(&mut self) {}
}

/// Several observers, called in order.
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

    fn on_rest(&mut self) {
        self.0.iter_mut().for_each(|o| o.on_rest());
    }
}
