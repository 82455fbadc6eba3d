/// The last steps, as far as they decide whether the next may have prompt work.
#[derive(Debug)]
pub(super) struct PrefillCadence {
    /// Steps since the last one with prompt work.
    pub since: u32,
    /// After the last step that might have had some, sequences were still waiting.
    pub was_short: bool,
}

impl Default for PrefillCadence {
    fn default() -> Self {
        Self {
            since: u32::MAX,
            was_short: false,
        }
    }
}
