//! Block plans: the hashes of the KV blocks of a prompt and its output.

use std::sync::Arc;

use crate::generate::ReplyScript;
use crate::generate::request::{ModelTarget, TokenizedPrompt};
use crate::job::GenerationJob;
use crate::models::ServedModels;
use vllm_sim_engine::kv::{BlockHasher, BlockPlanBuilder, ExtraKeys, LoraAdapter, MediaSpan};
use vllm_sim_engine::{BlockPlan, LoraId};

/// Maximum size of the block plans of all sequences of a job, in bytes.
pub(super) const MAX_BLOCK_PLAN_BYTES: u64 = 128 << 20;

/// Returns whether the block plans of all prompts of a job fit into [`MAX_BLOCK_PLAN_BYTES`]; output blocks
/// are not counted.
pub(super) fn fits_block_plan_limit(hasher: &BlockHasher, job: &GenerationJob) -> bool {
    let prompts = job.facts.prompts.iter();
    let bytes = prompts.map(|prompt| hasher.estimate_plan_bytes(prompt.tokens.len() as u64));
    bytes.sum::<u64>().saturating_mul(job.n.into()) <= MAX_BLOCK_PLAN_BYTES
}

/// Returns the extra keys of a prompt's block hashes: LoRA adapter, cache salt and media.
pub(super) fn block_extra_keys(
    models: &ServedModels,
    job: &GenerationJob,
    prompt: &TokenizedPrompt,
) -> ExtraKeys {
    let lora = match &job.facts.target {
        ModelTarget::Base => None,
        ModelTarget::Lora { name, id } => {
            let adapters = models.adapters();
            let adapter = adapters.iter().find(|adapter| adapter.id == *id);
            Some(LoraAdapter {
                id: LoraId(*id),
                name: name.clone(),
                path: adapter.map_or("", |adapter| adapter.path.as_str()).into(),
            })
        }
    };
    let media = prompt.media.iter().map(|item| MediaSpan {
        identifier: item.identifier.clone(),
        start: item.start,
        len: item.len,
    });
    ExtraKeys {
        lora,
        model: models.displayed_name().clone(),
        salt: job.request.kv_labels.salt.clone(),
        media: media.collect(),
    }
}

/// Extends the block plan of a prompt with the blocks of its output, and adds the request's settings
/// of KV events.
///
/// Source: vLLM 0.33 `vllm/v1/request.py`, `session_id` and `kv_cache_report_mode`.
pub(super) fn finish_block_plan(
    mut chain: BlockPlanBuilder<'_>,
    script: &ReplyScript,
    job: &GenerationJob,
) -> Arc<BlockPlan> {
    chain.append_tokens(&script.token_ids());
    let mut plan = chain.finish();
    plan.session = job.request.kv_labels.session_id.clone();
    let extra = job.facts.params.extra_args.as_ref();
    let mode = extra.and_then(|extra| extra.get("kv_cache_report_mode"));
    plan.reports_reused = mode.is_some_and(|mode| mode == "full");
    Arc::new(plan)
}
