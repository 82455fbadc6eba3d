//! ZMQ endpoints of KV event publishers, per data-parallel rank.

/// Error for a ZMQ endpoint whose port cannot be shifted to the port of another data-parallel rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {endpoint:?}: rank {rank} needs a port of its own, but {why}")]
pub struct EndpointPortError {
    /// ZMQ endpoint of data-parallel rank 0, as configured.
    pub endpoint: String,
    /// Data-parallel rank of the KV event publisher.
    pub rank: u32,
    /// Reason why the endpoint's port cannot be shifted, for the error message.
    pub why: &'static str,
}

/// Returns whether a PUB socket binds to this ZMQ endpoint; else it connects, and the subscriber
/// binds.
///
/// **Source:** `ZmqEventPublisher._socket_setup`, `vllm/distributed/kv_events.py`.
pub fn is_bind_endpoint(endpoint: &str) -> bool {
    endpoint.contains('*')
        || endpoint.contains("::")
        || endpoint.starts_with("ipc://")
        || endpoint.starts_with("inproc://")
}

/// Returns the ZMQ endpoint of a data-parallel rank, from the configured endpoint of rank 0.
///
/// The rank is added to a TCP port, unless that is 0 or `*` (any port). Other transports get the
/// suffix `_dp<rank>`.
///
/// **Source:** `ZmqEventPublisher.offset_endpoint_port`; it rejects ipc, which is handled like
/// inproc here.
///
/// # Errors
/// [`EndpointPortError`] when a TCP endpoint has no port, or the port would pass 65535.
pub fn kv_event_endpoint_of_rank(endpoint: &str, rank: u32) -> Result<String, EndpointPortError> {
    if rank == 0 || endpoint.is_empty() {
        return Ok(endpoint.to_owned());
    }
    if !endpoint.starts_with("tcp://") {
        return Ok(format!("{endpoint}_dp{rank}"));
    }
    let fail = |why| EndpointPortError { endpoint: endpoint.to_owned(), rank, why };
    let (host, port) = endpoint.rsplit_once(':').ok_or_else(|| fail("it has no port"))?;
    if port == "*" || port == "0" {
        return Ok(endpoint.to_owned());
    }
    let port: u16 = port.parse().map_err(|_| fail("it does not end in a port (0 to 65535)"))?;
    let moved = u32::from(port).saturating_add(rank);
    let moved = u16::try_from(moved).map_err(|_| fail("that port would be above 65535"))?;
    Ok(format!("{host}:{moved}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wildcard_and_ipc_endpoints_bind() {
        let bound = ["tcp://*:5557", "tcp://[::]:5557", "ipc:///tmp/kv", "inproc://kv"];
        let connected = ["tcp://127.0.0.1:5557", "tcp://0.0.0.0:5557", "tcp://router:1"];
        assert!(bound.iter().all(|e| is_bind_endpoint(e)));
        assert!(!connected.iter().any(|e| is_bind_endpoint(e)));
    }

    #[test]
    fn each_rank_has_a_separate_endpoint() {
        let moved = |endpoint, rank| kv_event_endpoint_of_rank(endpoint, rank).unwrap();
        assert_eq!(moved("tcp://*:5557", 0), "tcp://*:5557");
        assert_eq!(moved("tcp://*:5557", 3), "tcp://*:5560");
        assert_eq!(moved("tcp://[::1]:5557", 1), "tcp://[::1]:5558");
        assert_eq!(moved("tcp://127.0.0.1:0", 2), "tcp://127.0.0.1:0");
        assert_eq!(moved("inproc://kv", 2), "inproc://kv_dp2");
        assert_eq!(moved("ipc:///tmp/kv", 1), "ipc:///tmp/kv_dp1");
        assert_eq!(moved("", 1), "");
    }

    #[test]
    fn unshiftable_port_is_rejected() {
        let message =
            |endpoint, rank| kv_event_endpoint_of_rank(endpoint, rank).unwrap_err().to_string();
        assert_eq!(
            message("tcp://*:65535", 1),
            "endpoint \"tcp://*:65535\": rank 1 needs a port of its own, but that port would be \
             above 65535"
        );
        assert!(message("tcp://host", 1).contains("does not end in a port"));
        assert!(message("tcp://*:5557", u32::MAX).contains("above 65535"));
    }
}
