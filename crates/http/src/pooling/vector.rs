//! Vectors and scores from tokens.

use std::collections::BTreeSet;

use crate::app::App;
use vllm_sim_random::mix;
use vllm_sim_wire::fault::Fault;

/// Component i of T tokens t: `2·(t[i] mod 1024)/1024 − 1`, beyond T `2·(t[i mod T] mod 256)/256 − 1`.
///
/// Source: llm-d-inference-sim `pkg/api/embeddings.go`. vLLM's vectors have length one.
pub(super) fn embed(tokens: &[u32], dimensions: usize, unit: bool) -> Vec<f32> {
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
    let mut vector: Vec<f32> = (0..dimensions).map(component).collect();
    if unit {
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x /= length);
        }
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
    let simulator = app.config.model.cli_mode == vllm_sim_config::CliMode::Llmd;
    let own = model
        .and_then(|config| config.get("hidden_size")?.as_u64())
        .filter(|_| !simulator)
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
    if !simulator && !cuts("is_matryoshka") && !cuts("matryoshka_dimensions") {
        let name = app.service.models.displayed();
        return Err(Fault::bad_request(format!(
            "Model '{name}' does not support Matryoshka embeddings; dimensions must be unset (received dimensions={requested})."
        )));
    }
    let max = if simulator { 1_000_000 } else { own };
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
        let vector = embed(&[531, 1024 + 111], 4, false);
        let expected = [
            2.0 * 531.0 / 1024.0 - 1.0,
            2.0 * 111.0 / 1024.0 - 1.0,
            2.0 * 19.0 / 256.0 - 1.0,
            2.0 * 111.0 / 256.0 - 1.0,
        ];
        assert_eq!(vector, expected);
    }

    #[test]
    fn unit_vectors_have_length_one() {
        let vector = embed(&[1, 2, 3], 16, true);
        let length: f32 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5);
    }

    #[test]
    fn a_text_with_all_the_words_is_more_relevant() {
        let query = [1, 2, 3];
        assert!(relevance(&query, &[3, 2, 1, 9]) > relevance(&query, &[1, 8, 9]));
    }
}
