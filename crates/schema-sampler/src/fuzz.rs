//! Mutated schemas, patterns and grammars: a text of bounded length or words, never a panic.

use serde_json::Value;

use super::{Constraint, Limits, compile};
use vllm_sim_random::{Purpose, stream};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

const SCHEMAS: &str = include_str!("tests/satisfiable.jsonl");

const PATTERNS: &[&str] = &[
    r"[a-c]+\d{2,3}(x|y)*?$",
    r"^(?:\p{L}|\x41|\u00e9)[^\s\]]{0,5}\b",
    r"(?i)(?<year>\d{4})-(?P<month>0[1-9]|1[0-2])",
    r"(a*)*b|(?=c)c|\.",
];

const GRAMMARS: &[&str] = &[
    "root ::= item (\",\" item)*\nitem ::= [0-9]{2,3} | \"\\x41\" | .",
    "root ::= \"(\" root \")\" | [^\\]a-z] # note\n",
    "start: \"SELECT\" NAME (\",\" NAME)* [where]\nwhere: \"WHERE\" /[a-z]+=\\d/i\nNAME: /[a-z_]+/\n%ignore \" \"",
    "?start: expr~1..3\nexpr: NUMBER | \"-\" expr -> neg\n%import common.NUMBER",
];

const TAGS: &[&str] = &[
    r#"{"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": {"type": "object"}}, "end": "</a>"}}"#,
    r#"{"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f"]}"#,
];

fn check(constraint: &Constraint) {
    let limits = Limits::default();
    let mut rng = stream(7, 0, Purpose::Structured);
    match compile(constraint).and_then(|compiled| compiled.sample(&mut rng, &limits)) {
        Ok(text) => assert!(
            text.chars().count() <= 2 * limits.max_chars as usize + 1024,
            "{text:.80}"
        ),
        Err(error) => {
            let words = error.to_string();
            assert!(!words.is_empty() && words.len() < 200_000, "{words:.80}");
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn schemas() {
    let lines = SCHEMAS.lines().filter(|line| line.starts_with('{'));
    let seeds: Vec<&str> = lines.step_by(3).collect();
    mutate::each(&seeds, |bytes| {
        check(&Constraint::Json(Value::String(text(bytes))))
    });
}

#[test]
fn regex() {
    mutate::each(PATTERNS, |bytes| check(&Constraint::Regex(text(bytes))));
}

#[test]
fn grammar() {
    mutate::each(GRAMMARS, |bytes| check(&Constraint::Grammar(text(bytes))));
}

#[test]
fn structural_tags() {
    mutate::each(TAGS, |bytes| {
        if let Ok(tag) = serde_json::from_slice(bytes) {
            check(&Constraint::StructuralTag(tag));
        }
    });
}
