//! Converts Jinja2 templates to minijinja's syntax where the two differ.

use std::collections::BTreeSet;

use super::bounds::{COUNT_EXPRESSION_WORK_FILTER, COUNT_NESTED_VALUE_WORK_FILTER};
use super::lexer::{JinjaTag, JinjaToken, JinjaTokenKind, lex_jinja_tags};
use super::work_filters;

pub(super) const TEMPLATE_SLICE_METHOD: &str = "__slice__";

/// Name of the method that replaces template subscripts whose lookup is expensive.
pub(super) const TEMPLATE_SUBSCRIPT_METHOD: &str = "__item__";

/// Converts a Jinja2 template to minijinja's syntax.
///
/// * line ends become `\n`, as in Jinja2's lexer;
/// * `{% generation %}` blocks, with which transformers marks generated text, become `{% with %}`
///   blocks, which also only open a scope;
/// * slices become calls of [`TEMPLATE_SLICE_METHOD`], because minijinja's differ from Python's for negative steps;
/// * subscripts other than plain strings and small numbers become calls of [`TEMPLATE_SUBSCRIPT_METHOD`];
/// * operands of `~` go through the `string` filter, because minijinja prints `none` and `true`;
/// * escapes in string literals are converted to those that minijinja supports;
/// * values that may grow go through filters that count them ([`super::bounds`]).
///
/// A malformed template is returned unchanged: minijinja reports the error.
pub(super) fn rewrite_for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let Some(tags) = lex_jinja_tags(&source) else {
        return source;
    };
    let mut out = String::with_capacity(source.len() + source.len() / 16);
    let mut copied = 0;
    let mut counted = work_filters::work_counting_filter_edits(&tags);
    for (tag, counted) in tags.iter().zip(&mut counted) {
        for (span, text) in tag_edits(tag, std::mem::take(counted)) {
            out.push_str(&source[copied..span.start]);
            out.push_str(&text);
            copied = span.end;
        }
    }
    out.push_str(&source[copied..]);
    out
}

pub(super) type TextEdit = (std::ops::Range<usize>, String);

/// Returns the text edits of one template tag, in order, including the edits `counted`, which
/// enclose whole expressions.
fn tag_edits(tag: &JinjaTag<'_>, counted: Vec<TextEdit>) -> Vec<TextEdit> {
    let mut edits = Vec::new();
    let slices = slice_roles(tag);
    for (index, token) in tag.tokens.iter().enumerate() {
        match slices[index] {
            SliceToken::Open { empty } => {
                let first = if empty { "none" } else { "" };
                edits.push((token.span.clone(), format!(".{TEMPLATE_SLICE_METHOD}({first}")));
            }
            SliceToken::Colon { empty } => {
                let next = if empty { ", none" } else { ", " };
                edits.push((token.span.clone(), next.to_owned()));
            }
            SliceToken::Subscript => {
                edits.push((token.span.clone(), format!(".{TEMPLATE_SUBSCRIPT_METHOD}(")))
            }
            SliceToken::Close => edits.push((token.span.clone(), ")".to_owned())),
            SliceToken::None if token.kind == JinjaTokenKind::Str && token.text.contains('\\') => {
                edits.push((token.span.clone(), minijinja_string_literal(token.text)));
            }
            SliceToken::None
                if tag.is_statement_tag() && index == 0 && token.text == "generation" =>
            {
                edits.push((token.span.clone(), "with".to_owned()));
            }
            SliceToken::None
                if tag.is_statement_tag() && index == 0 && token.text == "endgeneration" =>
            {
                edits.push((token.span.clone(), "endwith".to_owned()));
            }
            SliceToken::None => {}
        }
    }
    // Operators that bind tighter get the inner brackets.
    for (operands, filter) in [
        (multiplication_operands(tag), COUNT_EXPRESSION_WORK_FILTER),
        (tilde_operands(tag), "string"),
        (plus_operands(tag), COUNT_EXPRESSION_WORK_FILTER),
        (comparison_operands(tag), COUNT_NESTED_VALUE_WORK_FILTER),
        (hashed_key_operands(tag), COUNT_NESTED_VALUE_WORK_FILTER),
    ] {
        for operand in operands {
            edits.extend(enclose_with_filter(&tag.tokens[operand.start..operand.end], filter));
        }
    }
    edits.extend(counted);
    edits.sort_by_key(|(span, _)| (span.start, span.end));
    edits
}

