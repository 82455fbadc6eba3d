//! Parses Lark grammars as llguidance and xgrammar write them.
//!
//! Sources: `parser/src/lark` of llguidance, `xgrammar_features/lark_grammar` of xgrammar's
//! documentation. `?rule`, `!rule`, aliases and priorities affect only syntax trees and are
//! ignored. Terminals are parsed like rules, but nothing is ignored inside them.

use std::collections::HashMap;

use serde_json::Value;

use super::ast::{Grammar, GrammarExpr, GrammarRule, MAX_NESTING, MAX_RULES};
use super::scanner::GrammarScanner;
use super::{common, ebnf};
use crate::regex::{RegexGenerator, WholeRegex};
use crate::schema::Schema;

/// Maximum nesting of `%lark { … }` blocks in a grammar.
const MAX_BLOCKS: u32 = 8;

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

pub(super) fn read(source: &str, blocks: u32) -> Result<Grammar, String> {
    if blocks > MAX_BLOCKS {
        return Err("lark grammar too deeply nested".to_owned());
    }
    let mut parser = LarkParser {
        scanner: GrammarScanner::new(source),
        names: HashMap::new(),
        rules: Vec::new(),
        ignored: Vec::new(),
        blocks,
    };
    parser.skip_lines();
    while parser.scanner.peek(0).is_some() {
        parser.item()?;
        parser.skip_lines();
    }
    let Some(&start) = parser.names.get("start") else {
        return Err("no start rule found".to_owned());
    };
    if let Some(rule) = parser.rules.iter().find(|rule| rule.body.is_none()) {
        let message = format!("unknown name: {:?}", rule.name);
        return Err(parser.scanner.lark_error(rule.mentioned, &message));
    }
    let is_spaced = parser.ignored.iter().any(|e| parser.matches_blank(e, 0));
    let rules = parser.rules.into_iter().filter_map(|rule| {
        rule.body.map(|body| GrammarRule {
            body,
            height: u32::MAX,
            is_lexeme: is_terminal(&rule.name),
        })
    });
    let mut grammar = Grammar {
        rules: rules.collect(),
        start,
        is_spaced,
    };
    if blocks > 0 {
        grammar.measure();
        if grammar.rules[start].height == u32::MAX {
            return Err("a nested grammar has no finite text".to_owned());
        }
    }
    Ok(grammar)
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_')
        .chars()
        .next()
        .is_some_and(char::is_uppercase)
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-')
}

impl LarkParser {
    fn error<T>(&self, message: &str) -> Result<T, String> {
        Err(self.scanner.lark_error(self.scanner.at, message))
    }

    /// Skips spaces and comments up to the end of the line.
    fn skip(&mut self) {
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
        self.skip();
        while self.scanner.eat("\n") {
            self.skip();
        }
    }

    /// Skips spaces; also skips line ends inside brackets or before `|`.
    fn skip_within(&mut self, nesting: u32) {
        self.skip();
        if self.scanner.peek(0) != Some('\n') {
            return;
        }
        let at = self.scanner.at;
        self.skip_lines();
        if nesting == 0 && self.scanner.peek(0) != Some('|') {
            self.scanner.at = at;
        }
    }

    fn item(&mut self) -> Result<(), String> {
        if self.scanner.peek(0) == Some('%') {
            return self.directive();
        }
        self.scanner.take_while(|c| c == '?' || c == '!');
        let at = self.scanner.at;
        let name = self.scanner.take_while(in_name);
        if name.is_empty() {
            return self.error("expected a rule, a terminal or a directive");
        }
        self.skip();
        match self.scanner.peek(0) {
            Some('{') => return self.error("template usage not supported yet"),
            Some('[') => {
                // Attributes such as [capture, lazy] do not change the language.
                self.scanner.take_while(|c| c != ']' && c != '\n');
                self.scanner.eat("]");
                self.skip();
            }
            Some('.') => {
                self.scanner.at += 1;
                self.scanner.take_while(|c| c == '-' || c.is_ascii_digit());
                self.skip();
            }
            _ => {}
        }
        if !self.scanner.eat(":") {
            return self.error("expected ':' after rule name");
        }
        let body = self.alternatives(0)?;
        self.define(name, at, body)?;
        self.end_of_line()
    }

    fn end_of_line(&mut self) -> Result<(), String> {
        self.skip();
        match self.scanner.peek(0) {
            None | Some('\n') => Ok(()),
            Some(c) => self.error(&format!("unexpected {c:?}")),
        }
    }

    fn index(&mut self, name: &str, at: usize) -> Result<usize, String> {
        if let Some(&index) = self.names.get(name) {
            return Ok(index);
        }
        if self.rules.len() >= MAX_RULES {
            return self.error("too many rules");
        }
        self.rules.push(LarkRule {
            name: name.to_owned(),
            body: None,
            mentioned: at,
        });
        self.names.insert(name.to_owned(), self.rules.len() - 1);
        Ok(self.rules.len() - 1)
    }

