#![doc = include_str!("../README.md")]
//!
//! # Parts
//!
//! ```text
//! WorkloadSource (trace file, synthetic) ──> core: sessions, router, workers ──> Sink (report, rows, page)
//! ```
//!
//! The core asks the [`workload::WorkloadSource`] for sessions as their time comes and reports
//! every request that ended to the [`outcome::Sink`], so that memory is bounded by what is in flight.

pub mod html;
pub mod load;
#[cfg(feature = "online")]
pub mod online;
pub mod outcome;
pub mod report;
pub mod samples;
pub mod synth;
pub mod workload;

mod content;
mod core;
mod disaggregation;
mod pool;
mod requests;
mod route;
mod scale;
mod sessions;
mod settings;
mod steps;
mod worker;

pub use self::core::play::run;
pub use self::core::{ReplayError, Totals};
pub use route::{KvConfig, QueuePolicy, RouterConfig, Scorer, ScorersConfig};
pub use scale::{ScalePolicy, ScaleRule, Scaling};
pub use sessions::Pace;
pub use settings::{PoolSpec, Settings, TransferTime};