/// Returns two text insertions, which put a template expression in parentheses and append a filter
/// to the parentheses.
pub(super) fn enclose_with_filter(tokens: &[JinjaToken<'_>], filter: &str) -> Vec<TextEdit> {
    let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
        return Vec::new();
    };
    let (start, end) = (first.span.start, last.span.end);
    vec![(start..start, "(".to_owned()), (end..end, format!(")|{filter}"))]
}

fn tilde_operands(tag: &JinjaTag<'_>) -> BTreeSet<OperandRange> {
    let tildes = (0..tag.tokens.len()).filter(|at| tag.tokens[*at].is_operator("~"));
    let both = tildes.flat_map(|at| {
        let ends = |index: usize| ends_operand(&tag.tokens, index);
        [operand_before(tag, at, ends), operand_after(tag, at, ends)]
    });
    both.filter(|operand| !operand.is_string_literal(tag)).collect()
}

/// Returns the operands of binary `+` in a template tag, except for string and number literals.
fn plus_operands(tag: &JinjaTag<'_>) -> BTreeSet<OperandRange> {
    let both = binary_operator_positions(tag, "+").flat_map(|at| {
        let ends =
            |index: usize| ends_operand(&tag.tokens, index) && !tag.tokens[index].is_operator("~");
        [operand_before(tag, at, ends), operand_after(tag, at, ends)]
    });
    both.filter(|operand| !operand.is_literal(tag)).collect()
}

/// Returns the operands of comparisons and of `in` in a template tag, except literals; a comparison
/// reads its operands with all nested values.
fn comparison_operands(tag: &JinjaTag<'_>) -> BTreeSet<OperandRange> {
    const COMPARISON_SIGNS: [&str; 6] = ["==", "!=", "<", ">", "<=", ">="];
    let tokens = &tag.tokens;
    let named = |index: usize, name: &str| tokens[index].is_identifier_named(name);
    let ends = |index: usize| {
        let signs = ["~", "-", "+"];
        ends_operand(tokens, index) && !signs.contains(&tokens[index].text)
    };
    let literal = |operand: &OperandRange| {
        let mut all = tokens[operand.start..operand.end].iter();
        all.all(|token| {
            token.kind == JinjaTokenKind::Str || ["[", "]", "(", ")", ","].contains(&token.text)
        })
    };
    let mut loops = tag.is_statement_tag()
        && tokens.first().is_some_and(|word| word.is_identifier_named("for"));
    let mut operands = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate().skip(1) {
        if named(at, "in") && std::mem::take(&mut loops) {
            continue;
        }
        let negated = at > 1 && named(at - 1, "not");
        let tested = named(at - 1, "is") || negated && named(at - 2, "is");
        let sign = token.kind == JinjaTokenKind::Other && COMPARISON_SIGNS.contains(&token.text);
        if !sign && (!named(at, "in") || tested) {
            continue;
        }
        let left = operand_before(tag, at - usize::from(negated && !sign), ends);
        let right = operand_after(tag, at, ends);
        // Comparing two strings reads no more than the shorter one, and a literal is short.
        if sign && (left.is_literal(tag) || right.is_literal(tag)) {
            continue;
        }
        operands.extend([left, right].into_iter().filter(|operand| !literal(operand)));
    }
    operands
}

