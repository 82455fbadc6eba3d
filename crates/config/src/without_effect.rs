//! Warnings about settings that have no effect in combination with others.

use super::flags::engine::ATTENTION_BACKEND;
use super::imitated_engine::imitated_engine_command_line;
use super::preview::{
    KV_CACHE_TOKEN_USAGE_PREVIEW, LORA_ADAPTER_LOADED_PREVIEW, PreviewedPullRequest,
    READINESS_PROGRESS_PREVIEW,
};
use super::values::FlagValues;
use super::{
    Config, MetricsCompat, SchedulerKind, ServingRole, StepLatencySource, all_effective_flags,
    closest_known_name,
};
use vllm_sim_engine::sched::vllm::SchedulingPolicy;
use vllm_sim_observe::kv_events::KvEventFormat;
use vllm_sim_service::fault::{KV_LOAD_FAILURE, StreamFault};

const POOL_DELAY_FLAGS: [&str; 7] = [
    "time-to-first-token",
    "time-to-first-token-std-dev",
    "inter-token-latency",
    "inter-token-latency-std-dev",
    "prefill-overhead",
    "prefill-time-per-token",
    "prefill-time-std-dev",
];

/// Flags of LoRA adapters that decide which requests a scheduler may run together.
const LORA_SLOT_FLAGS: [&str; 5] =
    ["enable-lora", "lora-modules", "max-loras", "max-cpu-loras", "lora-load-time"];

pub(super) fn warn_of_settings_without_effect(config: &Config, v: &FlagValues) {
    let engine = &config.engine;
    let is_modelled = engine.timing.latency_source != StepLatencySource::Delays
        && engine.scheduler != SchedulerKind::Pool;
    let rates = &config.faults.rates;
    let mut faults = rates.specs.iter().flat_map(|spec| &spec.stream_faults);
    let fails_loads = faults.any(|fault| matches!(fault, StreamFault::KvLoadFailure(_)));
    // In llm-d mode, requests load prompts without a configured connector.
    let loads = config.kv_transfer.is_some()
        || engine.kv_offload.is_some()
        || engine.role == ServingRole::Decode
        || config.model.compat == MetricsCompat::Llmd;
    let rules: [(&[&str], bool, &str); 7] = [
        (
            &POOL_DELAY_FLAGS,
            is_modelled,
            "a latency model computes the times (--latency-model, --gpu)",
        ),
        (&["failure-types"], rates.rate == 0, "--failure-injection-rate is 0"),
        (&["stream-faults"], rates.stream_rate == 0.0, "--stream-fault-rate is 0"),
        (
            &["spec-acceptance-rates"],
            engine.speculative.is_none(),
            "there are no drafts (--speculative-config)",
        ),
        (
            &["scheduling-policy"],
            engine.scheduling.policy == SchedulingPolicy::Priority
                && engine.scheduler != SchedulerKind::Vllm,
            "only --scheduler vllm has priorities",
        ),
        (
            &["max-cpu-loras"],
            config.lora.enabled && engine.scheduler == SchedulerKind::Pool,
            "--scheduler pool keeps no adapters in CPU memory",
        ),
        (
            &["kv-transfer-config"],
            config.kv_transfer.as_ref().is_some_and(|transfer| transfer.connector.is_some())
                && engine.scheduler == SchedulerKind::Sglang,
            "--scheduler sglang transfers no prompts with connectors of vLLM",
        ),
    ];
    if fails_loads && !loads {
        v.add_no_effect_warning(format!(
            "--stream-faults {KV_LOAD_FAILURE}: no effect because no prompt is loaded: there is \
             neither a KV connector (--kv-transfer-config) nor --kv-offloading-size"
        ));
    }
    for preview in &config.model.previews {
        if let Some(why) = idle_preview_reason(*preview, config) {
            let name = preview.name;
            v.add_no_effect_warning(format!("--preview {name}: no effect because {why}"));
        }
    }
    let uses_gpu = engine.timing.latency_source.step_times_depend_on_gpu();
    let backend = v.raw_flag_texts(&ATTENTION_BACKEND).last();
    let is_vllm = engine.scheduler == SchedulerKind::Vllm;
    let backend = backend.filter(|name| is_vllm && uses_gpu && !name.eq_ignore_ascii_case("auto"));
    if let Some(backend) = backend {
        v.add_no_effect_warning(format!(
            "--attention-backend {backend}: no effect on step times, which are those of the \
             backend that vLLM chooses"
        ));
    }
    for (names, idle, why) in rules {
        if let Some(given) = set_flags(v, names).filter(|_| idle) {
            v.add_no_effect_warning(format!("{given}: no effect because {why}"));
        }
    }
    if config.lora.enabled
        && engine.scheduler == SchedulerKind::Sglang
        && let Some(given) = set_flags(v, &LORA_SLOT_FLAGS)
    {
        v.add_no_effect_warning(format!(
            "{given}: adapters are served, but no request waits for one, because --scheduler \
             sglang has no slots for adapters"
        ));
    }
}

