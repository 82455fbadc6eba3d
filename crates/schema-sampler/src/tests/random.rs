//! Random schemas: every generated value is valid, and nothing panics.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{Constraint, SampleLimits, compile_constraint};
use vllm_sim_random::{RandomStreamPurpose, request_rng};

fn any_json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-20i64..20).prop_map(Value::from),
        (-5.0f64..5.0).prop_map(|f| json!((f * 4.0).round() / 4.0)),
        "[a-c]{0,3}".prop_map(Value::String),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::vec(("[a-c]", inner), 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn any_keyword(inner: BoxedStrategy<Value>) -> impl Strategy<Value = (&'static str, Value)> {
    let types = prop::sample::subsequence(
        vec!["null", "boolean", "integer", "number", "string", "array", "object"],
        1..3,
    );
    let schemas = prop::collection::vec(inner.clone(), 1..3).prop_map(Value::Array);
    let members = prop::collection::vec(("[a-d]", inner.clone()), 0..3)
        .prop_map(|members| Value::Object(members.into_iter().collect()));
    let patterned = prop::collection::vec(("\\^?[a-d]", inner.clone()), 0..2)
        .prop_map(|members| Value::Object(members.into_iter().collect()));
    let names = prop::collection::btree_set("[a-d]", 0..3).prop_map(|names| json!(names));
    let pattern = prop::sample::select(vec![
        "^[a-z]+$", "\\d", "^x", "a|b", "^.{2,4}$", "^(?!a)", "[^b]$", "^$",
    ]);
    let format = prop::sample::select(vec!["date", "email", "uuid", "ipv4", "uri", "time", "odd"]);
    prop_oneof![
        4 => types.prop_map(|types| ("type", json!(types))),
        1 => prop::collection::vec(any_json_value(), 1..4).prop_map(|v| ("enum", json!(v))),
        1 => any_json_value().prop_map(|v| ("const", v)),
        1 => (-20i64..20).prop_map(|n| ("minimum", json!(n))),
        1 => (-20i64..20).prop_map(|n| ("maximum", json!(n))),
        1 => (-20i64..20).prop_map(|n| ("exclusiveMinimum", json!(n))),
        1 => prop::sample::select(vec![0.1, 0.5, 2.0, 3.0]).prop_map(|n| ("multipleOf", json!(n))),
        1 => (0u32..6).prop_map(|n| ("minLength", json!(n))),
        1 => (0u32..9).prop_map(|n| ("maxLength", json!(n))),
        1 => pattern.prop_map(|p| ("pattern", json!(p))),
        1 => format.prop_map(|f| ("format", json!(f))),
        1 => (0u32..4).prop_map(|n| ("minItems", json!(n))),
        1 => (0u32..5).prop_map(|n| ("maxItems", json!(n))),
        1 => any::<bool>().prop_map(|b| ("uniqueItems", json!(b))),
        2 => inner.clone().prop_map(|s| ("items", s)),
        1 => schemas.clone().prop_map(|s| ("prefixItems", s)),
        1 => inner.clone().prop_map(|s| ("contains", s)),
        1 => (0u32..3).prop_map(|n| ("maxContains", json!(n))),
        1 => inner.clone().prop_map(|s| ("unevaluatedItems", s)),
        3 => members.clone().prop_map(|m| ("properties", m)),
        1 => patterned.prop_map(|m| ("patternProperties", m)),
        2 => inner.clone().prop_map(|s| ("additionalProperties", s)),
        2 => names.clone().prop_map(|n| ("required", n)),
        1 => (0u32..3).prop_map(|n| ("minProperties", json!(n))),
        1 => (0u32..4).prop_map(|n| ("maxProperties", json!(n))),
        1 => inner.clone().prop_map(|s| ("propertyNames", s)),
        1 => names.prop_map(|n| ("dependentRequired", json!({"a": n}))),
        1 => members.prop_map(|m| ("dependentSchemas", m)),
        1 => inner.clone().prop_map(|s| ("unevaluatedProperties", s)),
        1 => schemas.clone().prop_map(|s| ("allOf", s)),
        2 => schemas.clone().prop_map(|s| ("anyOf", s)),
        2 => schemas.prop_map(|s| ("oneOf", s)),
        1 => inner.clone().prop_map(|s| ("not", s)),
        1 => inner.clone().prop_map(|s| ("if", s)),
        1 => inner.clone().prop_map(|s| ("then", s)),
        1 => inner.prop_map(|s| ("else", s)),
        1 => Just(("$ref", json!("#"))),
    ]
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        3 => Just(json!({})),
        1 => any::<bool>().prop_map(Value::Bool),
        3 => prop::sample::select(vec!["integer", "string", "object", "array", "number"])
            .prop_map(|t| json!({"type": t})),
    ];
    leaf.boxed().prop_recursive(3, 24, 4, |inner| {
        prop::collection::vec(any_keyword(inner.boxed()), 1..5)
            .prop_map(|pairs| {
                let pairs = pairs.into_iter().map(|(k, v)| (k.to_owned(), v));
                Value::Object(pairs.collect::<Map<_, _>>())
            })
            .boxed()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn values_for_random_schemas_are_valid(schema in any_schema(), seed in 0u64..1000) {
        let compiled = compile_constraint(&Constraint::Json(schema.clone()));
        prop_assert!(compiled.is_ok(), "{schema}: {compiled:?}");
        let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
        let text = compiled.expect("checked").sample_text(&mut rng, &SampleLimits::default());
        if let Ok(text) = text {
            let value: Value = serde_json::from_str(&text).expect("JSON");
            let validator = jsonschema::options()
                .should_validate_formats(true)
                .build(&schema)
                .expect("a schema");
            prop_assert!(validator.is_valid(&value), "{schema} -> {text}");
        }
    }

    #[test]
    fn random_documents_never_panic(document in any_json_value(), seed in 0u64..1000) {
        let schema = json!({"properties": document.clone(), "enum": document.clone(), "type": document});
        for schema in [schema.clone(), schema["type"].clone()] {
            if let Ok(compiled) = compile_constraint(&Constraint::Json(schema)) {
                let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
                let _ = compiled.sample_text(&mut rng, &SampleLimits::default());
            }
        }
    }

    #[test]
    fn random_texts_never_panic_as_grammars_or_patterns(text in "\\PC{0,40}", seed in 0u64..1000) {
        for constraint in [
            Constraint::Regex(text.clone()),
            Constraint::Grammar(text.clone()),
            Constraint::Grammar(format!("root ::= {text}")),
            Constraint::Grammar(format!("start: {text}")),
            Constraint::Json(json!({"pattern": text})),
            Constraint::StructuralTag(json!({"format": {"type": "regex", "pattern": text}})),
        ] {
            if let Ok(compiled) = compile_constraint(&constraint) {
                let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
                let _ = compiled.sample_text(&mut rng, &SampleLimits::default());
            }
        }
    }

    #[test]
    fn a_random_pattern_is_matched_by_its_samples(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "a", "[b-f]", "\\d+", "(x|yz)", ".", "\\w{2,5}", "(?:q[^q]?)*", "\\s", "é", "[^a-z]",
                "(ab)?", "\\.", "[A-Z0-9_-]{3}",
            ]),
            0..6,
        ),
        seed in 0u64..1000,
    ) {
        let source = parts.concat();
        let compiled = compile_constraint(&Constraint::Regex(source.clone())).expect("a pattern");
        let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
        let text = compiled.sample_text(&mut rng, &SampleLimits::default()).expect("a text");
        let whole = regex::Regex::new(&format!("^(?:{source})$")).expect("a pattern");
        prop_assert!(whole.is_match(&text), "{source} -> {text:?}");
    }
}
