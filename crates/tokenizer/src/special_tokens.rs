/// Tells whether special tokens, such as BOS, stand around a text that is encoded, or in one that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Special tokens are added, or shown.
    With,
    /// Special tokens are neither added nor shown.
    Without,
}

impl SpecialTokens {
    /// Returns `With` for a request that wants them.
    pub fn when(wanted: bool) -> Self {
        if wanted { Self::With } else { Self::Without }
    }
}
