//! Synthetic results of embedding and classification models, computed from the token ids alone.

use std::collections::BTreeMap;

use vllm_sim_random::mix_u64_pair;

/// Returns an embedding vector as llm-d-inference-sim computes it: deterministic, not normalised,
/// and empty without tokens.
///
/// Source: llm-d-inference-sim, `pkg/api/embeddings.go`.
pub fn llmd_embedding(tokens: &[u32], dimensions: usize) -> Vec<f32> {
    if tokens.is_empty() {
        return Vec::new();
    }
    (0..dimensions)
        .map(|index| {
            let token = tokens[index % tokens.len()];
            let steps = if index < tokens.len() { 1024 } else { 256 };
            // Both operations are exact in `f32`.
            2.0 * (token % steps) as f32 / steps as f32 - 1.0
        })
        .collect()
}

/// Number of components of an embedding that each token changes.
const COMPONENTS_PER_TOKEN: u64 = 64;

/// Returns an embedding whose cosine similarity grows with the number of shared tokens.
///
/// Each token adds or subtracts 1 at 64 components derived from its id. A token that occurs n times
/// adds 1 + ln n instead.
pub fn shared_token_embedding(tokens: &[u32], dimensions: usize) -> Vec<f32> {
    let mut counts = BTreeMap::new();
    for token in tokens {
        *counts.entry(*token).or_insert(0u32) += 1;
    }
    let mut vector = vec![0f32; dimensions];
    for (token, count) in counts {
        let weight = 1.0 + (count as f32).ln();
        for part in 0..COMPONENTS_PER_TOKEN {
            let place = mix_u64_pair(u64::from(token), part);
            let sign = if place >> 63 == 0 { weight } else { -weight };
            vector[(place % dimensions.max(1) as u64) as usize] += sign;
        }
    }
    vector
}

/// Returns [`shared_token_embedding`] normalised to length 1, as vLLM's embeddings are.
pub fn unit_embedding(tokens: &[u32], dimensions: usize) -> Vec<f32> {
    let mut vector = shared_token_embedding(tokens, dimensions);
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
    vector
}

/// Returns the probability of each class of a classification model; with a single class, the
/// probability is below 1.
pub fn class_probabilities(tokens: &[u32], classes: u32) -> Vec<f32> {
    let key = tokens.iter().fold(0xc1a5, |key, token| mix_u64_pair(key, u64::from(*token)));
    let weight = |class: u32| {
        let drawn = mix_u64_pair(key, u64::from(class)) % 10_000;
        (drawn as f64 / 2_500.0).exp()
    };
    if classes == 1 {
        return vec![(weight(0) / (weight(0) + 7.0)) as f32];
    }
    let weights: Vec<f64> = (0..classes).map(weight).collect();
    let whole: f64 = weights.iter().sum();
    weights.into_iter().map(|w| (w / whole) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedding_equals_that_of_llm_d() {
        let tokens = [3_157_421_587, 1_477_013_615, 186_949_092, 2_949_673_445, 722_245_873];
        let embedding = llmd_embedding(&tokens, 7);
        let shown: Vec<_> = embedding.iter().map(|x| format!("{x:.6}")).collect();
        assert_eq!(
            shown,
            [
                "0.037109",
                "-0.783203",
                "-0.054688",
                "-0.052734",
                "-0.529297",
                "-0.851562",
                "-0.132812"
            ]
        );
    }

    #[test]
    fn components_beyond_the_tokens_wrap_around_with_another_modulus() {
        let vector = llmd_embedding(&[531, 1024 + 111], 4);
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
            let (a, b) = (unit_embedding(a, 384), unit_embedding(b, 384));
            a.iter().zip(&b).map(|(a, b)| a * b).sum()
        };
        let text: Vec<u32> = (0..20).collect();
        let shared = |n: u32| -> Vec<u32> { (0..n).chain(1000..1020 - n).collect() };
        let cosines: Vec<f32> = [0, 5, 10, 15, 20].map(|n| cosine(&text, &shared(n))).to_vec();
        assert!(cosines.is_sorted(), "{cosines:?}");
        assert!((cosines[4] - 1.0).abs() < 1e-5 && cosines[0].abs() < 0.2);
    }
}
