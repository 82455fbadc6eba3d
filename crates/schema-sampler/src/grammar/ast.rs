//! Rules of a context-free grammar, independent of its notation.

use std::sync::OnceLock;

use crate::regex::{RegexGenerator, WholeTextRegex};
use crate::schema::Schema;

/// Maximum nesting of grammar expressions in a text; a rule that requires deeper nesting is treated
/// as infinite.
pub(super) const MAX_GRAMMAR_EXPR_HEIGHT: u32 = 400;

pub(super) const MAX_GRAMMAR_RULES: usize = 5_000;

pub(super) const MAX_GRAMMAR_NESTING: u32 = 60;

#[derive(Debug)]
pub(super) enum GrammarExpr {
    Literal(String),
    Class(RegexGenerator),
    Pattern(Box<WholeTextRegex>),
    Sequence(Vec<GrammarExpr>),
    /// List of alternative expressions, of which a text matches one; also their heights (minimum
    /// nesting) once computed.
    Alternatives(Vec<GrammarExpr>, OnceLock<Box<[u32]>>),
    /// Repetition of an expression between a minimum and a maximum count; also the expression's
    /// height (minimum nesting) once computed.
    Repeat(Box<GrammarExpr>, u32, Option<u32>, OnceLock<u32>),
    Rule(usize),
    Json(Box<Schema>),
    Nested(Box<Grammar>),
}

impl GrammarExpr {
    /// Returns the expression of alternatives; a single alternative stands for itself.
    pub(super) fn alternatives(mut parts: Vec<Self>) -> Self {
        match parts.len() {
            1 => parts.remove(0),
            _ => Self::Alternatives(parts, OnceLock::new()),
        }
    }

    /// Returns the expression of a sequence; a single part stands for itself.
    pub(super) fn sequence(mut parts: Vec<Self>) -> Self {
        match parts.len() {
            1 => parts.remove(0),
            _ => Self::Sequence(parts),
        }
    }

    pub(super) fn repeat(part: Self, min: u32, max: Option<u32>) -> Self {
        Self::Repeat(Box::new(part), min, max, OnceLock::new())
    }
}

#[derive(Debug)]
pub(super) struct GrammarRule {
    pub(super) body: GrammarExpr,
    /// Minimum nesting of expressions in a text of this rule; `u32::MAX` if every text is infinite.
    pub(super) height: u32,
    /// Whether the grammar rule is a terminal, in which no whitespace is inserted.
    pub(super) is_lexeme: bool,
}

/// A validated grammar: every rule is defined, and the start rule has a finite text.
#[derive(Debug)]
pub(crate) struct Grammar {
    pub(super) rules: Vec<GrammarRule>,
    pub(super) start: usize,
    /// Whether whitespace may separate the grammar's lexemes.
    pub(super) is_spaced: bool,
}

impl Grammar {
    /// Computes the minimum nesting of each grammar rule by fixpoint iteration.
    pub(super) fn compute_rule_heights(&mut self) {
        for _ in 0..MAX_GRAMMAR_EXPR_HEIGHT {
            let mut changed = false;
            for i in (0..self.rules.len()).rev() {
                let height = self.expr_height(&self.rules[i].body);
                if height <= MAX_GRAMMAR_EXPR_HEIGHT && height < self.rules[i].height {
                    self.rules[i].height = height;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    pub(super) fn expr_height(&self, expr: &GrammarExpr) -> u32 {
        let inner = match expr {
            GrammarExpr::Literal(_)
            | GrammarExpr::Class(_)
            | GrammarExpr::Pattern(_)
            | GrammarExpr::Json(_) => 0,
            GrammarExpr::Nested(grammar) => grammar.rules[grammar.start].height,
            GrammarExpr::Sequence(parts) => {
                parts.iter().map(|p| self.expr_height(p)).max().unwrap_or(0)
            }
            GrammarExpr::Alternatives(parts, _) => {
                parts.iter().map(|p| self.expr_height(p)).min().unwrap_or(0)
            }
            GrammarExpr::Repeat(_, 0, ..) => 0,
            GrammarExpr::Repeat(part, ..) => self.expr_height(part),
            GrammarExpr::Rule(index) => self.rules[*index].height,
        };
        inner.saturating_add(1)
    }
}
