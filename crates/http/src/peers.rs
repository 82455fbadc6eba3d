//! State of other servers (`--dashboard-peers`) for the dashboard.
//!
//! Only addresses of `--dashboard-peers` are requested, and peers do not forward the request.

use std::time::Duration;

use axum::body::Bytes;
use futures_util::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::timeout;

use vllm_sim_engine::SimTime;

/// Path of the route on which a peer server returns its state.
pub const SUMMARY_PATH: &str = "/dashboard/summary";

/// Maximum age of a peer server's response that several dashboards share, so that the peer is not
/// asked by each of them.
const PEER_CACHE_TTL: Duration = Duration::from_millis(500);

const PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// A server of `--dashboard-peers`, whose state the dashboard shows.
pub struct DashboardPeer {
    /// URL of the peer server, as configured.
    pub url: String,
    /// Requests [`SUMMARY_PATH`] from the peer server; returns the body, limited in size, or an error
    /// message.
    pub ask: Box<dyn Fn() -> BoxFuture<'static, Result<Bytes, String>> + Send + Sync>,
}

pub(super) struct DashboardPeers {
    peers: Vec<DashboardPeer>,
    cached: Mutex<Option<(SimTime, Vec<Value>)>>,
}

impl DashboardPeers {
    pub(super) fn new(peers: Vec<DashboardPeer>) -> Self {
        let cached = Mutex::default();
        Self { peers, cached }
    }

    pub(super) fn has_no_peers(&self) -> bool {
        self.peers.is_empty()
    }

    /// Returns the dashboard rows of all peer servers, at most 500 ms old.
    pub(super) async fn peer_dashboard_rows(&self, now: impl Fn() -> SimTime) -> Vec<Value> {
        let mut cached = self.cached.lock().await;
        if let Some((at, rows)) = cached.as_ref()
            && now().duration_since(*at) < PEER_CACHE_TTL
        {
            return rows.clone();
        }
        let asked = self.peers.iter().map(|peer| async {
            let answer = timeout(PEER_TIMEOUT, (peer.ask)()).await;
            let late = || Err(format!("no response within {PEER_TIMEOUT:?}"));
            peer_row_json(&peer.url, answer.unwrap_or_else(|_| late()))
        });
        let rows = join_all(asked).await;
        *cached = Some((now(), rows.clone()));
        rows
    }
}

/// Converts the response of a peer server to a dashboard row.
fn peer_row_json(url: &str, answer: Result<Bytes, String>) -> Value {
    let state = answer.and_then(|body| {
        let state: Option<Value> = serde_json::from_slice(&body).ok();
        let whole = |state: &Value| state["in_force"].is_object() && state["running"].is_u64();
        let state = state.filter(whole);
        state.ok_or_else(|| format!("its {SUMMARY_PATH} is not a response of vllm-sim"))
    });
    let (state, error) = match state {
        Ok(state) => (state, Value::Null),
        Err(error) => (Value::Null, error.into()),
    };
    let name = url.split_once("://").map_or(url, |(_, host)| host);
    json!({"name": name, "url": url, "port": null, "root_path": null, "error": error, "state": state})
}
