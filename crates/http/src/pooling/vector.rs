//! Vectors and scores from tokens.

use std::collections::{BTreeMap, BTreeSet};

use crate::app::App;
use crate::json;
use vllm_sim_random::mix;
use vllm_sim_wire::fault::Fault;

/// Component i of T tokens t: `2·(t[i] mod 1024)/1024 − 1`, beyond T `2·(t[i mod T] mod 256)/256 − 1`.
///
/// Source: llm-d-inference-sim `pkg/api/embeddings.go`.
pub(super) fn embed(tokens: &[u32], dimensions: usize) -> Vec<f32> {
    let component = |i: usize| {
        let (token, modulus) = match tokens.get(i) {
            Some(token) => (*token, 1024),
            None => (
                tokens.get(i % tokens.len().max(1)).copied().unwrap_or(0),
                256,
            ),
        };
        2.0 * (token % modulus) as f32 / modulus as f32 - 1.0
    };
    (0..dimensions).map(component).collect()
}

/// Components that each token has a part in.
const PARTS: u64 = 64;

/// A vector whose cosine with another grows with the tokens that both texts have: made up, and
/// enough for a search to find something. Each token adds or takes one at places that its number
/// decides, and a repeated one little more than once. vLLM's vectors have length one (`unit`).
pub(super) fn hashed(tokens: &[u32], dimensions: usize, unit: bool) -> Vec<f32> {
    let mut counts = BTreeMap::new();
    for token in tokens {
        *counts.entry(*token).or_insert(0u32) += 1;
    }
    let mut vector = vec![0f32; dimensions];
    for (token, count) in counts {
        let weight = 1.0 + (count as f32).ln();
        for part in 0..PARTS {
            let place = mix(u64::from(token), part);
            let sign = if place >> 63 == 0 { weight } else { -weight };
            vector[(place % dimensions.max(1) as u64) as usize] += sign;
        }
    }
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if unit && length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
    vector
}

/// How well a text answers a query, 0 to 1: the share of the query's tokens that it has, and a
/// little that tells equal shares apart.
pub(super) fn relevance(query: &[u32], text: &[u32]) -> f64 {
    let query_tokens: BTreeSet<_> = query.iter().collect();
    let text_tokens: BTreeSet<_> = text.iter().collect();
    let share =
        query_tokens.intersection(&text_tokens).count() as f64 / query_tokens.len().max(1) as f64;
    let key = query
        .iter()
        .chain(text)
        .fold(0x5c, |key, token| mix(key, u64::from(*token)));
    let tie_break = (key % 1000) as f64 / 1000.0;
    f64::from((0.02 + 0.93 * share + 0.05 * tie_break) as f32)
}

/// Length of the vectors: what is asked for where the model can cut them, else the model's own.
///
/// # Errors
/// vLLM's 400 for a model that cannot; llm-d's for less than 1.
pub(super) fn dimensions(app: &App, requested: Option<i128>) -> Result<usize, Fault> {
    let model = app.config.model.hf_config.as_deref();
    let own = model
        .and_then(|config| config.get("hidden_size")?.as_u64())
        .filter(|_| app.policy.mode.embeds_like_model)
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(app.config.content.default_embedding_dimensions as usize);
    let Some(requested) = requested else {
        return Ok(own);
    };
    let cuts = |key: &str| {
        model
            .and_then(|config| config.get(key))
            .is_some_and(|v| v.as_bool() == Some(true) || v.is_array())
    };
    if app.policy.mode.embeds_like_model && !cuts("is_matryoshka") && !cuts("matryoshka_dimensions")
    {
        let name = app.service.models.displayed();
        return Err(Fault::bad_request(format!(
            "Model '{name}' does not support Matryoshka embeddings; dimensions must be unset (received dimensions={requested})."
        )));
    }
    let max = if app.policy.mode.embeds_like_model {
        own
    } else {
        1_000_000
    };
    match usize::try_from(requested) {
        Ok(n) if n >= 1 && n <= max => Ok(n),
        Ok(n) if n > max => Err(Fault::parameter(
            format!("dimensions must be at most {max}, got {n}"),
            "dimensions",
        )),
        _ => Err(Fault {
            param: Some("dimensions".to_owned()),
            ..Fault::bad_request("dimensions must be at least 1")
        }),
    }
}

/// Appends numbers as a list: 32-bit floats widened, as vLLM prints them.
pub(super) fn write(out: &mut String, vector: &[f32]) {
    out.push('[');
    for (at, number) in vector.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        json::float(out, f64::from(*number));
    }
    out.push(']');
}

/// The bytes of a vector, 32-bit floats.
pub(super) fn bytes(vector: &[f32], big: bool) -> Vec<u8> {
    let numbers = vector.iter();
    numbers
        .flat_map(|x| {
            if big {
                x.to_be_bytes()
            } else {
                x.to_le_bytes()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_beyond_the_tokens_wrap_around_with_another_modulus() {
        let vector = embed(&[531, 1024 + 111], 4);
        let expected = [
            2.0 * 531.0 / 1024.0 - 1.0,
            2.0 * 111.0 / 1024.0 - 1.0,
            2.0 * 19.0 / 256.0 - 1.0,
            2.0 * 111.0 / 256.0 - 1.0,
        ];
        assert_eq!(vector, expected);
    }

    #[test]
    fn the_cosine_grows_with_the_tokens_in_common() {
        let cosine = |a: &[u32], b: &[u32]| -> f32 {
            let (a, b) = (hashed(a, 384, true), hashed(b, 384, true));
            a.iter().zip(&b).map(|(a, b)| a * b).sum()
        };
        let text: Vec<u32> = (0..20).collect();
        let shared = |n: u32| -> Vec<u32> { (0..n).chain(1000..1020 - n).collect() };
        let cosines: Vec<f32> = [0, 5, 10, 15, 20]
            .map(|n| cosine(&text, &shared(n)))
            .to_vec();
        assert!(cosines.is_sorted(), "{cosines:?}");
        assert!((cosines[4] - 1.0).abs() < 1e-5 && cosines[0].abs() < 0.2);
    }

    #[test]
    fn a_text_with_all_the_words_is_more_relevant() {
        let query = [1, 2, 3];
        assert!(relevance(&query, &[3, 2, 1, 9]) > relevance(&query, &[1, 8, 9]));
    }
}
