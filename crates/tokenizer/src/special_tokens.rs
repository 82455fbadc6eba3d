/// Handling of special tokens, such as BOS, in encoding and decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokenHandling {
    /// Special tokens are added to encoded text and included in decoded text.
    With,
    /// Special tokens are not added to encoded text and are omitted from decoded text.
    Without,
}

impl SpecialTokenHandling {
    /// Returns [`SpecialTokenHandling::With`] if `wants_special_tokens` is true, else
    /// [`SpecialTokenHandling::Without`].
    pub fn from_bool(wants_special_tokens: bool) -> Self {
        if wants_special_tokens { Self::With } else { Self::Without }
    }
}
