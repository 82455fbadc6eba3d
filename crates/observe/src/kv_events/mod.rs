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

#[cfg(feature = "zmq")]
mod copies;
mod encode;
mod encoding;
mod endpoint;
mod loss;
mod message;
pub(crate) mod msgpack;
mod topic;
mod upstream;

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

pub use encode::{encode_kv_event_batch, is_kv_event};
pub use encoding::{HostKvEventDetail, KvEventEncoding, KvEventHashFormat, KvEventLayerGroups};
pub use endpoint::{EndpointPortError, is_bind_endpoint, kv_event_endpoint_of_rank};
pub use loss::{KvEventLoss, KvEventLossSchedule, KvEventLossSwitch};
pub use message::{AttentionKind, KvEventFormat, KvEventPreviewFeatures};
pub use topic::{LLMD_TOPIC_TEMPLATE, TopicTemplateError, TopicTemplateFields};

#[cfg(feature = "zmq")]
pub use observer::KvEventObserver;
#[cfg(feature = "zmq")]
pub use publisher::{
    KvEventBatching, KvEventPublisher, KvEventPublisherConfig, KvEventPublisherError,
};
