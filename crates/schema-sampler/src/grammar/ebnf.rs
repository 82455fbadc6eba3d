//! Parses EBNF grammars in the notation of llama.cpp (GBNF) and xgrammar.
//!
//! Sources: `grammars/README.md` of llama.cpp, `cpp/grammar_parser.cc` of xgrammar.

use std::collections::HashMap;

use super::ast::{Grammar, GrammarExpr, GrammarRule, MAX_GRAMMAR_NESTING, MAX_GRAMMAR_RULES};
use super::scanner::GrammarScanner;
use crate::regex::RegexGenerator;

struct EbnfParser {
    scanner: GrammarScanner,
    names: HashMap<String, usize>,
    /// Right-hand side of each rule; `None` until the rule is defined.
    rules: Vec<Option<GrammarExpr>>,
}

pub(super) fn parse_ebnf(source: &str) -> Result<Grammar, String> {
    let mut parser = EbnfParser {
        scanner: GrammarScanner::new(source),
        names: HashMap::new(),
        rules: Vec::new(),
    };
    parser.skip_blanks_and_comments();
    while parser.scanner.peek(0).is_some() {
        parser.parse_rule()?;
        parser.skip_blanks_and_comments();
    }
    let Some(&start) = parser.names.get("root") else {
        return Err("No 'root' rule found".to_owned());
    };
    let mut rules = Vec::new();
    for (name, &index) in &parser.names {
        if parser.rules[index].is_none() {
            return Err(format!("Rule '{name}' not found"));
        }
    }
    for body in parser.rules {
        rules.extend(body.map(|body| GrammarRule { body, height: u32::MAX, is_lexeme: false }));
    }
    Ok(Grammar { rules, start, is_spaced: false })
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

impl EbnfParser {
    fn skip_blanks_and_comments(&mut self) {
        loop {
            self.scanner.take_while(char::is_whitespace);
            if self.scanner.peek(0) != Some('#') {
                return;
            }
            self.scanner.take_while(|c| c != '\n');
        }
    }

    fn syntax_error<T>(&self, message: &str) -> Result<T, String> {
        Err(self.scanner.gbnf_error(self.scanner.at, message))
    }

    fn rule_index(&mut self, name: String) -> Result<usize, String> {
        if let Some(&index) = self.names.get(&name) {
            return Ok(index);
        }
        if self.rules.len() >= MAX_GRAMMAR_RULES {
            return self.syntax_error("too many rules");
        }
        self.rules.push(None);
        self.names.insert(name, self.rules.len() - 1);
        Ok(self.rules.len() - 1)
    }

    fn parse_rule(&mut self) -> Result<(), String> {
        let at = self.scanner.at;
        let name = self.scanner.take_while(is_name_char);
        if name.is_empty() {
            return self.syntax_error("Expected name");
        }
        self.skip_blanks_and_comments();
        if !self.scanner.skip_if_next("::=") {
            return self.syntax_error("Expected ::=");
        }
        let index = self.rule_index(name.clone())?;
        if self.rules[index].is_some() {
            return Err(self.scanner.gbnf_error(at, &format!("Rule '{name}' already exists")));
        }
        let body = self.parse_alternatives(0)?;
        self.rules[index] = Some(body);
        Ok(())
    }

    fn parse_alternatives(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        if nesting > MAX_GRAMMAR_NESTING {
            return self.syntax_error("the grammar nests too deep");
        }
        let mut parts = vec![self.parse_sequence(nesting)?];
        while self.scanner.skip_if_next("|") {
            parts.push(self.parse_sequence(nesting)?);
        }
        Ok(GrammarExpr::alternatives(parts))
    }

    fn parse_sequence(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        let mut parts = Vec::new();
        loop {
            self.skip_blanks_and_comments();
            match self.scanner.peek(0) {
                None | Some('|' | ')') => break,
                Some(c) if is_name_char(c) && c != '.' && self.is_at_rule_start() => break,
                Some(_) => {}
            }
            if self.scanner.skip_if_next("(=") {
                // Look-ahead only guides xgrammar's matcher.
                self.parse_alternatives(nesting + 1)?;
                self.expect_closing_parenthesis()?;
                continue;
            }
            let part = self.parse_primary(nesting)?;
            let part = self.parse_repetition(part)?;
            parts.push(part);
        }
        Ok(GrammarExpr::sequence(parts))
    }

    /// Returns whether a rule definition (a name and `::=`) comes next in the grammar.
    fn is_at_rule_start(&mut self) -> bool {
        let at = self.scanner.at;
        self.scanner.take_while(is_name_char);
        self.skip_blanks_and_comments();
        let found = self.scanner.starts_with("::=");
        self.scanner.at = at;
        found
    }

    fn expect_closing_parenthesis(&mut self) -> Result<(), String> {
        self.skip_blanks_and_comments();
        if self.scanner.skip_if_next(")") { Ok(()) } else { self.syntax_error("Expected ')'") }
    }

    fn parse_primary(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        match self.scanner.peek(0) {
            Some('"') => match self.scanner.parse_quoted_string()? {
                Some(text) => Ok(GrammarExpr::Literal(text)),
                None => self.syntax_error("Unexpected end of input"),
            },
            Some('[') => self.parse_character_class(),
            Some('(') => {
                self.scanner.at += 1;
                let inner = self.parse_alternatives(nesting + 1)?;
                self.expect_closing_parenthesis()?;
                Ok(inner)
            }
            Some('.') => {
                self.scanner.at += 1;
                Ok(GrammarExpr::Class(RegexGenerator::from_char_ranges(vec![(' ', char::MAX)])))
            }
            Some(c) if is_name_char(c) => {
                let name = self.scanner.take_while(is_name_char);
                if self.scanner.peek(0) == Some('(') {
                    return Err(self
                        .scanner
                        .gbnf_error(at, &format!("the macro {name}(…) is not supported")));
                }
                Ok(GrammarExpr::Rule(self.rule_index(name)?))
            }
            _ => self.syntax_error("Expected name"),
        }
    }

    fn parse_character_class(&mut self) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        self.scanner.at += 1;
        let negated = self.scanner.skip_if_next("^");
        let mut ranges = Vec::new();
        loop {
            let low = match self.scanner.next() {
                Some(']') => break,
                Some('\\') => self.scanner.parse_escape()?,
                Some('\n') | None => {
                    return self.syntax_error("Unexpected end of input");
                }
                Some(c) => c,
            };
            let mut high = low;
            if self.scanner.peek(0) == Some('-') && self.scanner.peek(1).is_some_and(|c| c != ']') {
                self.scanner.at += 1;
                high = match self.scanner.next() {
                    Some('\\') => self.scanner.parse_escape()?,
                    Some(c) => c,
                    None => continue,
                };
            }
            if low > high {
                return Err(self.scanner.gbnf_error(
                    at,
                    "Invalid character class: lower bound is larger than upper bound",
                ));
            }
            ranges.push((low, high));
        }
        let ranges = if negated { complement_ranges(ranges) } else { ranges };
        if ranges.is_empty() {
            return Err(self.scanner.gbnf_error(at, "the character class is empty"));
        }
        Ok(GrammarExpr::Class(RegexGenerator::from_char_ranges(ranges)))
    }

    fn parse_repetition(&mut self, mut part: GrammarExpr) -> Result<GrammarExpr, String> {
        while let Some((min, max)) = parse_repetition_suffix(&mut self.scanner)? {
            part = GrammarExpr::repeat(part, min, max);
        }
        Ok(part)
    }
}

