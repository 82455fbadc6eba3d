/// Limits on the work in flight; `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Admission {
    /// Maximum number of sequences, waiting and running.
    pub requests: Option<u32>,
    /// Maximum number of prompt tokens that are not yet computed.
    pub tokens: Option<u64>,
}
