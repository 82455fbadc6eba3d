use std::collections::BTreeSet;

use super::*;
use vllm_sim_random::{RandomStreamPurpose, request_rng};

fn tool(name: &str, parameters: Value) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: None,
        parameters: Some(parameters),
        strict: None,
    }
}

fn weather() -> Vec<ToolDefinition> {
    vec![
        tool(
            "get_weather",
            json!({
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Paris", "Oslo"]},
                    "unit": {"type": "string", "enum": ["C", "F"]}
                },
                "required": ["city", "unit"],
                "additionalProperties": false
            }),
        ),
        tool(
            "get_time",
            json!({
                "type": "object",
                "properties": {"tz": {"type": "string", "enum": ["UTC", "CET"]}},
                "required": ["tz"],
                "additionalProperties": false
            }),
        ),
    ]
}

fn plan(choice: &ToolChoice, settings: &ToolCallSettings, seed: u64) -> Vec<ToolCall> {
    let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
    plan_tool_calls(&weather(), choice, settings, &SchemaCache::default(), &mut rng)
        .expect("a plan")
}

fn counts(choice: &ToolChoice, settings: &ToolCallSettings) -> BTreeSet<usize> {
    (0..200).map(|seed| plan(choice, settings, seed).len()).collect()
}

#[test]
fn the_number_of_calls_follows_llm_d() {
    let settings = ToolCallSettings::default();
    assert_eq!(counts(&ToolChoice::None, &settings), BTreeSet::from([0]));
    assert_eq!(counts(&ToolChoice::Auto, &settings), BTreeSet::from([0, 1, 2]));
    assert_eq!(counts(&ToolChoice::Required, &settings), BTreeSet::from([1, 2]));
    let never = ToolCallSettings { extra_call_probability: 0, ..ToolCallSettings::default() };
    assert_eq!(counts(&ToolChoice::Auto, &never), BTreeSet::from([0]));
    let single = ToolCallSettings { parallel: false, ..ToolCallSettings::default() };
    assert_eq!(counts(&ToolChoice::Required, &single), BTreeSet::from([1]));
}

