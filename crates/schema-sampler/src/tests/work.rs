//! Constraints that multiply the work of one text: each ends within its budget.
//!
//! Without a budget, these take minutes or do not end.

use serde_json::json;

use crate::{Constraint, SampleLimits, compile_constraint};
use vllm_sim_random::{RandomStreamPurpose, request_rng};

fn ends_within_budget(constraint: &Constraint) -> bool {
    let compiled = match compile_constraint(constraint) {
        Ok(compiled) => compiled,
        Err(_) => return false,
    };
    let mut rng = request_rng(1, 0, RandomStreamPurpose::Structured);
    compiled.sample_text(&mut rng, &SampleLimits::default()).is_ok()
}

/// The cost of a match grows with the product of pattern and text.
#[test]
fn long_regex_on_long_text_has_bounded_work() {
    for pattern in [
        r"(?:[ab]{0,50}[bc]{0,50}){200}\b-",
        r"(?:a?b?c?d?){3000}\Bx\b",
        r"(?i)(?:[a-y]{1,40}|[b-z]{1,40}){300}\b\b!",
        &format!(r"\b{}\Bz", "(?:a|ab|abc|abcd){0,9}".repeat(2900)),
    ] {
        ends_within_budget(&Constraint::Regex(pattern.to_owned()));
        let schema = json!({"type": "string", "pattern": pattern, "minLength": 60_000});
        ends_within_budget(&Constraint::Json(schema));
        let schema =
            json!({"type": "string", "allOf": [{"pattern": pattern}, {"pattern": "[a-z]{500}"}]});
        ends_within_budget(&Constraint::Json(schema));
    }
}

#[test]
fn repeated_alternatives_have_bounded_work() {
    let words: Vec<String> = (0..50_000).map(|word| format!("\"{word}\"")).collect();
    let words = words.join(" | ");
    ends_within_budget(&Constraint::Grammar(format!("root ::= w{{40000}}\nw ::= {words}\n")));
    ends_within_budget(&Constraint::Grammar(format!("start: w~40000\nw: {words}\n")));
}

#[test]
fn repeated_schema_in_grammar_has_bounded_work() {
    let hard = json!({"type": "string", "pattern": "^(?=.*[0-9]{3}$)(?!a)[a-z0-9]{40,}$"});
    let schema = json!({"type": "array", "items": hard, "minItems": 5, "uniqueItems": true});
    ends_within_budget(&Constraint::Json(schema.clone()));
    ends_within_budget(&Constraint::Grammar(format!("start: j~20000\nj: %json {schema}\n")));
}

#[test]
fn nested_grammars_have_bounded_work() {
    let nested = |count| {
        let mut grammar = format!("start: /[a-z]?/~{count}\n");
        for _ in 0..6 {
            grammar = format!("start: g~{count}\ng: %lark {{\n{grammar}}}\n");
        }
        ends_within_budget(&Constraint::Grammar(grammar))
    };
    assert!(nested(1));
    assert!(!nested(4000));
}

#[test]
fn repeated_structural_tag_has_bounded_work() {
    let mut tag = json!({"type": "const_string", "value": ""});
    for _ in 0..4 {
        tag = json!({"type": "repeat", "content": tag, "min": 4_000_000_000_u32});
    }
    assert!(!ends_within_budget(&Constraint::StructuralTag(json!({"format": tag}))));
}

/// Each class takes kilobytes, and a constraint may contain many classes.
#[test]
fn oversized_constraints_are_rejected() {
    for constraint in [
        Constraint::Regex("\\w".repeat(20_000)),
        Constraint::Json(json!({"pattern": r"^\S*x".repeat(2000)})),
        Constraint::Json(json!({"enum": vec![json!({"pattern": "x"}); 2], "allOf":
            vec![json!({"pattern": r"\w\s".repeat(300)}); 20]})),
        Constraint::Grammar(format!("start: {}", "/\\w/ ".repeat(300_000))),
        Constraint::Json(json!({"enum": vec!["x"; 300_000]})),
        Constraint::Json(json!({"enum": vec!["x"; 300_000]}).to_string().into()),
    ] {
        let error = compile_constraint(&constraint).map(|_| ()).unwrap_err().to_string();
        let words = [
            "the pattern is too long",
            "bytes is too long",
            "the patterns of the schema are too large",
            "bytes; at most 1048576 are allowed",
        ];
        assert!(words.iter().any(|words| error.contains(words)), "{error:.300}");
    }
}
