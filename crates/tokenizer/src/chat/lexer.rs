//! Tokenizes the tags of a Jinja template, in enough detail to inspect and rewrite it.

use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JinjaTokenKind {
    Name,
    Str,
    /// Number or operator in a Jinja tag.
    Other,
}

#[derive(Debug, Clone)]
pub(super) struct JinjaToken<'s> {
    pub(super) kind: JinjaTokenKind,
    pub(super) text: &'s str,
    pub(super) span: Range<usize>,
}

impl JinjaToken<'_> {
    pub(super) fn is_identifier_named(&self, name: &str) -> bool {
        self.kind == JinjaTokenKind::Name && self.text == name
    }

    pub(super) fn is_operator(&self, op: &str) -> bool {
        self.kind == JinjaTokenKind::Other && self.text == op
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JinjaTagKind {
    Expression,
    Statement,
}

/// Tag `{{ … }}` or `{% … %}` of a Jinja template; text, comments and raw blocks are skipped.
#[derive(Debug)]
pub(super) struct JinjaTag<'s> {
    pub(super) kind: JinjaTagKind,
    pub(super) tokens: Vec<JinjaToken<'s>>,
}

impl JinjaTag<'_> {
    pub(super) fn is_statement_tag(&self) -> bool {
        self.kind == JinjaTagKind::Statement
    }
}

/// Returns the tags of a Jinja template in order; `None` if the template is malformed.
pub(super) fn lex_jinja_tags(source: &str) -> Option<Vec<JinjaTag<'_>>> {
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(open) = source[at..].find('{') {
        let start = at + open;
        match source.as_bytes().get(start + 1) {
            Some(b'#') => at = start + 2 + source[start + 2..].find("#}")? + 2,
            Some(b'%') => match raw_block_end(&source[start..]) {
                Some(length) => at = start + length?,
                None => at = lex_tag(source, start, JinjaTagKind::Statement, &mut tags)?,
            },
            Some(b'{') => at = lex_tag(source, start, JinjaTagKind::Expression, &mut tags)?,
            _ => at = start + 1,
        }
    }
    Some(tags)
}

/// Returns the length of a `{% raw %}` block at the start of `text`; `Some(None)` if the block is
/// not closed.
fn raw_block_end(text: &str) -> Option<Option<usize>> {
    let body = after_word_tag(text, "raw")?;
    let mut at = text.len() - body.len();
    while let Some(next) = text[at..].find("{%") {
        at += next;
        if let Some(rest) = after_word_tag(&text[at..], "endraw") {
            return Some(Some(text.len() - rest.len()));
        }
        at += 2;
    }
    Some(None)
}

/// Returns the text after a Jinja tag that contains only `word`.
fn after_word_tag<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let text = text.strip_prefix("{%")?;
    let text = text.strip_prefix(['-', '+']).unwrap_or(text).trim_start();
    let text = text.strip_prefix(word)?.trim_start();
    text.strip_prefix(['-', '+']).unwrap_or(text).strip_prefix("%}")
}

fn lex_tag<'s>(
    source: &'s str,
    start: usize,
    kind: JinjaTagKind,
    tags: &mut Vec<JinjaTag<'s>>,
) -> Option<usize> {
    let close = match kind {
        JinjaTagKind::Statement => "%}",
        JinjaTagKind::Expression => "}}",
    };
    let mut tokens: Vec<JinjaToken<'s>> = Vec::new();
    let mut depth = 0usize;
    let mut at = start + 2;
    if source[at..].starts_with(['-', '+']) {
        at += 1;
    }
    loop {
        let rest = &source[at..];
        let c = rest.chars().next()?;
        if depth == 0 {
            if rest.starts_with(close) {
                tags.push(JinjaTag { kind, tokens });
                return Some(at + 2);
            }
            if matches!(c, '-' | '+') && rest[1..].starts_with(close) {
                tags.push(JinjaTag { kind, tokens });
                return Some(at + 3);
            }
        }
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let (token_kind, length) = lex_token(rest, c)?;
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        tokens.push(JinjaToken { kind: token_kind, text: &rest[..length], span: at..at + length });
        at += length;
    }
}