#[test]
fn a_forced_tool_is_called_once_and_no_other() {
    let forced = ToolChoice::Named("get_time".to_owned());
    let llmd = ToolCallSettings { repeats_named: true, ..ToolCallSettings::default() };
    assert_eq!(counts(&forced, &ToolCallSettings::default()), [1].into());
    assert_eq!(counts(&forced, &llmd), [1, 2].into());
    for seed in 0..50 {
        for call in plan(&forced, &llmd, seed) {
            assert_eq!(call.name, "get_time");
            assert!([r#"{"tz": "UTC"}"#, r#"{"tz": "CET"}"#].contains(&&*call.arguments));
        }
    }
}

#[test]
fn an_unknown_forced_tool_is_refused() {
    let mut rng = request_rng(1, 0, RandomStreamPurpose::Structured);
    let error = plan_tool_calls(
        &weather(),
        &ToolChoice::Named("zip".to_owned()),
        &ToolCallSettings::default(),
        &SchemaCache::default(),
        &mut rng,
    );
    assert_eq!(
        error.expect_err("an unknown tool").to_string(),
        "tool with name 'zip' requested in tool_choice but not found in the tools list"
    );
}

#[test]
fn the_ranges_of_the_flags_hold() {
    let tools = [tool(
        "f",
        json!({
            "type": "object",
            "properties": {
                "i": {"type": "integer"},
                "year": {"type": "integer"},
                "x": {"type": "number"},
                "l": {"type": "array", "items": {"type": "integer"}},
                "bounded": {"type": "integer", "minimum": 1000, "maximum": 1001}
            },
            "required": ["i", "year", "x", "l", "bounded"]
        }),
    )];
    let settings = ToolCallSettings {
        integer: Some((7, 9)),
        number: Some((1.5, 2.5)),
        array: (2, 4),
        ..ToolCallSettings::default()
    };
    let cache = SchemaCache::default();
    for seed in 0..100 {
        let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
        let calls = plan_tool_calls(&tools, &ToolChoice::Required, &settings, &cache, &mut rng);
        for call in calls.expect("calls") {
            let value: Value = serde_json::from_str(&call.arguments).expect("JSON");
            let integer = |v: &Value| v.as_i64().is_some_and(|i| (7..=9).contains(&i));
            assert!(integer(&value["i"]) && integer(&value["year"]), "{value}");
            assert!(value["x"].as_f64().is_some_and(|x| (1.5..=2.5).contains(&x)));
            let list = value["l"].as_array().expect("an array");
            assert!((2..=4).contains(&list.len()) && list.iter().all(integer));
            assert!(value["bounded"].as_i64() >= Some(1000));
        }
    }
}

#[test]
fn optional_arguments_follow_their_probability() {
    let tools = [tool(
        "f",
        json!({
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "required": ["a"]
        }),
    )];
    let cache = SchemaCache::default();
    for (percent, expected) in [(0, 0..1), (50, 140..260), (100, 400..401)] {
        let settings = ToolCallSettings {
            not_required_probability: percent,
            extra_call_probability: 0,
            ..ToolCallSettings::default()
        };
        let with_b = (0..400)
            .filter(|&seed| {
                let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
                let calls =
                    plan_tool_calls(&tools, &ToolChoice::Required, &settings, &cache, &mut rng);
                calls.expect("calls")[0].arguments.contains("\"b\"")
            })
            .count();
        assert!(expected.contains(&with_b), "{percent}: {with_b}");
    }
}

#[test]
fn tools_without_parameters_get_an_empty_object() {
    for parameters in [None, Some(Value::Null), Some(json!({})), Some(json!({"type": "object"}))] {
        let tools = [ToolDefinition {
            name: "now".to_owned(),
            description: None,
            parameters,
            strict: None,
        }];
        let mut rng = request_rng(1, 0, RandomStreamPurpose::Structured);
        let calls = plan_tool_calls(
            &tools,
            &ToolChoice::Required,
            &ToolCallSettings::default(),
            &SchemaCache::default(),
            &mut rng,
        );
        assert_eq!(calls.expect("a call")[0].arguments, "{}");
    }
}

#[test]
fn bad_parameters_name_the_tool() {
    let tools = [tool("f", json!({"type": "objekt"}))];
    let mut rng = request_rng(1, 0, RandomStreamPurpose::Structured);
    let settings = ToolCallSettings::default();
    let cache = SchemaCache::default();
    let error = plan_tool_calls(&tools, &ToolChoice::Required, &settings, &cache, &mut rng);
    assert_eq!(
        error.expect_err("a bad schema").to_string(),
        "tool 'f': Grammar error: Invalid type: objekt"
    );
}

#[test]
fn the_whitelist_is_that_of_llm_d() {
    for (parameters, allowed) in [
        (json!({"type": "object", "properties": {}}), true),
        (
            json!({"type": "object", "properties": {
                "a": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "b": {"type": "integer", "enum": [1, 2], "minimum": 0},
                "c": {"type": "object", "properties": {"d": {"type": "null"}}}
            }, "required": ["a"], "additionalProperties": false}),
            true,
        ),
        (json!({}), false),
        (json!({"type": "object"}), false),
        (json!({"type": "object", "properties": {}, "$defs": {}}), false),
        (json!({"type": "object", "properties": {"a": {"$ref": "#"}}}), false),
        (json!({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}), false),
        (json!({"type": "object", "properties": {"a": {"type": "array"}}}), false),
        (json!({"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}}), false),
        (json!({"type": "object", "properties": {"a": {"type": "null", "enum": [null]}}}), false),
        (json!({"type": "object", "properties": {}, "additionalProperties": {}}), false),
        (json!([]), false),
    ] {
        assert_eq!(validate_llmd_tool_parameters(&parameters).is_ok(), allowed, "{parameters}");
    }
}
