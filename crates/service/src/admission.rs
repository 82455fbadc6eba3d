/// Bounds on what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Admission {
    /// Sequences, waiting and running.
    pub requests: Option<u32>,
    /// Prompt tokens not yet computed.
    pub tokens: Option<u64>,
}
