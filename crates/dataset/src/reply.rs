use std::time::Duration;

/// Reply from a dataset, truncated to the requested length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedReply {
    /// Token ids; empty for [`Generation::Texts`](crate::Generation::Texts), whose texts must be
    /// encoded.
    pub tokens: Vec<u32>,
    /// Text of each token.
    pub texts: Vec<String>,
    /// Whether the reply was truncated.
    pub cut: bool,
    /// Whether the reply was recorded for this prompt.
    pub matched: bool,
    /// Time of each token since the start of its request; empty if not recorded.
    pub times: Vec<Duration>,
    /// Number of leading tokens that are reasoning.
    pub reasoning: u32,
}

/// Requested length of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyLength {
    /// Upper bound of the number of tokens.
    AtMost(u32),
    /// Exactly this number of tokens, for a request with `ignore_eos`.
    Exactly(u32),
}

impl ReplyLength {
    /// Any length.
    pub const UNBOUNDED: Self = Self::AtMost(u32::MAX);

    #[cfg(feature = "sqlite")]
    pub(crate) fn most(self) -> u32 {
        match self {
            Self::AtMost(most) | Self::Exactly(most) => most,
        }
    }
}

/// Storage of the rows of an open dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowStorage {
    /// Rows stay in the file and are read on demand.
    OnDisk,
    /// Rows are copied to memory.
    InMemory,
}

/// Statistics of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Number of rows.
    pub rows: usize,
    /// Number of distinct prompts.
    pub prompts: usize,
    /// Total number of tokens.
    pub tokens: u64,
    /// Lengths of the shortest, the median and the longest reply; 0 for an empty dataset.
    pub lengths: [u32; 3],
}
