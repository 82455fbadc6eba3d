//! Constraints that multiply the work of one text: each ends within its budget.
//!
//! Without a budget, these take minutes or do not end.

use serde_json::json;

use crate::{Constraint, Limits, compile};
use vllm_sim_random::{Purpose, stream};

fn ends(constraint: &Constraint) -> bool {
    let compiled = match compile(constraint) {
        Ok(compiled) => compiled,
        Err(_) => return false,
    };
    let mut rng = stream(1, 0, Purpose::Structured);
    compiled.sample(&mut rng, &Limits::default()).is_ok()
}

/// The cost of a match grows with the product of pattern and text.
#[test]
fn a_long_pattern_on_a_long_text() {
    for pattern in [
        r"(?:[ab]{0,50}[bc]{0,50}){200}\b-",
        r"(?:a?b?c?d?){3000}\Bx\b",
        r"(?i)(?:[a-y]{1,40}|[b-z]{1,40}){300}\b\b!",
        &format!(r"\b{}\Bz", "(?:a|ab|abc|abcd){0,9}".repeat(2900)),
    ] {
        ends(&Constraint::Regex(pattern.to_owned()));
        let schema = json!({"type": "string", "pattern": pattern, "minLength": 60_000});
        ends(&Constraint::Json(schema));
        let schema =
            json!({"type": "string", "allOf": [{"pattern": pattern}, {"pattern": "[a-z]{500}"}]});
        ends(&Constraint::Json(schema));
    }
}

#[test]
fn many_alternatives_many_times() {
    let words: Vec<String> = (0..50_000).map(|word| format!("\"{word}\"")).collect();
    let words = words.join(" | ");
    ends(&Constraint::Grammar(format!(
        "root ::= w{{40000}}\nw ::= {words}\n"
    )));
    ends(&Constraint::Grammar(format!(
        "start: w~40000\nw: {words}\n"
    )));
}

#[test]
fn a_schema_many_times_in_a_grammar() {
    let hard = json!({"type": "string", "pattern": "^(?=.*[0-9]{3}$)(?!a)[a-z0-9]{40,}$"});
    let schema = json!({"type": "array", "items": hard, "minItems": 5, "uniqueItems": true});
    ends(&Constraint::Json(schema.clone()));
    ends(&Constraint::Grammar(format!(
        "start: j~20000\nj: %json {schema}\n"
    )));
}

#[test]
fn grammars_within_grammars() {
    let nested = |count| {
        let mut grammar = format!("start: /[a-z]?/~{count}\n");
        for _ in 0..6 {
            grammar = format!("start: g~{count}\ng: %lark {{\n{grammar}}}\n");
        }
        ends(&Constraint::Grammar(grammar))
    };
    assert!(nested(1));
    assert!(!nested(4000));
}

#[test]
fn a_tag_again_and_again() {
    let mut tag = json!({"type": "const_string", "value": ""});
    for _ in 0..4 {
        tag = json!({"type": "repeat", "content": tag, "min": 4_000_000_000_u32});
    }
    assert!(!ends(&Constraint::StructuralTag(json!({"format": tag}))));
}

/// Each class takes kilobytes, and a constraint may contain many classes.
#[test]
fn constraints_that_are_too_large() {
    for constraint in [
        Constraint::Regex("\\w".repeat(20_000)),
        Constraint::Json(json!({"pattern": r"^\S*x".repeat(2000)})),
        Constraint::Json(json!({"enum": vec![json!({"pattern": "x"}); 2], "allOf":
            vec![json!({"pattern": r"\w\s".repeat(300)}); 20]})),
        Constraint::Grammar(format!("start: {}", "/\\w/ ".repeat(300_000))),
        Constraint::Json(json!({"enum": vec!["x"; 300_000]})),
        Constraint::Json(json!({"enum": vec!["x"; 300_000]}).to_string().into()),
    ] {
        let error = compile(&constraint).map(|_| ()).unwrap_err().to_string();
        let words = [
            "the pattern is too long",
            "bytes is too long",
            "the patterns of the schema are too large",
            "bytes; at most 1048576 are allowed",
        ];
        assert!(
            words.iter().any(|words| error.contains(words)),
            "{error:.300}"
        );
    }
}
