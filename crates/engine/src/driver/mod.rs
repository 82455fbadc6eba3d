//! Drives engines in real time behind a server: one engine, or several ranks that step together.

mod core;
mod live;
mod observer;
mod progress;
mod ranks;
mod record;
mod slack;
mod snapshot;

pub use live::{EngineLocks, LiveEngine, SequenceHandle, TimerTuning, unix_now_secs, unix_secs_at};
pub use observer::{EngineObserver, EngineObservers};
pub use progress::{SequenceState, SharedProgress};
pub use ranks::LiveRankGroup;
pub use record::{
    KvSourceServer, ParentRequestCounters, PlannedFinish, RequestInfo, RequestSpanAttributes,
    SequenceRecord, Submission,
};
pub use slack::minimize_timer_slack;
pub use snapshot::{BlockMapSnapshot, LiveSequenceSnapshot, LiveSequencesSnapshot, SequencePhase};
