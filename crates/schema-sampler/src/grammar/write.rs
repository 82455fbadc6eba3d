//! Generates random texts that match a grammar.

use rand_chacha::ChaCha8Rng;

use super::ast::{Grammar, GrammarExpr, MAX_HEIGHT};
use crate::constraint::ConstraintError;
use crate::limits::Limits;
use crate::sample;
use crate::schema::JsonTypes;
use crate::work::WorkBudget;
use vllm_sim_random::Draw;

/// Maximum nesting of expressions before only the shortest derivation is used.
const MAX_RANDOM_NESTING: u32 = 24;

/// Maximum text length before only the shortest derivation is used, in bytes.
const MAX_RANDOM_BYTES: usize = 200;

/// Number of grammar alternatives that cost one step of the work budget.
const ALTERNATIVES_PER_STEP: usize = 64;

impl Grammar {
    /// Generates a random text that matches the grammar.
    ///
    /// # Errors
    /// [`ConstraintError::TooLong`] if no generated text is short enough.
    pub(crate) fn sample(
        &self,
        limits: &Limits,
        rng: &mut ChaCha8Rng,
        work: &mut WorkBudget,
    ) -> Result<String, ConstraintError> {
        for is_shortest in [false, true] {
            // The first attempt may use half of the budget.
            let share = work.left() >> u32::from(!is_shortest);
            let mut own = WorkBudget::of(share);
            let mut writer = GrammarWriter {
                grammar: self,
                limits,
                rng: &mut *rng,
                out: String::new(),
                work: &mut own,
                half: share / 2,
                is_shortest,
            };
            let written = writer.rule(self.start, 0);
            let out = writer.out;
            // Cannot fail: the attempt spent at most its share.
            let _ = work.spend(share - own.left());
            match written {
                Ok(()) if out.chars().count() <= limits.max_chars as usize => {
                    return Ok(out);
                }
                Err(WriteError::Constraint(error)) => return Err(error),
                Ok(()) | Err(WriteError::TooLong) => {}
            }
        }
        Err(ConstraintError::TooLong(limits.max_chars))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    InLexeme,
    Between,
}

enum WriteError {
    TooLong,
    Constraint(ConstraintError),
}

struct GrammarWriter<'g> {
    grammar: &'g Grammar,
    limits: &'g Limits,
    rng: &'g mut ChaCha8Rng,
    out: String,
    work: &'g mut WorkBudget,
    /// Work budget, in steps, below which only the shortest derivation is used.
    half: u32,
    is_shortest: bool,
}

impl GrammarWriter<'_> {
    fn is_shortest(&self, depth: u32) -> bool {
        self.is_shortest
            || depth > MAX_RANDOM_NESTING
            || self.out.len() > MAX_RANDOM_BYTES
            || self.work.left() < self.half
    }

    fn spend(&mut self, steps: usize) -> Result<(), WriteError> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.work.spend(steps).ok_or(WriteError::TooLong)
    }

    fn rule(&mut self, index: usize, depth: u32) -> Result<(), WriteError> {
        let grammar = self.grammar;
        let rule = &grammar.rules[index];
        if rule.is_lexeme {
            self.lexeme(|writer| writer.expr(&rule.body, depth + 1, Place::InLexeme))
        } else {
            self.expr(&rule.body, depth + 1, Place::Between)
        }
    }

    /// Appends the text of one lexeme, with a space before it if two words would run together.
    fn lexeme(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let start = self.out.len();
        write(self)?;
        if self.grammar.is_spaced {
            let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '"' | '\'');
            let before = self.out[..start].chars().next_back().is_some_and(word);
            let after = self.out[start..].chars().next().is_some_and(word);
            if before && after {
                self.out.insert(start, ' ');
            }
        }
        Ok(())
    }

    fn expr(&mut self, expr: &GrammarExpr, depth: u32, place: Place) -> Result<(), WriteError> {
        self.spend(1)?;
        if self.out.len() > self.limits.max_chars as usize * 4 {
            return Err(WriteError::TooLong);
        }
        let grammar = self.grammar;
        match expr {
            GrammarExpr::Literal(_)
            | GrammarExpr::Class(_)
            | GrammarExpr::Pattern(_)
            | GrammarExpr::Json(_)
                if place == Place::Between && grammar.is_spaced =>
            {
                self.lexeme(|writer| writer.expr(expr, depth, Place::InLexeme))
            }
            GrammarExpr::Literal(text) => {
                self.out.push_str(text);
                Ok(())
            }
            GrammarExpr::Class(class) => class
                .sample(1, 1, self.rng, &mut self.out)
                .ok_or(WriteError::TooLong),
            GrammarExpr::Pattern(regex) => {
                let text = regex.sample(self.limits.max_chars, self.rng, self.work);
                self.out.push_str(&text.ok_or(WriteError::TooLong)?);
                Ok(())
            }
            GrammarExpr::Json(schema) => {
                let (limits, want) = (self.limits, JsonTypes::NONE);
                let text = sample::json(schema, limits, want, self.rng, self.work);
                self.out.push_str(&text.map_err(WriteError::Constraint)?);
                Ok(())
            }
            GrammarExpr::Nested(inner) => {
                let text = inner.sample(self.limits, self.rng, self.work);
                self.out.push_str(&text.map_err(WriteError::Constraint)?);
                Ok(())
            }
            GrammarExpr::Sequence(parts) => parts
                .iter()
                .try_for_each(|part| self.expr(part, depth + 1, place)),
            GrammarExpr::Alternatives(parts, heights) => {
                self.spend(parts.len() / ALTERNATIVES_PER_STEP)?;
                let measured = || parts.iter().map(|part| grammar.height(part)).collect();
                match self.choose(parts, heights.get_or_init(measured), depth) {
                    Some(part) => self.expr(part, depth + 1, place),
                    None => Ok(()),
                }
            }
            GrammarExpr::Repeat(part, min, max, height) => {
                let height = *height.get_or_init(|| grammar.height(part));
                let count = self.count(*min, *max, height, depth);
                (0..count).try_for_each(|_| self.expr(part, depth + 1, place))
            }
            GrammarExpr::Rule(index) if place == Place::InLexeme => {
                self.expr(&grammar.rules[*index].body, depth + 1, Place::InLexeme)
            }
            GrammarExpr::Rule(index) => self.rule(*index, depth),
        }
    }

    /// Selects a random alternative among those whose height the nesting depth allows.
    fn choose<'p, T>(&mut self, parts: &'p [T], heights: &[u32], depth: u32) -> Option<&'p T> {
        let least = heights.iter().copied().min().unwrap_or(0);
        let most = if self.is_shortest(depth) {
            least
        } else {
            MAX_HEIGHT.max(least)
        };
        let open: Vec<&T> = parts
            .iter()
            .zip(heights)
            .filter(|&(_, &height)| height <= most)
            .map(|(part, _)| part)
            .collect();
        let index = self.rng.between(0, open.len().saturating_sub(1) as u64) as usize;
        open.get(index).copied()
    }

    /// Selects a random repetition count for an expression of this height.
    fn count(&mut self, min: u32, max: Option<u32>, height: u32, depth: u32) -> u64 {
        let extra = match depth {
            _ if self.is_shortest(depth) || height > MAX_HEIGHT => 0,
            0..10 => 3,
            _ => 1,
        };
        let most = min.saturating_add(extra).min(max.unwrap_or(u32::MAX));
        self.rng.between(u64::from(min), u64::from(most))
    }
}
