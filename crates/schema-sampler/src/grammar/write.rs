//! Generates random texts that match a grammar.

use rand_chacha::ChaCha8Rng;

use super::ast::{Grammar, GrammarExpr, MAX_GRAMMAR_EXPR_HEIGHT};
use crate::constraint::ConstraintError;
use crate::limits::SampleLimits;
use crate::sample;
use crate::schema::JsonTypes;
use crate::work::WorkBudget;
use vllm_sim_random::DrawRandom;

/// Maximum nesting depth of grammar expressions with random choices; deeper ones get their shortest
/// derivation.
const MAX_RANDOM_NESTING: u32 = 24;

/// Maximum length of a text generated with random choices, in bytes; beyond it, the shortest
/// derivation completes the text.
const MAX_RANDOM_BYTES: usize = 200;

/// Number of grammar alternatives that cost one step of the work budget.
const ALTERNATIVES_PER_STEP: usize = 64;

impl Grammar {
    /// Generates a random text that matches the grammar.
    ///
    /// # Errors
    /// [`ConstraintError::TooLong`] if no generated text is short enough.
    pub(crate) fn sample_grammar_text(
        &self,
        limits: &SampleLimits,
        rng: &mut ChaCha8Rng,
        work: &mut WorkBudget,
    ) -> Result<String, ConstraintError> {
        for is_shortest in [false, true] {
            // The first attempt may use half of the budget.
            let share = work.remaining_steps() >> u32::from(!is_shortest);
            let mut own = WorkBudget::from_steps(share);
            let mut writer = GrammarWriter {
                grammar: self,
                limits,
                rng: &mut *rng,
                out: String::new(),
                work: &mut own,
                half: share / 2,
                is_shortest,
            };
            let written = writer.write_rule(self.start, 0);
            let out = writer.out;
            // Cannot fail: the attempt spent at most its share.
            let _ = work.spend_steps(share - own.remaining_steps());
            match written {
                Ok(()) if out.chars().count() <= limits.max_chars as usize => {
                    return Ok(out);
                }
                Err(GrammarWriteError::Constraint(error)) => return Err(error),
                Ok(()) | Err(GrammarWriteError::TooLong) => {}
            }
        }
        Err(ConstraintError::TooLong(limits.max_chars))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LexemePlace {
    InLexeme,
    Between,
}

enum GrammarWriteError {
    TooLong,
    Constraint(ConstraintError),
}

struct GrammarWriter<'g> {
    grammar: &'g Grammar,
    limits: &'g SampleLimits,
    rng: &'g mut ChaCha8Rng,
    out: String,
    work: &'g mut WorkBudget,
    /// Remaining work budget, in steps, below which the grammar's shortest derivation is generated.
    half: u32,
    is_shortest: bool,
}

impl GrammarWriter<'_> {
    fn must_be_shortest(&self, depth: u32) -> bool {
        self.is_shortest
            || depth > MAX_RANDOM_NESTING
            || self.out.len() > MAX_RANDOM_BYTES
            || self.work.remaining_steps() < self.half
    }

