#![doc = include_str!("../README.md")]

mod compat;
mod imitated;
pub mod kv_events;
#[cfg(feature = "zmq")]
pub mod kv_transfer;
mod load_failures;
pub mod metrics;
pub mod otel;
mod recent;
mod release;
mod waveform;
