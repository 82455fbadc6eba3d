//! Jinja2 source → the dialect that minijinja reads, for the places where the two differ.

use super::lexer::{Kind, Tag, Token, tags};

/// The method that a slice turns into.
pub(super) const SLICE: &str = "__slice__";

/// Rewrites a Jinja2 template:
///
/// * line ends become `\n`, as Jinja2's lexer makes them;
/// * `{% generation %}` blocks, which transformers uses to mark what the model wrote, become
///   `{% with %}` blocks, which also only open a scope;
/// * slices become calls of [`SLICE`], because minijinja's own differ from Python's for negative
///   steps;
/// * escapes in string literals are spelled so that minijinja reads what Python reads.
///
/// A template that is not well formed is left alone: minijinja will say what is wrong with it.
pub(super) fn rewrite(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let Some(tags) = tags(&source) else {
        return source;
    };
    let mut out = String::with_capacity(source.len() + source.len() / 16);
    let mut copied = 0;
    for tag in &tags {
        for (span, text) in edits(tag) {
            out.push_str(&source[copied..span.start]);
            out.push_str(&text);
            copied = span.end;
        }
    }
    out.push_str(&source[copied..]);
    out
}

/// What to replace in one tag, in order.
fn edits(tag: &Tag<'_>) -> Vec<(std::ops::Range<usize>, String)> {
    let mut edits = Vec::new();
    let slices = slices(&tag.tokens);
    for (index, token) in tag.tokens.iter().enumerate() {
        match slices[index] {
            Part::Open { empty } => {
                let first = if empty { "none" } else { "" };
                edits.push((token.span.clone(), format!(".{SLICE}({first}")));
            }
            Part::Colon { empty } => {
                let next = if empty { ", none" } else { ", " };
                edits.push((token.span.clone(), next.to_owned()));
            }
            Part::Close => edits.push((token.span.clone(), ")".to_owned())),
            Part::None if token.kind == Kind::Str && token.text.contains('\\') => {
                edits.push((token.span.clone(), literal(token.text)));
            }
            Part::None if tag.statement && index == 0 && token.text == "generation" => {
                edits.push((token.span.clone(), "with".to_owned()));
            }
            Part::None if tag.statement && index == 0 && token.text == "endgeneration" => {
                edits.push((token.span.clone(), "endwith".to_owned()));
            }
            Part::None => {}
        }
    }
    edits
}

/// The part that a token plays in a slice.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    None,
    /// `[`; nothing stands before the colon when empty.
    Open {
        empty: bool,
    },
    /// `:`; nothing follows it when empty.
    Colon {
        empty: bool,
    },
    Close,
}

/// Which tokens belong to slices. A `[` with a colon directly in it always opens one: list
/// literals hold no colons.
fn slices(tokens: &[Token<'_>]) -> Vec<Part> {
    let mut parts = vec![Part::None; tokens.len()];
    let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => open.push((index, Vec::new())),
            ":" => {
                if let Some((_, colons)) = open.last_mut() {
                    colons.push(index);
                }
            }
            ")" | "]" | "}" => {
                let Some((start, colons)) = open.pop() else {
                    continue;
                };
                if colons.is_empty() || tokens[start].text != "[" {
                    continue;
                }
                parts[start] = Part::Open {
                    empty: colons[0] == start + 1,
                };
                for (n, &colon) in colons.iter().enumerate() {
                    let end = colons.get(n + 1).copied().unwrap_or(index);
                    parts[colon] = Part::Colon {
                        empty: end == colon + 1,
                    };
                }
                parts[index] = Part::Close;
            }
            _ => {}
        }
    }
    parts
}

/// A string literal with the value that Python gives it, in escapes that minijinja knows.
fn literal(token: &str) -> String {
    let mut out = String::from("\"");
    for c in unescape(&token[1..token.len() - 1]).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Python's escapes. One that Python does not know keeps its backslash; a broken one too.
fn unescape(body: &str) -> String {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { break };
        let (text, used) = match c {
            '\n' => (None, 1),
            '\\' | '\'' | '"' => (Some(c), 1),
            'a' => (Some('\x07'), 1),
            'b' => (Some('\x08'), 1),
            'f' => (Some('\x0c'), 1),
            'n' => (Some('\n'), 1),
            'r' => (Some('\r'), 1),
            't' => (Some('\t'), 1),
            'v' => (Some('\x0b'), 1),
            '0'..='7' => {
                let digits = rest.chars().take(3).take_while(|c| c.is_digit(8)).count();
                (code(&rest[..digits], 8), digits)
            }
            'x' => coded(rest, 2),
            'u' => coded(rest, 4),
            'U' => coded(rest, 8),
            _ => (Some('\\'), 0),
        };
        out.extend(text);
        rest = &rest[used..];
    }
    out.push_str(rest);
    out
}

/// A `x41`, `u0041` or `U00000041` escape; the backslash alone when it is broken.
fn coded(rest: &str, digits: usize) -> (Option<char>, usize) {
    match rest.get(1..=digits).and_then(|text| code(text, 16)) {
        Some(c) => (Some(c), digits + 1),
        None => (Some('\\'), 0),
    }
}

fn code(digits: &str, radix: u32) -> Option<char> {
    char::from_u32(u32::from_str_radix(digits, radix).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_become_calls() {
        assert_eq!(
            rewrite("{{ a[1:] }}{{ a[::-1][0] }}{{ a[b[:2]|length:{'x': [c]}['x'][0]] }}"),
            "{{ a.__slice__(1, none) }}{{ a.__slice__(none, none, -1)[0] }}\
             {{ a.__slice__(b.__slice__(none, 2)|length, {'x': [c]}['x'][0]) }}"
        );
        assert_eq!(
            rewrite("a[1:] {# b[1:] #}{{ [1, {2: 3}] }}"),
            "a[1:] {# b[1:] #}{{ [1, {2: 3}] }}"
        );
    }

    #[test]
    fn generation_blocks_become_scopes() {
        assert_eq!(
            rewrite("a\r\n{%- generation -%} generation {%endgeneration%}"),
            "a\n{%- with -%} generation {%endwith%}"
        );
    }

    #[test]
    fn string_escapes_are_pythons() {
        assert_eq!(
            rewrite(r#"{{ '\n\\\'"\d\/\x41\u00e9\U0001F600\101\xZZ' }}{{ "é" }}"#),
            "{{ \"\\n\\\\'\\\"\\\\d\\\\/Aé😀A\\\\xZZ\" }}{{ \"é\" }}"
        );
        assert_eq!(rewrite("{{ 'a\\\nb' }}"), "{{ \"ab\" }}");
    }

    #[test]
    fn what_is_not_a_template_is_left_alone() {
        for source in ["", "{", "{{ 'x\\", "{% if a[1: %}", "\\u {{"] {
            assert_eq!(rewrite(source), source);
        }
    }
}
