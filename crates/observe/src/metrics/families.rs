//! Names and HELP texts of metric families, copied from vLLM and llm-d-inference-sim.
//!
//! **Source:** vLLM 0.32 (equal in 0.33), `vllm/v1/metrics/loggers.py` and the files named in its
//! documentation; prometheus-fastapi-instrumentator 8.1. Where no recorded server exposes a family
//! (NIXL, weight updates, KV fetch), the HELP text comes from upstream's documentation, or is our
//! own.

use super::page::FamilyDesc;

macro_rules! specs {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $help:literal;)*) => {
        $($(#[$doc])* pub(super) const $id: FamilyDesc = FamilyDesc { name: $name, help: $help };)*
    };
}

specs! {
    SPEC_DRAFTS = "vllm:spec_decode_num_drafts_total",
        "Number of spec decoding drafts.";
    SPEC_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total",
        "Number of draft tokens.";
    SPEC_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total",
        "Number of accepted tokens.";
    SPEC_ACCEPTED_PER_POS = "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Accepted tokens per draft position.";

    FLOPS = "vllm:estimated_flops_per_gpu_total",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).";
    READ_BYTES = "vllm:estimated_read_bytes_per_gpu_total",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).";
    WRITE_BYTES = "vllm:estimated_write_bytes_per_gpu_total",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).";

    NIXL_XFER_TIME = "vllm:nixl_xfer_time_seconds",
        "Histogram of transfer duration for NIXL KV Cache transfers.";
    NIXL_POST_TIME = "vllm:nixl_post_time_seconds",
        "Histogram of transfer post time for NIXL KV Cache transfers.";
    NIXL_BYTES = "vllm:nixl_bytes_transferred",
        "Histogram of bytes transferred per NIXL KV Cache transfers.";
    NIXL_DESCRIPTORS = "vllm:nixl_num_descriptors",
        "Histogram of number of descriptors per NIXL KV Cache transfers.";
    NIXL_FAILED_TRANSFERS = "vllm:nixl_num_failed_transfers_total",
        "Number of failed NIXL KV Cache transfers.";
    NIXL_FAILED_NOTIFICATIONS = "vllm:nixl_num_failed_notifications_total",
        "Number of failed NIXL KV Cache notifications.";
    NIXL_EXPIRED = "vllm:nixl_num_kv_expired_reqs_total",
        "Number of requests that had their KV expire. NOTE: This metric is tracked on the P instance.";
    NIXL_LATE_NOTIFICATIONS = "vllm:nixl_num_notifications_after_expiry_total",
        "Number of NIXL KV Cache notifications that arrived after the KV had expired.";

    OFFLOAD_STORE_BYTES = "vllm:kv_offload_store_bytes_total",
        "Bytes of KV cache copied from the GPU to CPU memory.";
    OFFLOAD_STORE_TIME = "vllm:kv_offload_store_time_total",
        "Time of KV cache copies from the GPU to CPU memory, in seconds.";
    OFFLOAD_STORE_SIZE = "vllm:kv_offload_store_size",
        "Histogram of the size of KV cache copies from the GPU to CPU memory, in bytes.";
    OFFLOAD_LOAD_BYTES = "vllm:kv_offload_load_bytes_total",
        "Bytes of KV cache copied from CPU memory to the GPU.";
    OFFLOAD_LOAD_TIME = "vllm:kv_offload_load_time_total",
        "Time of KV cache copies from CPU memory to the GPU, in seconds.";
    OFFLOAD_LOAD_SIZE = "vllm:kv_offload_load_size",
        "Histogram of the size of KV cache copies from CPU memory to the GPU, in bytes.";
    OFFLOAD_REFUSED = "vllm:kv_offload_allocation_failure_total",
        "Number of times that CPU memory for the chunks of a request could not be allocated.";
    OFFLOAD_DELAY = "vllm:kv_offload_lookup_async_delay_seconds",
        "Histogram of the time from the first deferred lookup of a request to its result, in \
         seconds.";
    OFFLOAD_ALLOCATED = "vllm:kv_offload_cpu_allocation_size",
        "Histogram of the number of chunks allocated together in CPU memory.";
    OFFLOAD_USAGE = "vllm:kv_offload_cpu_cache_usage_perc",
        "Fraction of the chunks in CPU memory that copies in progress use, 0 to 1.";
    OFFLOAD_WRITE_USAGE = "vllm:kv_offload_cpu_cache_write_usage_perc",
        "Fraction of the chunks in CPU memory that are being written, 0 to 1.";
    OFFLOAD_READ_USAGE = "vllm:kv_offload_cpu_cache_read_usage_perc",
        "Fraction of the chunks in CPU memory that are being read, 0 to 1.";
    OFFLOAD_TOTAL_BYTES = "vllm:kv_offload_total_bytes_total",
        "Bytes of KV cache copied between GPU and CPU memory, by direction. DEPRECATED: Use \
         vllm:kv_offload_store_bytes and vllm:kv_offload_load_bytes instead.";
    OFFLOAD_TOTAL_TIME = "vllm:kv_offload_total_time_total",
        "Time of KV cache copies between GPU and CPU memory, in seconds, by direction. \
         DEPRECATED: Use vllm:kv_offload_store_time and vllm:kv_offload_load_time instead.";
    OFFLOAD_SIZE = "vllm:kv_offload_size",
        "Histogram of the size of KV cache copies between GPU and CPU memory, in bytes, by \
         direction. DEPRECATED: Use vllm:kv_offload_store_size and vllm:kv_offload_load_size \
         instead.";
    OFFLOAD_CONFIG = "vllm:kv_offload_config_info",
        "Information about the KV cache in CPU memory.";
    SIMPLE_LOAD_BLOCKS = "vllm:simple_kv_offload_load_blocks_total",
        "Number of KV cache blocks loaded from CPU memory.";
    SIMPLE_USED = "vllm:simple_kv_offload_used_blocks",
        "Number of KV cache blocks in CPU memory.";
    SIMPLE_PENDING = "vllm:simple_kv_offload_pending_store_blocks",
        "Number of KV cache blocks that are being copied to CPU memory.";
    SIMPLE_INFO = "vllm:simple_kv_offload_info",
        "Information about the KV cache in CPU memory.";

    RUNNING = "vllm:num_requests_running",
        "Number of requests in model execution batches.";
    WAITING = "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.";
    WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.";
    KV_FETCH = "vllm:num_requests_kv_fetch_by_stage",
        "Number of waiting requests by async KV load stage. Stage labels: 'waiting_to_start' = needs an async KV load that has not started; 'in_progress' = load started and not yet reported finished; 'completed_waiting' = load finished, request not running yet.";
    SLEEP_STATE = "vllm:engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.";
    KV_USAGE = "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.";
    PREFIX_QUERIES = "vllm:prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.";
    PREFIX_HITS = "vllm:prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.";
    EXTERNAL_QUERIES = "vllm:external_prefix_cache_queries_total",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.";
    EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.";
    MM_QUERIES = "vllm:mm_cache_queries_total",
        "Multi-modal cache queries, in terms of number of queried items.";
    MM_HITS = "vllm:mm_cache_hits_total",
        "Multi-modal cache hits, in terms of number of cached items.";
    PREEMPTIONS = "vllm:num_preemptions_total",
        "Cumulative number of preemption from the engine.";
    PROMPT_TOKENS = "vllm:prompt_tokens_total",
        "Number of prefill tokens processed.";
    PROMPT_BY_SOURCE = "vllm:prompt_tokens_by_source_total",
        "Number of prompt tokens by source.";
    PROMPT_CACHED = "vllm:prompt_tokens_cached_total",
        "Number of cached prompt tokens (local + external).";
    CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.";
    GENERATION_TOKENS = "vllm:generation_tokens_total",
        "Number of generation tokens processed.";
    SUCCESS = "vllm:request_success_total",
        "Count of successfully processed requests.";
    REJECTIONS = "vllm:admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.";

    REQUEST_PROMPT_TOKENS = "vllm:request_prompt_tokens",
        "Number of prefill tokens processed.";
    REQUEST_GENERATION_TOKENS = "vllm:request_generation_tokens",
        "Number of generation tokens processed.";
    ITERATION_TOKENS = "vllm:iteration_tokens_total",
        "Histogram of number of tokens per engine_step.";
    MAX_GENERATION_TOKENS = "vllm:request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.";
    PARAMS_N = "vllm:request_params_n",
        "Histogram of the n request parameter.";
    PARAMS_MAX_TOKENS = "vllm:request_params_max_tokens",
        "Histogram of the max_tokens request parameter.";
    TTFT = "vllm:time_to_first_token_seconds",
        "Histogram of time to first token in seconds.";
    ITL = "vllm:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.";
    REQUEST_TPOT = "vllm:request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.";
    E2E = "vllm:e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.";
    QUEUE_TIME = "vllm:request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.";
    INFERENCE_TIME = "vllm:request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.";
    PREFILL_TIME = "vllm:request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.";
    DECODE_TIME = "vllm:request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.";
    REQUEST_PREEMPTIONS = "vllm:request_num_preemptions",
        "Histogram of the number of times a request was preempted.";
    PREFILL_COMPUTED = "vllm:request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).";
    BLOCK_LIFETIME = "vllm:kv_block_lifetime_seconds",
        "Histogram of KV cache block lifetime from allocation to eviction. Sampled metrics (controlled by --kv-cache-metrics-sample).";
    BLOCK_IDLE = "vllm:kv_block_idle_before_evict_seconds",
        "Histogram of idle time before KV cache block eviction. Sampled metrics (controlled by --kv-cache-metrics-sample).";
    BLOCK_REUSE_GAP = "vllm:kv_block_reuse_gap_seconds",
        "Histogram of time gaps between consecutive KV cache block accesses. Only the most recent accesses are recorded (ring buffer). Sampled metrics (controlled by --kv-cache-metrics-sample).";

    LORA_INFO = "vllm:lora_requests_info",
        "Running stats on lora requests.";
    CACHE_CONFIG = "vllm:cache_config_info",
        "Information of the LLMEngine CacheConfig";
    TOOL_PARSER = "vllm:tool_call_parser_invocations_total",
        "Total number of ToolParser invocations. Non-streaming increments once per choice; streaming increments once per delta.";
    SLEEP_DURATION = "vllm:sleep_mode_operation_duration_seconds",
        "Duration of one sleep-mode operation.";
    SLEEP_IN_FLIGHT = "vllm:sleep_mode_operations_in_flight",
        "Sleep-mode operations currently awaited.";
    WEIGHTS_DURATION = "vllm:rl_weight_update_operation_duration_seconds",
        "Duration of one logical frontend weight operation.";
    WEIGHTS_IN_FLIGHT = "vllm:rl_weight_update_operations_in_flight",
        "Logical frontend weight operations currently awaited.";

    SOCKETS_ACTIVE = "vllm:websocket_connections_active",
        "Number of currently active WebSocket connections.";
    SOCKETS_TOTAL = "vllm:websocket_connections_total",
        "Total number of WebSocket connections.";
    SOCKET_DURATION = "vllm:websocket_connection_duration_seconds",
        "Duration of WebSocket connections in seconds.";

    HTTP_REQUESTS = "http_requests_total",
        "Total number of requests by method, status and handler.";
    HTTP_REQUEST_SIZE = "http_request_size_bytes",
        "Content length of incoming requests by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. ";
    HTTP_RESPONSE_SIZE = "http_response_size_bytes",
        "Content length of outgoing responses by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. ";
    HTTP_DURATION_HIGHR = "http_request_duration_highr_seconds",
        "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ";
    HTTP_DURATION = "http_request_duration_seconds",
        "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ";

    /// Name of the KV cache usage in vLLM up to 0.9, llm-d-inference-sim v0.6 and production-stack.
    OLD_GPU_CACHE_USAGE = "vllm:gpu_cache_usage_perc",
        "GPU KV-cache usage. 1 means 100 percent usage. DEPRECATED: Use vllm:kv_cache_usage_perc instead.";
    /// Name of the inter-token latency in vLLM up to 0.10 and llm-d-inference-sim.
    OLD_TPOT = "vllm:time_per_output_token_seconds",
        "Histogram of time per output token in seconds. DEPRECATED: Use vllm:inter_token_latency_seconds instead.";
    OLD_GPU_PREFIX_QUERIES = "vllm:gpu_prefix_cache_queries_total",
        "GPU prefix cache queries, in terms of number of queried tokens. DEPRECATED: Use vllm:prefix_cache_queries instead.";
    OLD_GPU_PREFIX_HITS = "vllm:gpu_prefix_cache_hits_total",
        "GPU prefix cache hits, in terms of number of cached tokens. DEPRECATED: Use vllm:prefix_cache_hits instead.";
    OLD_GPU_PREFIX_HIT_RATE = "vllm:gpu_prefix_cache_hit_rate",
        "GPU prefix cache block hit rate. DEPRECATED: Use vllm:prefix_cache_queries and vllm:prefix_cache_hits instead.";
    OLD_PREFIX_QUERIES = "vllm:prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.";
    OLD_PREFIX_HITS = "vllm:prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.";
    OLD_MAX_GENERATION_TOKENS = "vllm:max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.";
}
