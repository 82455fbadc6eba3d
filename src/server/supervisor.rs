//! Health endpoint that reports whether all data-parallel ranks of a multi-port deployment are up.
//!
//! Source: vLLM 0.33 `entrypoints/launchers/dp_supervisor.py`. Its processes are servers of this
//! one process here.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::aux_server;
use super::error::StartError;
use vllm_sim_http::App;

/// Server of the health endpoint of a multi-port deployment; dropping it ends the service.
pub(super) struct HealthSupervisor {
    pub(super) address: SocketAddr,
    _serving: JoinSet<()>,
}

impl HealthSupervisor {
    /// Starts the health endpoint on `port` of the servers' host.
    ///
    /// # Errors
    /// [`StartError::Listen`] if the port is in use.
    pub(super) async fn start_health_endpoint(
        host: Option<&str>,
        port: u16,
        servers: &[Arc<App>],
    ) -> Result<Self, StartError> {
        let host = host.and_then(|host| host.parse().ok());
        let at = SocketAddr::new(host.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port);
        let listen = |why| StartError::Listen {
            address: format!("{at} (--data-parallel-supervisor-port)"),
            why,
        };
        let listener = TcpListener::bind(at).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let watched: Arc<[Weak<App>]> = servers.iter().map(Arc::downgrade).collect();
        let look = move || {
            let up = watched.iter().all(is_up);
            async move {
                match up {
                    true => StatusCode::OK,
                    false => StatusCode::SERVICE_UNAVAILABLE,
                }
            }
        };
        let routes = Router::new()
            .route("/health", get(look.clone()))
            .route("/ready", get(look.clone()))
            .route("/readyz", get(look));
        let mut serving = JoinSet::new();
        serving.spawn(aux_server::serve_http1_routes(listener, routes));
        Ok(Self { address, _serving: serving })
    }
}

fn is_up(app: &Weak<App>) -> bool {
    app.upgrade().is_some_and(|app| app.is_serving())
}