/// Returns the keys of dict literals in a template tag, which are hashed whole, and the arguments
/// of `loop.changed(…)`.
fn hashed_key_operands(tag: &JinjaTag<'_>) -> BTreeSet<OperandRange> {
    let tokens = &tag.tokens;
    let comma =
        |index: usize| tokens[index].text == "," && tokens[index].kind == JinjaTokenKind::Other;
    let (mut open, mut operands) = (Vec::new(), BTreeSet::new());
    for (at, token) in tokens.iter().enumerate() {
        match (token.kind, token.text) {
            (JinjaTokenKind::Other, "(" | "[" | "{") => open.push(token.text),
            (JinjaTokenKind::Other, ")" | "]" | "}") => drop(open.pop()),
            (JinjaTokenKind::Other, ":") if open.last() == Some(&"{") => {
                operands.insert(operand_before(tag, at, comma));
            }
            (JinjaTokenKind::Name, "changed") if at > 1 && tokens[at - 1].text == "." => {
                let mut from = at + 1;
                while from < tokens.len() && (from == at + 1 || comma(from)) {
                    let argument = operand_after(tag, from, comma);
                    from = argument.end;
                    operands.insert(argument);
                }
            }
            _ => {}
        }
    }
    operands.retain(|operand| !operand.is_literal(tag));
    operands
}

fn multiplication_operands(tag: &JinjaTag<'_>) -> BTreeSet<OperandRange> {
    let products = binary_operator_positions(tag, "*").map(|at| {
        let ends = |index: usize| ends_operand(&tag.tokens, index);
        let factor = |index: usize| {
            ["*", "/", "//", "%"].contains(&tag.tokens[index].text)
                && tag.tokens[index].kind == JinjaTokenKind::Other
        };
        OperandRange {
            start: operand_before(tag, at, ends).start,
            end: operand_after(tag, at, |index| ends(index) || factor(index)).end,
        }
    });
    products.collect()
}

fn binary_operator_positions<'t>(
    tag: &'t JinjaTag<'_>,
    op: &'t str,
) -> impl Iterator<Item = usize> + 't {
    let between = |at: &usize| {
        let value = at.checked_sub(1).map(|before| &tag.tokens[before]);
        value.is_some_and(|value| ends_value(value, &OPERATOR_KEYWORDS))
    };
    (0..tag.tokens.len()).filter(|at| tag.tokens[*at].is_operator(op)).filter(between)
}

fn operand_before(tag: &JinjaTag<'_>, at: usize, ends: impl Fn(usize) -> bool) -> OperandRange {
    // The keyword of a statement is not an operand.
    let least = usize::from(tag.is_statement_tag());
    let mut depth = 0usize;
    let mut start = at;
    while start > least {
        match tag.tokens[start - 1].text {
            ")" | "]" | "}" => depth += 1,
            "(" | "[" | "{" if depth == 0 => break,
            "(" | "[" | "{" => depth -= 1,
            _ if depth == 0 && ends(start - 1) => break,
            _ => {}
        }
        start -= 1;
    }
    OperandRange { start, end: at }
}

fn operand_after(tag: &JinjaTag<'_>, at: usize, ends: impl Fn(usize) -> bool) -> OperandRange {
    let mut depth = 0usize;
    let mut end = at + 1;
    while end < tag.tokens.len() {
        match tag.tokens[end].text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth == 0 => break,
            ")" | "]" | "}" => depth -= 1,
            _ if depth == 0 && ends(end) => break,
            _ => {}
        }
        end += 1;
    }
    OperandRange { start: at + 1, end }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OperandRange {
    start: usize,
    end: usize,
}

impl OperandRange {
    fn is_string_literal(&self, tag: &JinjaTag<'_>) -> bool {
        let tokens = &tag.tokens[self.start..self.end];
        tokens.is_empty() || matches!(tokens, [only] if only.kind == JinjaTokenKind::Str)
    }

    /// Returns whether the operand is a string or number literal.
    fn is_literal(&self, tag: &JinjaTag<'_>) -> bool {
        let digit = |c: char| c.is_ascii_digit();
        self.is_string_literal(tag)
            || matches!(&tag.tokens[self.start..self.end], [only] if only.text.starts_with(digit))
    }
}

const OPERATOR_KEYWORDS: [&str; 7] = ["and", "or", "not", "in", "if", "else", "recursive"];

