//! What one text may cost, counted in steps of about a microsecond.

/// Steps of one text.
const MOST: u32 = 100_000;
/// Moves of a pattern's matcher that make a step.
const MOVES: u64 = 256;

/// The steps that are left for one text, with all the schemas, patterns and grammars in it.
#[derive(Debug)]
pub(crate) struct Work(u32);

impl Default for Work {
    fn default() -> Self {
        Self(MOST)
    }
}

impl Work {
    /// So many steps.
    pub(crate) fn of(steps: u32) -> Self {
        Self(steps)
    }

    /// What is left.
    pub(crate) fn left(&self) -> u32 {
        self.0
    }

    /// Takes so many steps; `None` when fewer are left, and then none is.
    pub(crate) fn spend(&mut self, steps: u32) -> Option<()> {
        let left = self.0.checked_sub(steps);
        self.0 = left.unwrap_or(0);
        left.map(|_| ())
    }
}

/// The steps of looking for a pattern of so many states in a text: a matcher that cannot
/// remember goes through all of them for each character.
pub(crate) fn matching(states: u32, text: &str) -> u32 {
    let moves = u64::from(states).saturating_mul(text.len() as u64);
    u32::try_from(moves / MOVES).unwrap_or(u32::MAX)
}
