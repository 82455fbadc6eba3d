use std::net::SocketAddr;
use std::sync::Arc;

use super::{RequestFaults, TokenUsage};
use crate::fault::ConnHandle;

/// Carries what belongs to a request beside its head and body: an extension of HTTP requests and gRPC calls.
#[derive(Clone, Default)]
pub struct RequestContext {
    /// The instant at which its head had been read, in seconds since 1970.
    pub started: f64,
    /// The address that it came from; `None` on a Unix socket.
    pub client: Option<SocketAddr>,
    /// The connection of the request, for faults that break it.
    pub connection: Option<Arc<ConnHandle>>,
    /// The faults that it gets; `None` when it can get none.
    pub faults: Option<Arc<RequestFaults>>,
    /// The counter of its tokens; `None` when nothing reads it.
    pub usage: Option<Arc<TokenUsage>>,
}
