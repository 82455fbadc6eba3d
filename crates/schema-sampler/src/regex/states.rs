//! Estimates the number of states of a regular expression's automaton.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Estimated number of states for a character class with non-ASCII characters.
const STATES_PER_UNICODE_CLASS: u32 = 4;

pub(super) fn regex_state_count(hir: &Hir) -> u32 {
    let sum = |parts: &[Hir]| {
        let each = parts.iter().map(regex_state_count);
        each.fold(1, u32::saturating_add)
    };
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => u32::try_from(literal.0.len()).unwrap_or(u32::MAX),
        HirKind::Class(Class::Unicode(class)) if !class.is_ascii() => STATES_PER_UNICODE_CLASS,
        HirKind::Class(_) => 1,
        HirKind::Capture(capture) => regex_state_count(&capture.sub),
        HirKind::Repetition(repetition) => {
            let copies = repetition.max.unwrap_or(repetition.min.saturating_add(1));
            regex_state_count(&repetition.sub).saturating_mul(copies.max(1))
        }
        HirKind::Concat(parts) | HirKind::Alternation(parts) => sum(parts),
    }
}
