#![doc = include_str!("../README.md")]
//!
//! # Parts
//!
//! ```text
//! WorkloadSource (trace file, synthetic) ──> core: sessions, router, workers ──> Sink (report, rows, page)
//! ```
//!
//! The core pulls sessions from the [`workload::WorkloadSource`] when their start time comes. It
//! reports each finished request to the [`outcome::ReplaySink`], so memory is bounded by the
//! requests in flight.

pub mod html;
pub mod load;
#[cfg(feature = "online")]
pub mod online;
pub mod outcome;
pub mod report;
pub mod sample_distribution;
pub mod statistics;
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

pub use self::core::run_replay::run_replay;
pub use self::core::{ReplayError, ReplayTotals};
pub use route::{
    EndpointPickerConfig, EndpointScorer, KvAwareRouterConfig, RouterConfig, RouterQueuePolicy,
};
pub use scale::{AutoscalerPolicy, AutoscalerRule, WorkerScaling};
pub use sessions::ArrivalPacing;
pub use settings::{KvTransferTime, PoolSpec, ReplaySettings};
