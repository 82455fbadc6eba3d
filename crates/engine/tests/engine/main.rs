//! The engine from outside, in virtual time; `live_virtual` beside a real clock.
//!
//! - `invariants`: the engine's invariants over random workloads, for every scheduler
//! - `aic`: step times from kernel tables
//! - `cache_heard`: the prefix cache that events tell of, and blocks by use, for `invariants`
//! - `configs`: random settings of schedulers, for `invariants`
//! - `handoff`: prompts that move between engines of SGLang
//! - `host_tier`: what the memory of the host keeps, and when it is loaded
//! - `load_failures`: prompts that were to be loaded and were not
//! - `media`: items of prompts and the encoder cache, for `invariants`
//! - `mocker`: exact instants of Dynamo's mocker
//! - `pool`: exact instants of the pool of slots
//! - `lock_step`: ranks whose steps begin and end together
//! - `runs`: tokens told as runs equal tokens told one by one
//! - `live_virtual`: the live driver releases what virtual time computed
//!
//! `offline` plays arrivals to a log; the bench shares it.

#[cfg(feature = "aic")]
mod aic;
mod cache_heard;
mod configs;
mod handoff;
mod host_tier;
mod invariants;
#[cfg(feature = "live")]
mod live_virtual;
mod load_failures;
mod lock_step;
mod media;
mod mocker;
mod offline;
mod pool;
mod runs;
