//! List of all metric families, in the order of the page of one API server.
//!
//! An entry of the list is the whole declaration: the name of the family in code ([`Id`]), its name on
//! the page, and deviations from the usual [`Family`]. Type, labels, buckets and HELP text of upstream's
//! families are in the generated [list](super::upstream). Families without an entry there have type and
//! HELP text here, with the function that has their labels. The head of a group has the topic, and the
//! condition under which upstream exposes the group; an entry may differ.

use prometheus::proto::MetricType::{self, COUNTER, GAUGE, HISTOGRAM};

use super::family::{Buckets, Family, MetricLabels, family};
use super::settings::{ApiServerCount, CpuOffloadInfo};
use super::upstream::UPSTREAM;
use crate::release::is_equal_text;

/// Values of the label `finished_reason`. The last three exist in llm-d-inference-sim only and are
/// hidden until one is counted.
pub(super) static FINISH_REASONS: &[&str] = FAMILIES[Id::Success as usize].values[0];

const GENERATIONS: &[&[&str]] = &[&["0", "1", "2"]];
const COPIES: &[&[&str]] = &[&["GPU_to_CPU", "CPU_to_GPU"]];

/// Declares a list of metric families: the array `FAMILIES`, and the enum `Id` of its indices.
macro_rules! families {
    ($($topic:ident, $when:expr => {
        $($id:ident: $base:ident($($argument:expr),*) { $($field:ident: $value:expr),* } $($help:literal)?;)*
    })*) => {
        /// Identifiers of the metric families, which are their indices in [`FAMILIES`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Id { $($($id,)*)* }

        /// All identifiers of metric families, so that the compiler does not report unused ones:
        /// families with constant values are named nowhere else.
        const _: &[Id] = &[$($(Id::$id,)*)*];

        impl From<Id> for usize {
            fn from(id: Id) -> Self {
                id as Self
            }
        }

        /// All metric families, indexed by [`Id`].
        pub(crate) static FAMILIES: &[Family] = &[$($({
            // The compiler would evaluate the call once per field.
            let base = $base($($argument,)* $($help)?);
            Family { $($field: $value,)* ..Family { topic: stringify!($topic), when: $when, ..base } }
        },)*)*];
    };
}
pub(crate) use families;

