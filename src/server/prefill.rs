//! Additional sockets of a prefill server for KV transfer.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;

use super::aux_server;
use super::error::StartError;
use vllm_sim_config::Config;
use vllm_sim_http::{App, mooncake_bootstrap};
#[cfg(feature = "zmq")]
use {
    super::mooncake::MooncakeHandshake,
    std::sync::OnceLock,
    tokio::sync::oneshot,
    vllm_sim_config::KvConnector,
    vllm_sim_engine::driver::KvSourceServer,
    vllm_sim_observe::kv_transfer::{
        KvHandshakeRules, KvTransferEngineMetadata, PrefillHandshakes, ZmqMessageListener,
        listen_for_kv_block_reads,
    },
    vllm_sim_service::{InferenceService, PrefillHandshake},
};

/// Starts one listener per data-parallel rank for notifications of decode servers that have read KV
/// blocks.
///
/// A port that is in use is not an error: the KV blocks are released when their lease expires.
#[cfg(feature = "zmq")]
pub(super) fn start_block_read_listeners(
    config: &Config,
    service: &Arc<InferenceService>,
    engine_ids: &Arc<OnceLock<Vec<String>>>,
) -> Vec<ZmqMessageListener> {
    let transfer = config.kv_transfer.as_ref();
    let Some(transfer) = transfer.filter(|transfer| transfer.kv_block_lease_duration().is_some())
    else {
        return Vec::new();
    };
    let (first, count) = config.engine.parallel.local_ranks;
    let mut listeners = Vec::new();
    for rank in first..first + count {
        let port = u32::from(transfer.side_channel.port) + rank;
        let endpoint = zmq_bind_endpoint(&transfer.side_channel.host, port);
        let service = Arc::downgrade(service);
        let on_read = move |request: &str| {
            if let Some(service) = service.upgrade() {
                service.release_prefill_blocks(request);
            }
        };
        let (engine_ids, index) = (Arc::clone(engine_ids), (rank - first) as usize);
        let block_size = config.engine.block_size;
        let metadata = move || {
            let engine_id = engine_ids.get()?.get(index)?.clone();
            Some(KvTransferEngineMetadata { engine_id, block_size })
        };
        match listen_for_kv_block_reads(&endpoint, metadata, on_read) {
            Ok(listener) => listeners.push(listener),
            Err(error) => tracing::warn!(
                endpoint,
                %error,
                "decode servers cannot report that they have read the blocks: the blocks stay \
                 until the lease ends"
            ),
        }
    }
    listeners
}

/// Handshakes of a decode server over ZeroMQ (NIXL and MoRI-IO).
#[cfg(feature = "zmq")]
#[derive(Debug)]
struct ZmqHandshake(PrefillHandshakes);

#[cfg(feature = "zmq")]
impl PrefillHandshake for ZmqHandshake {
    fn begin(&self, source: &Arc<KvSourceServer>) -> Option<oneshot::Receiver<bool>> {
        if self.0.has_completed_handshake(source) {
            return None;
        }
        let (sender, result) = oneshot::channel();
        self.0.begin_handshake(source, |is_met| {
            // The client may have left meanwhile.
            let _ = sender.send(is_met);
        });
        Some(result)
    }
}

/// Starts the handshakes of a decode server with prefill servers; returns `None` if `config`
/// requires none.
///
/// # Errors
/// [`StartError::Thread`] if the thread of the handshakes cannot be started.
#[cfg(feature = "zmq")]
pub(super) fn start_prefill_handshakes(
    config: &Config,
) -> Result<Option<Box<dyn PrefillHandshake>>, StartError> {
    let transfer = config.kv_transfer.as_ref().filter(|transfer| transfer.does_handshakes);
    let Some(transfer) = transfer else {
        return Ok(None);
    };
    let block_size = config.engine.block_size;
    let rules = match transfer.connector {
        Some(KvConnector::Mooncake) => {
            let timeout = transfer.mooncake_abort_timeout;
            return Ok(Some(Box::new(MooncakeHandshake::new(block_size, timeout))));
        }
        Some(KvConnector::MoriIo) => KvHandshakeRules::MoriIo,
        _ => KvHandshakeRules::Nixl(block_size),
    };
    let handshakes =
        PrefillHandshakes::start_handshake_thread(rules).map_err(StartError::Thread)?;
    Ok(Some(Box::new(ZmqHandshake(handshakes))))
}

/// Returns the ZeroMQ address to bind for a host and port.
#[cfg(feature = "zmq")]
fn zmq_bind_endpoint(host: &str, port: u32) -> String {
    match host {
        // Some resolvers return an address of another machine first.
        "localhost" => format!("tcp://127.0.0.1:{port}"),
        "0.0.0.0" | "" => format!("tcp://*:{port}"),
        host if host.contains(':') && !host.starts_with('[') => format!("tcp://[{host}]:{port}"),
        host => format!("tcp://{host}:{port}"),
    }
}

/// Returns Mooncake's bootstrap registry, if this server is configured to run it.
///
/// Source: `MooncakeBootstrapServer` of
/// `vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_utils.py`, 0.33.
///
/// # Errors
/// [`StartError::Listen`] if its port is in use.
pub(super) async fn start_mooncake_bootstrap_server(
    config: &Config,
    app: &Arc<App>,
) -> Result<Option<impl Future<Output = ()> + Send + use<>>, StartError> {
    let transfer = config.kv_transfer.as_ref();
    let Some(port) = transfer.and_then(|transfer| transfer.bootstrap_port) else {
        return Ok(None);
    };
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await;
    let listener = listener.map_err(|why| StartError::Listen {
        address: format!("0.0.0.0:{port} (--mooncake-bootstrap-port)"),
        why,
    })?;
    let routes = Router::new()
        .route("/query", get(mooncake_bootstrap::list_engines))
        .route("/register", post(mooncake_bootstrap::register_worker))
        .with_state(mooncake_bootstrap::MooncakeBootstrapRegistry::with_own_ranks(app));
    Ok(Some(aux_server::serve_http1_routes(listener, routes)))
}
