//! What runs offline: no server, no wall clock in any result.

pub mod calibrate;
#[cfg(feature = "sqlite")]
pub mod dataset;
pub mod dynamo_run;
pub mod explain;
pub mod gateway;
mod grid;
pub mod plan;
pub mod progress;
#[cfg(feature = "sqlite")]
pub mod record;
pub mod replay;
mod shard;
pub mod sweep;
mod trend;
pub mod usage;
pub mod validate;
