//! Parses context-free grammars and generates texts that match them.
//!
//! vLLM's rule (`grammar_is_likely_lark`) selects the notation: a line with `::=` means EBNF of
//! llama.cpp and xgrammar, otherwise Lark of llguidance and xgrammar. Lark templates, `%declare`,
//! `%override`, `@grammar` references and token ids are not supported. EBNF look-ahead `(= …)` is
//! ignored.

mod ast;
mod common;
mod ebnf;
mod lark;
mod scanner;
mod write;

pub(crate) use ast::Grammar;

use crate::constraint::ConstraintError;

impl Grammar {
    /// Parses a grammar in EBNF or Lark notation.
    ///
    /// # Errors
    /// [`ConstraintError::BadGrammar`] with the position of the syntax error.
    pub(crate) fn parse_grammar(source: &str) -> Result<Self, ConstraintError> {
        let parsed = if is_lark_source(source) {
            lark::parse_lark(source, 0).map_err(|error| match ebnf::parse_ebnf(source) {
                Err(ebnf_error) if !has_lark_start(source) => conversion_error(&ebnf_error),
                _ => format!("Grammar error: {error}"),
            })
        } else {
            ebnf::parse_ebnf(source).map_err(|error| conversion_error(&error))
        };
        let mut grammar = parsed.map_err(ConstraintError::BadGrammar)?;
        grammar.compute_rule_heights();
        if grammar.rules[grammar.start].height == u32::MAX {
            return Err(ConstraintError::BadGrammar(
                "Grammar error: the start rule has no finite text: every way through it leads \
                 back to itself"
                    .to_owned(),
            ));
        }
        Ok(grammar)
    }
}

fn conversion_error(error: &str) -> String {
    format!(
        "Invalid grammar specification: Failed to convert the grammar from GBNF to Lark: {error}"
    )
}

/// Returns whether llguidance parses a text as Lark: a line defines `start` or begins with
/// `%llguidance` (`is_lark_syntax`, llguidance 1.9). Errors about any other text are those of EBNF.
fn has_lark_start(source: &str) -> bool {
    source.lines().map(str::trim_start).any(|line| {
        let after = line.strip_prefix("start").map(str::trim_start);
        line.starts_with("%llguidance") || after.is_some_and(|after| after.starts_with(':'))
    })
}

fn is_lark_source(source: &str) -> bool {
    !source.lines().any(|line| {
        let end = line.find('#').or_else(|| line.find("//"));
        line[..end.unwrap_or(line.len())].contains("::=")
    })
}

#[cfg(test)]
mod tests;
