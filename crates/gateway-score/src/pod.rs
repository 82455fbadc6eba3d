//! Inspects a pod behind the gateway: state, identity and request history.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, Response};
use serde_json::Value;

use vllm_sim_replay::online::{RequestHeaderNames, TargetServer};

/// Timeout of admin and metrics requests to pods.
const POD_ADMIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends an admin or metrics request to a pod, and returns the response, whatever its status.
pub(super) async fn send_admin_request(
    pod: &TargetServer,
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
) -> Result<Response<Bytes>, String> {
    pod.request_accepting_any_status(method, path, body.into(), POD_ADMIN_REQUEST_TIMEOUT).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatewayPodState {
    Ready,
    /// The pod responds, but is not ready.
    Starting,
    Asleep,
    Dead,
}

impl GatewayPodState {
    pub(super) fn pod_state_name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Starting => "starting",
            Self::Asleep => "asleep",
            Self::Dead => "dead",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodRequestAttempt {
    pub(super) pod: usize,
    pub(super) request_id: String,
    pub(super) status: Option<u16>,
    /// Whether the pod generated a response to the request.
    pub(super) is_served: bool,
    /// Start time of the request attempt, in seconds since 1970.
    pub(super) started: f64,
}

pub(super) struct GatewayPod {
    pub(super) target: Arc<TargetServer>,
    pub(super) url: String,
    pub(super) state: GatewayPodState,
    /// Identity of the pod, as in the headers of its responses.
    pub(super) identity: Option<String>,
    pub(super) model: Option<String>,
    /// Number of tokens per KV block and number of blocks, from the pod's metrics.
    pub(super) cache: Option<(u32, u32)>,
    /// Numbers of prefix cache hits and queries of the pod before the run, in tokens, from the
    /// pod's metrics.
    counted: Option<(f64, f64)>,
    pub(super) is_cold: bool,
    /// Id of the newest request in the pod's history before the run; `None` without a history.
    pub(super) newest: Option<u64>,
}

impl GatewayPod {
    /// Inspects a pod's state, identity and metrics, and resets its prefix cache if allowed.
    pub(super) async fn inspect_pod(
        target: TargetServer,
        url: String,
        identity: &RequestHeaderNames,
    ) -> Self {
        let mut pod = Self {
            target: Arc::new(target),
            url,
            state: GatewayPodState::Dead,
            identity: None,
            model: None,
            cache: None,
            counted: None,
            is_cold: false,
            newest: None,
        };
        let Ok(health) = pod.get_any_status("/health").await else {
            return pod;
        };
        pod.identity = identity.pod_from_headers(health.headers());
        let sleep = pod.get_json("/is_sleeping").await;
        pod.state = match () {
            () if sleep.is_some_and(|sleep| sleep["is_sleeping"] == true) => {
                GatewayPodState::Asleep
            }
            () if health.status().is_success() => GatewayPodState::Ready,
            () => GatewayPodState::Starting,
        };
        // The history also shows what a gateway sends to a pod that is not ready.
        let history = pod.get_json("/admin/requests?limit=1").await;
        pod.newest = history.map(|page| page["requests"][0]["id"].as_u64().unwrap_or(0));
        if pod.state != GatewayPodState::Ready {
            return pod;
        }
        let is_reset = pod.reset_prefix_cache().await;
        let page = pod.get_metrics_page().await.unwrap_or_default();
        pod.cache = block_size_and_block_count(&page);
        pod.counted = sum_prefix_cache_counters(&page);
        pod.is_cold = is_reset || pod.counted.is_none_or(|(_, queries)| queries == 0.0);
        let models = pod.get_json("/v1/models").await;
        pod.model = models.and_then(|list| Some(list["data"][0]["id"].as_str()?.to_owned()));
        pod
    }

    /// Resets the pod's prefix cache; returns false if the pod does not allow it.
    pub(super) async fn reset_prefix_cache(&self) -> bool {
        let reset = send_admin_request(&self.target, Method::POST, "/reset_prefix_cache", "");
        reset.await.is_ok_and(|answer| answer.status().is_success())
    }

    async fn get_any_status(&self, path: &str) -> Result<Response<Bytes>, String> {
        send_admin_request(&self.target, Method::GET, path, "").await
    }

    async fn get_successful(&self, path: &str) -> Option<Bytes> {
        let answer = self.get_any_status(path).await.ok()?;
        answer.status().is_success().then(|| answer.into_body())
    }

    pub(super) async fn get_json(&self, path: &str) -> Option<Value> {
        serde_json::from_slice(&self.get_successful(path).await?).ok()
    }

    async fn get_metrics_page(&self) -> Option<String> {
        String::from_utf8(self.get_successful("/metrics").await?.to_vec()).ok()
    }

    /// Returns the numbers of prefix cache hits and queries of the pod since
    /// [`GatewayPod::inspect_pod`], in tokens.
    pub(super) async fn prefix_cache_hits_and_queries(&self) -> Option<(f64, f64)> {
        let (hits, queries) = sum_prefix_cache_counters(&self.get_metrics_page().await?)?;
        let before = self.counted?;
        Some((hits - before.0, queries - before.1))
    }

    /// Returns the requests that the pod received since [`GatewayPod::inspect_pod`], and whether
    /// the history is complete.
    pub(super) async fn requests_since_inspection(
        &self,
        number: usize,
    ) -> Option<(Vec<PodRequestAttempt>, bool)> {
        let newest = self.newest?;
        let path = format!("/admin/requests?after={newest}&limit=1000000");
        let page = self.get_json(&path).await?;
        let records = page["requests"].as_array()?;
        let oldest = records.first().and_then(|record| record["id"].as_u64());
        let attempts = records.iter().map(|record| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let status: Option<u16> = record["status"].as_u64().and_then(|s| s.try_into().ok());
            PodRequestAttempt {
                pod: number,
                request_id: text(&record["headers"]["x-request-id"]),
                status,
                is_served: status.is_some_and(|status| (200..300).contains(&status))
                    && text(&record["path"]).ends_with("/completions"),
                started: record["time"].as_f64().unwrap_or_default(),
            }
        });
        let is_whole = oldest.is_none_or(|oldest| oldest == newest + 1);
        Some((attempts.collect(), is_whole))
    }
}

/// Sums `vllm:prefix_cache_hits_total` and `…_queries_total` over the lines of a metrics page.
fn sum_prefix_cache_counters(page: &str) -> Option<(f64, f64)> {
    let sum = |name: &str| {
        let lines = page.lines().filter(|line| line.starts_with(name));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.reduce(|a, b| a + b)
    };
    let hits = sum("vllm:prefix_cache_hits_total")?;
    Some((hits, sum("vllm:prefix_cache_queries_total")?))
}

/// Reads KV block size and number of blocks from `vllm:cache_config_info` on a metrics page.
fn block_size_and_block_count(page: &str) -> Option<(u32, u32)> {
    let line = page.lines().find(|line| line.starts_with("vllm:cache_config_info"))?;
    let label = |name: &str| {
        let (_, value) = line.split_once(&format!("{name}=\""))?;
        value.split('"').next()?.parse().ok()
    };
    Some((label("block_size")?, label("num_gpu_blocks")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_page_gives_counters_and_block_size() {
        let page = "# HELP x\n\
            vllm:prefix_cache_hits_total{engine=\"0\"} 32.0\n\
            vllm:prefix_cache_hits_total{engine=\"1\"} 1.0\n\
            vllm:prefix_cache_queries_total{engine=\"0\"} 64.0\n\
            vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"200\"} 1.0\n";
        assert_eq!(sum_prefix_cache_counters(page), Some((33.0, 64.0)));
        assert_eq!(block_size_and_block_count(page), Some((16, 200)));
        assert_eq!((sum_prefix_cache_counters(""), block_size_and_block_count("")), (None, None));
    }
}
