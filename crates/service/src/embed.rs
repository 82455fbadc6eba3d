/// An embedding of `dimensions` components, the same for the same tokens; empty without tokens.
///
/// Source: llm-d-inference-sim, `pkg/api/embeddings.go` (float32, not normalised).
pub fn embedding(tokens: &[u32], dimensions: u32) -> Vec<f32> {
    if tokens.is_empty() {
        return Vec::new();
    }
    (0..dimensions as usize)
        .map(|index| {
            let token = tokens[index % tokens.len()];
            let steps = if index < tokens.len() { 1024 } else { 256 };
            // Both are exact in a float32.
            2.0 * (token % steps) as f32 / steps as f32 - 1.0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedding_is_llm_ds() {
        // `This is a test.`
        let tokens = [
            3_157_421_587,
            1_477_013_615,
            186_949_092,
            2_949_673_445,
            722_245_873,
        ];
        let embedding = embedding(&tokens, 7);
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
}
