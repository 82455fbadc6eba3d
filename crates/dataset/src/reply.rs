use std::time::Duration;

/// A recorded reply, cut to the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedReply {
    /// Token ids; empty when the file has none ([`Generation::Texts`](crate::Generation::Texts)): encode the texts.
    pub tokens: Vec<u32>,
    /// The text of each token.
    pub texts: Vec<String>,
    /// Whether the recorded reply was longer.
    pub cut: bool,
    /// Whether it was recorded for this prompt.
    pub matched: bool,
    /// When each token came, from the start of its request; empty when the file does not say.
    pub times: Vec<Duration>,
    /// How many of the first tokens are reasoning.
    pub reasoning: u32,
}

/// Says how many tokens a reply is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyLength {
    /// No more than these.
    AtMost(u32),
    /// As many as these, for a request that ignores the end of a reply.
    Exactly(u32),
}

impl ReplyLength {
    /// As many as there are.
    pub const UNBOUNDED: Self = Self::AtMost(u32::MAX);

    #[cfg(feature = "sqlite")]
    pub(crate) fn most(self) -> u32 {
        match self {
            Self::AtMost(most) | Self::Exactly(most) => most,
        }
    }
}

/// Says where the rows of an open dataset are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowStorage {
    /// In the file; each is read when it is needed.
    OnDisk,
    /// In a copy of the table.
    InMemory,
}

/// A dataset in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Rows.
    pub rows: usize,
    /// Different prompts.
    pub prompts: usize,
    /// Tokens of all replies.
    pub tokens: u64,
    /// Tokens of the shortest, the median and the longest reply; 0 when there is none.
    pub lengths: [u32; 3],
}
