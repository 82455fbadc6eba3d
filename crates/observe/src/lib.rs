//! What is told of an engine: observers of a driver.

pub mod kv_events;
pub mod kv_transfer;
pub mod metrics;
pub mod otel;
