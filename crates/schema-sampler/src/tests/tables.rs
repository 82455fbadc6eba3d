use serde_json::{Value, json};

use crate::{CompiledConstraint, Constraint, ConstraintError, SampleLimits, compile_constraint};
use vllm_sim_random::{RandomStreamPurpose, request_rng};

/// Reads the lines of a table without its comments.
fn json_lines(table: &str) -> impl Iterator<Item = Value> {
    table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
}

fn sample_with_seed(compiled: &CompiledConstraint, seed: u64) -> Result<String, ConstraintError> {
    let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
    compiled.sample_text(&mut rng, &SampleLimits::default())
}

fn jsonschema_validator(schema: &Value) -> jsonschema::Validator {
    let options = jsonschema::options().should_validate_formats(true);
    let draft3 = schema.get("required") == Some(&Value::Bool(true));
    let legacy = schema.get("items").is_some_and(Value::is_array);
    let draft4 = schema.get("exclusiveMinimum") == Some(&Value::Bool(true));
    let options = match () {
        () if schema.get("$schema").is_some() => options,
        () if draft4 => options.with_draft(jsonschema::Draft::Draft4),
        () if legacy => options.with_draft(jsonschema::Draft::Draft7),
        () => options,
    };
    if draft3 {
        // No draft from 4 on has a boolean `required`: checks the rest.
        return options.build(&json!({"type": "object"})).expect("a schema");
    }
    options.build(schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

#[test]
fn every_satisfiable_schema_gets_valid_values() {
    let table = include_str!("satisfiable.jsonl");
    assert!(json_lines(table).count() > 150);
    for schema in json_lines(table) {
        let compiled = compile_constraint(&Constraint::Json(schema.clone()));
        let compiled = compiled.unwrap_or_else(|error| panic!("{schema}: {error}"));
        let validator = jsonschema_validator(&schema);
        for seed in 0..12 {
            let text =
                sample_with_seed(&compiled, seed).unwrap_or_else(|e| panic!("{schema}: {e}"));
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert!(validator.is_valid(&value), "{schema} -> {text}");
        }
    }
}

#[test]
fn an_unsatisfiable_schema_gives_a_reason() {
    for pair in json_lines(include_str!("unsatisfiable.jsonl")) {
        let (schema, words) = (&pair[0], pair[1].as_str().expect("words"));
        let compiled = compile_constraint(&Constraint::Json(schema.clone()));
        let compiled = compiled.unwrap_or_else(|error| panic!("{schema}: {error}"));
        for seed in 0..3 {
            let error = sample_with_seed(&compiled, seed).expect_err(&schema.to_string());
            let text = error.to_string();
            assert!(text.starts_with("Grammar error: Unsatisfiable schema: "), "{text}");
            assert!(text.contains(words), "{schema}: {text}");
        }
    }
}

#[test]
fn invalid_schema_document_is_rejected() {
    for pair in json_lines(include_str!("invalid.jsonl")) {
        let (schema, words) = (&pair[0], pair[1].as_str().expect("words"));
        let error =
            compile_constraint(&Constraint::Json(schema.clone())).expect_err(&schema.to_string());
        let text = error.to_string();
        assert!(text.starts_with("Grammar error: "), "{text}");
        assert!(text.contains(words), "{schema}: {text}");
    }
}

#[test]
fn the_same_seed_gives_the_same_text() {
    for schema in json_lines(include_str!("satisfiable.jsonl")).step_by(5) {
        let constraint = Constraint::Json(schema);
        let first = sample_with_seed(&compile_constraint(&constraint).expect("a schema"), 7);
        assert_eq!(first, sample_with_seed(&compile_constraint(&constraint).expect("a schema"), 7));
    }
}

#[test]
fn json_schema_may_be_given_as_text() {
    let schema = Constraint::Json(json!(r#"{"const": [1, {"a": true}]}"#));
    let text = sample_with_seed(&compile_constraint(&schema).expect("a schema"), 1);
    assert_eq!(text.as_deref(), Ok(r#"[1, {"a": true}]"#));
    let error = compile_constraint(&Constraint::Json(json!("{"))).expect_err("no JSON");
    assert_eq!(error.to_string(), "Invalid JSON grammar specification.");
}

#[test]
fn sample_object_prefers_an_object() {
    let schema = json!({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]});
    let compiled = compile_constraint(&Constraint::Json(schema)).expect("a schema");
    for seed in 0..50 {
        let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
        let text = compiled.sample_object(&mut rng, &SampleLimits::default());
        assert!(text.expect("a value").starts_with('{'));
    }
}

#[test]
fn json_object_constraint_samples_an_object() {
    let compiled = compile_constraint(&Constraint::JsonObject).expect("a constraint");
    for seed in 0..50 {
        let text = sample_with_seed(&compiled, seed).expect("an object");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert!(value["title"].is_string());
    }
}

#[test]
fn choice_constraint_samples_one_of_its_texts() {
    let choices = ["red", "green", ""].map(str::to_owned).to_vec();
    let compiled = compile_constraint(&Constraint::Choice(choices.clone())).expect("a choice");
    let seen: Vec<String> =
        (0..40).map(|s| sample_with_seed(&compiled, s).expect("a text")).collect();
    assert!(seen.iter().all(|text| choices.contains(text)));
    assert!(choices.iter().all(|text| seen.contains(text)));
    assert!(compile_constraint(&Constraint::Choice(Vec::new())).is_err());
}

#[test]
fn property_names_select_plausible_values() {
    let schema = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "user_email": {"type": "string"},
            "year": {"type": "integer"},
            "location": {"type": "string", "description": "Where, e.g. San Francisco, CA"}
        },
        "required": ["city", "user_email", "year", "location"]
    });
    let compiled = compile_constraint(&Constraint::Json(schema)).expect("a schema");
    let mut said = 0;
    for seed in 0..40 {
        let text = sample_with_seed(&compiled, seed).expect("a value");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert!(value["user_email"].as_str().is_some_and(|s| s.contains('@')));
        assert!(value["year"].as_i64().is_some_and(|year| year > 2000));
        said += u32::from(value["location"] == "San Francisco, CA");
    }
    assert!(said > 5);
}

/// `jsonschema` supports only ECMA-262; Python clients send patterns of `re`.
#[test]
fn python_regex_patterns_are_sampled() {
    for (pattern, same) in [
        (r"\A[a-z]{3}\Z", r"^[a-z]{3}$"),
        (r"^(?P<year>\d{4})$", r"^\d{4}$"),
        (r"^{{\w+}}$", r"^\{\{\w+\}\}$"),
    ] {
        let schema = json!({"type": "string", "pattern": pattern});
        let compiled = compile_constraint(&Constraint::Json(schema)).expect("a schema");
        let whole = regex::Regex::new(same).expect("a pattern");
        for seed in 0..20 {
            let text = sample_with_seed(&compiled, seed).expect("a text");
            assert!(whole.is_match(text.trim_matches('"')), "{pattern}: {text}");
        }
    }
}

#[test]
fn hostile_schemas_cost_a_bounded_amount_of_work() {
    let chain = |n: usize, link: &dyn Fn(Value) -> Value| {
        let mut defs = serde_json::Map::new();
        for i in 0..n {
            let next = json!({"$ref": format!("#/$defs/a{}", i + 1)});
            defs.insert(format!("a{i}"), link(next));
        }
        defs.insert(format!("a{n}"), json!({"type": "string"}));
        json!({"$ref": "#/$defs/a0", "$defs": defs})
    };
    let wide = (0..500).map(|i| (format!("^k{i}_"), json!({"type": "integer"})));
    let schemas = [
        chain(40, &|next| json!({"allOf": [next, next]})),
        chain(40, &|next| json!({"anyOf": [next, next], "maxLength": 1, "minLength": 2})),
        chain(40, &|next| json!({"oneOf": [next, next]})),
        chain(40, &|next| json!({"not": {"allOf": [next, next]}})),
        chain(
            40,
            &|next| json!({"type": "object", "properties": {"x": next, "y": next}, "required": ["x", "y"]}),
        ),
        chain(3000, &|next| next),
        chain(500, &|next| json!({"type": "object", "properties": {"x": next}, "required": ["x"]})),
        json!({"not": {"$ref": "#"}}),
        json!({"type": "object", "minProperties": 50, "additionalProperties": false,
            "patternProperties": wide.collect::<serde_json::Map<_, _>>()}),
        json!({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}),
        json!({"type": "string", "pattern": "^((a?){1000}){1000}$"}),
        json!({"type": "string", "pattern": "^(?=(a+)+$)(a|b)+c$"}),
        json!({"type": "string", "pattern": "^(a+)+$", "minLength": 5000}),
        json!({"type": "array", "minItems": 3000, "uniqueItems": true,
            "items": {"type": "integer"}}),
        json!({"enum": (0..20_000).collect::<Vec<i32>>(), "minimum": 19_999}),
    ];
    for schema in schemas {
        // Checks only that the bounded search ends; benches measure its speed.
        if let Ok(compiled) = compile_constraint(&Constraint::Json(schema)) {
            for seed in 0..2 {
                if let Ok(text) = sample_with_seed(&compiled, seed) {
                    assert!(serde_json::from_str::<Value>(&text).is_ok());
                }
            }
        }
    }
}
