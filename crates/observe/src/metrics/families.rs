//! List of all metric families, in the order of the page of one API server.
//!
//! An entry of the list is the whole declaration: the name of the family in code ([`Id`]), its
//! type, name, deviations from the type's usual [`Family`], and HELP text. The head of a group has
//! topic, upstream's file, and the condition under which upstream exposes the group. Where no
//! recorded server exposes a family (NIXL, weight updates, KV fetch), the HELP text comes from
//! upstream's documentation, or is our own.
//!
//! **Source:** vLLM 0.32 (equal in 0.33).

use super::buckets::*;
use super::cache_config::cache_config;
use super::family::Buckets::{Bounds, Tokens};
use super::family::By::{Labels, Position};
use super::family::CellSource::{Alias, Ratio};
use super::family::Faked::{Always, UnlessLlmd};
use super::family::Hidden::{From, UntilStep};
use super::family::Scope::{Added, Model, Rank, Server};
use super::family::WhenEmpty::{Absent, HeaderOfOneServer};
use super::family::{Family, Group, Topic, counter, gauge, histogram, summary};
use super::info_labels::{offload_config, python, simple_offload};
use super::settings::ApiServers;

type LabelValues = &'static [(&'static str, &'static [&'static str])];

/// Values of the label `finished_reason`. The last three exist in llm-d-inference-sim only and are
/// hidden until one is counted.
pub(super) const FINISH_REASONS: [&str; 8] = [
    "stop",
    "length",
    "abort",
    "error",
    "repetition",
    "tool_calls",
    "remote_decode",
    "cache_threshold",
];
pub(super) const VLLM_REASONS: usize = 5;
const GENERATIONS: LabelValues = &[("generation", &["0", "1", "2"])];
const COPIES: LabelValues = &[("transfer_type", &["GPU_to_CPU", "CPU_to_GPU"])];
const SLEEP: LabelValues = &[("operation", &["sleep", "release_kv_cache_memory", "wake"])];
const WEIGHTS: LabelValues =
    &[("operation", &["init", "shutdown", "start", "start_draft", "update", "finish"])];
const TOOL_PARSER: LabelValues = &[
    ("mode", &["streaming", "non_streaming"]),
    ("outcome", &["tool_call", "no_tool_call"]),
    ("request_type", &["chat_completions", "responses", "other"]),
];

macro_rules! families {
    ($($topic:ident, $source:literal, $when:expr => {
        $($id:ident: $type:ident $name:literal { $($field:ident: $value:expr),* } $help:literal;)*
    })*) => {
        /// Names of the families in code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Id { $($(#[doc = concat!("**Source:** ", $source)] $id,)*)* }

        /// All families; the index is [`Id`].
        pub(super) static FAMILIES: &[Family] = &[$($(Family {
            id: Id::$id,
            topic: Topic::$topic,
            when: $when,
            $($field: $value,)*
            ..$type($name, $help)
        },)*)*];
    };
}

