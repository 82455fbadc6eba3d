//! The loop around an engine in real time, behind a server.

mod live;
mod observer;
mod progress;
mod record;
mod slack;
mod snapshot;

pub use live::{Handle, LiveEngine, TimerTuning, unix_at, unix_now};
pub use observer::{Observer, Observers};
pub use progress::{Progress, SequenceState};
pub use record::{
    KvSource, ParentRequest, PlannedFinish, RequestInfo, SequenceRecord, SpanAttributes, Submission,
};
pub use slack::wake_promptly;
pub use snapshot::{BlockMap, LiveSequence, LiveSequences, SequencePhase};