families! {
    Process, |s| s.api_servers == ApiServerCount::One => {
        GcCollected: upstream("python_gc_objects_collected_total") { values: GENERATIONS };
        GcUncollectable: upstream("python_gc_objects_uncollectable_total") { values: GENERATIONS };
        GcCollections: upstream("python_gc_collections_total") { values: GENERATIONS };
        PythonInfo: upstream("python_info") { info: Some(|_| pairs([("implementation", "CPython"), ("major", "3"), ("minor", "12"), ("patchlevel", "12"), ("version", "3.12.12")])) };
        VirtualMemory: upstream("process_virtual_memory_bytes") { hidden_from: 0, absent_when_empty: true };
        ResidentMemory: upstream("process_resident_memory_bytes") { hidden_from: 0, absent_when_empty: true };
        StartTime: upstream("process_start_time_seconds") { hidden_from: 0, absent_when_empty: true };
        CpuSeconds: upstream("process_cpu_seconds_total") { hidden_from: 0, absent_when_empty: true };
        OpenFds: upstream("process_open_fds") { hidden_from: 0, absent_when_empty: true };
        MaxFds: upstream("process_max_fds") { hidden_from: 0, absent_when_empty: true };
    }

    Speculation, |s| s.engine_stats && s.spec_positions > 0 => {
        Drafts: upstream("vllm:spec_decode_num_drafts_total") {};
        DraftTokens: upstream("vllm:spec_decode_num_draft_tokens_total") {};
        AcceptedTokens: upstream("vllm:spec_decode_num_accepted_tokens_total") {};
        AcceptedTokensPerPos: upstream("vllm:spec_decode_num_accepted_tokens_per_pos_total") { by_engine: true };
    }

    Engine, |s| s.engine_stats => {
        Flops: upstream("vllm:estimated_flops_per_gpu_total") {};
        ReadBytes: upstream("vllm:estimated_read_bytes_per_gpu_total") {};
        WriteBytes: upstream("vllm:estimated_write_bytes_per_gpu_total") {};
    }

    Transfers, |s| s.engine_stats && s.nixl => {
        NixlXferTime: upstream("vllm:nixl_xfer_time_seconds") {};
        NixlPostTime: upstream("vllm:nixl_post_time_seconds") {};
        NixlBytes: upstream("vllm:nixl_bytes_transferred") {};
        NixlDescriptors: upstream("vllm:nixl_num_descriptors") {};
        NixlFailedTransfers: upstream("vllm:nixl_num_failed_transfers_total") {};
        NixlFailedNotifications: upstream("vllm:nixl_num_failed_notifications_total") {};
        NixlExpired: upstream("vllm:nixl_num_kv_expired_reqs_total") {};
        NixlLateNotifications: upstream("vllm:nixl_num_notifications_after_expiry_total") {};
    }

    Transfers, |s| s.engine_stats && s.offload.as_ref().is_some_and(|o| !o.simple) => {
        StoreBytes: upstream("vllm:kv_offload_store_bytes_total") { hidden_from: 0 };
        StoreTime: upstream("vllm:kv_offload_store_time_total") { hidden_from: 0 };
        StoreSize: upstream("vllm:kv_offload_store_size") {};
        LoadBytes: upstream("vllm:kv_offload_load_bytes_total") { hidden_from: 0 };
        LoadTime: upstream("vllm:kv_offload_load_time_total") { hidden_from: 0 };
        LoadSize: upstream("vllm:kv_offload_load_size") {};
        AllocationFailures: upstream("vllm:kv_offload_allocation_failure_total") { hidden_from: 0 };
        LookupDelay: upstream("vllm:kv_offload_lookup_async_delay_seconds") {};
        AllocationSize: upstream("vllm:kv_offload_cpu_allocation_size") {};
        OffloadUsage: upstream("vllm:kv_offload_cpu_cache_usage_perc") {};
        OffloadWriteUsage: upstream("vllm:kv_offload_cpu_cache_write_usage_perc") {};
        OffloadReadUsage: upstream("vllm:kv_offload_cpu_cache_read_usage_perc") {};
        CopiedBytes: upstream("vllm:kv_offload_total_bytes_total") { values: COPIES, by_engine: true };
        CopyTime: upstream("vllm:kv_offload_total_time_total") { values: COPIES, by_engine: true };
        CopySize: upstream("vllm:kv_offload_size") { values: COPIES, by_engine: true };
        OffloadInfo: upstream("vllm:kv_offload_config_info") { info: Some(|s| s.offload.as_ref().map_or_else(Vec::new, offload_config)) };
    }

    Transfers, |s| s.engine_stats && s.offload.as_ref().is_some_and(|o| o.simple) => {
        SimpleLoadBlocks: upstream("vllm:simple_kv_offload_load_blocks_total") {};
        SimpleUsedBlocks: upstream("vllm:simple_kv_offload_used_blocks") {};
        SimplePendingBlocks: upstream("vllm:simple_kv_offload_pending_store_blocks") {};
        SimpleInfo: upstream("vllm:simple_kv_offload_info") { info: Some(|s| s.offload.as_ref().map_or_else(Vec::new, simple_offload)) };
    }

    Engine, |s| s.engine_stats => {
        Running: upstream("vllm:num_requests_running") { hidden_until_step: true };
        Waiting: upstream("vllm:num_requests_waiting") { hidden_until_step: true };
        WaitingByReason: upstream("vllm:num_requests_waiting_by_reason") { values: &[&["capacity", "deferred"]], hidden_until_step: true };
        KvFetches: upstream("vllm:num_requests_kv_fetch_by_stage") { when: |s| s.engine_stats && s.kv_consumer, values: &[&["waiting_to_start", "in_progress", "completed_waiting"]], hidden_until_step: true };
        SleepState: upstream("vllm:engine_sleep_state") { values: &[&["awake", "weights_offloaded", "discard_all"]] };
    }

    Cache, |s| s.engine_stats => {
        KvUsage: upstream("vllm:kv_cache_usage_perc") { hidden_until_step: true };
        // vllm-project/vllm#57336; its HELP text is not known.
        KvTokenUsage: engine(GAUGE, "vllm:kv_cache_token_usage_perc") { when: |s| s.engine_stats && s.previews.token_usage, hidden_until_step: true }
            "Fraction of the KV cache's token slots that hold keys and values. 1 means 100 percent usage.";
        PrefixQueries: upstream("vllm:prefix_cache_queries_total") {};
        PrefixHits: upstream("vllm:prefix_cache_hits_total") {};
        ExternalQueries: upstream("vllm:external_prefix_cache_queries_total") {};
        ExternalHits: upstream("vllm:external_prefix_cache_hits_total") {};
        MmQueries: upstream("vllm:mm_cache_queries_total") {};
        MmHits: upstream("vllm:mm_cache_hits_total") {};
    }

    Engine, |s| s.engine_stats => {
        Preemptions: upstream("vllm:num_preemptions_total") {};
        PromptTokens: upstream("vllm:prompt_tokens_total") {};
        PromptTokensBySource: upstream("vllm:prompt_tokens_by_source_total") { values: &[&["local_compute", "local_cache_hit", "external_kv_transfer"]] };
        PromptTokensCached: upstream("vllm:prompt_tokens_cached_total") {};
        CachedTokensBySource: upstream("vllm:prompt_tokens_cached_by_source_total") { values: &[&["device", "host", "p2p", "disk", "external_unspecified"]] };
        GenerationTokens: upstream("vllm:generation_tokens_total") {};
    }

    Requests, |s| s.engine_stats => {
        Success: upstream("vllm:request_success_total") { values: &[&["stop", "length", "abort", "error", "repetition", "tool_calls", "remote_decode", "cache_threshold"]], hidden_from: 5 };
        Rejections: upstream("vllm:admission_rejections_total") { values: &[&["max_num_queued_reqs", "max_num_queued_tokens"]] };
        RequestPromptTokens: upstream("vllm:request_prompt_tokens") {};
        RequestGenerationTokens: upstream("vllm:request_generation_tokens") {};
        IterationTokens: upstream("vllm:iteration_tokens_total") {};
        MaxGenerationTokens: upstream("vllm:request_max_num_generation_tokens") {};
        ParamsN: upstream("vllm:request_params_n") {};
        ParamsMaxTokens: upstream("vllm:request_params_max_tokens") {};
        Ttft: upstream("vllm:time_to_first_token_seconds") {};
        Itl: upstream("vllm:inter_token_latency_seconds") {};
        Tpot: upstream("vllm:request_time_per_output_token_seconds") {};
        E2e: upstream("vllm:e2e_request_latency_seconds") {};
        QueueTime: upstream("vllm:request_queue_time_seconds") {};
        InferenceTime: upstream("vllm:request_inference_time_seconds") {};
        PrefillTime: upstream("vllm:request_prefill_time_seconds") {};
        DecodeTime: upstream("vllm:request_decode_time_seconds") {};
        RequestPreemptions: upstream("vllm:request_num_preemptions") {};
        PrefillComputed: upstream("vllm:request_prefill_kv_computed_tokens") {};
    }

    Cache, |s| s.engine_stats && s.kv_cache_metrics => {
        BlockLifetime: upstream("vllm:kv_block_lifetime_seconds") {};
        BlockIdle: upstream("vllm:kv_block_idle_before_evict_seconds") {};
        BlockReuseGap: upstream("vllm:kv_block_reuse_gap_seconds") {};
    }

    Adapters, |s| s.engine_stats && (s.lora.is_some() || s.fake.is_some()) => {
        LoraRequests: upstream("vllm:lora_requests_info") { added: true, summed: true };
    }

    // vllm-project/vllm#54830; its HELP texts are not known.
    Adapters, |s| s.engine_stats && s.previews.resident_adapters && s.lora.is_some() => {
        LoraLoaded: engine(GAUGE, "vllm:lora_adapter_loaded") { labels: &["adapter_name", "engine", "level", "model_name", "pinned"], added: true }
            "1 for each LoRA adapter in memory: on the GPU, or only in CPU memory.";
        GpuLoras: engine(GAUGE, "vllm:num_gpu_loaded_lora_adapters") {} "Number of LoRA adapters on the GPU.";
        CpuLoras: engine(GAUGE, "vllm:num_cpu_loaded_lora_adapters") {} "Number of LoRA adapters in CPU memory, including those on the GPU.";
        MaxGpuLoras: engine(GAUGE, "vllm:max_gpu_lora_adapters") {} "Number of LoRA adapter slots on the GPU.";
    }

    Cache, |s| s.engine_stats && !s.cache_config.is_empty() => {
        CacheConfig: upstream("vllm:cache_config_info") { labels: &["engine"], info: Some(|s| s.cache_config.clone()) };
    }

    Http, |_| true => {
        HttpRequests: upstream("http_requests_total") { added: true };
        HttpRequestSize: upstream("http_request_size_bytes") { added: true };
        HttpResponseSize: upstream("http_response_size_bytes") { added: true };
        HttpDurationHighr: upstream("http_request_duration_highr_seconds") {};
        HttpDuration: upstream("http_request_duration_seconds") { added: true };
    }

    Frontend, |_| true => {
        ToolParser: upstream("vllm:tool_call_parser_invocations_total") { when: |s| s.tool_parser, values: &[&["streaming", "non_streaming"], &["tool_call", "no_tool_call"], &["chat_completions", "responses", "other"]] };
        SleepDuration: upstream("vllm:sleep_mode_operation_duration_seconds") { added: true, hidden_from: 0, absent_when_empty: true };
        SleepInFlight: upstream("vllm:sleep_mode_operations_in_flight") { added: true, hidden_from: 0, summed: true, absent_when_empty: true };
        WeightsDuration: upstream("vllm:rl_weight_update_operation_duration_seconds") { added: true, hidden_from: 0, absent_when_empty: true };
        WeightsInFlight: upstream("vllm:rl_weight_update_operations_in_flight") { added: true, hidden_from: 0, summed: true, absent_when_empty: true };
    }

    Http, |s| s.sockets => {
        SocketsActive: upstream("vllm:websocket_connections_active") {};
        SocketsTotal: upstream("vllm:websocket_connections_total") {};
        SocketDuration: upstream("vllm:websocket_connection_duration_seconds") {};
    }

    Own, |_| true => {
        Faults: engine(COUNTER, "vllm_sim_faults_total") { labels: &["kind", "phase", "scenario"], added: true, absent_when_empty: true }
            "Number of injected faults that took effect on a client.";
        ScenarioPhase: engine(GAUGE, "vllm_sim_scenario_phase") { labels: &["phase", "scenario"], added: true, absent_when_empty: true }
            "1 for the active phase of the running scenario.";
    }

    // vLLM up to 0.9, the last two up to 0.10; llm-d-inference-sim v0.6, production-stack.
    Deprecated, |s| s.engine_stats && s.legacy => {
        OldGpuCacheUsage: engine(GAUGE, "vllm:gpu_cache_usage_perc") { alias: &[Id::KvUsage] }
            "GPU KV-cache usage. 1 means 100 percent usage. DEPRECATED: Use vllm:kv_cache_usage_perc instead.";
        OldGpuPrefixQueries: engine(COUNTER, "vllm:gpu_prefix_cache_queries_total") { alias: &[Id::PrefixQueries] }
            "GPU prefix cache queries, in terms of number of queried tokens. DEPRECATED: Use vllm:prefix_cache_queries instead.";
        OldGpuPrefixHits: engine(COUNTER, "vllm:gpu_prefix_cache_hits_total") { alias: &[Id::PrefixHits] }
            "GPU prefix cache hits, in terms of number of cached tokens. DEPRECATED: Use vllm:prefix_cache_hits instead.";
        OldGpuPrefixHitRate: engine(GAUGE, "vllm:gpu_prefix_cache_hit_rate") { alias: &[Id::PrefixHits, Id::PrefixQueries] }
            "GPU prefix cache block hit rate. DEPRECATED: Use vllm:prefix_cache_queries and vllm:prefix_cache_hits instead.";
        OldPrefixQueries: engine(COUNTER, "vllm:prefix_cache_queries") { alias: &[Id::PrefixQueries] }
            "Prefix cache queries, in terms of number of queried tokens.";
        OldPrefixHits: engine(COUNTER, "vllm:prefix_cache_hits") { alias: &[Id::PrefixHits] }
            "Prefix cache hits, in terms of number of cached tokens.";
        OldTpot: engine(HISTOGRAM, "vllm:time_per_output_token_seconds") { buckets: upstream("vllm:inter_token_latency_seconds").buckets, alias: &[Id::Itl] }
            "Histogram of time per output token in seconds. DEPRECATED: Use vllm:inter_token_latency_seconds instead.";
        OldMaxGenerationTokens: engine(HISTOGRAM, "vllm:max_num_generation_tokens") { buckets: Buckets::Tokens, alias: &[Id::MaxGenerationTokens] }
            "Histogram of maximum number of requested generation tokens.";
    }
}

