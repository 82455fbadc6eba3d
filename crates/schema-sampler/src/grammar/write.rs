//! A text of a grammar.

use rand_chacha::ChaCha8Rng;

use super::ast::{Expr, Grammar, MAX_HEIGHT};
use crate::constraint::ConstraintError;
use crate::limits::Limits;
use crate::sample;
use crate::schema::Types;
use vllm_sim_random::Draw;

/// Levels of expressions after which the shortest derivation is taken.
const DEEP: u32 = 24;

/// Characters after which the shortest derivation is taken.
const LONG: usize = 200;

/// Steps of one text.
const FUEL: u32 = 50_000;

impl Grammar {
    /// A text of the grammar.
    ///
    /// # Errors
    /// [`ConstraintError::TooLong`] when none short enough was found.
    pub(crate) fn sample(
        &self,
        limits: &Limits,
        rng: &mut ChaCha8Rng,
    ) -> Result<String, ConstraintError> {
        for is_lean in [false, true] {
            let mut writer = Writer {
                grammar: self,
                limits,
                rng: &mut *rng,
                out: String::new(),
                fuel: FUEL,
                is_lean,
            };
            match writer.rule(self.start, 0) {
                Ok(()) if writer.out.chars().count() <= limits.max_chars as usize => {
                    return Ok(writer.out);
                }
                Err(Stop::Failed(error)) => return Err(error),
                Ok(()) | Err(Stop::Long) => {}
            }
        }
        Err(ConstraintError::TooLong(limits.max_chars))
    }
}

enum Stop {
    Long,
    Failed(ConstraintError),
}

struct Writer<'g> {
    grammar: &'g Grammar,
    limits: &'g Limits,
    rng: &'g mut ChaCha8Rng,
    out: String,
    fuel: u32,
    is_lean: bool,
}

impl Writer<'_> {
    fn is_lean(&self, depth: u32) -> bool {
        self.is_lean || depth > DEEP || self.out.len() > LONG || self.fuel < FUEL / 2
    }

    fn rule(&mut self, index: usize, depth: u32) -> Result<(), Stop> {
        let grammar = self.grammar;
        let rule = &grammar.rules[index];
        if rule.is_lexeme {
            self.lexeme(|writer| writer.expr(&rule.body, depth + 1, true))
        } else {
            self.expr(&rule.body, depth + 1, false)
        }
    }

    /// Writes one lexeme, with a blank before it where two words would run together.
    fn lexeme(&mut self, write: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
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

    fn expr(&mut self, expr: &Expr, depth: u32, inside: bool) -> Result<(), Stop> {
        self.fuel = self.fuel.checked_sub(1).ok_or(Stop::Long)?;
        if self.out.len() > self.limits.max_chars as usize * 4 {
            return Err(Stop::Long);
        }
        let grammar = self.grammar;
        match expr {
            Expr::Literal(_) | Expr::Class(_) | Expr::Pattern(_) | Expr::Json(_)
                if !inside && grammar.is_spaced =>
            {
                self.lexeme(|writer| writer.expr(expr, depth, true))
            }
            Expr::Literal(text) => {
                self.out.push_str(text);
                Ok(())
            }
            Expr::Class(rx) => rx.sample(1, 1, self.rng, &mut self.out).ok_or(Stop::Long),
            Expr::Pattern(regex) => {
                let text = regex.sample(self.limits.max_chars, self.rng);
                self.out.push_str(&text.ok_or(Stop::Long)?);
                Ok(())
            }
            Expr::Json(schema) => {
                let text = sample::json(schema, self.limits, Types::NONE, self.rng);
                self.out.push_str(&text.map_err(Stop::Failed)?);
                Ok(())
            }
            Expr::Nested(inner) => {
                let text = inner.sample(self.limits, self.rng);
                self.out.push_str(&text.map_err(Stop::Failed)?);
                Ok(())
            }
            Expr::Sequence(parts) => parts
                .iter()
                .try_for_each(|part| self.expr(part, depth + 1, inside)),
            Expr::Alternatives(parts) => {
                let heights: Vec<u32> = parts.iter().map(|p| grammar.height(p)).collect();
                let least = heights.iter().copied().min().unwrap_or(0);
                let most = if self.is_lean(depth) {
                    least
                } else {
                    MAX_HEIGHT.max(least)
                };
                let open: Vec<&Expr> = parts
                    .iter()
                    .zip(&heights)
                    .filter(|&(_, &height)| height <= most)
                    .map(|(part, _)| part)
                    .collect();
                let index = self.rng.between(0, open.len().saturating_sub(1) as u64) as usize;
                match open.get(index) {
                    Some(part) => self.expr(part, depth + 1, inside),
                    None => Ok(()),
                }
            }
            Expr::Repeat(part, min, max) => {
                let finite = grammar.height(part) <= MAX_HEIGHT;
                let extra = match depth {
                    _ if self.is_lean(depth) || !finite => 0,
                    0..10 => 3,
                    _ => 1,
                };
                let most = min.saturating_add(extra).min(max.unwrap_or(u32::MAX));
                let count = self.rng.between(u64::from(*min), u64::from(most));
                (0..count).try_for_each(|_| self.expr(part, depth + 1, inside))
            }
            Expr::Rule(index) if inside => self.expr(&grammar.rules[*index].body, depth + 1, true),
            Expr::Rule(index) => self.rule(*index, depth),
        }
    }
}