/// Returns whether the template token at `index` is an operator or keyword that binds less tightly
/// than `~`.
fn ends_operand(tokens: &[JinjaToken<'_>], index: usize) -> bool {
    let token = &tokens[index];
    let before = index.checked_sub(1).map(|before| &tokens[before]);
    match token.kind {
        JinjaTokenKind::Str => false,
        // Except for the words of a test, `x is not in y`.
        JinjaTokenKind::Name => {
            let tested = match &tokens[..index] {
                [.., is, not] if not.is_identifier_named("not") => is.is_identifier_named("is"),
                [.., is] => is.is_identifier_named("is"),
                [] => false,
            };
            OPERATOR_KEYWORDS.contains(&token.text) && !tested
        }
        JinjaTokenKind::Other => match token.text {
            "-" | "+" => before.is_some_and(|before| ends_value(before, &OPERATOR_KEYWORDS)),
            text => [",", "=", ":", "==", "!=", "<", ">", "<=", ">=", "~"].contains(&text),
        },
    }
}

/// Returns whether a `+` or `-` after this template token is a binary operator, not a unary one.
fn ends_value(token: &JinjaToken<'_>, keywords: &[&str]) -> bool {
    match token.kind {
        JinjaTokenKind::Str => true,
        JinjaTokenKind::Name => !keywords.contains(&token.text),
        JinjaTokenKind::Other => {
            token.text.starts_with(|c: char| c.is_ascii_digit())
                || [")", "]", "}"].contains(&token.text)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SliceToken {
    None,
    /// Opening `[` of a template slice; `empty` if the slice has no start.
    Open {
        empty: bool,
    },
    /// Colon in a template slice; `empty` if no bound follows the colon.
    Colon {
        empty: bool,
    },
    /// Opening `[` of a template subscript whose lookup is expensive.
    Subscript,
    Close,
}

/// Returns the role that each template token has in a slice such as `[a:b]`.
///
/// A `[` with a colon directly in it always starts a slice: list literals contain no colons.
fn slice_roles(tag: &JinjaTag<'_>) -> Vec<SliceToken> {
    let tokens = &tag.tokens;
    let mut parts = vec![SliceToken::None; tokens.len()];
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
                if tokens[start].text != "[" {
                    continue;
                }
                if colons.is_empty() {
                    if is_slow_subscript(tag, start, index) {
                        parts[start] = SliceToken::Subscript;
                        parts[index] = SliceToken::Close;
                    }
                    continue;
                }
                parts[start] = SliceToken::Open { empty: colons[0] == start + 1 };
                for (n, &colon) in colons.iter().enumerate() {
                    let end = colons.get(n + 1).copied().unwrap_or(index);
                    parts[colon] = SliceToken::Colon { empty: end == colon + 1 };
                }
                parts[index] = SliceToken::Close;
            }
            _ => {}
        }
    }
    parts
}

/// Returns whether template brackets are a subscript whose lookup is expensive: any but a string
/// literal or a small number.
fn is_slow_subscript(tag: &JinjaTag<'_>, open: usize, close: usize) -> bool {
    // The keyword of a statement is not a value.
    let least = 1 + usize::from(tag.is_statement_tag());
    if open < least || !ends_value(&tag.tokens[open - 1], &OPERATOR_KEYWORDS) {
        return false;
    }
    match &tag.tokens[open + 1..close] {
        [] => false,
        [only] if only.kind == JinjaTokenKind::Str => false,
        [only] => only.text.parse::<u16>().is_err(),
        _ => true,
    }
}

/// Converts a Python string literal to one that minijinja reads as the same text.
fn minijinja_string_literal(token: &str) -> String {
    let mut out = String::from("\"");
    for c in unescape_python_string(&token[1..token.len() - 1]).chars() {
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

/// Decodes the escapes of a Python string literal; unknown and malformed ones keep their backslash.
fn unescape_python_string(body: &str) -> String {
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
                (char_from_digits(&rest[..digits], 8), digits)
            }
            'x' => decode_code_escape(rest, 2),
            'u' => decode_code_escape(rest, 4),
            'U' => decode_code_escape(rest, 8),
            _ => (Some('\\'), 0),
        };
        out.extend(text);
        rest = &rest[used..];
    }
    out.push_str(rest);
    out
}