    fn define(&mut self, name: String, at: usize, body: GrammarExpr) -> Result<(), String> {
        let index = self.index(&name, at)?;
        if self.rules[index].body.is_some() {
            return Err(self
                .scanner
                .lark_error(at, &format!("duplicate rule: {name:?}")));
        }
        self.rules[index].body = Some(body);
        Ok(())
    }

    fn directive(&mut self) -> Result<(), String> {
        let at = self.scanner.at;
        self.scanner.at += 1;
        let name = self.scanner.take_while(in_name);
        self.skip();
        match name.as_str() {
            "ignore" => {
                let body = self.alternatives(0)?;
                self.ignored.push(body);
            }
            "import" => self.import(at)?,
            "grammar_options" | "llguidance" => {
                self.json()?;
            }
            "declare" | "override" => {
                let message = format!("{name} statement not supported yet");
                return Err(self.scanner.lark_error(at, &message));
            }
            _ => return Err(self.scanner.lark_error(at, "lexer error")),
        }
        self.end_of_line()
    }

    fn import(&mut self, at: usize) -> Result<(), String> {
        if !self.scanner.eat("common") {
            return self.error("only the library 'common' can be imported");
        }
        self.skip();
        let mut wanted = Vec::new();
        if self.scanner.eat(".") {
            wanted.push(self.scanner.take_while(in_name));
        } else if self.scanner.eat("(") {
            loop {
                self.skip_within(1);
                wanted.push(self.scanner.take_while(in_name));
                self.skip_within(1);
                if self.scanner.eat(")") {
                    break;
                }
                if !self.scanner.eat(",") {
                    return self.error("expected ',' or ')' in the list of imports");
                }
            }
        }
        self.skip();
        let alias = self.scanner.eat("->").then(|| {
            self.skip();
            self.scanner.take_while(in_name)
        });
        for name in wanted {
            let pattern = common::pattern(&name).map_err(|e| self.scanner.lark_error(at, &e))?;
            let body = self.regex(pattern, at)?;
            let name = alias.clone().unwrap_or(name);
            self.define(name, at, body)?;
        }
        Ok(())
    }

    fn regex(&self, source: &str, at: usize) -> Result<GrammarExpr, String> {
        match WholeRegex::new(source) {
            Ok(regex) => Ok(GrammarExpr::Pattern(Box::new(regex))),
            Err(_) => {
                let reason = regex_syntax::parse(source).err().map(|e| e.to_string());
                let reason = reason.unwrap_or_else(|| "not supported".to_owned());
                let message = format!("invalid regex {source:?} (in regex): {reason}");
                Err(self.scanner.lark_error(at, &message))
            }
        }
    }

