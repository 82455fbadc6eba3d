//! Whether clients can connect to a server.

/// Whether a server can be reached, as its connections see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Availability {
    /// How often the process seemed to restart; a connection of an earlier life is reset.
    pub lives: u32,
    /// Nobody is there: new connections are reset too.
    pub down: bool,
    /// The server stops: connections end in order.
    pub stopping: bool,
}
