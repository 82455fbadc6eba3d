//! Parses Lark grammars as llguidance and xgrammar write them.
//!
//! Sources: `parser/src/lark` of llguidance, `xgrammar_features/lark_grammar` of xgrammar's
//! documentation. `?rule`, `!rule`, aliases and priorities affect only syntax trees and are
//! ignored. Terminals are parsed like rules, but nothing is ignored inside them.

use std::collections::HashMap;

use serde_json::Value;

use super::ast::{Grammar, GrammarExpr, GrammarRule, MAX_GRAMMAR_NESTING, MAX_GRAMMAR_RULES};
use super::scanner::GrammarScanner;
use super::{common, ebnf};
use crate::regex::{RegexGenerator, WholeTextRegex};
use crate::schema::Schema;

/// Maximum nesting of `%lark { … }` blocks in a grammar.
const MAX_NESTED_LARK_BLOCKS: u32 = 8;

struct LarkParser {
    scanner: GrammarScanner,
    names: HashMap<String, usize>,
    rules: Vec<LarkRule>,
    ignored: Vec<GrammarExpr>,
    /// Number of `%lark` blocks around the text being parsed.
    blocks: u32,
}

struct LarkRule {
    name: String,
    body: Option<GrammarExpr>,
    mentioned: usize,
}

pub(super) fn parse_lark(source: &str, nesting_depth: u32) -> Result<Grammar, String> {
    if nesting_depth > MAX_NESTED_LARK_BLOCKS {
        return Err("lark grammar too deeply nested".to_owned());
    }
    let mut parser = LarkParser {
        scanner: GrammarScanner::new(source),
        names: HashMap::new(),
        rules: Vec::new(),
        ignored: Vec::new(),
        blocks: nesting_depth,
    };
    parser.skip_lines();
    while parser.scanner.peek(0).is_some() {
        parser.parse_item()?;
        parser.skip_lines();
    }
    let Some(&start) = parser.names.get("start") else {
        return Err("no start rule found".to_owned());
    };
    if let Some(rule) = parser.rules.iter().find(|rule| rule.body.is_none()) {
        let message = format!("unknown name: {:?}", rule.name);
        return Err(parser.scanner.lark_error(rule.mentioned, &message));
    }
    let is_spaced = parser.ignored.iter().any(|e| parser.may_match_space(e, 0));
    let rules = parser.rules.into_iter().filter_map(|rule| {
        rule.body.map(|body| GrammarRule {
            body,
            height: u32::MAX,
            is_lexeme: is_terminal_name(&rule.name),
        })
    });
    let mut grammar = Grammar { rules: rules.collect(), start, is_spaced };
    if nesting_depth > 0 {
        grammar.compute_rule_heights();
        if grammar.rules[start].height == u32::MAX {
            return Err("a nested grammar has no finite text".to_owned());
        }
    }
    Ok(grammar)
}

fn is_terminal_name(name: &str) -> bool {
    name.trim_start_matches('_').chars().next().is_some_and(char::is_uppercase)
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-')
}

impl LarkParser {
    fn syntax_error<T>(&self, message: &str) -> Result<T, String> {
        Err(self.scanner.lark_error(self.scanner.at, message))
    }

    /// Skips spaces and comments in the Lark grammar up to the end of the line.
    fn skip_blanks_and_comment(&mut self) {
        loop {
            self.scanner.take_while(|c| c.is_whitespace() && c != '\n');
            let comment = self.scanner.peek(0) == Some('#') || self.scanner.starts_with("//");
            if comment {
                self.scanner.take_while(|c| c != '\n');
            } else if self.scanner.starts_with("\\\n") {
                self.scanner.at += 2;
            } else {
                return;
            }
        }
    }

    fn skip_lines(&mut self) {
        self.skip_blanks_and_comment();
        while self.scanner.skip_if_next("\n") {
            self.skip_blanks_and_comment();
        }
    }

    /// Skips spaces in the Lark grammar; also skips line ends inside brackets or before `|`.
    fn skip_inside_expression(&mut self, nesting: u32) {
        self.skip_blanks_and_comment();
        if self.scanner.peek(0) != Some('\n') {
            return;
        }
        let at = self.scanner.at;
        self.skip_lines();
        if nesting == 0 && self.scanner.peek(0) != Some('|') {
            self.scanner.at = at;
        }
    }