/// Returns the kind and length in bytes of the Jinja token at the start of `rest`.
fn lex_token(rest: &str, first: char) -> Option<(JinjaTokenKind, usize)> {
    if first == '"' || first == '\'' {
        return string_literal_len(rest, first).map(|length| (JinjaTokenKind::Str, length));
    }
    if first == '_' || first.is_alphabetic() {
        let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
        return Some((JinjaTokenKind::Name, end));
    }
    if first.is_ascii_digit() {
        return Some((JinjaTokenKind::Other, number_literal_len(rest)));
    }
    let long = ["//", "**", "==", "!=", "<=", ">="].iter().any(|op| rest.starts_with(op));
    Some((JinjaTokenKind::Other, if long { 2 } else { first.len_utf8() }))
}

fn string_literal_len(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn number_literal_len(rest: &str) -> usize {
    let digits =
        |text: &str| text.find(|c: char| c != '_' && !c.is_ascii_digit()).unwrap_or(text.len());
    let mut end = digits(rest);
    if rest[end..].starts_with('.') && rest[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        end += 1 + digits(&rest[end + 1..]);
    }
    if rest[end..].starts_with(['e', 'E']) {
        let sign = usize::from(rest[end + 1..].starts_with(['-', '+']));
        let exponent = digits(&rest[end + 1 + sign..]);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    end
}

/// Returns the targets and the iterable of a loop of a template; `tokens` follow the keyword `for`.
pub(super) fn loop_targets_and_iterable<'a, 's>(
    tokens: &'a [JinjaToken<'s>],
) -> Option<(&'a [JinjaToken<'s>], &'a [JinjaToken<'s>])> {
    let word = tokens.iter().position(|token| token.is_identifier_named("in"))?;
    let iterable = &tokens[word + 1..];
    let mut depth = 0usize;
    let end = iterable.iter().position(|token| {
        depth = bracket_depth_after(depth, token);
        depth == 0 && (token.is_identifier_named("if") || token.is_identifier_named("recursive"))
    });
    Some((&tokens[..word], &iterable[..end.unwrap_or(iterable.len())]))
}

pub(super) fn bracket_depth_after(depth: usize, token: &JinjaToken<'_>) -> usize {
    match token.text {
        "(" | "[" | "{" => depth + 1,
        ")" | "]" | "}" => depth.saturating_sub(1),
        _ => depth,
    }
}

pub(super) fn closing_bracket(tokens: &[JinjaToken<'_>]) -> Option<usize> {
    let mut depth = 0usize;
    let close = tokens.iter().position(|token| {
        depth = bracket_depth_after(depth, token);
        depth == 0
    })?;
    (close > 0).then_some(close)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lexer_skips_text_comments_and_raw_blocks() {
        let source = "a { {# {{ x }} #}{%- if a['}}'] == {'b': {}} -%}{% raw %}{{ y }}{%- endraw %}\
                      {{+ 1.5e3 ~ z[0][1:] }}";
        let tags = lex_jinja_tags(source).unwrap();
        let texts: Vec<Vec<&str>> =
            tags.iter().map(|tag| tag.tokens.iter().map(|token| token.text).collect()).collect();
        assert_eq!(
            texts,
            [
                vec!["if", "a", "[", "'}}'", "]", "==", "{", "'b'", ":", "{", "}", "}"],
                vec!["1.5e3", "~", "z", "[", "0", "]", "[", "1", ":", "]"],
            ]
        );
        assert_eq!(
            tags.iter().map(|tag| tag.is_statement_tag()).collect::<Vec<_>>(),
            [true, false]
        );
    }

    #[test]
    fn broken_templates_have_no_tags() {
        for source in ["{{ 'a", "{% if", "{# x", "{% raw %}{{", "{{ ) }}", "{{ ", "{{ a\u{0}"] {
            assert!(lex_jinja_tags(source).is_none(), "{source:?}");
        }
        assert!(lex_jinja_tags("").unwrap().is_empty());
        assert!(lex_jinja_tags("{").unwrap().is_empty());
    }
}