    fn spend_work(&mut self, steps: usize) -> Result<(), GrammarWriteError> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.work.spend_steps(steps).ok_or(GrammarWriteError::TooLong)
    }

    fn write_rule(&mut self, index: usize, depth: u32) -> Result<(), GrammarWriteError> {
        let grammar = self.grammar;
        let rule = &grammar.rules[index];
        if rule.is_lexeme {
            self.write_lexeme(|writer| {
                writer.write_expr(&rule.body, depth + 1, LexemePlace::InLexeme)
            })
        } else {
            self.write_expr(&rule.body, depth + 1, LexemePlace::Between)
        }
    }

    /// Appends the text of one lexeme, with a space before it if two words would run together.
    fn write_lexeme(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), GrammarWriteError>,
    ) -> Result<(), GrammarWriteError> {
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

    fn write_expr(
        &mut self,
        expr: &GrammarExpr,
        depth: u32,
        place: LexemePlace,
    ) -> Result<(), GrammarWriteError> {
        self.spend_work(1)?;
        if self.out.len() > self.limits.max_chars as usize * 4 {
            return Err(GrammarWriteError::TooLong);
        }
        let grammar = self.grammar;
        match expr {
            GrammarExpr::Literal(_)
            | GrammarExpr::Class(_)
            | GrammarExpr::Pattern(_)
            | GrammarExpr::Json(_)
                if place == LexemePlace::Between && grammar.is_spaced =>
            {
                self.write_lexeme(|writer| writer.write_expr(expr, depth, LexemePlace::InLexeme))
            }
            GrammarExpr::Literal(text) => {
                self.out.push_str(text);
                Ok(())
            }
            GrammarExpr::Class(class) => class
                .append_random_match(1, 1, self.rng, &mut self.out)
                .ok_or(GrammarWriteError::TooLong),
            GrammarExpr::Pattern(regex) => {
                let text =
                    regex.sample_fully_matching_text(self.limits.max_chars, self.rng, self.work);
                self.out.push_str(&text.ok_or(GrammarWriteError::TooLong)?);
                Ok(())
            }
            GrammarExpr::Json(schema) => {
                let (limits, want) = (self.limits, JsonTypes::NO_TYPES);
                let text = sample::sample_json_text(schema, limits, want, self.rng, self.work);
                self.out.push_str(&text.map_err(GrammarWriteError::Constraint)?);
                Ok(())
            }
            GrammarExpr::Nested(inner) => {
                let text = inner.sample_grammar_text(self.limits, self.rng, self.work);
                self.out.push_str(&text.map_err(GrammarWriteError::Constraint)?);
                Ok(())
            }
            GrammarExpr::Sequence(parts) => {
                parts.iter().try_for_each(|part| self.write_expr(part, depth + 1, place))
            }
            GrammarExpr::Alternatives(parts, heights) => {
                self.spend_work(parts.len() / ALTERNATIVES_PER_STEP)?;
                let measured = || parts.iter().map(|part| grammar.expr_height(part)).collect();
                match self.choose_alternative(parts, heights.get_or_init(measured), depth) {
                    Some(part) => self.write_expr(part, depth + 1, place),
                    None => Ok(()),
                }
            }
            GrammarExpr::Repeat(part, min, max, height) => {
                let height = *height.get_or_init(|| grammar.expr_height(part));
                let count = self.choose_repetition_count(*min, *max, height, depth);
                (0..count).try_for_each(|_| self.write_expr(part, depth + 1, place))
            }
            GrammarExpr::Rule(index) if place == LexemePlace::InLexeme => {
                self.write_expr(&grammar.rules[*index].body, depth + 1, LexemePlace::InLexeme)
            }
            GrammarExpr::Rule(index) => self.write_rule(*index, depth),
        }
    }

    /// Selects a random alternative of a grammar expression, among those whose height the nesting
    /// depth allows.
    fn choose_alternative<'p, T>(
        &mut self,
        parts: &'p [T],
        heights: &[u32],
        depth: u32,
    ) -> Option<&'p T> {
        let least = heights.iter().copied().min().unwrap_or(0);
        let most =
            if self.must_be_shortest(depth) { least } else { MAX_GRAMMAR_EXPR_HEIGHT.max(least) };
        let open: Vec<&T> = parts
            .iter()
            .zip(heights)
            .filter(|&(_, &height)| height <= most)
            .map(|(part, _)| part)
            .collect();
        let index = self.rng.draw_u64_between(0, open.len().saturating_sub(1) as u64) as usize;
        open.get(index).copied()
    }

    /// Selects a random repetition count for a grammar expression of the given height.
    fn choose_repetition_count(
        &mut self,
        min: u32,
        max: Option<u32>,
        height: u32,
        depth: u32,
    ) -> u64 {
        let extra = match depth {
            _ if self.must_be_shortest(depth) || height > MAX_GRAMMAR_EXPR_HEIGHT => 0,
            0..10 => 3,
            _ => 1,
        };
        let most = min.saturating_add(extra).min(max.unwrap_or(u32::MAX));
        self.rng.draw_u64_between(u64::from(min), u64::from(most))
    }
}
