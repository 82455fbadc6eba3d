/// Handling of special tokens, such as BOS, in encoding and decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokenHandling {
    /// Special tokens are added to encoded text and included in decoded text.
    With,
    /// Special tokens are not added to encoded text and are omitted from decoded text.
    Without,
}

impl SpecialTokenHandling {
    /// Returns [`SpecialTokenHandling::With`] if `wanted` is true, else
    /// [`SpecialTokenHandling::Without`].
    pub fn from_bool(wanted: bool) -> Self {
        if wanted { Self::With } else { Self::Without }
    }
}
