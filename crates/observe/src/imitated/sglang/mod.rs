//! Metrics and KV events of an SGLang server.

mod families;
pub(crate) mod kv_events;
pub(crate) mod metrics;
