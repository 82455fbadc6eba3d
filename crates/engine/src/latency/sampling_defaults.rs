//! Lists the default sampling parameters of known models. vLLM reads them from
//! `generation_config.json`; a model name alone does not include them.

/// Default sampling parameters of a model, as in its `generation_config.json`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelSamplingDefaults {
    /// Cumulative probability of the tokens that sampling keeps; 1: keep all.
    pub top_p: f64,
    /// Maximum number of tokens that sampling keeps; 0: keep all.
    pub top_k: u32,
    /// Penalty factor for repeated tokens; 1: no penalty.
    pub repetition_penalty: f64,
}

impl ModelSamplingDefaults {
    /// Returns whether sampling penalizes repeated tokens in every step.
    pub fn penalizes_repetition(self) -> bool {
        self.repetition_penalty != 1.0
    }
}

/// Sampling defaults of a model family: words in the repository name, then `top_p`, `top_k` and
/// `repetition_penalty`.
type SamplingFamily = (&'static [&'static str], f64, u32, f64);

/// Sampling defaults by model family, from the `generation_config.json` of the repositories,
/// specific families first. The defaults of other families are unknown.
const SAMPLING_FAMILIES: &[SamplingFamily] = &[
    (&["tinyllama"], 1.0, 0, 1.0),
    (&["deepseek-r1"], 0.95, 0, 1.0),
    (&["deepseek-v3"], 0.95, 0, 1.0),
    (&["llama-2-"], 0.9, 0, 1.0),
    (&["llama-3-"], 0.9, 0, 1.0),
    (&["llama-3."], 0.9, 0, 1.0),
    (&["llama-4-"], 0.9, 0, 1.0),
    (&["mistral"], 1.0, 0, 1.0),
    (&["mixtral"], 1.0, 0, 1.0),
    (&["qwq"], 0.95, 40, 1.0),
    (&["qwen2-", "-vl-"], 0.001, 1, 1.0),
    (&["qwen2.5-vl"], 1.0, 0, 1.05),
    (&["qwen2.5-", "instruct"], 0.8, 20, 1.05),
    (&["qwen2-", "instruct"], 0.8, 20, 1.05),
    (&["qwen2"], 1.0, 0, 1.0),
    (&["qwen3-", "thinking-2507"], 0.95, 20, 1.0),
    (&["qwen3-", "instruct-2507"], 0.8, 20, 1.0),
    (&["qwen3-coder", "instruct"], 0.8, 20, 1.05),
    (&["qwen3-", "-base"], 1.0, 0, 1.0),
    (&["qwen3-"], 0.95, 20, 1.0),
    (&["gemma-3-", "-it"], 0.95, 64, 1.0),
    (&["gemma-2"], 1.0, 0, 1.0),
    (&["gemma-7"], 1.0, 0, 1.0),
    (&["phi-"], 1.0, 0, 1.0),
    (&["gpt-oss"], 1.0, 0, 1.0),
    (&["kimi-k2"], 1.0, 0, 1.0),
    (&["gpt2"], 1.0, 0, 1.0),
    (&["opt-"], 1.0, 0, 1.0),
    (&["falcon-"], 1.0, 0, 1.0),
    (&["granite-"], 1.0, 0, 1.0),
    (&["smollm"], 1.0, 0, 1.0),
];

/// Returns the default sampling parameters of a known repository
/// (`meta-llama/Llama-3.1-8B-Instruct`), or `None`.
pub fn sampling_defaults(repo: &str) -> Option<ModelSamplingDefaults> {
    let name = repo.rsplit('/').next().unwrap_or(repo).to_ascii_lowercase();
    let name = name.replace('_', "-");
    let family =
        SAMPLING_FAMILIES.iter().find(|(words, ..)| words.iter().all(|word| name.contains(word)));
    family.map(|&(_, top_p, top_k, repetition_penalty)| ModelSamplingDefaults {
        top_p,
        top_k,
        repetition_penalty,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_defaults_follow_the_repository_name() {
        let of = |repo| sampling_defaults(repo).map(|found| (found.top_p, found.top_k));
        assert_eq!(of("meta-llama/Llama-3.1-8B-Instruct"), Some((0.9, 0)));
        assert_eq!(of("meta-llama/Meta-Llama-3-8B"), Some((0.9, 0)));
        assert_eq!(of("deepseek-ai/DeepSeek-R1-Distill-Llama-8B"), Some((0.95, 0)));
        assert_eq!(of("Qwen/Qwen2.5-7B-Instruct"), Some((0.8, 20)));
        assert_eq!(of("Qwen/Qwen2.5-7B"), Some((1.0, 0)));
        assert_eq!(of("Qwen/Qwen3-32B-FP8"), Some((0.95, 20)));
        assert_eq!(of("Qwen/Qwen3-30B-A3B-Instruct-2507"), Some((0.8, 20)));
        assert_eq!(of("codellama/CodeLlama-34b-Instruct-hf"), None);
        assert_eq!(of("zai-org/GLM-4.5"), None);
        assert_eq!(of("demo"), None);
        assert!(!sampling_defaults("Qwen/QwQ-32B").unwrap().penalizes_repetition());
        assert!(sampling_defaults("Qwen/Qwen2.5-7B-Instruct").unwrap().penalizes_repetition());
    }
}
