//! KV-cache events for routers: a ZMQ PUB socket, and a ROUTER that repeats what a subscriber
//! missed.
//!
//! ```text
//! engine → publish() → bounded queue → thread "kv-events" → PUB   (3 frames: topic, seq, payload)
//!                                             └→ ring ← thread "kv-replay" ↔ ROUTER
//! ```
//!
//! The engine hands over a batch and goes on: a peer that is absent, slow or dies fills libzmq's
//! buffers or our queue, and what does not fit is dropped and counted.

mod encode;
mod endpoint;
pub mod message;
mod observer;
mod publisher;
mod queue;
mod replay;
#[cfg(test)]
mod tests;
mod topic;

pub use encode::{Encoding, HashForm, encode_batch, is_kv};
pub use endpoint::{EndpointError, binds, for_rank};
pub use observer::KvObserver;
pub use publisher::{Batching, Publisher, PublisherConfig, PublisherError};
pub use topic::{LLMD_TOPIC, LLMD_V06_TOPIC, LLMD_V09_TOPIC, Topic, TopicError};

pub use crate::kv_events::message::Form;
