//! Disaggregated prefill: KV transfer parameters between prefill and decode servers.

pub(crate) mod params;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use serde_json::{Map, Value, json};

use super::app::{App, AppState};
use super::media;
use super::request_head::names;
use super::request_head::new_random_hex_id;
use crate::error::ok_json_response;
use vllm_sim_config::KvConnector;
use vllm_sim_engine::driver::KvSourceServer;
use vllm_sim_service::generate::request::TokenizedPrompt;
use vllm_sim_service::{KvTransfer, PrefillHandoff};
use vllm_sim_wire::VllmVersion;

use params::KvTransferParams;

/// Rate limits of the log warnings about `kv_transfer_params` without effect.
#[derive(Default)]
pub(crate) struct KvTransferWarningLimits {
    no_connector: LogRateLimit,
    no_source: LogRateLimit,
}

/// Source and destination of a prompt's KV cache, as a request's `kv_transfer_params` name them.
#[derive(Default)]
pub(crate) struct RequestKvTransfer {
    pub(crate) transfer: KvTransfer,
    /// Handoff of the prompt's KV cache to a decode server, and the requested `kv_transfer_params`;
    /// `None` without a decode server.
    offered: Option<(Arc<PrefillHandoff>, Map<String, Value>)>,
}

impl RequestKvTransfer {
    /// Reads the `kv_transfer_params` of a request.
    ///
    /// Without a KV connector vLLM ignores the parameters; llm-d needs no connector.
    pub(crate) fn read_kv_transfer_params(
        app: &App,
        request_id: &str,
        params: Option<&Map<String, Value>>,
    ) -> Self {
        let Some(params) = params else {
            return Self::default();
        };
        warn_without_connector(app);
        let connector = kv_connector(app);
        if is_true_param(params, "do_remote_prefill") {
            let unasked = app.settings.transfers_unasked;
            let warnings = &app.transfer_warnings.no_source;
            let named = |connector| has_transfer_source(connector, params, warnings);
            return Self {
                transfer: match unasked || connector.is_some_and(named) {
                    true => KvTransfer::FromRemote(match connector {
                        Some(KvConnector::Mooncake) => mooncake_source(params),
                        Some(KvConnector::MoriIo) => {
                            prefill_source(params).or_else(|| mori_io_source(request_id, params))
                        }
                        _ => prefill_source(params),
                    }),
                    false => KvTransfer::Local,
                },
                offered: None,
            };
        }
        if !is_true_param(params, "do_remote_decode") {
            return Self::default();
        }
        // The MoRI-IO decode server knows the router's id. Otherwise the engine's request id is the
        // API's id plus eight digits.
        let routed = params.get("transfer_id").and_then(Value::as_str);
        let name = match (connector, routed) {
            (Some(KvConnector::MoriIo), Some(routed)) => routed.to_owned(),
            _ => format!("{request_id}-{}", &new_random_hex_id()[..8]),
        };
        let prefill_handoff = Arc::new(PrefillHandoff::new(name));
        Self {
            transfer: match connector {
                None => KvTransfer::Local,
                Some(_) => KvTransfer::ForRemote(prefill_handoff.clone()),
            },
            offered: Some((prefill_handoff, params.clone())),
        }
    }

    /// Returns the KV transfer parameters for the decode server, for a response to `prompts`.
    pub(crate) fn response_kv_transfer_params(
        &self,
        app: &App,
        prompts: &[TokenizedPrompt],
    ) -> Option<Arc<KvTransferParams>> {
        let (prefill_handoff, params) = self.offered.as_ref()?;
        // For several prompts, vLLM returns the parameters of the first.
        let tokens = prompts.first().map_or(0, |prompt| prompt.tokens.len()) as u32;
        let generation = app.version >= VllmVersion::V033;
        let sent = app.dialect.transfer_params(prefill_handoff, &|| {
            let prefill_handoff = prefill_handoff.clone();
            let connector = kv_connector(app)?;
            let engine = (app.engine_id.to_string(), app.settings.clone());
            KvTransferParams::new_for_connector(
                connector,
                engine,
                tokens,
                params,
                prefill_handoff,
                generation,
            )
        });
        sent.map(Arc::new)
    }
}

/// Logs vLLM's warning about `kv_transfer_params` if the engine has no KV connector.
///
/// **Source:** vLLM 0.33 `vllm/v1/engine/core.py`, `preprocess_add_request`.
fn warn_without_connector(app: &App) {
    let settings = &app.settings;
    if settings.kv_transfer.is_some() || settings.offloads_kv || settings.transfers_unasked {
        return;
    }
    if let Some(requests) = app.transfer_warnings.no_connector.count_and_select() {
        tracing::warn!(
            requests,
            "Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for this request."
        );
    }
}

fn kv_connector(app: &App) -> Option<KvConnector> {
    match app.settings.kv_transfer.as_ref() {
        None if app.settings.transfers_unasked => Some(KvConnector::Nixl),
        None => None,
        Some(transfer) => transfer.connector,
    }
}

fn is_true_param(params: &Map<String, Value>, key: &str) -> bool {
    params.get(key).and_then(Value::as_bool) == Some(true)
}

