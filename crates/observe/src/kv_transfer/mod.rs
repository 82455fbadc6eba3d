//! What passes between the server that computed a prompt and the one that decodes it.
//!
//! No cache is moved; the decoding server only says when it has read, and the blocks of the
//! prefilling one are free again. With NIXL that is a notification over the data plane, so the
//! message here ([`ReadNotifier`] to [`ReadListener`]) is our own: `["", "read", request id]` between
//! ZeroMQ DEALER and ROUTER, at the address where vLLM's connector listens for handshakes.

mod listener;
mod notifier;

pub use listener::ReadListener;
pub use notifier::ReadNotifier;
