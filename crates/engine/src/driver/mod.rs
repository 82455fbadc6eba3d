//! Drives engines in real time behind a server: one engine, or several ranks that step together.

mod core;
mod live;
mod observer;
mod progress;
mod ranks;
mod record;
mod slack;
mod snapshot;

pub use live::{EngineLocks, LiveEngine, SequenceHandle, TimerTuning, unix_at, unix_now};
pub use observer::{Observer, Observers};
pub use progress::{Progress, SequenceState};
pub use ranks::LiveRanks;
pub use record::{
    KvSource, ParentRequest, PlannedFinish, RequestInfo, SequenceRecord, SpanAttributes, Submission,
};
pub use slack::minimize_timer_slack;
pub use snapshot::{BlockMap, LiveSequence, LiveSequences, SequencePhase};