    fn parse_item(&mut self) -> Result<(), String> {
        if self.scanner.peek(0) == Some('%') {
            return self.parse_directive();
        }
        self.scanner.take_while(|c| c == '?' || c == '!');
        let at = self.scanner.at;
        let name = self.scanner.take_while(is_name_char);
        if name.is_empty() {
            return self.syntax_error("expected a rule, a terminal or a directive");
        }
        self.skip_blanks_and_comment();
        match self.scanner.peek(0) {
            Some('{') => return self.syntax_error("template usage not supported yet"),
            Some('[') => {
                // Attributes such as [capture, lazy] do not change the language.
                self.scanner.take_while(|c| c != ']' && c != '\n');
                self.scanner.skip_if_next("]");
                self.skip_blanks_and_comment();
            }
            Some('.') => {
                self.scanner.at += 1;
                self.scanner.take_while(|c| c == '-' || c.is_ascii_digit());
                self.skip_blanks_and_comment();
            }
            _ => {}
        }
        if !self.scanner.skip_if_next(":") {
            return self.syntax_error("expected ':' after rule name");
        }
        let body = self.parse_alternatives(0)?;
        self.define_rule(name, at, body)?;
        self.expect_end_of_line()
    }

    fn expect_end_of_line(&mut self) -> Result<(), String> {
        self.skip_blanks_and_comment();
        match self.scanner.peek(0) {
            None | Some('\n') => Ok(()),
            Some(c) => self.syntax_error(&format!("unexpected {c:?}")),
        }
    }

    fn rule_index(&mut self, name: &str, at: usize) -> Result<usize, String> {
        if let Some(&index) = self.names.get(name) {
            return Ok(index);
        }
        if self.rules.len() >= MAX_GRAMMAR_RULES {
            return self.syntax_error("too many rules");
        }
        self.rules.push(LarkRule { name: name.to_owned(), body: None, mentioned: at });
        self.names.insert(name.to_owned(), self.rules.len() - 1);
        Ok(self.rules.len() - 1)
    }

    fn define_rule(&mut self, name: String, at: usize, body: GrammarExpr) -> Result<(), String> {
        let index = self.rule_index(&name, at)?;
        if self.rules[index].body.is_some() {
            return Err(self.scanner.lark_error(at, &format!("duplicate rule: {name:?}")));
        }
        self.rules[index].body = Some(body);
        Ok(())
    }

    fn parse_directive(&mut self) -> Result<(), String> {
        let at = self.scanner.at;
        self.scanner.at += 1;
        let name = self.scanner.take_while(is_name_char);
        self.skip_blanks_and_comment();
        match name.as_str() {
            "ignore" => {
                let body = self.parse_alternatives(0)?;
                self.ignored.push(body);
            }
            "import" => self.parse_import(at)?,
            "grammar_options" | "llguidance" => {
                self.parse_json()?;
            }
            "declare" | "override" => {
                let message = format!("{name} statement not supported yet");
                return Err(self.scanner.lark_error(at, &message));
            }
            _ => return Err(self.scanner.lark_error(at, "lexer error")),
        }
        self.expect_end_of_line()
    }

    fn parse_import(&mut self, at: usize) -> Result<(), String> {
        if !self.scanner.skip_if_next("common") {
            return self.syntax_error("only the library 'common' can be imported");
        }
        self.skip_blanks_and_comment();
        let mut wanted = Vec::new();
        if self.scanner.skip_if_next(".") {
            wanted.push(self.scanner.take_while(is_name_char));
        } else if self.scanner.skip_if_next("(") {
            loop {
                self.skip_inside_expression(1);
                wanted.push(self.scanner.take_while(is_name_char));
                self.skip_inside_expression(1);
                if self.scanner.skip_if_next(")") {
                    break;
                }
                if !self.scanner.skip_if_next(",") {
                    return self.syntax_error("expected ',' or ')' in the list of imports");
                }
            }
        }
        self.skip_blanks_and_comment();
        let alias = self.scanner.skip_if_next("->").then(|| {
            self.skip_blanks_and_comment();
            self.scanner.take_while(is_name_char)
        });
        for name in wanted {
            let pattern = common::lark_common_terminal_regex(&name)
                .map_err(|e| self.scanner.lark_error(at, &e))?;
            let body = self.regex_expr(pattern, at)?;
            let name = alias.clone().unwrap_or(name);
            self.define_rule(name, at, body)?;
        }
        Ok(())
    }

    fn regex_expr(&self, source: &str, at: usize) -> Result<GrammarExpr, String> {
        match WholeTextRegex::new(source) {
            Ok(regex) => Ok(GrammarExpr::Pattern(Box::new(regex))),
            Err(_) => {
                let reason = regex_syntax::parse(source).err().map(|e| e.to_string());
                let reason = reason.unwrap_or_else(|| "not supported".to_owned());
                let message = format!("invalid regex {source:?} (in regex): {reason}");
                Err(self.scanner.lark_error(at, &message))
            }
        }
    }