/// Decodes an escape such as `x41`, `u0041` or `U00000041` after its backslash; returns the
/// backslash if the escape is malformed.
fn decode_code_escape(rest: &str, digits: usize) -> (Option<char>, usize) {
    match rest.get(1..=digits).and_then(|text| char_from_digits(text, 16)) {
        Some(c) => (Some(c), digits + 1),
        None => (Some('\\'), 0),
    }
}

fn char_from_digits(digits: &str, radix: u32) -> Option<char> {
    char::from_u32(u32::from_str_radix(digits, radix).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jinja_slices_become_method_calls() {
        assert_eq!(
            rewrite_for_minijinja(
                "{{ a[1:] }}{{ a[::-1][0] }}{{ a[b[:2]|length:{'x': [c]}['x'][0]] }}"
            ),
            "{{ a.__slice__(1, none) }}{{ a.__slice__(none, none, -1)[0] }}\
             {{ a.__slice__(b.__slice__(none, 2)|length, {'x': [c]}['x'][0]) }}"
        );
        assert_eq!(
            rewrite_for_minijinja("a[1:] {# b[1:] #}{{ [1, {2: 3}] }}"),
            "a[1:] {# b[1:] #}{{ [1, {2: 3}] }}"
        );
    }

    #[test]
    fn tilde_operands_become_strings() {
        for (from, to) in [
            ("{{ a ~ 'b' ~ c }}", "{{ (a)|string ~ 'b' ~ (c)|string }}"),
            (
                "{% if x and a~b == c %}",
                "{% if x and ((a)|string~(b)|string)|__kept__ == (c)|__kept__ %}",
            ),
            ("{% set x = -a ~ b - c %}", "{% set x = ((-a)|string ~ (b)|string - c)|__kept__ %}"),
            (
                "{{ 1 + a * 2 ~ -b|f(g ~ 1)[0] }}",
                "{{ 1 + (((a * 2)|__part__)|string ~ (-b|f((g)|string ~ (1)|string)[0])|string)|__part__ }}",
            ),
            (
                "{{ f(k=a ~ b, c) if a is not none ~ d else e }}",
                "{{ f(k=(a)|string ~ (b)|string, c) if (a is not none)|string ~ (d)|string else e }}",
            ),
            ("{{ 'x' ~ a[1:] ~ '\\n' }}", "{{ 'x' ~ (a.__slice__(1, none))|string ~ \"\\n\" }}"),
            (
                "{% for a in b ~ c recursive %}",
                "{% for a in ((b)|string ~ (c)|string)|__looped__(0) recursive %}",
            ),
            (
                "{{ a not in b ~ c }}",
                "{{ (a)|__kept__ not in ((b)|string ~ (c)|string)|__kept__ }}",
            ),
            ("{{ ~ }}{{ ~ a }}", "{{ ~ }}{{ ~ (a)|string }}"),
        ] {
            assert_eq!(rewrite_for_minijinja(from), to);
        }
    }

    #[test]
    fn generation_blocks_become_with_blocks() {
        assert_eq!(
            rewrite_for_minijinja("a\r\n{%- generation -%} generation {%endgeneration%}"),
            "a\n{%- with -%} generation {%endwith%}"
        );
    }

    #[test]
    fn string_escapes_equal_python() {
        assert_eq!(
            rewrite_for_minijinja(r#"{{ '\n\\\'"\d\/\x41\u00e9\U0001F600\101\xZZ' }}{{ "é" }}"#),
            "{{ \"\\n\\\\'\\\"\\\\d\\\\/Aé😀A\\\\xZZ\" }}{{ \"é\" }}"
        );
        assert_eq!(rewrite_for_minijinja("{{ 'a\\\nb' }}"), "{{ \"ab\" }}");
    }

    #[test]
    fn text_without_a_template_is_unchanged() {
        for source in ["", "{", "{{ 'x\\", "{% if a[1: %}", "\\u {{"] {
            assert_eq!(rewrite_for_minijinja(source), source);
        }
    }
}
