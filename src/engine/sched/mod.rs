//! The schedulers: siblings behind [`Scheduler`](super::Scheduler).

pub mod pool;
