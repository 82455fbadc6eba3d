//! Block plans: the hashes of the KV blocks of a prompt and its output.

use std::sync::Arc;

use crate::generate::Script;
use crate::generate::request::{Prompt, Target};
use crate::job::GenerationJob;
use crate::models::Models;
use vllm_sim_engine::kv::{BlockPlanBuilder, ExtraKeys, Hasher, Lora, MediaSpan};
use vllm_sim_engine::{BlockPlan, LoraId};

/// Maximum size of the block plans of all sequences of a job, in bytes.
pub(super) const MAX_BYTES: u64 = 128 << 20;

/// Returns whether the block plans of all prompts of a job fit into [`MAX_BYTES`]; output blocks
/// are not counted.
pub(super) fn fits(hasher: &Hasher, job: &GenerationJob) -> bool {
    let prompts = job.facts.prompts.iter();
    let bytes = prompts.map(|prompt| hasher.plan_bytes(prompt.tokens.len() as u64));
    bytes.sum::<u64>().saturating_mul(job.n.into()) <= MAX_BYTES
}

/// Returns the extra keys of a prompt's block hashes: LoRA adapter, cache salt and media.
pub(super) fn extras(models: &Models, job: &GenerationJob, prompt: &Prompt) -> ExtraKeys {
    let lora = match &job.facts.target {
        Target::Base => None,
        Target::Lora { name, id } => {
            let adapters = models.adapters();
            let adapter = adapters.iter().find(|adapter| adapter.id == *id);
            Some(Lora {
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
        model: models.displayed().clone(),
        salt: job.request.cache_salt.clone(),
        media: media.collect(),
    }
}

/// Extends the block plan of a prompt with the blocks of its output.
pub(super) fn finish(mut chain: BlockPlanBuilder<'_>, script: &Script) -> Arc<BlockPlan> {
    chain.extend(&script.token_ids());
    Arc::new(chain.finish())
}
