//! What passes between the server that computed a prompt and the one that decodes it.
//!
//! No cache is moved; the decoding server only says when it has read, and the blocks of the
//! prefilling one are free again. With NIXL that is a notification over the data plane, so the
//! message here ([`Reader`] to [`Listener`]) is our own: `["", "read", request id]` between ZeroMQ
//! DEALER and ROUTER, at the address where vLLM's connector listens for handshakes.

mod listener;
mod reader;

pub use listener::Listener;
pub use reader::Reader;

/// Second frame of the message.
const READ: &[u8] = b"read";
