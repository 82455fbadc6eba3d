//! Computes embedding vectors and relevance scores from token ids.

use std::collections::BTreeSet;

use crate::app::App;
use crate::json;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_service::pooling::unit_embedding;
use vllm_sim_wire::fault::Fault;

/// Returns the relevance of a text to a query, 0 to 1, from the token ids of both.
///
/// It is the fraction of the query's tokens in the text, plus a small tie-breaker.
pub(crate) fn relevance_score(query: &[u32], text: &[u32]) -> f64 {
    let query_tokens: BTreeSet<_> = query.iter().collect();
    let text_tokens: BTreeSet<_> = text.iter().collect();
    let share =
        query_tokens.intersection(&text_tokens).count() as f64 / query_tokens.len().max(1) as f64;
    let key =
        query.iter().chain(text).fold(0x5c, |key, token| mix_u64_pair(key, u64::from(*token)));
    let tie_break = (key % 1000) as f64 / 1000.0;
    f64::from((0.02 + 0.93 * share + 0.05 * tie_break) as f32)
}

/// Returns the length of embedding vectors: as requested if the model can truncate vectors, else
/// the model's own.
///
/// # Errors
/// vLLM's 400 for a model that cannot truncate; llm-d's for a length below 1.
pub(crate) fn vector_dimensions(app: &App, requested: Option<i128>) -> Result<usize, Fault> {
    let model = app.settings.model.hf_config.as_deref();
    let own = model
        .and_then(|config| config.get("hidden_size")?.as_u64())
        .filter(|_| app.settings.pooling.embeds_like_model)
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(app.settings.pooling.dimensions as usize);
    let Some(requested) = requested else {
        return Ok(own);
    };
    let cuts = |key: &str| {
        model
            .and_then(|config| config.get(key))
            .is_some_and(|v| v.as_bool() == Some(true) || v.is_array())
    };
    if app.settings.pooling.embeds_like_model
        && !cuts("is_matryoshka")
        && !cuts("matryoshka_dimensions")
    {
        let name = app.service.models.displayed_model_name();
        return Err(Fault::bad_request(format!(
            "Model '{name}' does not support Matryoshka embeddings; dimensions must be unset (received dimensions={requested})."
        )));
    }
    let max = if app.settings.pooling.embeds_like_model { own } else { 1_000_000 };
    match usize::try_from(requested) {
        Ok(n) if n >= 1 && n <= max => Ok(n),
        Ok(n) if n > max => Err(Fault::bad_parameter(
            format!("dimensions must be at most {max}, got {n}"),
            "dimensions",
        )),
        _ => Err(Fault {
            param: Some("dimensions".to_owned()),
            ..Fault::bad_request("dimensions must be at least 1")
        }),
    }
}

/// Appends a vector as a JSON list, with numbers widened to 64 bits as Python prints them.
pub(crate) fn write_vector_as_python_floats(out: &mut String, vector: &[f32]) {
    write_json_list(out, vector, |out, number| {
        json::write_python_float(out, f64::from(number));
    });
}

/// Appends a vector as a JSON list, with 32-bit numbers as numpy prints them.
pub(crate) fn write_vector_as_numpy_floats(out: &mut String, vector: &[f32]) {
    write_json_list(out, vector, json::write_numpy_float32);
}

fn write_json_list(out: &mut String, vector: &[f32], write: impl Fn(&mut String, f32)) {
    out.push('[');
    for (at, number) in vector.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(out, *number);
    }
    out.push(']');
}

pub(crate) fn cosine_similarity(one: &[u32], two: &[u32], dimensions: usize) -> f64 {
    let vector = |tokens| unit_embedding(tokens, dimensions);
    let products = vector(one).into_iter().zip(vector(two)).map(|(a, b)| a * b);
    f64::from(products.sum::<f32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_all_query_tokens_is_more_relevant() {
        let query = [1, 2, 3];
        assert!(relevance_score(&query, &[3, 2, 1, 9]) > relevance_score(&query, &[1, 8, 9]));
    }
}