    fn parse_alternatives(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        if nesting > MAX_GRAMMAR_NESTING {
            return self.syntax_error("lark grammar too deeply nested");
        }
        let mut parts = Vec::new();
        loop {
            parts.push(self.parse_sequence(nesting)?);
            if self.scanner.skip_if_next("->") {
                self.skip_blanks_and_comment();
                self.scanner.take_while(is_name_char);
                self.skip_inside_expression(nesting);
            }
            if !self.scanner.skip_if_next("|") {
                break;
            }
        }
        Ok(GrammarExpr::alternatives(parts))
    }

    fn parse_sequence(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        let mut parts = Vec::new();
        loop {
            self.skip_inside_expression(nesting);
            if self.scanner.starts_with("->") {
                break;
            }
            if matches!(self.scanner.peek(0), None | Some('|' | ')' | ']' | '\n' | '}')) {
                break;
            }
            let part = self.parse_atom(nesting)?;
            let part = self.parse_repetition(part)?;
            parts.push(part);
        }
        Ok(GrammarExpr::sequence(parts))
    }

    fn parse_bracketed(&mut self, close: &str, nesting: u32) -> Result<GrammarExpr, String> {
        self.scanner.at += 1;
        let inner = self.parse_alternatives(nesting + 1)?;
        self.skip_inside_expression(nesting + 1);
        if !self.scanner.skip_if_next(close) {
            return self.syntax_error(&format!("expected '{close}'"));
        }
        Ok(inner)
    }

    fn parse_atom(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        match self.scanner.peek(0) {
            Some('(') => self.parse_bracketed(")", nesting),
            Some('[') => {
                let inner = self.parse_bracketed("]", nesting)?;
                Ok(GrammarExpr::repeat(inner, 0, Some(1)))
            }
            Some('"') => self.parse_string_or_range(),
            Some('/') => self.parse_slashed_regex(),
            Some('%') => self.parse_inline_block(),
            Some('<') => {
                let text = self.scanner.take_while(|c| c != '>' && !c.is_whitespace());
                if !self.scanner.skip_if_next(">") || text.starts_with("<[") {
                    return Err(self
                        .scanner
                        .lark_error(at, "token ids cannot be written without a tokenizer"));
                }
                Ok(GrammarExpr::Literal(text + ">"))
            }
            Some(c) if is_name_char(c) => {
                let name = self.scanner.take_while(is_name_char);
                Ok(GrammarExpr::Rule(self.rule_index(&name, at)?))
            }
            Some('@') => self.syntax_error("references to other grammars are not supported"),
            Some(c) => self.syntax_error(&format!("unexpected {c:?}")),
            None => self.syntax_error("unexpected end of the grammar"),
        }
    }

    fn parse_string(&mut self) -> Result<String, String> {
        let at = self.scanner.at;
        let text = self.scanner.parse_quoted_string()?;
        text.ok_or_else(|| self.scanner.lark_error(at, "unterminated string"))
    }

