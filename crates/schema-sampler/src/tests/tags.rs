use serde_json::{Value, json};

use crate::{Constraint, ConstraintError, Limits, compile};
use vllm_sim_random::{Purpose, stream};

fn sample(tag: &Value, seed: u64) -> Result<String, ConstraintError> {
    let mut rng = stream(seed, 0, Purpose::Structured);
    compile(&Constraint::StructuralTag(tag.clone()))?.sample(&mut rng, &Limits::default())
}

fn samples(tag: &Value) -> Vec<String> {
    (0..40)
        .map(|seed| sample(tag, seed).unwrap_or_else(|error| panic!("{tag}: {error}")))
        .collect()
}

fn weather(name: &str) -> Value {
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
fn calls(text: &str) -> Vec<Value> {
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
fn the_older_form_mixes_text_and_tags() {
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
    let texts = samples(&tag);
    assert!(texts.iter().any(|text| text.contains("</function>")));
    for text in texts {
        assert!(calls(&text).iter().all(|call| call["x"].is_i64()), "{text}");
    }
}

#[test]
fn triggered_tags_keep_their_flags() {
    let format = json!({
        "type": "triggered_tags", "triggers": ["<function="],
        "tags": [weather("a"), weather("b")],
        "at_least_one": true, "stop_after_first": true
    });
    for text in samples(&json!({"type": "structural_tag", "format": format})) {
        assert!(text.starts_with("<function="), "{text}");
        assert_eq!(calls(&text).len(), 1, "{text}");
    }
}

#[test]
fn every_format_is_written() {
    let word = json!({"type": "const_string", "value": "w"});
    for (format, pattern) in [
        (word.clone(), "^w$"),
        (
            json!({"type": "regex", "pattern": "[A-Z]{3}-[0-9]{4}"}),
            "^[A-Z]{3}-[0-9]{4}$",
        ),
        (
            json!({"type": "grammar", "grammar": "root ::= \"yes\" | \"no\""}),
            "^(yes|no)$",
        ),
        (
            json!({"type": "sequence", "elements": [word, word]}),
            "^ww$",
        ),
        (
            json!({"type": "or", "elements": [word, {"type": "const_string", "value": "v"}]}),
            "^[vw]$",
        ),
        (json!({"type": "optional", "content": word}), "^w?$"),
        (json!({"type": "plus", "content": word}), "^w+$"),
        (json!({"type": "star", "content": word}), "^w*$"),
        (
            json!({"type": "repeat", "min": 2, "max": 3, "content": word}),
            "^w{2,3}$",
        ),
        (
            json!({"type": "repeat", "min": 2, "max": -1, "content": word}),
            "^w{2,}$",
        ),
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
        (
            json!({"type": "json_schema", "json_schema": {"const": {}}}),
            "^[{][}]$",
        ),
        (json!({"type": "json_schema", "json_schema": true}), "^.*$"),
    ] {
        let whole = regex::Regex::new(pattern).expect("a pattern");
        for text in samples(&json!({"format": format})) {
            assert!(whole.is_match(&text), "{format} -> {text}");
        }
    }
}

#[test]
fn bad_tags_are_refused_with_a_reason() {
    for (tag, words) in [
        (json!(3), "must be an object"),
        (json!({}), "needs 'format'"),
        (
            json!({"format": {"type": "odd"}}),
            "unknown format type 'odd'",
        ),
        (
            json!({"format": {"type": "tag", "begin": "a", "end": "b"}}),
            "'content' is missing",
        ),
        (
            json!({"format": {"type": "sequence", "elements": []}}),
            "'elements'",
        ),
        (
            json!({"format": {"type": "token", "token": 42}}),
            "ids need a tokenizer",
        ),
        (
            json!({"format": {"type": "triggered_tags", "triggers": ["<x"], "tags": [
                {"type": "tag", "begin": "<y>", "content": {"type": "any_text"}, "end": ""}]}}),
            "Trigger <y> not found in triggers [\"<x\"]",
        ),
        (
            json!({"structures": [], "triggers": []}),
            "No structural tags found",
        ),
        (
            json!({"format": {"type": "json_schema", "json_schema": {"type": "x"}}}),
            "Invalid type: x",
        ),
        (
            json!({"format": {"type": "regex", "pattern": "("}}),
            "invalid regex",
        ),
        (json!("not json"), "is no JSON"),
    ] {
        let error = sample(&tag, 1).expect_err(&tag.to_string()).to_string();
        assert!(error.contains(words), "{tag}: {error}");
    }
}

/// The limit counts characters, which may have several bytes.
#[test]
fn the_limit_of_a_text_counts_characters() {
    let text = "\u{20ac}".repeat(40_000);
    let tag = json!({"type": "sequence", "elements": [
        {"type": "const_string", "value": text}, {"type": "const_string", "value": "end"}
    ]});
    assert_eq!(sample(&tag, 0), Ok(format!("{text}end")));
    let tag = json!({"type": "sequence", "elements": [
        {"type": "const_string", "value": text}, {"type": "const_string", "value": text},
        {"type": "const_string", "value": "end"}
    ]});
    assert_eq!(sample(&tag, 0), Err(ConstraintError::TooLong(64 * 1024)));
}