impl Id {
    pub(super) fn family(self) -> &'static Family {
        &FAMILIES[self as usize]
    }
}

/// Returns the metric family `name` from the generated list of the imitated servers' families. An
/// unknown name is a compile error.
const fn upstream(name: &str) -> Family {
    let mut i = 0;
    while !is_equal_text(UPSTREAM[i].name.as_bytes(), name.as_bytes()) {
        i += 1;
    }
    UPSTREAM[i]
}

/// Returns a metric family of the engines that is not in the generated list of the imitated
/// servers' families.
const fn engine(kind: MetricType, name: &'static str, help: &'static str) -> Family {
    family(kind, name, &["engine", "model_name"], Buckets::Bounds(&[]), help)
}

fn offload_config(info: &CpuOffloadInfo) -> MetricLabels {
    pairs([
        ("cpu_blocks_per_chunk", info.blocks_per_chunk.to_string()),
        ("cpu_kv_cache_size_bytes", info.bytes.to_string()),
        ("cpu_kv_cache_size_tokens", info.tokens.to_string()),
        ("cpu_num_chunks", info.chunks.to_string()),
    ])
}

fn simple_offload(info: &CpuOffloadInfo) -> MetricLabels {
    pairs([
        ("backend", "cpu"),
        ("capacity_blocks", &*info.chunks.to_string()),
        ("lazy_offload", "False"),
        ("page_cache", "False"),
    ])
}

fn pairs<T: Into<String>>(labels: impl IntoIterator<Item = (&'static str, T)>) -> MetricLabels {
    labels.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}
