//! Embeddings and class probabilities of prompts, for pooling requests to the engine core.
//!
//! Source: vLLM 0.33 `vllm/pooling_params.py`; `vllm/model_executor/layers/pooler`, which
//! normalises in the engine.

use super::encode::PoolingTensor;
use super::request::PoolingParams;
use vllm_sim_config::Config;
use vllm_sim_service::pooling::{class_probabilities, shared_token_embedding, unit_embedding};

/// Maximum number of values in one pooling result, as for 4,096 tokens of 4,096 dimensions.
const MAX_POOLING_VALUES: usize = 16 << 20;

/// Computes the embedding or class probabilities of a prompt.
///
/// # Errors
/// A message for the client if the result is too large or the task is unknown.
pub(crate) fn compute_pooling_result(
    config: &Config,
    prompt: &[u32],
    pooling: &PoolingParams,
) -> Result<PoolingTensor, String> {
    let classes = config.api.num_labels.max(1);
    let (columns, embeds, each) = match pooling.task.as_str() {
        "embed" => (embedding_dimensions(config, pooling), true, false),
        "token_embed" => (embedding_dimensions(config, pooling), true, true),
        "classify" => (classes as usize, false, false),
        "token_classify" => (classes as usize, false, true),
        other => {
            return Err(format!(
                "pooling task {other} is not supported; supported are embed, token_embed, \
                 classify and token_classify"
            ));
        }
    };
    let rows = if each { prompt.len() } else { 1 };
    if rows.saturating_mul(columns) > MAX_POOLING_VALUES {
        return Err(format!(
            "the response would have {rows} vectors of {columns} numbers; at most {MAX_POOLING_VALUES} \
             numbers are allowed"
        ));
    }
    let row = |tokens: &[u32]| match embeds {
        true if pooling.activation => unit_embedding(tokens, columns),
        true => shared_token_embedding(tokens, columns),
        false => class_probabilities(tokens, classes),
    };
    Ok(match each {
        true => PoolingTensor {
            shape: vec![rows, columns],
            numbers: prompt.chunks(1).flat_map(row).collect(),
        },
        false => PoolingTensor { shape: vec![columns], numbers: row(prompt) },
    })
}

fn embedding_dimensions(config: &Config, pooling: &PoolingParams) -> usize {
    let model = config.model.hf_config.as_deref();
    let own = model.and_then(|config| config.get("hidden_size")?.as_u64());
    let own = own.and_then(|n| u32::try_from(n).ok());
    let own = own.unwrap_or(config.content.default_embedding_dimensions);
    pooling.dimensions.unwrap_or(own) as usize
}
