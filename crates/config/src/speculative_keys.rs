//! Checks the methods and keys of `--speculative-config`.
//!
//! **Source:** vLLM 0.33 `vllm/config/speculative.py`, `SpeculativeConfig`.

use serde_json::{Map, Value};

use super::did_you_mean::{closest_known_name, spelling_hint};
use super::error::{ConfigError, bail, invalid};
use super::values::FlagValues;
use vllm_sim_wire::VllmVersion;

const METHOD_NAMES: [&str; 10] = [
    "ngram",
    "ngram_gpu",
    "suffix",
    "draft_model",
    "eagle",
    "eagle3",
    "mtp",
    "dflash",
    "dspark",
    "custom_class",
];

/// Model-specific names of the speculative method `mtp`.
const MTP_METHOD_NAMES: [&str; 27] = [
    "bailing_hybrid_mtp",
    "bailing_hybrid_v3_mtp",
    "deepseek_mtp",
    "dots3_note_mtp",
    "ernie_mtp",
    "exaone4_5_mtp",
    "exaone_moe_mtp",
    "gemma4_mtp",
    "glm4_moe_lite_mtp",
    "glm4_moe_mtp",
    "glm5_next_mtp",
    "glm_ocr_mtp",
    "hy_v3_mtp",
    "hy_v4_mtp",
    "inkling_mtp",
    "kimi_k3_mtp",
    "longcat_flash_mtp",
    "mimo_mtp",
    "mimo_v2_mtp",
    "minimax_m3_mtp",
    "nemotron_h_mtp",
    "pangu_ultra_moe_mtp",
    "qwen3_5_mtp",
    "qwen3_next_mtp",
    "qwen4_exp_mtp",
    "step3p5_mtp",
    "step5_mtp",
];

const SUPPORTED_KEYS: [&str; 14] = [
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
    "disable_lookahead_block_hashes",
    "disable_eagle_block_drop",
    "parallel_drafting",
    "draft_tensor_parallel_size",
    "use_heterogeneous_vocab",
    "disable_padded_drafter_batch",
];

/// Keys of `--speculative-config` without visible effect in a simulator; accepted silently.
const IGNORED_SILENTLY: [&str; 13] = [
    "attention_backend",
    "code_revision",
    "draft_lm_head_quantization",
    "draft_load_config",
    "draft_model_config",
    "draft_parallel_config",
    "enforce_eager",
    "index_share_for_mtp_iteration",
    "moe_backend",
    "revision",
    "target_model_config",
    "target_parallel_config",
    "use_local_argmax_reduction",
];

/// Keys of `--speculative-config` with an effect in vLLM and none here; accepted with a warning.
const IGNORED_WITH_WARNING: [&str; 15] = [
    "draft_sample_method",
    "dspark_draft_topk",
    "enable_adaptive_verification",
    "fly_entropy_threshold",
    "fly_entropy_top_k",
    "fly_window_size",
    "kv_cache_dtype",
    "max_model_len",
    "num_speculative_tokens_per_batch_size",
    "quantization",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_min_token_prob",
    "xpress_topc",
];

fn is_older(v: &FlagValues) -> Result<bool, ConfigError> {
    Ok(v.vllm_version()? < VllmVersion::default())
}

/// Returns the name of the speculative method in the imitated release.
///
/// # Errors
/// [`ConfigError::Invalid`] for a speculative method that the imitated release does not have.
pub(super) fn current_speculative_method_name(
    v: &FlagValues,
    typed: &str,
) -> Result<String, ConfigError> {
    if typed == "[ngram]" {
        return Ok("ngram".to_owned());
    }
    if METHOD_NAMES.contains(&typed) {
        return Ok(typed.to_owned());
    }
    if MTP_METHOD_NAMES.contains(&typed) {
        v.add_warning(format!("method `{typed}` is deprecated and replaced with mtp."));
        return Ok("mtp".to_owned());
    }
    if is_older(v)? && matches!(typed, "medusa" | "mlp_speculator") {
        return Ok(typed.to_owned());
    }
    let hint = spelling_hint(typed, METHOD_NAMES.into_iter());
    Err(invalid!(
        "speculative-config: method {typed:?} is not one of {}, or a name of mtp by model{hint}",
        METHOD_NAMES.join(", ")
    ))
}

/// Rejects unknown keys of `--speculative-config` and warns of those without effect.
///
/// # Errors
/// [`ConfigError::Invalid`] with the name of the unknown key.
pub(super) fn check_speculative_keys(
    v: &FlagValues,
    keys: &Map<String, Value>,
) -> Result<(), ConfigError> {
    let given = |key: &&String| !keys[*key].is_null();
    if keys.contains_key("tensor_parallel_size") {
        bail!(
            "speculative-config: 'tensor_parallel_size' is not a valid argument in the \
             speculative_config. Please pass 'draft_tensor_parallel_size' instead."
        );
    }
    let is_known = |key: &str| {
        SUPPORTED_KEYS.contains(&key)
            || IGNORED_SILENTLY.contains(&key)
            || IGNORED_WITH_WARNING.contains(&key)
    };
    let older = is_older(v)?;
    let mut idle = Vec::new();
    for key in keys.keys().filter(given) {
        if IGNORED_WITH_WARNING.contains(&key.as_str()) || older && !is_known(key) {
            idle.push(key.as_str());
        } else if !is_known(key) {
            let names = SUPPORTED_KEYS.into_iter().chain(IGNORED_WITH_WARNING);
            let hint = closest_known_name(key, names)
                .map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
            bail!("speculative-config: unknown key {key:?}{hint}");
        }
    }
    if !idle.is_empty() {
        v.add_warning(format!(
            "--speculative-config: no effect of {}",
            match idle.as_slice() {
                [one] => format!("{one} is"),
                more => format!("{} are", more.join(", ")),
            }
        ));
    }
    Ok(())
}
