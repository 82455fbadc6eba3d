//! Bounds that vLLM takes from its environment while it checks the schema of a request.
//!
//! Schemas are constants, but `VLLM_MAX_STOP_STRINGS` and its kind are read by vLLM's classes.
//! Reading a body is one synchronous step, so the server sets its bounds on the thread right
//! before; every server of a process sets its own.

use std::cell::Cell;

/// The length of lists that [`Bounds::stop_strings`] limits, in schemas.
pub(crate) const STOP_STRINGS: usize = usize::MAX - 1;

/// Most of what one request may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Choices (`VLLM_MAX_N_SEQUENCES`).
    pub n: i128,
    /// Prompts of a completion (`VLLM_MAX_COMPLETION_PROMPTS`).
    pub prompts: usize,
    /// Stop strings (`VLLM_MAX_STOP_STRINGS`).
    pub stop_strings: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        DEFAULT
    }
}

const DEFAULT: Bounds = Bounds {
    n: 16_384,
    prompts: 1024,
    stop_strings: 4,
};

thread_local! {
    static CURRENT: Cell<Bounds> = const { Cell::new(DEFAULT) };
}

/// Sets what the next body on this thread is checked against.
pub fn enter(bounds: Bounds) {
    CURRENT.set(bounds);
}

/// What bodies on this thread are checked against.
pub(crate) fn current() -> Bounds {
    CURRENT.get()
}
