//! Common English words for generated strings.

use rand_chacha::ChaCha8Rng;

use vllm_sim_random::DrawRandom;

const LOWERCASE_WORDS: &[&str] = &[
    "alpha", "amber", "answer", "atlas", "bridge", "cedar", "cloud", "coral", "data", "delta",
    "echo", "ember", "field", "forest", "garden", "harbor", "index", "island", "item", "lake",
    "light", "list", "meadow", "model", "north", "note", "ocean", "open", "order", "paper",
    "point", "query", "quiet", "report", "river", "sample", "signal", "silver", "solar", "spring",
    "stone", "summer", "table", "task", "test", "value", "water", "west", "winter", "word",
];

pub(crate) fn random_word(rng: &mut ChaCha8Rng) -> &'static str {
    random_item(LOWERCASE_WORDS, rng)
}

/// Returns a random text from `list`, or an empty string if the list is empty.
pub(crate) fn random_item<'a>(list: &[&'a str], rng: &mut ChaCha8Rng) -> &'a str {
    let last = list.len().saturating_sub(1) as u64;
    list.get(rng.draw_u64_between(0, last) as usize).copied().unwrap_or("")
}