/// Returns those of the named flags that are set, as a list; `None` if none is.
fn set_flags(v: &FlagValues, names: &[&str]) -> Option<String> {
    let given = names.iter().filter(|name| v.is_flag_name_set(name));
    let given: Vec<String> = given.map(|name| format!("--{name}")).collect();
    (!given.is_empty()).then(|| given.join(", "))
}

/// Returns the reason why a preview has no effect with this configuration; `None` if it has an
/// effect.
fn idle_preview_reason(preview: PreviewedPullRequest, config: &Config) -> Option<&'static str> {
    if imitated_engine_command_line(Some(config.model.compat)).is_some() {
        return Some("the API of another server is imitated (--compat)");
    }
    let events = &config.kv_events;
    let has_cache = config.engine.scheduler != SchedulerKind::Pool
        || config.engine.prefix_cache.enable_kvcache
        || config.engine.prefix_cache.enable_prefix_caching;
    let (has_effect, why) = match preview {
        READINESS_PROGRESS_PREVIEW => (true, ""),
        KV_CACHE_TOKEN_USAGE_PREVIEW => {
            (has_cache, "the engine has no KV cache (--enable-kvcache)")
        }
        LORA_ADAPTER_LOADED_PREVIEW => (config.lora.enabled, "LoRA is not enabled (--enable-lora)"),
        _ => (
            events.enabled && events.encoding.format == KvEventFormat::Vllm,
            "KV events of vLLM's form are not published (--kv-events-config)",
        ),
    };
    (!has_effect).then_some(why)
}

/// Returns a warning for each unknown environment variable that resembles a setting.
///
/// Variables that Kubernetes sets for a service called `vllm-sim` are excluded.
pub fn warnings_of_unknown_env_variables(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = all_effective_flags().map(|flag| flag.env_variable_name()).collect();
    let of_service = |name: &str| {
        let rest = name.strip_prefix("VLLM_SIM_").unwrap_or(name);
        rest.starts_with("SERVICE_") || rest.starts_with("PORT")
    };
    let names = names.into_iter().filter(|name| {
        name.starts_with("VLLM_SIM_")
            && !known.contains(name)
            && !OTHER_KNOWN_VARIABLES.contains(&name.as_str())
            && !of_service(name)
    });
    names
        .map(|name| match closest_known_name(&name, known.iter().map(String::as_str)) {
            Some(near) => format!("{name}: unknown environment variable; did you mean {near}?"),
            None => format!("{name}: unknown environment variable"),
        })
        .collect()
}

const OTHER_KNOWN_VARIABLES: [&str; 4] =
    ["VLLM_SIM_BINARY", "VLLM_SIM_DOOR", "VLLM_SIM_PROGRAM", "VLLM_SIM_WITHOUT_HELM"];

#[cfg(test)]
mod tests {
    use super::warnings_of_unknown_env_variables;

    #[test]
    fn a_misspelt_variable_suggests_the_nearest_one() {
        let names = [
            "VLLM_SIM_MAX_NUM_SEQ",
            "VLLM_SIM_MAX_NUM_SEQS",
            "VLLM_SIM_PROGRAM",
            "VLLM_SIM_SERVICE_PORT_HTTP",
            "VLLM_SIM_PORT_8000_TCP_ADDR",
            "VLLM_SIM_FOOBARBAZ",
            "PATH",
        ];
        let told = warnings_of_unknown_env_variables(names.map(str::to_owned));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].ends_with("did you mean VLLM_SIM_MAX_NUM_SEQS?"), "{told:?}");
    }
}
