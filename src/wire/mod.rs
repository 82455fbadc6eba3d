//! Mirrors of upstream schemas, field for field, and nothing else.

pub mod kv_events;
