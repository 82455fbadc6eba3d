/// Limits on the requests in flight, from arrival to end; `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdmissionLimits {
    /// Maximum number of sequences in flight, waiting and running.
    pub requests: Option<u32>,
    /// Maximum number of prompt tokens that the engines have not yet computed.
    pub tokens: Option<u64>,
}
