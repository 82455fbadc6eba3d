//! Behaviour of open pull requests of vLLM, which `--preview` switches on.

use super::error::ConfigError;
use super::flags::model::PREVIEW;
use super::values::FlagValues;
use vllm_sim_observe::kv_events::KvEventPreview;
use vllm_sim_observe::metrics::MetricPreviews;

/// An open pull request of vLLM whose behaviour can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preview {
    /// Name in `--preview`.
    pub name: &'static str,
    /// Number of the pull request in vllm-project/vllm.
    pub pull_request: u32,
}

const REMAINING_COPY_COUNTS: Preview =
    Preview { name: "remaining-copy-counts", pull_request: 48_933 };
const REMOVAL_AFTER_LAST_COPY: Preview =
    Preview { name: "removal-after-last-copy", pull_request: 55_092 };

/// The metric `vllm:kv_cache_token_usage_perc`.
pub(super) const KV_CACHE_TOKEN_USAGE: Preview =
    Preview { name: "kv-cache-token-usage", pull_request: 57_336 };
/// The metrics of adapters that stay in memory.
pub(super) const LORA_ADAPTER_LOADED: Preview =
    Preview { name: "lora-adapter-loaded", pull_request: 54_830 };
/// The readiness check that looks for progress.
pub(super) const READINESS: Preview = Preview { name: "readiness", pull_request: 43_122 };

const PREVIEWS: [Preview; 5] = [
    REMAINING_COPY_COUNTS,
    REMOVAL_AFTER_LAST_COPY,
    KV_CACHE_TOKEN_USAGE,
    LORA_ADAPTER_LOADED,
    READINESS,
];

/// Reads the previews that are switched on.
///
/// # Errors
/// [`ConfigError::Invalid`] for an unknown name, with the list of names.
pub(super) fn read_previews(v: &FlagValues) -> Result<Vec<Preview>, ConfigError> {
    let typed = v.get(&PREVIEW)?;
    let names = typed.iter().flat_map(|names| names.split(',')).map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    let find = |name: &str| {
        PREVIEWS.into_iter().find(|preview| preview.name == name).ok_or_else(|| {
            let known = PREVIEWS.map(|one| format!("{} (#{})", one.name, one.pull_request));
            ConfigError::Invalid(format!("--preview: {name:?} is not one of {}", known.join(", ")))
        })
    };
    names.map(find).collect()
}

/// Returns whether `/health/ready` checks the progress of the engines.
pub(super) fn checks_readiness(previews: &[Preview]) -> bool {
    previews.contains(&READINESS)
}

/// Returns the metric families that the previews add.
pub(super) fn metric_previews(previews: &[Preview]) -> MetricPreviews {
    MetricPreviews {
        token_usage: previews.contains(&KV_CACHE_TOKEN_USAGE),
        resident_adapters: previews.contains(&LORA_ADAPTER_LOADED),
    }
}

/// Returns what the previews change in KV events.
pub(super) fn kv_event_preview(previews: &[Preview]) -> KvEventPreview {
    KvEventPreview {
        remaining_copy_counts: previews.contains(&REMAINING_COPY_COUNTS),
        removal_after_last_copy: previews.contains(&REMOVAL_AFTER_LAST_COPY),
    }
}
