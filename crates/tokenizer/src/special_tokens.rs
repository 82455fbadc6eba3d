/// Handling of special tokens, such as BOS, in encoding and decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Add special tokens to encoded text, and include them in decoded text.
    With,
    /// Do not add special tokens, and omit them in decoded text.
    Without,
}

impl SpecialTokens {
    /// Returns [`SpecialTokens::With`] if special tokens are wanted, else `Without`.
    pub fn from_bool(wanted: bool) -> Self {
        if wanted { Self::With } else { Self::Without }
    }
}
