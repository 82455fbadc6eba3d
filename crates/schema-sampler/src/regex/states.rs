//! Estimates the number of states of a regular expression's automaton.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Estimated number of states for a character class with non-ASCII characters.
const UNICODE: u32 = 4;

pub(super) fn states(hir: &Hir) -> u32 {
    let sum = |parts: &[Hir]| {
        let each = parts.iter().map(states);
        each.fold(1, u32::saturating_add)
    };
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => u32::try_from(literal.0.len()).unwrap_or(u32::MAX),
        HirKind::Class(Class::Unicode(class)) if !class.is_ascii() => UNICODE,
        HirKind::Class(_) => 1,
        HirKind::Capture(capture) => states(&capture.sub),
        HirKind::Repetition(repetition) => {
            let copies = repetition.max.unwrap_or(repetition.min.saturating_add(1));
            states(&repetition.sub).saturating_mul(copies.max(1))
        }
        HirKind::Concat(parts) | HirKind::Alternation(parts) => sum(parts),
    }
}
