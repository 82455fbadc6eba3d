//! Words and signs of Rust code, without comments and literals.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// Identifiers, `::` and single other characters; no comments, no literals.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let stream: TokenStream = text.parse().expect("sources are Rust");
    let mut tokens = Vec::new();
    flatten(stream, &mut tokens);
    tokens
}

fn flatten(stream: TokenStream, into: &mut Vec<String>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Ident(name) => into.push(name.to_string()),
            TokenTree::Literal(_) => {}
            TokenTree::Punct(sign) => {
                let joint = sign.as_char() == ':' && sign.spacing() == Spacing::Joint;
                let colon =
                    |next: &TokenTree| matches!(next, TokenTree::Punct(p) if p.as_char() == ':');
                let is_path = joint && trees.next_if(colon).is_some();
                into.push(if is_path { "::".to_owned() } else { sign.to_string() });
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                let start = into.len();
                into.push(open.to_owned());
                flatten(group.stream(), into);
                into.push(close.to_owned());
                // A comment for readers is an attribute.
                if into[start..].iter().eq(["[", "doc", "=", "]"]) {
                    let inner = into[..start].ends_with(&["#".to_owned(), "!".to_owned()]);
                    into.truncate(start - if inner { 2 } else { 1 });
                }
            }
        }
    }
}
