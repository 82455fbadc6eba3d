//! Parses EBNF grammars in the notation of llama.cpp (GBNF) and xgrammar.
//!
//! Sources: `grammars/README.md` of llama.cpp, `cpp/grammar_parser.cc` of xgrammar.

use std::collections::HashMap;

use super::ast::{Grammar, GrammarExpr, GrammarRule, MAX_NESTING, MAX_RULES};
use super::scanner::GrammarScanner;
use crate::regex::RegexGenerator;

struct EbnfParser {
    scanner: GrammarScanner,
    names: HashMap<String, usize>,
    /// Right-hand side of each rule; `None` until the rule is defined.
    rules: Vec<Option<GrammarExpr>>,
}

pub(super) fn read(source: &str) -> Result<Grammar, String> {
    let mut parser = EbnfParser {
        scanner: GrammarScanner::new(source),
        names: HashMap::new(),
        rules: Vec::new(),
    };
    parser.skip();
    while parser.scanner.peek(0).is_some() {
        parser.rule()?;
        parser.skip();
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
        rules.extend(body.map(|body| GrammarRule {
            body,
            height: u32::MAX,
            is_lexeme: false,
        }));
    }
    Ok(Grammar {
        rules,
        start,
        is_spaced: false,
    })
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

impl EbnfParser {
    fn skip(&mut self) {
        loop {
            self.scanner.take_while(char::is_whitespace);
            if self.scanner.peek(0) != Some('#') {
                return;
            }
            self.scanner.take_while(|c| c != '\n');
        }
    }

    fn error<T>(&self, message: &str) -> Result<T, String> {
        Err(self.scanner.gbnf_error(self.scanner.at, message))
    }

    fn index(&mut self, name: String) -> Result<usize, String> {
        if let Some(&index) = self.names.get(&name) {
            return Ok(index);
        }
        if self.rules.len() >= MAX_RULES {
            return self.error("too many rules");
        }
        self.rules.push(None);
        self.names.insert(name, self.rules.len() - 1);
        Ok(self.rules.len() - 1)
    }

    fn rule(&mut self) -> Result<(), String> {
        let at = self.scanner.at;
        let name = self.scanner.take_while(in_name);
        if name.is_empty() {
            return self.error("Expected name");
        }
        self.skip();
        if !self.scanner.eat("::=") {
            return self.error("Expected ::=");
        }
        let index = self.index(name.clone())?;
        if self.rules[index].is_some() {
            return Err(self
                .scanner
                .gbnf_error(at, &format!("Rule '{name}' already exists")));
        }
        let body = self.alternatives(0)?;
        self.rules[index] = Some(body);
        Ok(())
    }

    fn alternatives(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        if nesting > MAX_NESTING {
            return self.error("the grammar nests too deep");
        }
        let mut parts = vec![self.sequence(nesting)?];
        while self.scanner.eat("|") {
            parts.push(self.sequence(nesting)?);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => GrammarExpr::alternatives(parts),
        })
    }

    fn sequence(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        let mut parts = Vec::new();
        loop {
            self.skip();
            match self.scanner.peek(0) {
                None | Some('|' | ')') => break,
                Some(c) if in_name(c) && c != '.' && self.starts_rule() => break,
                Some(_) => {}
            }
            if self.scanner.eat("(=") {
                // Look-ahead only guides xgrammar's matcher.
                self.alternatives(nesting + 1)?;
                self.close()?;
                continue;
            }
            let part = self.primary(nesting)?;
            let part = self.repeated(part)?;
            parts.push(part);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => GrammarExpr::Sequence(parts),
        })
    }

    /// Returns whether a rule definition (a name and `::=`) comes next in the grammar.
    fn starts_rule(&mut self) -> bool {
        let at = self.scanner.at;
        self.scanner.take_while(in_name);
        self.skip();
        let found = self.scanner.starts_with("::=");
        self.scanner.at = at;
        found
    }

    fn close(&mut self) -> Result<(), String> {
        self.skip();
        if self.scanner.eat(")") {
            Ok(())
        } else {
            self.error("Expected ')'")
        }
    }

    fn primary(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        match self.scanner.peek(0) {
            Some('"') => {
                self.scanner.at += 1;
                let mut text = String::new();
                loop {
                    match self.scanner.next() {
                        Some('"') => return Ok(GrammarExpr::Literal(text)),
                        Some('\\') => text.push(self.scanner.escape()?),
                        Some('\n') | None => {
                            return self.error("Unexpected end of input");
                        }
                        Some(c) => text.push(c),
                    }
                }
            }
            Some('[') => self.class(),
            Some('(') => {
                self.scanner.at += 1;
                let inner = self.alternatives(nesting + 1)?;
                self.close()?;
                Ok(inner)
            }
            Some('.') => {
                self.scanner.at += 1;
                Ok(GrammarExpr::Class(RegexGenerator::class(vec![(
                    ' ',
                    char::MAX,
                )])))
            }
            Some(c) if in_name(c) => {
                let name = self.scanner.take_while(in_name);
                if self.scanner.peek(0) == Some('(') {
                    return Err(self
                        .scanner
                        .gbnf_error(at, &format!("the macro {name}(…) is not supported")));
                }
                Ok(GrammarExpr::Rule(self.index(name)?))
            }
            _ => self.error("Expected name"),
        }
    }

    fn class(&mut self) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        self.scanner.at += 1;
        let negated = self.scanner.eat("^");
        let mut ranges = Vec::new();
        loop {
            let low = match self.scanner.next() {
                Some(']') => break,
                Some('\\') => self.scanner.escape()?,
                Some('\n') | None => {
                    return self.error("Unexpected end of input");
                }
                Some(c) => c,
            };
            let mut high = low;
            if self.scanner.peek(0) == Some('-') && self.scanner.peek(1).is_some_and(|c| c != ']') {
                self.scanner.at += 1;
                high = match self.scanner.next() {
                    Some('\\') => self.scanner.escape()?,
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
        let ranges = if negated { complement(ranges) } else { ranges };
        if ranges.is_empty() {
            return Err(self.scanner.gbnf_error(at, "the character class is empty"));
        }
        Ok(GrammarExpr::Class(RegexGenerator::class(ranges)))
    }

    fn repeated(&mut self, part: GrammarExpr) -> Result<GrammarExpr, String> {
        let mut part = part;
        loop {
            let (min, max) = match self.scanner.peek(0) {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.scanner.at += 1;
                    let bounds = bounds(&mut self.scanner)?;
                    part = GrammarExpr::repeat(part, bounds.0, bounds.1);
                    continue;
                }
                _ => return Ok(part),
            };
            self.scanner.at += 1;
            part = GrammarExpr::repeat(part, min, max);
        }
    }
}

/// Parses the bounds of a repetition after `{`: `n}`, `n,}`, `,m}` or `n,m}`.
pub(super) fn bounds(scanner: &mut GrammarScanner) -> Result<(u32, Option<u32>), String> {
    let at = scanner.at;
    scanner.take_while(char::is_whitespace);
    let low = scanner.number();
    scanner.take_while(char::is_whitespace);
    let high = if scanner.eat(",") {
        scanner.take_while(char::is_whitespace);
        let high = scanner.number();
        scanner.take_while(char::is_whitespace);
        high
    } else {
        low
    };
    if !scanner.eat("}") || (low.is_none() && high.is_none()) {
        return Err(scanner.gbnf_error(at, "Expect {n}, {n,} or {n,m}"));
    }
    let low = low.unwrap_or(0);
    if high.is_some_and(|high| high < low) {
        return Err(scanner.gbnf_error(at, "the upper bound is below the lower bound"));
    }
    Ok((low, high))
}

/// Returns the characters that are in none of `ranges`.
fn complement(mut ranges: Vec<(char, char)>) -> Vec<(char, char)> {
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
