//! Publishes KV cache events for routers on a ZMQ PUB socket; a ROUTER socket replays missed
//! messages.
//!
//! ```text
//! engine → publish() → bounded queue → thread "kv-events" → PUB   (3 frames: topic, seq, payload)
//!                                             └→ buffer ← thread "kv-replay" ↔ ROUTER
//! ```
//! The engine never waits for subscribers: a batch that finds libzmq's buffers or the queue full is
//! dropped and counted. Sockets and threads need the feature `zmq`; messages, topics and endpoints
//! do not.

mod encode;
mod endpoint;
mod loss;
mod message;
mod msgpack;
mod topic;

#[cfg(feature = "zmq")]
mod observer;
#[cfg(feature = "zmq")]
mod publisher;
#[cfg(feature = "zmq")]
mod queue;
#[cfg(feature = "zmq")]
mod replay;
#[cfg(feature = "zmq")]
#[cfg(test)]
mod tests;

pub use encode::{CacheGroups, Encoding, HashFormat, HostDetail, encode_batch, is_kv_event};
pub use endpoint::{EndpointError, binds, for_rank};
pub use loss::EventLoss;
pub use message::{EventFormat, SpecKind};
pub use topic::{LLMD_TOPIC, TopicError, TopicFields};

#[cfg(feature = "zmq")]
pub use observer::KvObserver;
#[cfg(feature = "zmq")]
pub use publisher::{Batching, Publisher, PublisherConfig, PublisherError};
