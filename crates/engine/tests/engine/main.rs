//! Tests the engine from outside, in virtual time; `live_virtual` compares it with a real clock.
//!
//! - `invariants`: the engine's invariants over random workloads, for every scheduler
//! - `aic`: step times from kernel tables
//! - `prefix_cache_events`: the prefix cache according to events, and blocks by use, for `invariants`
//! - `configs`: random settings of schedulers, for `invariants`
//! - `handoff`: transfer of prompts between SGLang engines
//! - `host_tier`: content and loads of the host tier
//! - `load_failures`: failed loads of prompts
//! - `media`: media items of prompts and the encoder cache, for `invariants`
//! - `mocker`: exact instants of Dynamo's mocker
//! - `pool`: exact instants of the pool of slots
//! - `lock_step`: ranks with common steps
//! - `scheduler_logs`: step logs that vLLM's own scheduler wrote; `scheduler_workload` plays their
//!   workloads, also for the example `step_log`
//! - `runs`: tokens reported as runs equal tokens reported one by one
//! - `live_virtual`: the live driver releases the tokens that virtual time computed
//!
//! `offline` runs arrivals to a log; the bench shares it.

#[cfg(feature = "aic")]
mod aic;
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
mod prefix_cache_events;
mod runs;
mod scheduler_logs;
mod scheduler_workload;