/// Parses `*`, `+`, `?` or the bounds `{n,m}` of a repetition; `None` if none of them is next.
pub(super) fn parse_repetition_suffix(
    scanner: &mut GrammarScanner,
) -> Result<Option<(u32, Option<u32>)>, String> {
    let bounds = match scanner.peek(0) {
        Some('*') => (0, None),
        Some('+') => (1, None),
        Some('?') => (0, Some(1)),
        Some('{') => {
            scanner.at += 1;
            return parse_repetition_bounds(scanner).map(Some);
        }
        _ => return Ok(None),
    };
    scanner.at += 1;
    Ok(Some(bounds))
}

/// Parses the bounds of a repetition after `{`: `n}`, `n,}`, `,m}` or `n,m}`.
fn parse_repetition_bounds(scanner: &mut GrammarScanner) -> Result<(u32, Option<u32>), String> {
    let at = scanner.at;
    scanner.take_while(char::is_whitespace);
    let low = scanner.parse_number();
    scanner.take_while(char::is_whitespace);
    let high = if scanner.skip_if_next(",") {
        scanner.take_while(char::is_whitespace);
        let high = scanner.parse_number();
        scanner.take_while(char::is_whitespace);
        high
    } else {
        low
    };
    if !scanner.skip_if_next("}") || (low.is_none() && high.is_none()) {
        return Err(scanner.gbnf_error(at, "Expect {n}, {n,} or {n,m}"));
    }
    let low = low.unwrap_or(0);
    if high.is_some_and(|high| high < low) {
        return Err(scanner.gbnf_error(at, "the upper bound is below the lower bound"));
    }
    Ok((low, high))
}

/// Returns the characters that are in none of `ranges`.
fn complement_ranges(mut ranges: Vec<(char, char)>) -> Vec<(char, char)> {
    ranges.sort_unstable();
    let mut left = Vec::new();
    // Control characters are valid but unlikely to be intended.
    let mut next = u32::from(' ');
    for (low, high) in ranges {
        if u32::from(low) > next {
            let end = (next..u32::from(low)).rev().find_map(char::from_u32);
            left.extend(char::from_u32(next).zip(end));
        }
        next = next.max(u32::from(high) + 1);
        if (0xd800..0xe000).contains(&next) {
            next = 0xe000;
        }
    }
    left.extend(char::from_u32(next).map(|start| (start, char::MAX)));
    left
}
