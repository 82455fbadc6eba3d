//! Mutated texts through the readers: a value or words, never a panic.

use super::{loads, repr};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

/// Requests, many of them broken on purpose.
const REQUESTS: &str = include_str!("../../../tests/fixtures/errors/schema.jsonl");

const SEEDS: &[&str] = &[
    r#"{"a": [1, -2.5e3, NaN, -Infinity, "\u00e9\ud83d\ude00"], "a": null}"#,
    "\u{feff}[true, false, 123456789012345678901234567890]",
    r#"{"": {"": [[[[[[[[]]]]]]]]}, "\n": "\t"}"#,
];

#[test]
fn json() {
    let requests = REQUESTS.lines().step_by(40);
    let seeds: Vec<&str> = SEEDS.iter().copied().chain(requests).collect();
    mutate::each(&seeds, |bytes| match loads(bytes) {
        // A character takes six of ASCII at most.
        Ok(value) => assert!(repr(&value).len() <= 16 + 10 * bytes.len()),
        Err(error) => assert!(error.located(bytes).len() < 200),
    });
}
