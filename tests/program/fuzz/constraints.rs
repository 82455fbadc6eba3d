//! What an answer must look like: schemas, patterns, grammars and structural tags.

use serde_json::Value;
use vllm_sim_random::{RandomStreamPurpose, request_rng};
use vllm_sim_schema_sampler::{Constraint, SampleLimits, compile_constraint};

use super::mutate::Corpus;
use super::run::fuzz;
use super::{lines, literals};

/// Samples of a constraint: within their bounds, whatever it says.
fn sample(constraint: &Constraint) {
    let Ok(compiled) = compile_constraint(constraint) else {
        return;
    };
    let limits = SampleLimits::default();
    for seed in 0..2 {
        let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
        if let Ok(text) = compiled.sample_text(&mut rng, &limits) {
            assert!(text.len() < 16 << 20, "{} bytes", text.len());
        }
    }
}

/// The texts of the sampler's own tests that hold one of these.
fn with(marks: &[&str]) -> Vec<Vec<u8>> {
    let holds = |text: &Vec<u8>| {
        let text = String::from_utf8_lossy(text);
        marks.iter().any(|mark| text.contains(mark))
    };
    let mut seeds = literals("crates/schema-sampler/src");
    seeds.retain(holds);
    seeds
}

#[test]
fn fuzz_json_schemas() {
    let tests = "crates/schema-sampler/src/tests";
    let seeds = [lines(tests, ".jsonl"), with(&["\"type\"", "\"$ref\""])].concat();
    let corpus = Corpus {
        seeds,
        tokens: &[
            "\"type\":",
            "\"object\"",
            "\"array\"",
            "\"integer\"",
            "\"string\"",
            "\"properties\":",
            "\"required\":",
            "\"items\":",
            "\"prefixItems\":",
            "\"minItems\":",
            "\"maxItems\":",
            "\"uniqueItems\":true",
            "\"allOf\":",
            "\"anyOf\":",
            "\"oneOf\":",
            "\"not\":",
            "\"if\":",
            "\"$ref\":\"#\"",
            "\"$ref\":\"#/$defs/a\"",
            "\"$defs\":{\"a\":",
            "\"pattern\":",
            "\"minLength\":",
            "\"maxLength\":",
            "\"multipleOf\":",
            "\"minimum\":",
            "\"maximum\":",
            "\"enum\":",
            "\"const\":",
            "\"contains\":",
            "\"minContains\":",
            "\"patternProperties\":",
            "\"additionalProperties\":",
            "\"unevaluatedProperties\":",
            "\"propertyNames\":",
            "\"minProperties\":",
            "\"dependentSchemas\":",
            "\"format\":\"date-time\"",
            "{",
            "}",
            "[",
            "]",
            ",",
            "true",
            "false",
            "null",
        ],
    };
    fuzz("schemas", 2, corpus, |input| {
        if let Ok(schema) = serde_json::from_slice(input) {
            sample(&Constraint::Json(schema));
        }
        sample(&Constraint::Json(Value::String(String::from_utf8_lossy(input).into_owned())));
    });
}

#[test]
fn fuzz_regex_patterns() {
    let corpus = Corpus {
        seeds: with(&["[", "\\d", "(", "^", "+", "*"]),
        tokens: &[
            "(",
            ")",
            "(?:",
            "(?i)",
            "(?=",
            "(?<n>",
            "[",
            "]",
            "[^",
            "|",
            "*",
            "+",
            "?",
            "{2}",
            "{0,}",
            "{1000}",
            "{1000,2000}",
            "{65536}",
            "\\d",
            "\\w",
            "\\s",
            "\\b",
            "\\p{L}",
            "\\p{Greek}",
            "\\u{10ffff}",
            "\\x41",
            "\\1",
            "^",
            "$",
            ".",
            "\\",
            "&&",
            "--",
        ],
    };
    fuzz("patterns", 2, corpus, |input| {
        let text = String::from_utf8_lossy(input).into_owned();
        sample(&Constraint::Json(serde_json::json!({"type": "string", "pattern": text})));
        sample(&Constraint::Regex(text));
    });
}

#[test]
fn fuzz_grammars() {
    let corpus = Corpus {
        seeds: with(&["::=", "start:", "root"]),
        tokens: &[
            "root ::= ",
            "start: ",
            "\n",
            "|",
            "(",
            ")",
            "*",
            "+",
            "?",
            "{2}",
            "{,3}",
            "{1000000}",
            "~2",
            "~1..5",
            "[a-z]",
            "[^\\n]",
            "\"a\"",
            "\"a\"..\"z\"",
            "\"\"",
            "/",
            "/a+/",
            "i",
            "%ignore",
            "%import common.INT",
            "%regex",
            "%json {\"type\":\"object\"}",
            "%llguidance {}",
            "root",
            "start",
            "A",
            "\\x41",
            "\\u00e9",
            "#",
            "//",
            "//",
            ".5",
            "[lazy]",
            "[max_tokens=5]",
            "->",
        ],
    };
    fuzz("grammars", 2, corpus, |input| {
        let text = String::from_utf8_lossy(input).into_owned();
        sample(&Constraint::Grammar(text));
    });
}

#[test]
fn fuzz_structural_tags() {
    let seeds = lines("crates/schema-sampler/src/tests", ".jsonl");
    let mut seeds: Vec<Vec<u8>> = seeds.into_iter().take(60).collect();
    seeds.extend(TAGS.iter().map(|tag| tag.as_bytes().to_vec()));
    let corpus = Corpus {
        seeds,
        tokens: &[
            "\"type\":\"tag\"",
            "\"type\":\"sequence\"",
            "\"type\":\"or\"",
            "\"type\":\"any_text\"",
            "\"type\":\"const_string\"",
            "\"type\":\"triggered_tags\"",
            "\"type\":\"json_schema\"",
            "\"type\":\"regex\"",
            "\"type\":\"grammar\"",
            "\"type\":\"repeat\"",
            "\"begin\":",
            "\"end\":",
            "\"content\":",
            "\"elements\":",
            "\"tags\":",
            "\"triggers\":",
            "\"structures\":",
            "\"stop_after_first\":true",
            "\"at_least_one\":true",
            "\"separator\":",
            "\"excludes\":",
            "{",
            "}",
            "[",
            "]",
            ",",
            "\"\"",
            "null",
        ],
    };
    fuzz("structural tags", 2, corpus, |input| {
        if let Ok(tag) = serde_json::from_slice(input) {
            sample(&Constraint::StructuralTag(tag));
        }
    });
}

/// The forms of tags.
const TAGS: [&str; 6] = [
    r#"{"format":{"type":"tag","begin":"<a>","content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</a>"}}"#,
    r#"{"format":{"type":"triggered_tags","triggers":["<f"],"tags":[{"type":"tag","begin":"<f=a>","content":{"type":"any_text"},"end":"</f>"}],"at_least_one":true}}"#,
    r#"{"format":{"type":"sequence","elements":[{"type":"const_string","value":"x"},{"type":"regex","pattern":"[a-z]+"}]}}"#,
    r#"{"format":{"type":"or","elements":[{"type":"grammar","grammar":"root ::= \"a\""},{"type":"any_text"}]}}"#,
    r#"{"format":{"type":"tags_with_separator","separator":",","tags":[{"type":"tag","begin":"<a>","content":{"type":"any_text"},"end":"</a>"}]}}"#,
    r#"{"structures":[{"begin":"<f>","schema":{"type":"object"},"end":"</f>"}],"triggers":["<f"]}"#,
];
