//! Inserts filters into a chat template that count work: for assigned values and for the text of
//! loops.

use super::bounds::{COUNT_LOOP_WORK_FILTER, COUNT_NESTED_VALUE_WORK_FILTER};
use super::jinja2::{TextEdit, enclose_with_filter};
use super::lexer::{JinjaTag, JinjaToken, closing_bracket, loop_targets_and_iterable};

pub(super) fn work_counting_filter_edits(tags: &[JinjaTag<'_>]) -> Vec<Vec<TextEdit>> {
    let bodies = loop_body_sizes(tags);
    let recursive = tags.iter().zip(&bodies).filter(|(tag, _)| {
        tag.tokens.last().is_some_and(|last| last.is_identifier_named("recursive"))
    });
    let again = recursive.map(|(_, body)| *body).max().unwrap_or(0);
    let of = |(tag, body): (&JinjaTag<'_>, &usize)| {
        let mut edits = match tag.tokens.as_slice() {
            [word, rest @ ..] if tag.is_statement_tag() && word.is_identifier_named("set") => {
                count_stored_value_edits(rest)
            }
            [word, rest @ ..] if tag.is_statement_tag() && word.is_identifier_named("for") => {
                let iterable = loop_targets_and_iterable(rest).map_or(&[][..], |(_, all)| all);
                enclose_with_filter(iterable, &format!("{COUNT_LOOP_WORK_FILTER}({body})"))
            }
            _ => Vec::new(),
        };
        if again > 0 {
            edits.extend(count_recursion_edits(&tag.tokens, again));
        }
        edits
    };
    tags.iter().zip(&bodies).map(of).collect()
}

fn count_stored_value_edits(tokens: &[JinjaToken<'_>]) -> Vec<TextEdit> {
    let equals = tokens.iter().position(|token| token.is_operator("="));
    equals.map_or_else(Vec::new, |at| {
        enclose_with_filter(&tokens[at + 1..], COUNT_NESTED_VALUE_WORK_FILTER)
    })
}

fn count_recursion_edits(tokens: &[JinjaToken<'_>], body: usize) -> Vec<TextEdit> {
    let mut edits = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        if pair[0].is_identifier_named("loop")
            && pair[1].is_operator("(")
            && let Some(close) = closing_bracket(&tokens[at + 1..])
        {
            let argument = &tokens[at + 2..at + 1 + close];
            edits.extend(enclose_with_filter(
                argument,
                &format!("{COUNT_LOOP_WORK_FILTER}({body})"),
            ));
        }
    }
    edits
}

/// Returns the size of the template text in each loop's body, in bytes, without nested loops.
fn loop_body_sizes(tags: &[JinjaTag<'_>]) -> Vec<usize> {
    let mut bodies = vec![0; tags.len()];
    let mut open = Vec::new();
    let mut end = 0;
    for (index, tag) in tags.iter().enumerate() {
        let (Some(first), Some(last)) = (tag.tokens.first(), tag.tokens.last()) else {
            continue;
        };
        if let Some(around) = open.last() {
            let between: usize = first.span.start - end;
            let body: &mut usize = &mut bodies[*around];
            *body += between.saturating_sub("%}{%".len());
        }
        end = last.span.end;
        match first.text {
            "for" if tag.is_statement_tag() => open.push(index),
            "endfor" if tag.is_statement_tag() => {
                open.pop();
            }
            _ => {}
        }
    }
    bodies
}
