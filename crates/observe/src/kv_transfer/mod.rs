//! Notifications of a decode server to a prefill server that it has read a request's KV blocks.
//!
//! No KV cache is transferred. The decode server reports that it has read the blocks, and the
//! prefill server frees them. NIXL sends this notification over the data plane. Here
//! [`KvBlockReadNotifier`] sends a message to a [`ZmqMessageListener`]: `["", "read", request id]` from a ZeroMQ
//! DEALER to a ROUTER. Its address is the one on which vLLM's connector listens for handshakes.

mod handshake;
mod listener;
mod notifier;

pub use handshake::{KvHandshakeRules, KvTransferEngineMetadata, PrefillHandshakes};
pub use listener::{ZmqMessageListener, listen_for_kv_block_reads};
pub use notifier::{KvBlockReadNotifier, ZmqMessageSender};
