//! Handshakes of a decode server with Mooncake's prefill servers.
//!
//! Source: vLLM 0.33
//! `vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py`,
//! `handle_new_engine_id` and `receive_kv_from_single_worker`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use vllm_sim_engine::driver::KvSourceServer;
use vllm_sim_http::mooncake_bootstrap::BLOCK_SIZE_HEADER;
use vllm_sim_http_client::get_on_new_connection;
use vllm_sim_service::PrefillHandshake;

/// Number of attempts to reach a bootstrap server (`_BOOTSTRAP_MAX_ATTEMPTS`).
const MAX_ATTEMPTS: u32 = 3;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time until a bootstrap server responds (`VLLM_MOONCAKE_CONNECTOR_TIMEOUT`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of prefill engines that a decode server remembers; beyond it, all are forgotten.
const MAX_MET_ENGINES: usize = 65_536;

/// Handshakes of a decode server, which asks Mooncake's bootstrap servers for their prefill
/// engines.
#[derive(Debug)]
pub(super) struct MooncakeHandshake {
    peers: Arc<MooncakePeers>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct MooncakePeers {
    /// Ids of the prefill engines that a bootstrap server has listed so far.
    met: Mutex<HashSet<String>>,
    block_size: u32,
    /// Waiting time of a request for a prefill engine that its bootstrap server listed before and
    /// no longer lists.
    lost_timeout: Duration,
}

impl MooncakeHandshake {
    /// Creates the handshakes of a decode server; `abort_timeout` is
    /// `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`.
    pub(super) fn new(block_size: u32, abort_timeout: Duration) -> Self {
        let lost_timeout = abort_timeout.saturating_add(Duration::from_secs(60));
        let peers = MooncakePeers { met: Mutex::default(), block_size, lost_timeout };
        Self { peers: Arc::new(peers), tasks: Mutex::default() }
    }
}

impl PrefillHandshake for MooncakeHandshake {
    fn begin(&self, source: &Arc<KvSourceServer>) -> Option<oneshot::Receiver<bool>> {
        let (sender, result) = oneshot::channel();
        let (peers, source) = (Arc::clone(&self.peers), Arc::clone(source));
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let is_alive = peers.is_alive(&source).await;
            // The client may have left meanwhile.
            let _ = sender.send(is_alive);
        });
        Some(result)
    }
}

impl MooncakePeers {
    /// Returns whether KV blocks can be read from the prefill engine of a request.
    ///
    /// vLLM asks the bootstrap server only for an engine that is not known yet. A request to an
    /// engine that is no longer listed waits for an answer, here too.
    async fn is_alive(&self, source: &KvSourceServer) -> bool {
        let is_met = self.met.lock().contains(&source.engine_id);
        let reason = match list_engines(&source.endpoint).await {
            Ok((engines, size)) if engines.contains(&source.engine_id) => {
                match size.filter(|size| *size != self.block_size) {
                    None => {
                        let mut met = self.met.lock();
                        if met.len() >= MAX_MET_ENGINES {
                            met.clear();
                        }
                        met.insert(source.engine_id.clone());
                        return true;
                    }
                    Some(size) => format!("blocks of {size} tokens, here {}", self.block_size),
                }
            }
            answer => {
                if is_met {
                    sleep(self.lost_timeout).await;
                }
                answer.err().unwrap_or_else(|| {
                    format!(
                        "remote engine_id {} not found from bootstrap server {}",
                        source.engine_id, source.endpoint
                    )
                })
            }
        };
        tracing::error!("pulling kv_caches for {} failed: {reason}", source.request);
        false
    }
}

/// Returns the ids of the engines that a bootstrap server lists, and their block size, if it has one.
async fn list_engines(address: &str) -> Result<(Vec<String>, Option<u32>), String> {
    let host = address.split_once("://").map_or(address, |(_, host)| host);
    let mut attempts = 1;
    let answer = loop {
        match get_on_new_connection(host.trim_end_matches('/'), "/query", ANSWER_TIMEOUT).await {
            Ok(answer) => break answer,
            Err(error) if attempts == MAX_ATTEMPTS => {
                return Err(format!("Failed to connect to bootstrap server {address}: {error}"));
            }
            Err(_) => attempts += 1,
        }
        sleep(ATTEMPT_INTERVAL).await;
    };
    let size = answer.headers().get(&BLOCK_SIZE_HEADER);
    let size = size.and_then(|size| size.to_str().ok()?.parse().ok());
    let ranks: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let ranks = ranks.as_object().into_iter().flatten();
    let ids = ranks.filter_map(|(_, rank)| rank.get("engine_id")?.as_str().map(str::to_owned));
    Ok((ids.collect(), size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_was_met_is_waited_for() {
        let handshake = MooncakeHandshake::new(16, Duration::from_secs(480));
        // No server listens at this port.
        let source = KvSourceServer {
            endpoint: "http://127.0.0.1:1".to_owned(),
            request: "r".to_owned(),
            engine_id: "e".to_owned(),
        };
        let waited = async || {
            let start = tokio::time::Instant::now();
            assert!(!handshake.peers.is_alive(&source).await);
            start.elapsed()
        };
        assert!(waited().await < Duration::from_secs(540));
        handshake.peers.met.lock().insert("e".to_owned());
        let waited = waited().await;
        assert!(waited >= Duration::from_secs(540), "{waited:?}");
    }
}
