//! Warnings about settings that have no effect in combination with others.

use super::flags::engine::ATTENTION_BACKEND;
use super::imitated_engine::imitated_engine_command_line;
use super::preview::{
    KV_CACHE_TOKEN_USAGE_PREVIEW, LORA_ADAPTER_LOADED_PREVIEW, PreviewedPullRequest,
    READINESS_PROGRESS_PREVIEW,
};
use super::values::FlagValues;
use super::{
    ClientCertificatePolicy, Config, MetricsCompat, ModelTask, SchedulerKind, ServingRole,
    StepLatencySource, SystemFingerprintForm, all_effective_flags, closest_known_name, flags,
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

/// Lists the flags of batches, preemption and KV cache groups that only `--scheduler vllm` reads.
///
/// `sglang_config` in `src/server/engines.rs` lists the settings that these flags change.
const VLLM_BATCH_FLAGS: [&str; 11] = [
    "max-num-batched-tokens",
    "max-num-scheduled-tokens",
    "enable-chunked-prefill",
    "long-prefill-token-threshold",
    "long-prefill-token-threshold-adaptive",
    "prefill-schedule-interval",
    "scheduler-reserve-full-isl",
    "watermark",
    "preemption-mode",
    "prefix-cache-retention-interval",
    "disable-hybrid-kv-cache-manager",
];

/// Flags of LoRA adapters that decide which requests a scheduler may run together.
const LORA_SLOT_FLAGS: [&str; 5] =
    ["enable-lora", "lora-modules", "max-loras", "max-cpu-loras", "lora-load-time"];

/// One entry of [`FLAG_REQUIREMENTS`].
type FlagRequirement = (&'static [&'static str], fn(&Config) -> bool, &'static str);

/// Requirements of flags: the names, whether the required setting is missing, and the reason why
/// the flags have no effect then.
const FLAG_REQUIREMENTS: &[FlagRequirement] = &[
    (
        &["ssl-ca-certs", "ssl-cert-reqs", "enable-ssl-refresh"],
        |c| c.server.tls.is_none(),
        "the server has no certificate (--ssl-certfile, --self-signed-certs): it speaks plain \
         HTTP, and asks clients for none",
    ),
    (
        &["ssl-ca-certs"],
        |c| {
            let tls = c.server.tls.as_ref();
            tls.is_some_and(|tls| tls.client_certs == ClientCertificatePolicy::None)
        },
        "--ssl-cert-reqs is 0: no client certificate is requested",
    ),
    (
        &["allowed-methods", "allowed-headers", "allow-credentials"],
        |c| c.server.cors.origins.is_empty(),
        "no origin is allowed (--allowed-origins)",
    ),
    (
        &["ready-check-idle-timeout", "ready-check-progress-timeout"],
        |c| c.server.timeouts.ready_check.is_none(),
        "readiness does not depend on output (--preview readiness)",
    ),
    (&["request-history-bodies"], |c| c.server.history.requests == 0, "--request-history is 0"),
    (
        &["max-log-len"],
        |c| !c.server.log.requests && !c.server.log.outputs,
        "neither prompts nor replies are logged (--enable-log-requests, --enable-log-outputs)",
    ),
    (
        &["otlp-traces-protocol"],
        |c| c.server.otlp.traces_endpoint.is_none(),
        "there is no --otlp-traces-endpoint",
    ),
    (&["kv-cache-metrics-sample"], |c| !c.metrics.kv_cache, "--kv-cache-metrics is not set"),
    (
        &["fake-metrics-refresh-interval"],
        |c| c.metrics.fake.is_none(),
        "there are no --fake-metrics",
    ),
    (&["reasoning-ratio"], |c| c.api.reasoning_parser.is_none(), "there is no --reasoning-parser"),
    (
        &["fingerprint-value"],
        |c| c.api.fingerprint != SystemFingerprintForm::Custom,
        "--fingerprint-mode is not custom",
    ),
    (
        &["num-labels"],
        |c| matches!(c.api.task, ModelTask::Generate | ModelTask::Embed | ModelTask::Transcription),
        "the model is no classifier (--runner pooling, --convert classify)",
    ),
    (
        &["max-loras", "max-cpu-loras", "max-lora-rank", "lora-load-time"],
        |c| !c.lora.enabled,
        "LoRA is not enabled (--enable-lora)",
    ),
    (
        &["allow-runtime-lora-updating"],
        |c| !c.lora.enabled && c.model.compat == MetricsCompat::Vllm,
        "LoRA is not enabled (--enable-lora)",
    ),
    (
        &["lora-resolver-cache-dir"],
        |c| c.lora.resolver_folder.is_none(),
        "it requires --enable-lora and --allow-runtime-lora-updating",
    ),
    (
        &["dataset-in-memory", "dataset-table-name", "dataset-fallback"],
        |c| c.content.dataset.is_none(),
        "there is no dataset (--dataset-path)",
    ),
    (
        &["image-emission-rate", "time-to-generate-image", "time-to-generate-image-std-dev"],
        |c| !c.content.omni,
        "replies have no images (--omni)",
    ),
    (
        &["strict-replies"],
        |c| c.faults.replies.is_none(),
        "there are no scripted replies (--replies)",
    ),
    (
        &[
            "zmq-endpoint",
            "kv-event-topic",
            "event-batch-size",
            "kv-events-replay-endpoint",
            "kv-events-replay-queue-size",
            "use-vllm-map-event-format",
        ],
        |c| !c.kv_events.enabled,
        "no KV events are published (`vllm-sim --model`: --enable-kvcache; `serve`: \
         --kv-events-config)",
    ),
    (
        &[
            "event-batch-size",
            "kv-events-replay-endpoint",
            "kv-events-replay-queue-size",
            "use-vllm-map-event-format",
        ],
        |c| c.kv_events.enabled && !c.kv_events.encoding.format.is_llmd_format(),
        "--kv-events-config selects another format than llm-d's",
    ),
    (
        &["data-parallel-supervisor-port"],
        |c| c.engine.parallel.supervisor_port.is_none(),
        "there is no supervisor (--data-parallel-multi-port-external-lb)",
    ),
    (
        &["data-parallel-address", "data-parallel-rpc-port"],
        |c| !c.server.headless && c.engine.parallel.api_servers != 0,
        "only engines without HTTP server join another process (--headless)",
    ),
    (
        &["enforce-eager", "prefill-context-parallel-size"],
        |c| !c.engine.timing.latency_source.step_times_depend_on_gpu(),
        "no GPU is simulated (--gpu)",
    ),
    (
        &POOL_DELAY_FLAGS,
        |c| {
            c.engine.timing.latency_source != StepLatencySource::Delays
                && c.engine.scheduler != SchedulerKind::Pool
        },
        "a latency model computes the times (--latency-model, --gpu)",
    ),
    (&["failure-types"], |c| c.faults.rates.rate == 0, "--failure-injection-rate is 0"),
    (&["stream-faults"], |c| c.faults.rates.stream_rate == 0.0, "--stream-fault-rate is 0"),
    (
        &["spec-acceptance-rates"],
        |c| c.engine.speculative.is_none(),
        "there are no drafts (--speculative-config)",
    ),
    (
        &["scheduling-policy"],
        |c| {
            c.engine.scheduling.policy == SchedulingPolicy::Priority
                && c.engine.scheduler != SchedulerKind::Vllm
        },
        "only --scheduler vllm has priorities",
    ),
    (
        &["max-cpu-loras"],
        |c| c.lora.enabled && c.engine.scheduler == SchedulerKind::Pool,
        "--scheduler pool keeps no adapters in CPU memory",
    ),
    (
        &["kv-transfer-config"],
        |c| {
            c.kv_transfer.as_ref().is_some_and(|transfer| transfer.connector.is_some())
                && c.engine.scheduler == SchedulerKind::Sglang
        },
        "--scheduler sglang transfers no prompts with connectors of vLLM",
    ),
];

pub(super) fn warn_of_settings_without_effect(config: &Config, v: &FlagValues) {
    for (flags, is_unmet, reason) in FLAG_REQUIREMENTS {
        if let Some(given) = set_flags(v, flags).filter(|_| is_unmet(config)) {
            v.add_no_effect_warning(format!("{given}: no effect because {reason}"));
        }
    }
    let engine = &config.engine;
    let rates = &config.faults.rates;
    let mut faults = rates.specs.iter().flat_map(|spec| &spec.stream_faults);
    let fails_loads = faults.any(|fault| matches!(fault, StreamFault::KvLoadFailure(_)));
    // In llm-d mode, requests load prompts without a configured connector.
    let loads = config.kv_transfer.is_some()
        || engine.kv_offload.is_some()
        || engine.role == ServingRole::Decode
        || config.model.compat == MetricsCompat::Llmd;
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
    warn_of_attention_backend(config, v);
    if engine.scheduler == SchedulerKind::Sglang {
        warn_of_vllm_scheduler_flags(v);
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

/// Warns about an attention backend, for which step times of GPUs have no figures.
fn warn_of_attention_backend(config: &Config, v: &FlagValues) {
    let uses_gpu = config.engine.timing.latency_source.step_times_depend_on_gpu();
    let is_vllm = config.engine.scheduler == SchedulerKind::Vllm;
    let backend = v.raw_flag_texts(&ATTENTION_BACKEND).last();
    let backend = backend.filter(|name| is_vllm && uses_gpu && !name.eq_ignore_ascii_case("auto"));
    if let Some(backend) = backend {
        v.add_no_effect_warning(format!(
            "--attention-backend {backend}: no effect on step times, which are those of the \
             backend that vLLM chooses"
        ));
    }
}

/// Warns about flags that only the vLLM scheduler reads.
fn warn_of_vllm_scheduler_flags(v: &FlagValues) {
    let mode = v.raw_flag_texts(&flags::engine::PERFORMANCE_MODE).last();
    let is_throughput = mode.is_some_and(|mode| mode == "throughput");
    let rules: [(&[&str], bool, &str); 3] = [
        (
            &VLLM_BATCH_FLAGS,
            true,
            "--scheduler sglang forms batches by rules of its own \
             (--sglang-chunked-prefill-size, --sglang-max-prefill-tokens)",
        ),
        (
            &["performance-mode"],
            is_throughput,
            "throughput raises limits of --scheduler vllm, not of sglang",
        ),
        (
            &["attention-backend"],
            true,
            "it determines the default of --block-size with --scheduler vllm, not with sglang",
        ),
    ];
    for (names, idle, why) in rules {
        // vLLM's scheduler obeys a switch to off, too.
        let given = list_flags(names, |name| v.is_flag_name_set(name));
        if let Some(given) = given.filter(|_| idle) {
            v.add_no_effect_warning(format!("{given}: no effect because {why}"));
        }
    }
}

/// Returns those of the named flags that are set, as a list; `None` if none is.
fn set_flags(v: &FlagValues, names: &[&str]) -> Option<String> {
    list_flags(names, |name| v.is_flag_name_typed(name))
}

/// Returns a list of the given ones of the named flags; `None` if none is given.
fn list_flags(names: &[&str], is_given: impl Fn(&str) -> bool) -> Option<String> {
    let given = names.iter().filter(|name| is_given(name));
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
    let (has_effect, why) = match preview {
        READINESS_PROGRESS_PREVIEW => (true, ""),
        KV_CACHE_TOKEN_USAGE_PREVIEW => {
            (config.engine.has_prefix_cache(), "the engine has no KV cache (--enable-kvcache)")
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
    use super::{FLAG_REQUIREMENTS, all_effective_flags, warnings_of_unknown_env_variables};

    /// Flags whose requirements the code that reads their values checks.
    const CHECKED_ELSEWHERE: [&str; 3] = ["ssl-certfile", "ssl-keyfile", "mm-encoder-tp-mode"];

    #[test]
    fn every_flag_that_requires_another_is_in_the_table() {
        let known = |name: &str| FLAG_REQUIREMENTS.iter().any(|(flags, ..)| flags.contains(&name));
        for flag in all_effective_flags().filter(|flag| flag.help.contains("equires --")) {
            assert!(known(flag.name) || CHECKED_ELSEWHERE.contains(&flag.name), "{}", flag.name);
        }
        for name in FLAG_REQUIREMENTS.iter().flat_map(|(flags, ..)| *flags) {
            assert!(all_effective_flags().any(|flag| flag.name == *name), "{name}");
        }
    }

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