families! {
    Process, "prometheus_client gc_collector.py, platform_collector.py", |s| s.runtime_series && s.api_servers == ApiServers::One => {
        GcCollected: counter "python_gc_objects_collected_total" { by: Labels(GENERATIONS), created: false, scope: Server }
            "Objects collected during gc";
        GcUncollectable: counter "python_gc_objects_uncollectable_total" { by: Labels(GENERATIONS), created: false, scope: Server }
            "Uncollectable objects found during GC";
        GcCollections: counter "python_gc_collections_total" { by: Labels(GENERATIONS), created: false, scope: Server }
            "Number of times this generation was collected";
        PythonInfo: gauge "python_info" { info: Some(python), scope: Server }
            "Python platform information";
    }
    Process, "prometheus_client process_collector.py", |s| s.runtime_series && s.api_servers == ApiServers::One => {
        VirtualMemory: gauge "process_virtual_memory_bytes" { scope: Server, hidden: From(0), when_empty: Absent }
            "Virtual memory size in bytes.";
        ResidentMemory: gauge "process_resident_memory_bytes" { scope: Server, hidden: From(0), when_empty: Absent }
            "Resident memory size in bytes.";
        StartTime: gauge "process_start_time_seconds" { scope: Server, hidden: From(0), when_empty: Absent }
            "Start time of the process since unix epoch in seconds.";
        CpuSeconds: counter "process_cpu_seconds_total" { created: false, scope: Server, hidden: From(0), when_empty: Absent }
            "Total user and system CPU time spent in seconds.";
        OpenFds: gauge "process_open_fds" { scope: Server, hidden: From(0), when_empty: Absent }
            "Number of open file descriptors.";
        MaxFds: gauge "process_max_fds" { scope: Server, hidden: From(0), when_empty: Absent }
            "Maximum number of open file descriptors.";
    }

    Speculation, "vllm/v1/spec_decode/metrics.py", |s| s.engine_stats && s.spec_positions > 0 => {
        Drafts: counter "vllm:spec_decode_num_drafts_total" {}
            "Number of spec decoding drafts.";
        DraftTokens: counter "vllm:spec_decode_num_draft_tokens_total" {}
            "Number of draft tokens.";
        AcceptedTokens: counter "vllm:spec_decode_num_accepted_tokens_total" {}
            "Number of accepted tokens.";
        AcceptedTokensPerPos: counter "vllm:spec_decode_num_accepted_tokens_per_pos_total" { by: Position, by_engine: true }
            "Accepted tokens per draft position.";
    }

    Engine, "vllm/v1/metrics/perf.py", |s| s.engine_stats => {
        Flops: counter "vllm:estimated_flops_per_gpu_total" {}
            "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).";
        ReadBytes: counter "vllm:estimated_read_bytes_per_gpu_total" {}
            "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).";
        WriteBytes: counter "vllm:estimated_write_bytes_per_gpu_total" {}
            "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).";
    }

    Transfers, "vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py", |s| s.engine_stats && s.nixl => {
        NixlXferTime: histogram "vllm:nixl_xfer_time_seconds" { buckets: Bounds(NIXL_XFER_TIME) }
            "Histogram of transfer duration for NIXL KV Cache transfers.";
        NixlPostTime: histogram "vllm:nixl_post_time_seconds" { buckets: Bounds(NIXL_POST_TIME) }
            "Histogram of transfer post time for NIXL KV Cache transfers.";
        NixlBytes: histogram "vllm:nixl_bytes_transferred" { buckets: Bounds(NIXL_BYTES) }
            "Histogram of bytes transferred per NIXL KV Cache transfers.";
        NixlDescriptors: histogram "vllm:nixl_num_descriptors" { buckets: Bounds(NIXL_DESCRIPTORS) }
            "Histogram of number of descriptors per NIXL KV Cache transfers.";
        NixlFailedTransfers: counter "vllm:nixl_num_failed_transfers_total" {}
            "Number of failed NIXL KV Cache transfers.";
        NixlFailedNotifications: counter "vllm:nixl_num_failed_notifications_total" {}
            "Number of failed NIXL KV Cache notifications.";
        NixlExpired: counter "vllm:nixl_num_kv_expired_reqs_total" {}
            "Number of requests that had their KV expire. NOTE: This metric is tracked on the P instance.";
        NixlLateNotifications: counter "vllm:nixl_num_notifications_after_expiry_total" {}
            "Number of NIXL KV Cache notifications that arrived after the KV had expired.";
    }

    Transfers, "vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py", |s| s.engine_stats && s.offload.as_ref().is_some_and(|o| !o.simple) => {
        StoreBytes: counter "vllm:kv_offload_store_bytes_total" { hidden: From(0) }
            "Bytes of KV cache copied from the GPU to CPU memory.";
        StoreTime: counter "vllm:kv_offload_store_time_total" { hidden: From(0) }
            "Time of KV cache copies from the GPU to CPU memory, in seconds.";
        StoreSize: histogram "vllm:kv_offload_store_size" { buckets: Bounds(OFFLOAD_SIZE) }
            "Histogram of the size of KV cache copies from the GPU to CPU memory, in bytes.";
        LoadBytes: counter "vllm:kv_offload_load_bytes_total" { hidden: From(0) }
            "Bytes of KV cache copied from CPU memory to the GPU.";
        LoadTime: counter "vllm:kv_offload_load_time_total" { hidden: From(0) }
            "Time of KV cache copies from CPU memory to the GPU, in seconds.";
        LoadSize: histogram "vllm:kv_offload_load_size" { buckets: Bounds(OFFLOAD_SIZE) }
            "Histogram of the size of KV cache copies from CPU memory to the GPU, in bytes.";
        AllocationFailures: counter "vllm:kv_offload_allocation_failure_total" { hidden: From(0) }
            "Number of times that CPU memory for the chunks of a request could not be allocated.";
        LookupDelay: histogram "vllm:kv_offload_lookup_async_delay_seconds" { buckets: Bounds(OFFLOAD_DELAY) }
            "Histogram of the time from the first deferred lookup of a request to its result, in seconds.";
        AllocationSize: histogram "vllm:kv_offload_cpu_allocation_size" { buckets: Bounds(OFFLOAD_CHUNKS) }
            "Histogram of the number of chunks allocated together in CPU memory.";
        OffloadUsage: gauge "vllm:kv_offload_cpu_cache_usage_perc" {}
            "Fraction of the chunks in CPU memory that copies in progress use, 0 to 1.";
        OffloadWriteUsage: gauge "vllm:kv_offload_cpu_cache_write_usage_perc" {}
            "Fraction of the chunks in CPU memory that are being written, 0 to 1.";
        OffloadReadUsage: gauge "vllm:kv_offload_cpu_cache_read_usage_perc" {}
            "Fraction of the chunks in CPU memory that are being read, 0 to 1.";
        CopiedBytes: counter "vllm:kv_offload_total_bytes_total" { by: Labels(COPIES), by_engine: true }
            "Bytes of KV cache copied between GPU and CPU memory, by direction. DEPRECATED: Use vllm:kv_offload_store_bytes and vllm:kv_offload_load_bytes instead.";
        CopyTime: counter "vllm:kv_offload_total_time_total" { by: Labels(COPIES), by_engine: true }
            "Time of KV cache copies between GPU and CPU memory, in seconds, by direction. DEPRECATED: Use vllm:kv_offload_store_time and vllm:kv_offload_load_time instead.";
        CopySize: histogram "vllm:kv_offload_size" { buckets: Bounds(OFFLOAD_SIZE), by: Labels(COPIES), by_engine: true }
            "Histogram of the size of KV cache copies between GPU and CPU memory, in bytes, by direction. DEPRECATED: Use vllm:kv_offload_store_size and vllm:kv_offload_load_size instead.";
        OffloadInfo: gauge "vllm:kv_offload_config_info" { info: Some(offload_config) }
            "Information about the KV cache in CPU memory.";
    }

    Transfers, "vllm/v1/simple_kv_offload/metrics.py", |s| s.engine_stats && s.offload.as_ref().is_some_and(|o| o.simple) => {
        SimpleLoadBlocks: counter "vllm:simple_kv_offload_load_blocks_total" {}
            "Number of KV cache blocks loaded from CPU memory.";
        SimpleUsedBlocks: gauge "vllm:simple_kv_offload_used_blocks" {}
            "Number of KV cache blocks in CPU memory.";
        SimplePendingBlocks: gauge "vllm:simple_kv_offload_pending_store_blocks" {}
            "Number of KV cache blocks that are being copied to CPU memory.";
        SimpleInfo: gauge "vllm:simple_kv_offload_info" { info: Some(simple_offload) }
            "Information about the KV cache in CPU memory.";
    }

    Engine, "vllm/v1/metrics/loggers.py", |s| s.engine_stats => {
        Running: gauge "vllm:num_requests_running" { hidden: UntilStep, faked: Always }
            "Number of requests in model execution batches.";
        Waiting: gauge "vllm:num_requests_waiting" { hidden: UntilStep, faked: Always }
            "Number of requests waiting to be processed.";
        WaitingByReason: gauge "vllm:num_requests_waiting_by_reason" { by: Labels(&[("reason", &["capacity", "deferred"])]), hidden: UntilStep, faked: Always }
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.";
    }

    Transfers, "vllm/v1/metrics/loggers.py", |s| s.engine_stats && s.kv_consumer => {
        KvFetches: gauge "vllm:num_requests_kv_fetch_by_stage" { by: Labels(&[("stage", &["waiting_to_start", "in_progress", "completed_waiting"])]), hidden: UntilStep }
            "Number of waiting requests by async KV load stage. Stage labels: 'waiting_to_start' = needs an async KV load that has not started; 'in_progress' = load started and not yet reported finished; 'completed_waiting' = load finished, request not running yet.";
    }

    Engine, "vllm/v1/metrics/loggers.py", |s| s.engine_stats => {
        SleepState: gauge "vllm:engine_sleep_state" { by: Labels(&[("sleep_state", &["awake", "weights_offloaded", "discard_all"])]) }
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.";
    }

    Cache, "vllm/v1/metrics/loggers.py", |s| s.engine_stats => {
        KvUsage: gauge "vllm:kv_cache_usage_perc" { hidden: UntilStep, faked: Always }
            "KV-cache usage. 1 means 100 percent usage.";
        PrefixQueries: counter "vllm:prefix_cache_queries_total" { faked: Always }
            "Prefix cache queries, in terms of number of queried tokens.";
        PrefixHits: counter "vllm:prefix_cache_hits_total" { faked: Always }
            "Prefix cache hits, in terms of number of cached tokens.";
        ExternalQueries: counter "vllm:external_prefix_cache_queries_total" {}
            "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.";
        ExternalHits: counter "vllm:external_prefix_cache_hits_total" {}
            "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.";
        MmQueries: counter "vllm:mm_cache_queries_total" {}
            "Multi-modal cache queries, in terms of number of queried items.";
        MmHits: counter "vllm:mm_cache_hits_total" {}
            "Multi-modal cache hits, in terms of number of cached items.";
    }

    Engine, "vllm/v1/metrics/loggers.py", |s| s.engine_stats => {
        Preemptions: counter "vllm:num_preemptions_total" {}
            "Cumulative number of preemption from the engine.";
        PromptTokens: counter "vllm:prompt_tokens_total" { faked: UnlessLlmd }
            "Number of prefill tokens processed.";
        PromptTokensBySource: counter "vllm:prompt_tokens_by_source_total" { by: Labels(&[("source", &["local_compute", "local_cache_hit", "external_kv_transfer"])]) }
            "Number of prompt tokens by source.";
        PromptTokensCached: counter "vllm:prompt_tokens_cached_total" {}
            "Number of cached prompt tokens (local + external).";
        CachedTokensBySource: counter "vllm:prompt_tokens_cached_by_source_total" { by: Labels(&[("source", &["device", "host", "p2p", "disk", "external_unspecified"])]) }
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.";
        GenerationTokens: counter "vllm:generation_tokens_total" { faked: UnlessLlmd }
            "Number of generation tokens processed.";
    }

    Requests, "vllm/v1/metrics/loggers.py", |s| s.engine_stats => {
        Success: counter "vllm:request_success_total" { by: Labels(&[("finished_reason", &FINISH_REASONS)]), hidden: From(VLLM_REASONS), faked: UnlessLlmd }
            "Count of successfully processed requests.";
        Rejections: counter "vllm:admission_rejections_total" { scope: Model, by: Labels(&[("reason", &["max_num_queued_reqs", "max_num_queued_tokens"])]) }
            "Number of admission attempts rejected by a queue limit, by reason.";
        RequestPromptTokens: histogram "vllm:request_prompt_tokens" { buckets: Tokens, faked: UnlessLlmd }
            "Number of prefill tokens processed.";
        RequestGenerationTokens: histogram "vllm:request_generation_tokens" { buckets: Tokens, faked: UnlessLlmd }
            "Number of generation tokens processed.";
    }

    Engine, "vllm/v1/metrics/loggers.py", |s| s.engine_stats => {
        IterationTokens: histogram "vllm:iteration_tokens_total" { buckets: Bounds(ITERATION_TOKENS) }
            "Histogram of number of tokens per engine_step.";
    }

    Requests, "vllm/v1/metrics/loggers.py", |s| s.engine_stats => {
        MaxGenerationTokens: histogram "vllm:request_max_num_generation_tokens" { buckets: Tokens, faked: UnlessLlmd }
            "Histogram of maximum number of requested generation tokens.";
        ParamsN: histogram "vllm:request_params_n" { buckets: Bounds(REQUEST_PARAMS_N) }
            "Histogram of the n request parameter.";
        ParamsMaxTokens: histogram "vllm:request_params_max_tokens" { buckets: Tokens, faked: UnlessLlmd }
            "Histogram of the max_tokens request parameter.";
        Ttft: histogram "vllm:time_to_first_token_seconds" { buckets: Bounds(TIME_TO_FIRST_TOKEN), faked: Always }
            "Histogram of time to first token in seconds.";
        Itl: histogram "vllm:inter_token_latency_seconds" { buckets: Bounds(INTER_TOKEN_LATENCY), faked: Always }
            "Histogram of inter-token latency in seconds.";
        Tpot: histogram "vllm:request_time_per_output_token_seconds" { buckets: Bounds(INTER_TOKEN_LATENCY), faked: Always }
            "Histogram of time_per_output_token_seconds per request.";
        E2e: histogram "vllm:e2e_request_latency_seconds" { buckets: Bounds(REQUEST_LATENCY), faked: Always }
            "Histogram of e2e request latency in seconds.";
        QueueTime: histogram "vllm:request_queue_time_seconds" { buckets: Bounds(REQUEST_LATENCY), faked: Always }
            "Histogram of time spent in WAITING phase for request.";
        InferenceTime: histogram "vllm:request_inference_time_seconds" { buckets: Bounds(REQUEST_LATENCY), faked: Always }
            "Histogram of time spent in RUNNING phase for request.";
        PrefillTime: histogram "vllm:request_prefill_time_seconds" { buckets: Bounds(REQUEST_LATENCY), faked: Always }
            "Histogram of time spent in PREFILL phase for request.";
        DecodeTime: histogram "vllm:request_decode_time_seconds" { buckets: Bounds(REQUEST_LATENCY), faked: Always }
            "Histogram of time spent in DECODE phase for request.";
        RequestPreemptions: histogram "vllm:request_num_preemptions" { buckets: Bounds(REQUEST_NUM_PREEMPTIONS) }
            "Histogram of the number of times a request was preempted.";
        PrefillComputed: histogram "vllm:request_prefill_kv_computed_tokens" { buckets: Tokens }
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).";
    }

    Cache, "vllm/v1/metrics/loggers.py", |s| s.engine_stats && s.kv_cache_metrics => {
        BlockLifetime: histogram "vllm:kv_block_lifetime_seconds" { buckets: Bounds(KV_CACHE_RESIDENCY) }
            "Histogram of KV cache block lifetime from allocation to eviction. Sampled metrics (controlled by --kv-cache-metrics-sample).";
        BlockIdle: histogram "vllm:kv_block_idle_before_evict_seconds" { buckets: Bounds(KV_CACHE_RESIDENCY) }
            "Histogram of idle time before KV cache block eviction. Sampled metrics (controlled by --kv-cache-metrics-sample).";
        BlockReuseGap: histogram "vllm:kv_block_reuse_gap_seconds" { buckets: Bounds(KV_CACHE_RESIDENCY) }
            "Histogram of time gaps between consecutive KV cache block accesses. Only the most recent accesses are recorded (ring buffer). Sampled metrics (controlled by --kv-cache-metrics-sample).";
    }

    Adapters, "vllm/v1/metrics/loggers.py", |s| s.engine_stats && (s.lora.is_some() || s.fake.is_some()) => {
        LoraRequests: gauge "vllm:lora_requests_info" { scope: Added(&["max_lora", "running_lora_adapters", "waiting_lora_adapters"]), group: Group::SummedGauge, when_empty: HeaderOfOneServer }
            "Running stats on lora requests.";
    }

    Cache, "vllm/v1/metrics/loggers.py", |s| s.engine_stats && !s.cache_config.is_empty() => {
        CacheConfig: gauge "vllm:cache_config_info" { scope: Rank, info: Some(cache_config) }
            "Information of the LLMEngine CacheConfig";
    }

    Http, "prometheus-fastapi-instrumentator 8.1", |_| true => {
        HttpRequests: counter "http_requests_total" { scope: Added(&["handler", "method", "status"]), when_empty: HeaderOfOneServer }
            "Total number of requests by method, status and handler.";
        HttpRequestSize: summary "http_request_size_bytes" { scope: Added(&["handler"]), when_empty: HeaderOfOneServer }
            "Content length of incoming requests by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. ";
        HttpResponseSize: summary "http_response_size_bytes" { scope: Added(&["handler"]), when_empty: HeaderOfOneServer }
            "Content length of outgoing responses by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. ";
        HttpDurationHighr: histogram "http_request_duration_highr_seconds" { buckets: Bounds(HTTP_HIGHR), scope: Server }
            "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ";
        HttpDuration: histogram "http_request_duration_seconds" { buckets: Bounds(HTTP), scope: Added(&["handler", "method"]), when_empty: HeaderOfOneServer }
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ";
    }

    Requests, "vllm/parser/metrics.py", |s| s.tool_parser => {
        ToolParser: counter "vllm:tool_call_parser_invocations_total" { scope: Model, by: Labels(TOOL_PARSER) }
            "Total number of ToolParser invocations. Non-streaming increments once per choice; streaming increments once per delta.";
    }

    Engine, "vllm/entrypoints/serve/dev/sleep/metrics.py", |_| true => {
        SleepDuration: histogram "vllm:sleep_mode_operation_duration_seconds" { buckets: Bounds(OPERATION), scope: Server, by: Labels(SLEEP), hidden: From(0), by_creation: true, when_empty: Absent }
            "Duration of one sleep-mode operation.";
        SleepInFlight: gauge "vllm:sleep_mode_operations_in_flight" { scope: Server, by: Labels(SLEEP), group: Group::SummedGauge, hidden: From(0), by_creation: true, when_empty: Absent }
            "Sleep-mode operations currently awaited.";
    }

    Engine, "vllm/entrypoints/rl/online/metrics.py", |_| true => {
        WeightsDuration: histogram "vllm:rl_weight_update_operation_duration_seconds" { buckets: Bounds(OPERATION), scope: Server, by: Labels(WEIGHTS), hidden: From(0), by_creation: true, when_empty: Absent }
            "Duration of one logical frontend weight operation.";
        WeightsInFlight: gauge "vllm:rl_weight_update_operations_in_flight" { scope: Server, by: Labels(WEIGHTS), group: Group::SummedGauge, hidden: From(0), by_creation: true, when_empty: Absent }
            "Logical frontend weight operations currently awaited.";
    }

    Http, "vllm/entrypoints/speech_to_text/realtime/metrics.py", |s| s.sockets => {
        SocketsActive: gauge "vllm:websocket_connections_active" { scope: Server }
            "Number of currently active WebSocket connections.";
        SocketsTotal: counter "vllm:websocket_connections_total" { scope: Server }
            "Total number of WebSocket connections.";
        SocketDuration: histogram "vllm:websocket_connection_duration_seconds" { buckets: Bounds(SOCKET), scope: Server }
            "Duration of WebSocket connections in seconds.";
    }

    Own, "vllm-sim", |_| true => {
        Faults: counter "vllm_sim_faults_total" { scope: Added(&["kind", "phase", "scenario"]), created: false, when_empty: Absent }
            "Number of injected faults that took effect on a client.";
        // The group keeps the phase next to the faults.
        ScenarioPhase: gauge "vllm_sim_scenario_phase" { scope: Added(&["phase", "scenario"]), group: Group::Counter, when_empty: Absent }
            "1 for the active phase of the running scenario.";
    }

    Cache, "vLLM up to 0.9, llm-d-inference-sim v0.6, production-stack", |s| s.engine_stats && s.legacy => {
        OldGpuCacheUsage: gauge "vllm:gpu_cache_usage_perc" { created: false, cells: Alias(Id::KvUsage) }
            "GPU KV-cache usage. 1 means 100 percent usage. DEPRECATED: Use vllm:kv_cache_usage_perc instead.";
        OldGpuPrefixQueries: counter "vllm:gpu_prefix_cache_queries_total" { created: false, cells: Alias(Id::PrefixQueries) }
            "GPU prefix cache queries, in terms of number of queried tokens. DEPRECATED: Use vllm:prefix_cache_queries instead.";
        OldGpuPrefixHits: counter "vllm:gpu_prefix_cache_hits_total" { created: false, cells: Alias(Id::PrefixHits) }
            "GPU prefix cache hits, in terms of number of cached tokens. DEPRECATED: Use vllm:prefix_cache_hits instead.";
        OldGpuPrefixHitRate: gauge "vllm:gpu_prefix_cache_hit_rate" { created: false, cells: Ratio(Id::PrefixHits, Id::PrefixQueries) }
            "GPU prefix cache block hit rate. DEPRECATED: Use vllm:prefix_cache_queries and vllm:prefix_cache_hits instead.";
        OldPrefixQueries: counter "vllm:prefix_cache_queries" { created: false, cells: Alias(Id::PrefixQueries) }
            "Prefix cache queries, in terms of number of queried tokens.";
        OldPrefixHits: counter "vllm:prefix_cache_hits" { created: false, cells: Alias(Id::PrefixHits) }
            "Prefix cache hits, in terms of number of cached tokens.";
    }

    Requests, "vLLM up to 0.10, llm-d-inference-sim", |s| s.engine_stats && s.legacy => {
        OldTpot: histogram "vllm:time_per_output_token_seconds" { buckets: Bounds(INTER_TOKEN_LATENCY), created: false, cells: Alias(Id::Itl) }
            "Histogram of time per output token in seconds. DEPRECATED: Use vllm:inter_token_latency_seconds instead.";
        OldMaxGenerationTokens: histogram "vllm:max_num_generation_tokens" { buckets: Tokens, created: false, cells: Alias(Id::MaxGenerationTokens) }
            "Histogram of maximum number of requested generation tokens.";
    }
}
