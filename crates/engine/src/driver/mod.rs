//! Loops around an engine: in real time behind a server, or jumping through virtual time.

pub mod live;
pub mod offline;
mod progress;
mod slack;

pub use live::{
    Group, Handle, Live, Observer, Observers, Planned, Record, Source, Tag, Ticket, Traced, Tune,
    unix_at, unix_now,
};
pub use progress::{Progress, State};
pub use slack::wake_promptly;
