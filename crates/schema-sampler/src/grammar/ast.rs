//! The rules of a grammar, whatever it was written in.

use std::sync::OnceLock;

use crate::regex::{RegexGenerator, WholeRegex};
use crate::schema::Schema;

/// Levels of expressions below which no text is made; a rule that needs more never ends.
pub(super) const MAX_HEIGHT: u32 = 400;

/// Rules of a grammar, at most.
pub(super) const MAX_RULES: usize = 5_000;

/// Levels of brackets, at most.
pub(super) const MAX_NESTING: u32 = 60;

/// A part of a rule.
#[derive(Debug)]
pub(super) enum GrammarExpr {
    Literal(String),
    Class(RegexGenerator),
    Pattern(Box<WholeRegex>),
    Sequence(Vec<GrammarExpr>),
    /// With the height of each, once it is asked for.
    Alternatives(Vec<GrammarExpr>, OnceLock<Box<[u32]>>),
    /// From so many to so many times, with the part's height, once it is asked for.
    Repeat(Box<GrammarExpr>, u32, Option<u32>, OnceLock<u32>),
    Rule(usize),
    Json(Box<Schema>),
    Nested(Box<Grammar>),
}

impl GrammarExpr {
    pub(super) fn alternatives(parts: Vec<Self>) -> Self {
        Self::Alternatives(parts, OnceLock::new())
    }

    pub(super) fn repeat(part: Self, min: u32, max: Option<u32>) -> Self {
        Self::Repeat(Box::new(part), min, max, OnceLock::new())
    }
}

#[derive(Debug)]
pub(super) struct GrammarRule {
    pub(super) body: GrammarExpr,
    /// The least levels of expressions in a text of the rule; `u32::MAX` when none is finite.
    pub(super) height: u32,
    /// A terminal: nothing is ignored inside.
    pub(super) is_lexeme: bool,
}

/// A grammar, checked: every rule is defined and the first one has a finite text.
#[derive(Debug)]
pub(crate) struct Grammar {
    pub(super) rules: Vec<GrammarRule>,
    pub(super) start: usize,
    /// Blanks may stand between lexemes.
    pub(super) is_spaced: bool,
}

impl Grammar {
    /// Finds the least height of each rule, level by level.
    pub(super) fn measure(&mut self) {
        for _ in 0..MAX_HEIGHT {
            let mut changed = false;
            for i in (0..self.rules.len()).rev() {
                let height = self.height(&self.rules[i].body);
                if height <= MAX_HEIGHT && height < self.rules[i].height {
                    self.rules[i].height = height;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    pub(super) fn height(&self, expr: &GrammarExpr) -> u32 {
        let inner = match expr {
            GrammarExpr::Literal(_)
            | GrammarExpr::Class(_)
            | GrammarExpr::Pattern(_)
            | GrammarExpr::Json(_) => 0,
            GrammarExpr::Nested(grammar) => grammar.rules[grammar.start].height,
            GrammarExpr::Sequence(parts) => parts.iter().map(|p| self.height(p)).max().unwrap_or(0),
            GrammarExpr::Alternatives(parts, _) => {
                parts.iter().map(|p| self.height(p)).min().unwrap_or(0)
            }
            GrammarExpr::Repeat(_, 0, ..) => 0,
            GrammarExpr::Repeat(part, ..) => self.height(part),
            GrammarExpr::Rule(index) => self.rules[*index].height,
        };
        inner.saturating_add(1)
    }
}
