use serde_json::{Value, json};

use crate::{Constraint, ConstraintError, SampleLimits, compile_constraint};
use vllm_sim_random::{RandomStreamPurpose, request_rng};

fn sample_tag(tag: &Value, seed: u64) -> Result<String, ConstraintError> {
    let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
    compile_constraint(&Constraint::StructuralTag(tag.clone()))?
        .sample_text(&mut rng, &SampleLimits::default())
}

fn sample_tag_many(tag: &Value) -> Vec<String> {
    (0..40)
        .map(|seed| sample_tag(tag, seed).unwrap_or_else(|error| panic!("{tag}: {error}")))
        .collect()
}

fn weather_tag(name: &str) -> Value {
    json!({
        "type": "tag",
        "begin": format!("<function={name}>"),
        "content": {"type": "json_schema", "json_schema": {
            "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
            "additionalProperties": false
        }},
        "end": "</function>"
    })
}

/// Returns the contents of the function tags in a text.
fn tool_calls_in(text: &str) -> Vec<Value> {
    text.split("<function=")
        .skip(1)
        .map(|part| {
            let (_, rest) = part.split_once('>').expect("a begin");
            let (body, _) = rest.split_once("</function>").expect("an end");
            serde_json::from_str(body).expect("JSON")
        })
        .collect()
}

#[test]
fn triggers_form_mixes_text_and_tags() {
    let tag = json!({
        "type": "structural_tag",
        "structures": [{
            "begin": "<function=get_weather>",
            "schema": {"type": "object", "properties": {"x": {"type": "integer"}},
                "required": ["x"]},
            "end": "</function>"
        }],
        "triggers": ["<function="]
    });
    let texts = sample_tag_many(&tag);
    assert!(texts.iter().any(|text| text.contains("</function>")));
    for text in texts {
        assert!(tool_calls_in(&text).iter().all(|call| call["x"].is_i64()), "{text}");
    }
}

#[test]
fn triggered_tags_keep_their_flags() {
    let format = json!({
        "type": "triggered_tags", "triggers": ["<function="],
        "tags": [weather_tag("a"), weather_tag("b")],
        "at_least_one": true, "stop_after_first": true
    });
    for text in sample_tag_many(&json!({"type": "structural_tag", "format": format})) {
        assert!(text.starts_with("<function="), "{text}");
        assert_eq!(tool_calls_in(&text).len(), 1, "{text}");
    }
}

#[test]
fn every_structural_tag_format_is_sampled() {
    let word = json!({"type": "const_string", "value": "w"});
    for (format, pattern) in [
        (word.clone(), "^w$"),
        (json!({"type": "regex", "pattern": "[A-Z]{3}-[0-9]{4}"}), "^[A-Z]{3}-[0-9]{4}$"),
        (json!({"type": "grammar", "grammar": "root ::= \"yes\" | \"no\""}), "^(yes|no)$"),
        (json!({"type": "sequence", "elements": [word, word]}), "^ww$"),
        (
            json!({"type": "or", "elements": [word, {"type": "const_string", "value": "v"}]}),
            "^[vw]$",
        ),
        (json!({"type": "optional", "content": word}), "^w?$"),
        (json!({"type": "plus", "content": word}), "^w+$"),
        (json!({"type": "star", "content": word}), "^w*$"),
        (json!({"type": "repeat", "min": 2, "max": 3, "content": word}), "^w{2,3}$"),
        (json!({"type": "repeat", "min": 2, "max": -1, "content": word}), "^w{2,}$"),
        (
            json!({"type": "tag", "begin": "<t>", "content": {"type": "any_text"},
                "end": ["</t>", "</u>"]}),
            "^<t>[^<]*</[tu]>$",
        ),
        (
            json!({"type": "tags_with_separator", "separator": ", ",
                "tags": [{"type": "tag", "begin": "[", "content": word, "end": "]"}]}),
            r"^(\[w\](, \[w\])*)?$",
        ),
        (json!({"type": "any_text", "max_chars": 0}), "^$"),
        (
            json!({"type": "dispatch", "rules": [["<call>", word]], "loop": false}),
            "^[^<]*(<call>w)?$",
        ),
        (
            json!({"type": "tag", "begin": {"type": "token", "token": "<|a|>"}, "content": word,
                "end": {"type": "token", "token": "<|b|>"}}),
            r"^<\|a\|>w<\|b\|>$",
        ),
        (
            json!({"type": "json_schema", "style": "qwen_xml", "json_schema": {
                "type": "object", "properties": {"a": {"const": 1}, "b": {"const": "z"}},
                "required": ["a", "b"], "additionalProperties": false}}),
            "^<parameter=a>1</parameter><parameter=b>z</parameter>$",
        ),
        (json!({"type": "json_schema", "json_schema": {"const": {}}}), "^[{][}]$"),
        (json!({"type": "json_schema", "json_schema": true}), "^.*$"),
    ] {
        let whole = regex::Regex::new(pattern).expect("a pattern");
        for text in sample_tag_many(&json!({"format": format})) {
            assert!(whole.is_match(&text), "{format} -> {text}");
        }
    }
}

#[test]
fn invalid_structural_tags_are_rejected_with_a_reason() {
    for (tag, words) in [
        (json!(3), "must be an object"),
        (json!({}), "needs 'format'"),
        (json!({"format": {"type": "odd"}}), "unknown format type 'odd'"),
        (json!({"format": {"type": "tag", "begin": "a", "end": "b"}}), "'content' is missing"),
        (json!({"format": {"type": "sequence", "elements": []}}), "'elements'"),
        (json!({"format": {"type": "token", "token": 42}}), "ids need a tokenizer"),
        (
            json!({"format": {"type": "triggered_tags", "triggers": ["<x"], "tags": [
                {"type": "tag", "begin": "<y>", "content": {"type": "any_text"}, "end": ""}]}}),
            "Trigger <y> not found in triggers [\"<x\"]",
        ),
        (json!({"structures": [], "triggers": []}), "No structural tags found"),
        (
            json!({"format": {"type": "json_schema", "json_schema": {"type": "x"}}}),
            "Invalid type: x",
        ),
        (json!({"format": {"type": "regex", "pattern": "("}}), "invalid regex"),
        (json!("not json"), "is no JSON"),
    ] {
        let error = sample_tag(&tag, 1).expect_err(&tag.to_string()).to_string();
        assert!(error.contains(words), "{tag}: {error}");
    }
}

/// The limit counts characters, which may have several bytes.
#[test]
fn the_limit_of_a_text_counts_characters() {
    let text = "\u{20ac}".repeat(40_000);
    let joined = |texts: &[&str]| {
        let parts = texts.iter();
        let parts = parts.map(|text| json!({"type": "const_string", "value": text}));
        let elements: Vec<Value> = parts.collect();
        sample_tag(&json!({"format": {"type": "sequence", "elements": elements}}), 0)
    };
    assert_eq!(joined(&[&text, "end"]), Ok(format!("{text}end")));
    let long = ConstraintError::TooLong(64 * 1024);
    assert_eq!(joined(&[&text, &text, "end"]), Err(long));
}
