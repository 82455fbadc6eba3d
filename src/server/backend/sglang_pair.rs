//! Sockets of a prefill/decode pair of SGLang servers.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::{Arc, OnceLock};

use tokio::net::TcpListener;

use crate::server::aux_server;
use crate::server::error::StartError;
use vllm_sim_config::Config;
use vllm_sim_http::App;
use vllm_sim_http::sglang::disaggregation::bootstrap::SglangBootstrapServer;
use vllm_sim_http::sglang::disaggregation::{PrefillOrDecodeServer, PrefillOrDecodeServerArgs};
use vllm_sim_observe::kv_transfer::{ZmqMessageListener, ZmqMessageSender};
use vllm_sim_service::{InferenceService, ServingRole};

/// Prefill or decode part of this server in an SGLang pair, with the listener for messages of the
/// other server.
pub(super) struct SglangPairServer {
    pub(super) disaggregation: Arc<PrefillOrDecodeServer>,
    listener: ZmqMessageListener,
}

impl SglangPairServer {
    /// Starts the sockets of a server of an SGLang prefill/decode pair; returns `None` if `config`
    /// describes another server.
    ///
    /// # Errors
    /// [`StartError::Thread`] if a thread or socket cannot be opened.
    pub(super) fn start_sockets(
        config: &Config,
        service: &Arc<InferenceService>,
    ) -> Result<Option<Self>, StartError> {
        let Some(pair) = &config.disaggregation else {
            return Ok(None);
        };
        let sender = ZmqMessageSender::start_sender_thread().map_err(StartError::Thread)?;
        let receiver: Arc<OnceLock<Arc<PrefillOrDecodeServer>>> = Arc::default();
        let on_message = {
            let receiver = Arc::clone(&receiver);
            move |frames: &[Vec<u8>]| {
                if let Some(disaggregation) = receiver.get() {
                    disaggregation.on_zmq_message(frames);
                }
                None
            }
        };
        let endpoint = match local_address(bind_host(config)) {
            IpAddr::V4(ip) => format!("tcp://{ip}:*"),
            IpAddr::V6(ip) => format!("tcp://[{ip}]:*"),
        };
        let listener = ZmqMessageListener::start_listening(&endpoint, on_message)
            .map_err(StartError::Thread)?;
        let disaggregation = Arc::new(PrefillOrDecodeServer::new(PrefillOrDecodeServerArgs {
            config: pair.clone(),
            role: config.engine.role,
            page_size: config.engine.block_size,
            kv_cache_dtype: config.engine.memory.kv_cache_dtype.clone(),
            endpoint: listener.endpoint.clone(),
            send: Box::new(move |endpoint, frames| sender.send_message(endpoint, frames)),
            service: Arc::downgrade(service),
        }));
        let _ = receiver.set(Arc::clone(&disaggregation));
        Ok(Some(Self { disaggregation, listener }))
    }

    /// Opens the bootstrap server of a prefill server; `None` for a decode server.
    ///
    /// # Errors
    /// [`StartError::Listen`] if its port is in use.
    pub(super) async fn start_bootstrap_server(
        &self,
        config: &Config,
        app: &App,
    ) -> Result<Option<impl Future<Output = ()> + Send + use<>>, StartError> {
        if config.engine.role != ServingRole::Prefill {
            return Ok(None);
        }
        let port = config.disaggregation.as_ref().map_or(0, |pair| pair.bootstrap_port);
        let host = bind_host(config);
        let listener = TcpListener::bind((host, port)).await;
        let listener = listener.map_err(|why| StartError::Listen {
            address: format!("{host}:{port} (--disaggregation-bootstrap-port)"),
            why,
        })?;
        let routes =
            SglangBootstrapServer::with_prefill_ranks(app, &self.listener.endpoint).routes();
        Ok(Some(aux_server::serve_http1_routes(listener, routes)))
    }
}

fn bind_host(config: &Config) -> &str {
    config.server.host.as_deref().unwrap_or("0.0.0.0")
}

/// Returns an address under which other servers reach this machine: that of the host, or that of
/// the default route.
///
/// Source: SGLang 0.5.23 `srt/utils/network.py`, `get_local_ip_auto`.
fn local_address(host: &str) -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if host == "localhost" {
        return loopback;
    }
    if let Ok(address) = host.parse::<IpAddr>()
        && !address.is_unspecified()
    {
        return address;
    }
    // Connecting a UDP socket sends nothing.
    let route = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("10.255.255.255:9")?;
        socket.local_addr()
    });
    route.map_or(loopback, |address| address.ip())
}
