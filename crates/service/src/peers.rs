//! Handshakes with prefill servers, before a prompt is loaded from one.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{InferenceService, KvTransfer};
use vllm_sim_engine::driver::KvSourceServer;

/// Does the handshakes of a decode server with prefill servers.
pub trait PrefillHandshake: fmt::Debug + Send + Sync {
    /// Begins the handshake with the prefill server of a request, and returns the receiver of
    /// whether it was successful; `None` if the two servers have met.
    fn begin(&self, source: &Arc<KvSourceServer>) -> Option<oneshot::Receiver<bool>>;
}

impl InferenceService {
    /// Waits for the handshake with the prefill server of a request, if one is needed; returns
    /// whether the prompt cannot be loaded from there.
    ///
    /// In vLLM the request then waits in the engine, with the reason `deferred`.
    pub(crate) async fn has_lost_source(&self, transfer: &KvTransfer) -> bool {
        let (Some(handshake), KvTransfer::FromRemote(source)) = (&self.handshake, transfer) else {
            return false;
        };
        // Without an address there is no one to ask.
        let Some(source) = source else {
            return true;
        };
        match handshake.begin(source) {
            None => false,
            Some(result) => !result.await.unwrap_or(false),
        }
    }
}
