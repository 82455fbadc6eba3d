//! Whether clients can connect to a server.

/// Whether a server can be reached, as its connections see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Availability {
    /// How often the process seemed to restart; a connection of an earlier life is reset.
    pub lives: u32,
    /// Nobody is there: new connections are reset too.
    pub down: bool,
    /// The server takes its leave: connections end with the answer that is under way, and new
    /// ones after a single answer, so that clients turn elsewhere.
    pub leaving: bool,
    /// The server stops: nobody is accepted any more, connections end in order.
    pub stopping: bool,
}
