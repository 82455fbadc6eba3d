//! Prints texts of a schema, a regular expression and a grammar.
//!
//! `cargo run -p vllm-sim-schema-sampler --example sample`

use serde_json::json;
use vllm_sim_schema_sampler::rand_chacha::ChaCha8Rng;
use vllm_sim_schema_sampler::rand_chacha::rand_core::SeedableRng;
use vllm_sim_schema_sampler::{Constraint, ConstraintError, SampleLimits, compile_constraint};

fn main() -> Result<(), ConstraintError> {
    let order = json!({
        "type": "object",
        "properties": {
            "customer": {"type": "string"},
            "email": {"type": "string", "format": "email"},
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "product": {"type": "string"},
                        "quantity": {"type": "integer", "minimum": 1},
                        "price": {"type": "number", "exclusiveMinimum": 0}
                    },
                    "required": ["product", "quantity"]
                },
                "minItems": 1
            },
            "status": {"enum": ["open", "paid", "shipped"]}
        },
        "required": ["customer", "items", "status"]
    });
    let sum = "start: term (\" + \" term)*\nterm: NUMBER | \"(\" start \")\"\n\
               %import common.NUMBER\n";
    let constraints = [
        ("JSON Schema", Constraint::Json(order)),
        ("regular expression", Constraint::Regex(r"[A-Z]{2}-\d{4}".into())),
        ("grammar", Constraint::Grammar(sum.into())),
    ];
    let limits = SampleLimits::default();
    for (name, constraint) in constraints {
        let compiled = compile_constraint(&constraint)?;
        println!("{name}:");
        for seed in 1..=3 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            println!("  {}", compiled.sample_text(&mut rng, &limits)?);
        }
    }
    // An unsatisfiable schema reports its conflict.
    let nothing = json!({"type": "integer", "minimum": 3, "maximum": 2});
    let error = compile_constraint(&Constraint::Json(nothing))?
        .sample_text(&mut ChaCha8Rng::seed_from_u64(1), &limits)
        .err();
    println!("unsatisfiable:\n  {}", error.map_or_else(String::new, |e| e.to_string()));
    Ok(())
}
