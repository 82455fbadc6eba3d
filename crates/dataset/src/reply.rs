use std::time::Duration;

/// Reply read from a dataset, truncated to the requested length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedReply {
    /// Token ids of the reply; empty for [`DatasetFormat::Texts`](crate::DatasetFormat::Texts),
    /// whose texts must be encoded.
    pub tokens: Vec<u32>,
    /// Text of each token of the reply.
    pub texts: Vec<String>,
    /// Whether the reply was truncated to the requested length.
    pub cut: bool,
    /// Whether the reply was recorded for the requested prompt.
    pub matched: bool,
    /// Time of each token since the start of the recorded request; empty if not recorded.
    pub times: Vec<Duration>,
    /// Number of the reply's leading tokens that are reasoning content.
    pub reasoning: u32,
}

/// Length of the reply that a request asks for, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedReplyLength {
    /// Upper bound of the reply's number of tokens.
    AtMost(u32),
    /// Exact number of tokens of the reply, for a request with `ignore_eos`.
    Exactly(u32),
}

impl RequestedReplyLength {
    #[cfg(feature = "sqlite")]
    pub(crate) fn max_reply_tokens(self) -> u32 {
        match self {
            Self::AtMost(most) | Self::Exactly(most) => most,
        }
    }
}

/// Location of an open dataset's rows: file or memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetRowStorage {
    /// The dataset's rows stay in the SQLite file and are read on demand.
    OnDisk,
    /// The dataset's rows are copied to memory when it is opened.
    InMemory,
}

/// Statistics of a dataset's replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyStats {
    /// Number of rows in the dataset, each with one reply.
    pub rows: usize,
    /// Number of distinct prompts in the dataset.
    pub prompts: usize,
    /// Total number of tokens of all replies in the dataset.
    pub tokens: u64,
    /// Number of tokens of the shortest, the median and the longest reply; 0 for an empty dataset.
    pub lengths: [u32; 3],
}
