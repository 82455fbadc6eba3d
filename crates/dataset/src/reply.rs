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