/// Returns whether the `kv_transfer_params` have all that a KV connector needs to find the prompt's
/// KV cache.
///
/// Sources: `update_state_after_alloc` of vLLM's `nixl/pull_scheduler.py` and
/// `mooncake/mooncake_connector.py`.
fn has_transfer_source(
    connector: KvConnector,
    params: &Map<String, Value>,
    warnings: &LogRateLimit,
) -> bool {
    let needed: &[&str] = match connector {
        KvConnector::Nixl | KvConnector::NixlPush => &[
            "remote_block_ids",
            "remote_engine_id",
            "remote_request_id",
            "remote_host",
            "remote_port",
        ],
        KvConnector::Mooncake => &["remote_engine_id", "remote_bootstrap_addr", "transfer_id"],
        KvConnector::MoriIo => &["transfer_id"],
        KvConnector::LmCache | KvConnector::LmCacheMp => return false,
    };
    let missing = needed.iter().find(|key| params.get(**key).is_none_or(Value::is_null));
    if let Some(missing) = missing
        && let Some(requests) = warnings.count_and_select()
    {
        tracing::warn!(
            missing,
            requests,
            "kv_transfer_params contain no source: the prompt is computed by this server"
        );
    }
    missing.is_none()
}

/// Returns the endpoint of the prefill server that the decode server notifies after reading the KV
/// blocks.
fn prefill_source(params: &Map<String, Value>) -> Option<Arc<KvSourceServer>> {
    let text = |key: &str| params.get(key).and_then(Value::as_str);
    let host = text("remote_host")?;
    let port = ["remote_port", "remote_notify_port"]
        .into_iter()
        .find_map(|key| params.get(key)?.as_u64())
        .filter(|port| (1..=65_535).contains(port))?;
    let request = text("remote_request_id").or_else(|| text("transfer_id"))?;
    let engine_id = text("remote_engine_id").unwrap_or_default();
    Some(zmq_source(host, port, request, engine_id))
}

/// Returns the prefill server of MoRI-IO, whose address the request router has written into the
/// request id.
///
/// Source: vLLM 0.33 `moriio_common.py`, `_PREFILL_ZMQ_RE` and `parse_moriio_zmq_address`.
fn mori_io_source(id: &str, params: &Map<String, Value>) -> Option<Arc<KvSourceServer>> {
    let (_, address) = id.split_once("___prefill_addr_")?;
    let (address, _) = address.split_once("___decode_addr_")?;
    let part = |key: &str| {
        address.split(',').find_map(|part| part.trim().strip_prefix(key)?.strip_prefix(':'))
    };
    let port: u16 = part("notify")?.parse().ok().filter(|port| *port > 0)?;
    let request = params.get("transfer_id")?.as_str()?;
    Some(zmq_source(part("host")?, port.into(), request, ""))
}

/// Returns the prefill server of Mooncake, identified by the address of its bootstrap server in
/// `params`.
fn mooncake_source(params: &Map<String, Value>) -> Option<Arc<KvSourceServer>> {
    let text = |key: &str| params.get(key).and_then(Value::as_str);
    Some(Arc::new(KvSourceServer {
        endpoint: text("remote_bootstrap_addr")?.to_owned(),
        request: text("transfer_id").unwrap_or_default().to_owned(),
        engine_id: text("remote_engine_id")?.to_owned(),
    }))
}

fn zmq_source(host: &str, port: u64, request: &str, engine_id: &str) -> Arc<KvSourceServer> {
    let host = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    Arc::new(KvSourceServer {
        endpoint: format!("tcp://{host}:{port}"),
        request: request.to_owned(),
        engine_id: engine_id.to_owned(),
    })
}

/// Returns the minimum cached fraction of the prompt: set by the header that forces a miss, else by
/// the request, else by the server's setting.
pub(crate) fn cache_hit_threshold(app: &App, headers: &HeaderMap, request: &Value) -> Option<f64> {
    let forced = headers.get(&names::CACHE_HIT_THRESHOLD_HEADER).is_some_and(|value| {
        value.to_str().is_ok_and(|v| media::parse_go_bool(v.trim()) == Some(true))
    });
    if forced {
        // A fraction above 1 always misses.
        return Some(2.0);
    }
    if !app.settings.cache.finds_prefixes
        && !app.dialect.properties().applies_threshold_without_cache
    {
        // llm-d applies the threshold only with a prefix cache.
        return None;
    }
    let global = Some(app.settings.cache.hit_threshold).filter(|share| *share > 0.0);
    // Values outside 0 to 1 are ignored, as in llm-d.
    let requested = request.get("cache_hit_threshold").and_then(Value::as_f64);
    requested.filter(|share| (0.0..=1.0).contains(share)).or(global)
}

/// Handles `GET /query` of Mooncake's bootstrap server: lists data-parallel ranks and their engine
/// ids.
pub(crate) async fn query_bootstrap(State(app): AppState) -> Response<Body> {
    let parallel = &app.settings.parallel;
    let (first, count) = parallel.local_ranks;
    let own = (first..first + count).map(|rank| (rank, app.engine_id.to_string()));
    let others = app.dialect.ranks_on_other_ports(parallel.data, first..first + count);
    let mut ranks: Vec<(u32, String)> = own.chain(others).collect();
    ranks.sort_unstable();
    let ranks: Map<String, Value> = ranks
        .into_iter()
        .map(|(rank, engine)| (rank.to_string(), json!({"engine_id": engine})))
        .collect();
    ok_json_response(&Value::Object(ranks))
}

/// Rate limit of a log warning: of its occurrences, only the 1st, 2nd, 4th, 8th, … are logged.
#[derive(Debug, Default)]
struct LogRateLimit(AtomicU64);

impl LogRateLimit {
    /// Counts an occurrence of a warning; returns the count if this occurrence is to be logged.
    fn count_and_select(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        count.is_power_of_two().then_some(count)
    }
}
