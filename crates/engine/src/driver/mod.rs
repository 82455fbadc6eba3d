//! Drives engines in real time behind a server: one engine, or several ranks that step together.

mod core;
mod live;
mod record;
mod snapshot;

pub use core::EngineProgress;
pub use live::{
    EngineLockGuards, LiveEngine, LiveRankGroup, SequenceHandle, TimerThreadSettings,
    minimize_timer_slack, unix_now_secs, unix_secs_at,
};
pub use record::{
    EngineObserver, EngineObservers, KvSourceServer, ParentRequestCounters, PlannedFinishReason,
    RequestSpanAttributes, SequenceRecord, SequenceState, SharedSequenceProgress,
};
pub use snapshot::{
    KvBlockMapSnapshot, LiveSequenceSnapshot, LiveSequencesSnapshot, SequencePhase,
};