    fn alternatives(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        if nesting > MAX_NESTING {
            return self.error("lark grammar too deeply nested");
        }
        let mut parts = Vec::new();
        loop {
            parts.push(self.sequence(nesting)?);
            if self.scanner.eat("->") {
                self.skip();
                self.scanner.take_while(in_name);
                self.skip_within(nesting);
            }
            if !self.scanner.eat("|") {
                break;
            }
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => GrammarExpr::alternatives(parts),
        })
    }

    fn sequence(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        let mut parts = Vec::new();
        loop {
            self.skip_within(nesting);
            if self.scanner.starts_with("->") {
                break;
            }
            if matches!(
                self.scanner.peek(0),
                None | Some('|' | ')' | ']' | '\n' | '}')
            ) {
                break;
            }
            let part = self.atom(nesting)?;
            let part = self.repeated(part)?;
            parts.push(part);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => GrammarExpr::Sequence(parts),
        })
    }

    fn bracket(&mut self, close: &str, nesting: u32) -> Result<GrammarExpr, String> {
        self.scanner.at += 1;
        let inner = self.alternatives(nesting + 1)?;
        self.skip_within(nesting + 1);
        if !self.scanner.eat(close) {
            return self.error(&format!("expected '{close}'"));
        }
        Ok(inner)
    }

    fn atom(&mut self, nesting: u32) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        match self.scanner.peek(0) {
            Some('(') => self.bracket(")", nesting),
            Some('[') => {
                let inner = self.bracket("]", nesting)?;
                Ok(GrammarExpr::repeat(inner, 0, Some(1)))
            }
            Some('"') => self.string_or_range(),
            Some('/') => self.slashed(),
            Some('%') => self.block(),
            Some('<') => {
                let text = self.scanner.take_while(|c| c != '>' && !c.is_whitespace());
                if !self.scanner.eat(">") || text.starts_with("<[") {
                    return Err(self
                        .scanner
                        .lark_error(at, "token ids cannot be written without a tokenizer"));
                }
                Ok(GrammarExpr::Literal(text + ">"))
            }
            Some(c) if in_name(c) => {
                let name = self.scanner.take_while(in_name);
                Ok(GrammarExpr::Rule(self.index(&name, at)?))
            }
            Some('@') => self.error("references to other grammars are not supported"),
            Some(c) => self.error(&format!("unexpected {c:?}")),
            None => self.error("unexpected end of the grammar"),
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let at = self.scanner.at;
        self.scanner.at += 1;
        let mut text = String::new();
        loop {
            match self.scanner.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.scanner.escape()?),
                Some('\n') | None => {
                    return Err(self.scanner.lark_error(at, "unterminated string"));
                }
                Some(c) => text.push(c),
            }
        }
    }

    fn string_or_range(&mut self) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        let text = self.string()?;
        if self.scanner.peek(0) == Some('i') && !self.scanner.peek(1).is_some_and(in_name) {
            // The case-insensitive flag allows any case; the literal is used as written.
            self.scanner.at += 1;
            return Ok(GrammarExpr::Literal(text));
        }
        let before = self.scanner.at;
        self.skip();
        if !self.scanner.eat("..") {
            self.scanner.at = before;
            return Ok(GrammarExpr::Literal(text));
        }
        self.skip();
        if self.scanner.peek(0) != Some('"') {
            return self.error("expected a string after '..'");
        }
        let end = self.string()?;
        let one = |text: &str| {
            let mut chars = text.chars();
            chars.next().filter(|_| chars.next().is_none())
        };
        match (one(&text), one(&end)) {
            (Some(low), Some(high)) if low <= high => {
                Ok(GrammarExpr::Class(RegexGenerator::class(vec![(low, high)])))
            }
            (Some(low), Some(high)) => Err(self
                .scanner
                .lark_error(at, &format!("invalid range order: {low:?}..{high:?}"))),
            _ => Err(self
                .scanner
                .lark_error(at, "both ends of a range must be one character")),
        }
    }

    fn slashed(&mut self) -> Result<GrammarExpr, String> {
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
            self.regex(&source, at)
        } else {
            self.regex(&format!("(?{flags}:{source})"), at)
        }
    }

    fn json(&mut self) -> Result<Value, String> {
        let rest = self.scanner.rest();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                let read = rest[..values.byte_offset()].chars().count();
                self.scanner.at += read;
                Ok(value)
            }
            Some(Err(error)) => self.error(&format!("invalid JSON: {error}")),
            None => self.error("expected a JSON object"),
        }
    }

    /// Parses an inline `%json { … }` schema or `%lark { … }` grammar.
    fn block(&mut self) -> Result<GrammarExpr, String> {
        let at = self.scanner.at;
        self.scanner.at += 1;
        let name = self.scanner.take_while(in_name);
        self.skip_within(1);
        match name.as_str() {
            "json" => {
                let value = self.json()?;
                let schema = Schema::read(&value).map_err(|bad| {
                    self.scanner
                        .lark_error(at, &format!("{} ({})", bad.reason, bad.path))
                })?;
                Ok(GrammarExpr::Json(Box::new(schema)))
            }
            "lark" => {
                let inner = self.braces()?;
                let grammar = read(&inner, self.blocks + 1)?;
                Ok(GrammarExpr::Nested(Box::new(grammar)))
            }
            _ => Err(self
                .scanner
                .lark_error(at, &format!("expected %lark or %json, got %{name}"))),
        }
    }

    /// Returns the text between a pair of braces; braces inside strings and regular expressions do
    /// not count.
    fn braces(&mut self) -> Result<String, String> {
        let at = self.scanner.at;
        if !self.scanner.eat("{") {
            return self.error("expected '{'");
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

    fn repeated(&mut self, part: GrammarExpr) -> Result<GrammarExpr, String> {
        let (min, max) = match self.scanner.peek(0) {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.scanner.at += 1;
                let (min, max) = ebnf::bounds(&mut self.scanner)?;
                return Ok(GrammarExpr::repeat(part, min, max));
            }
            Some('~') => {
                self.scanner.at += 1;
                self.skip();
                let Some(min) = self.scanner.number() else {
                    return self.error("expected a number after '~'");
                };
                let max = if self.scanner.eat("..") {
                    self.scanner.number()
                } else {
                    Some(min)
                };
                if max.is_none_or(|max| max < min) {
                    return self.error("range end must be >= start");
                }
                return Ok(GrammarExpr::repeat(part, min, max));
            }
            _ => return Ok(part),
        };
        self.scanner.at += 1;
        Ok(GrammarExpr::repeat(part, min, max))
    }

    /// Returns whether an `%ignore`d expression may match a single space.
    fn matches_blank(&self, expr: &GrammarExpr, depth: u32) -> bool {
        if depth > MAX_NESTING {
            return false;
        }
        match expr {
            GrammarExpr::Literal(text) => text == " ",
            GrammarExpr::Pattern(regex) => regex.is_match(" "),
            GrammarExpr::Class(class) => class.has(' '),
            GrammarExpr::Alternatives(parts, _) => {
                parts.iter().any(|p| self.matches_blank(p, depth + 1))
            }
            GrammarExpr::Sequence(parts) => match parts.as_slice() {
                [only] => self.matches_blank(only, depth + 1),
                _ => false,
            },
            GrammarExpr::Repeat(part, min, max, _) => {
                *min <= 1 && *max != Some(0) && self.matches_blank(part, depth + 1)
            }
            GrammarExpr::Rule(index) => self.rules[*index]
                .body
                .as_ref()
                .is_some_and(|body| self.matches_blank(body, depth + 1)),
            GrammarExpr::Json(_) | GrammarExpr::Nested(_) => false,
        }
    }
}
