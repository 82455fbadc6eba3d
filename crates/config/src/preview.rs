//! Behaviour of open pull requests of vLLM, which `--preview` switches on.

use super::error::{ConfigError, invalid};
use super::flags::model::PREVIEW;
use super::values::FlagValues;
use vllm_sim_observe::kv_events::KvEventPreviewFeatures;
use vllm_sim_observe::metrics::PreviewedMetricFamilies;

/// An open pull request of vLLM whose behaviour can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviewedPullRequest {
    /// Name of the previewed change, as `--preview` takes it.
    pub name: &'static str,
    /// GitHub number of the pull request in vllm-project/vllm.
    pub pull_request: u32,
}

const REMAINING_COPY_COUNTS: PreviewedPullRequest =
    PreviewedPullRequest { name: "remaining-copy-counts", pull_request: 48_933 };
const REMOVAL_AFTER_LAST_COPY: PreviewedPullRequest =
    PreviewedPullRequest { name: "removal-after-last-copy", pull_request: 55_092 };

/// Preview of the pull request with the metric `vllm:kv_cache_token_usage_perc`.
pub(super) const KV_CACHE_TOKEN_USAGE_PREVIEW: PreviewedPullRequest =
    PreviewedPullRequest { name: "kv-cache-token-usage", pull_request: 57_336 };
/// Preview of the pull request with metrics of the LoRA adapters that stay in memory.
pub(super) const LORA_ADAPTER_LOADED_PREVIEW: PreviewedPullRequest =
    PreviewedPullRequest { name: "lora-adapter-loaded", pull_request: 54_830 };
/// Preview of the pull request with a readiness check that examines the progress of the engines.
pub(super) const READINESS_PROGRESS_PREVIEW: PreviewedPullRequest =
    PreviewedPullRequest { name: "readiness", pull_request: 43_122 };

const PREVIEWS: [PreviewedPullRequest; 5] = [
    REMAINING_COPY_COUNTS,
    REMOVAL_AFTER_LAST_COPY,
    KV_CACHE_TOKEN_USAGE_PREVIEW,
    LORA_ADAPTER_LOADED_PREVIEW,
    READINESS_PROGRESS_PREVIEW,
];

/// Returns the pull requests whose behaviour `--preview` switches on.
///
/// # Errors
/// [`ConfigError::Invalid`] for an unknown name, with the list of names.
pub(super) fn read_previewed_pull_requests(
    v: &FlagValues,
) -> Result<Vec<PreviewedPullRequest>, ConfigError> {
    let typed = v.get(&PREVIEW)?;
    let names = typed.iter().flat_map(|names| names.split(',')).map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    let find = |name: &str| {
        PREVIEWS.into_iter().find(|preview| preview.name == name).ok_or_else(|| {
            let known = PREVIEWS.map(|one| format!("{} (#{})", one.name, one.pull_request));
            invalid!("--preview: {name:?} is not one of {}", known.join(", "))
        })
    };
    names.map(find).collect()
}

/// Returns whether `/health/ready` checks the progress of the engines.
pub(super) fn checks_engine_progress_for_readiness(previews: &[PreviewedPullRequest]) -> bool {
    previews.contains(&READINESS_PROGRESS_PREVIEW)
}

/// Returns the metric families that the previewed pull requests add.
pub(super) fn metric_family_previews(previews: &[PreviewedPullRequest]) -> PreviewedMetricFamilies {
    PreviewedMetricFamilies {
        token_usage: previews.contains(&KV_CACHE_TOKEN_USAGE_PREVIEW),
        resident_adapters: previews.contains(&LORA_ADAPTER_LOADED_PREVIEW),
    }
}

/// Returns the changes that the previewed pull requests make to KV events.
pub(super) fn kv_event_preview(previews: &[PreviewedPullRequest]) -> KvEventPreviewFeatures {
    KvEventPreviewFeatures {
        remaining_copy_counts: previews.contains(&REMAINING_COPY_COUNTS),
        removal_after_last_copy: previews.contains(&REMOVAL_AFTER_LAST_COPY),
    }
}
