use std::net::SocketAddr;
use std::sync::Arc;

use super::{RequestFaults, TokenUsage};
use crate::fault::ConnectionHandle;

/// The context of an HTTP request or gRPC call outside its headers and body; stored as an
/// extension.
#[derive(Clone, Default)]
pub struct RequestContext {
    /// Arrival time of the request head, in seconds since the Unix epoch.
    pub started: f64,
    /// Address of the client; `None` on a Unix socket.
    pub client: Option<SocketAddr>,
    /// Client connection of the request, for injected faults that break it.
    pub connection: Option<Arc<ConnectionHandle>>,
    /// Injected faults of the request; `None` if it cannot get any.
    pub faults: Option<Arc<RequestFaults>>,
    /// Counter of the request's tokens; `None` if nothing reads it.
    pub usage: Option<Arc<TokenUsage>>,
}
