//! Handshakes with prefill servers, before a prompt is loaded from one.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use vllm_sim_engine::driver::KvSourceServer;

/// Performs the handshakes of a decode server with prefill servers.
pub trait PrefillHandshake: fmt::Debug + Send + Sync {
    /// Begins the handshake with the prefill server of a request; the returned receiver gets
    /// whether it succeeded. Returns `None` if no handshake is needed.
    fn begin(&self, source: &Arc<KvSourceServer>) -> Option<oneshot::Receiver<bool>>;
}
