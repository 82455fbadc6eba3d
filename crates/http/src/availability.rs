//! Simulated availability of a server to its clients.

/// Simulated availability of a server to its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Availability {
    /// Number of simulated restarts of the server; connections from before a restart are reset.
    pub lives: u32,
    /// Whether the server also resets new connections.
    pub down: bool,
    /// Whether the server closes connections after the current response, and new ones after one
    /// response, so that clients move to other servers.
    pub leaving: bool,
    /// Whether the server is stopping: it accepts no connections, and open ones end in order.
    pub stopping: bool,
}
