//! A work budget for each generated text, in steps of about a microsecond.

/// Work budget of one generated text, in steps.
const TEXT_BUDGET_STEPS: u32 = 100_000;
/// Number of state transitions of a regular expression that cost one step.
const TRANSITIONS_PER_STEP: u64 = 256;

/// The remaining work budget of one generated text, including its nested schemas, patterns and
/// grammars.
#[derive(Debug)]
pub(crate) struct WorkBudget(u32);

impl Default for WorkBudget {
    fn default() -> Self {
        Self(TEXT_BUDGET_STEPS)
    }
}

impl WorkBudget {
    pub(crate) fn from_steps(steps: u32) -> Self {
        Self(steps)
    }

    pub(crate) fn remaining_steps(&self) -> u32 {
        self.0
    }

    /// Spends `steps` of the work budget; if fewer are left, empties the budget and returns `None`.
    pub(crate) fn spend_steps(&mut self, steps: u32) -> Option<()> {
        let left = self.0.checked_sub(steps);
        self.0 = left.unwrap_or(0);
        left.map(|_| ())
    }
}

/// Returns the cost, in steps, of searching `text` with a regular expression of `states` states.
///
/// The cost assumes a matcher that visits all states for each character.
pub(crate) fn regex_match_cost_steps(states: u32, text: &str) -> u32 {
    let moves = u64::from(states).saturating_mul(text.len() as u64);
    u32::try_from(moves / TRANSITIONS_PER_STEP).unwrap_or(u32::MAX)
}