    fn parse_string_or_range(&mut self) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        let text = self.parse_string()?;
        if self.scanner.peek(0) == Some('i') && !self.scanner.peek(1).is_some_and(is_name_char) {
            // The case-insensitive flag allows any case; the literal is used as written.
            self.scanner.at += 1;
            return Ok(GrammarExpr::Literal(text));
        }
        let before = self.scanner.at;
        self.skip_blanks_and_comment();
        if !self.scanner.skip_if_next("..") {
            self.scanner.at = before;
            return Ok(GrammarExpr::Literal(text));
        }
        self.skip_blanks_and_comment();
        if self.scanner.peek(0) != Some('"') {
            return self.syntax_error("expected a string after '..'");
        }
        let end = self.parse_string()?;
        let one = |text: &str| {
            let mut chars = text.chars();
            chars.next().filter(|_| chars.next().is_none())
        };
        match (one(&text), one(&end)) {
            (Some(low), Some(high)) if low <= high => {
                Ok(GrammarExpr::Class(RegexGenerator::from_char_ranges(vec![(low, high)])))
            }
            (Some(low), Some(high)) => {
                Err(self.scanner.lark_error(at, &format!("invalid range order: {low:?}..{high:?}")))
            }
            _ => Err(self.scanner.lark_error(at, "both ends of a range must be one character")),
        }
    }

    fn parse_slashed_regex(&mut self) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        self.scanner.at += 1;
        let mut source = String::new();
        loop {
            match self.scanner.next() {
                Some('/') => break,
                Some('\\') => match self.scanner.next() {
                    Some('/') => source.push('/'),
                    Some(c) => source.extend(['\\', c]),
                    None => {}
                },
                Some('\n') | None => return Err(self.scanner.lark_error(at, "unterminated regex")),
                Some(c) => source.push(c),
            }
        }
        let flags = self.scanner.take_while(|c| "imslux".contains(c));
        let flags: String = flags.chars().filter(|c| "imsx".contains(*c)).collect();
        if flags.is_empty() {
            self.regex_expr(&source, at)
        } else {
            self.regex_expr(&format!("(?{flags}:{source})"), at)
        }
    }

    fn parse_json(&mut self) -> Result<Value, String> {
        let rest = self.scanner.remaining_text();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                let read = rest[..values.byte_offset()].chars().count();
                self.scanner.at += read;
                Ok(value)
            }
            Some(Err(error)) => self.syntax_error(&format!("invalid JSON: {error}")),
            None => self.syntax_error("expected a JSON object"),
        }
    }

    /// Parses an inline `%json { … }` schema or `%lark { … }` grammar.
    fn parse_inline_block(&mut self) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        self.scanner.at += 1;
        let name = self.scanner.take_while(is_name_char);
        self.skip_inside_expression(1);
        match name.as_str() {
            "json" => {
                let value = self.parse_json()?;
                let schema = Schema::parse(&value).map_err(|bad| {
                    self.scanner.lark_error(at, &format!("{} ({})", bad.reason, bad.path))
                })?;
                Ok(GrammarExpr::Json(Box::new(schema)))
            }
            "lark" => {
                let inner = self.take_braced_text()?;
                let grammar = parse_lark(&inner, self.blocks + 1)?;
                Ok(GrammarExpr::Nested(Box::new(grammar)))
            }
            _ => Err(self.scanner.lark_error(at, &format!("expected %lark or %json, got %{name}"))),
        }
    }

    /// Returns the text between a pair of braces; braces inside strings and regular expressions do
    /// not count.
    fn take_braced_text(&mut self) -> Result<String, String> {
        let at = self.scanner.at;
        if !self.scanner.skip_if_next("{") {
            return self.syntax_error("expected '{'");
        }
        let mut depth = 1;
        let mut text = String::new();
        while let Some(c) = self.scanner.next() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                '"' | '/' => {
                    text.push(c);
                    while let Some(inner) = self.scanner.next() {
                        text.push(inner);
                        if inner == '\\' {
                            text.extend(self.scanner.next());
                        } else if inner == c || inner == '\n' {
                            break;
                        }
                    }
                    continue;
                }
                _ => {}
            }
            if depth == 0 {
                return Ok(text);
            }
            text.push(c);
        }
        Err(self.scanner.lark_error(at, "unterminated '{'"))
    }

    fn parse_repetition(&mut self, part: GrammarExpr) -> Result<GrammarExpr, String> {
        if let Some((min, max)) = ebnf::parse_repetition_suffix(&mut self.scanner)? {
            return Ok(GrammarExpr::repeat(part, min, max));
        }
        if !self.scanner.skip_if_next("~") {
            return Ok(part);
        }
        self.skip_blanks_and_comment();
        let Some(min) = self.scanner.parse_number() else {
            return self.syntax_error("expected a number after '~'");
        };
        let max =
            if self.scanner.skip_if_next("..") { self.scanner.parse_number() } else { Some(min) };
        if max.is_none_or(|max| max < min) {
            return self.syntax_error("range end must be >= start");
        }
        Ok(GrammarExpr::repeat(part, min, max))
    }

    /// Returns whether an `%ignore`d expression may match a single space.
    fn may_match_space(&self, expr: &GrammarExpr, depth: u32) -> bool {
        if depth > MAX_GRAMMAR_NESTING {
            return false;
        }
        match expr {
            GrammarExpr::Literal(text) => text == " ",
            GrammarExpr::Pattern(regex) => regex.is_match(" "),
            GrammarExpr::Class(class) => class.can_produce_char(' '),
            GrammarExpr::Alternatives(parts, _) => {
                parts.iter().any(|p| self.may_match_space(p, depth + 1))
            }
            GrammarExpr::Sequence(parts) => match parts.as_slice() {
                [only] => self.may_match_space(only, depth + 1),
                _ => false,
            },
            GrammarExpr::Repeat(part, min, max, _) => {
                *min <= 1 && *max != Some(0) && self.may_match_space(part, depth + 1)
            }
            GrammarExpr::Rule(index) => self.rules[*index]
                .body
                .as_ref()
                .is_some_and(|body| self.may_match_space(body, depth + 1)),
            GrammarExpr::Json(_) | GrammarExpr::Nested(_) => false,
        }
    }
}
