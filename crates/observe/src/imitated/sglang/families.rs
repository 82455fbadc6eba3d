//! List of SGLang's metric families, in the order of its page.
//!
//! **Source:** SGLang 0.5.23 `srt/observability/metrics_collector.py`.

use prometheus::proto::MetricType::{self, COUNTER, GAUGE, HISTOGRAM};

use crate::metrics::families::families;
use crate::metrics::family::{Buckets, Family, family};

const TIME_TO_FIRST_TOKEN: Buckets = Buckets::Bounds(&[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0,
]);
const E2E_LATENCY: Buckets = Buckets::Bounds(&[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0, 600.0, 1200.0, 1800.0, 2400.0,
]);
const INTER_TOKEN_LATENCY: Buckets = Buckets::Bounds(&[
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080, 0.1,
    0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
]);
const QUEUE_TIME: Buckets = Buckets::Bounds(&[
    0.0, 0.001, 0.005, 0.010, 0.050, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0,
    30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0,
    800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
]);
const TOKENS: Buckets = Buckets::Bounds(&[
    100.0, 300.0, 500.0, 700.0, 1e3, 1500.0, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3, 9e3, 1e4, 12500.0,
    15e3, 17500.0, 2e4, 22500.0, 25e3, 27500.0, 3e4, 35e3, 4e4, 6e4, 8e4, 1e5, 2e5, 3e5, 4e5, 6e5,
    8e5, 1e6, 11e5,
]);

families! {
    Engine, |_| true => {
        Running: scheduler(GAUGE, "sglang:num_running_reqs") {} "The number of running requests.";
        Queued: scheduler(GAUGE, "sglang:num_queue_reqs") {} "The number of requests in the waiting queue.";
        Throughput: scheduler(GAUGE, "sglang:gen_throughput") {} "The generation throughput (token/s).";
        HitRate: scheduler(GAUGE, "sglang:cache_hit_rate") {} "The prefix cache hit rate.";
        TokenUsage: scheduler(GAUGE, "sglang:token_usage") {} "The token usage.";
        FullTokenUsage: scheduler(GAUGE, "sglang:full_token_usage") {} "The token usage for full attention layers.";
        UsedTokens: scheduler(GAUGE, "sglang:num_used_tokens") {} "The number of used tokens.";
        KvUsedTokens: scheduler(GAUGE, "sglang:kv_used_tokens") {} "Number of KV cache tokens that running requests hold.";
        Retractions: scheduler(COUNTER, "sglang:num_retracted_requests_total") {} "Total number of retracted requests.";
        QueueTime: scheduler(HISTOGRAM, "sglang:queue_time_seconds") { buckets: QUEUE_TIME } "Histogram of queueing time in seconds.";
        MaxTokens: scheduler(GAUGE, "sglang:max_total_num_tokens") {} "Maximum total number of tokens in the KV cache pool.";
        PageSize: scheduler(GAUGE, "sglang:page_size") {} "KV cache page size in tokens.";
        Pages: scheduler(GAUGE, "sglang:num_pages") {} "Number of KV cache pages.";
        ContextLength: scheduler(GAUGE, "sglang:context_len") {} "Maximum context length.";
        PromptTokens: streamed(COUNTER, "sglang:prompt_tokens_total") {} "Number of prefill tokens processed.";
        GenerationTokens: streamed(COUNTER, "sglang:generation_tokens_total") {} "Number of generation tokens processed.";
        PromptLength: tokenizer(HISTOGRAM, "sglang:prompt_tokens_histogram") { buckets: TOKENS } "Histogram of prompt token length.";
        UncachedLength: tokenizer(HISTOGRAM, "sglang:uncached_prompt_tokens_histogram") { buckets: TOKENS } "Histogram of uncached (compute) prompt token length.";
        GenerationLength: tokenizer(HISTOGRAM, "sglang:generation_tokens_histogram") { buckets: TOKENS } "Histogram of generation token length.";
        CachedTokens: tokenizer(COUNTER, "sglang:cached_tokens_total") { labels: &["cache_source", "engine_type", "model_name"], values: &[&["device"]] } "Number of cached prompt tokens by source (device/host/storage).";
        Requests: streamed(COUNTER, "sglang:num_requests_total") {} "Number of requests processed.";
        StructuredRequests: tokenizer(COUNTER, "sglang:num_so_requests_total") {} "Number of structured output requests processed.";
        AbortedRequests: tokenizer(COUNTER, "sglang:num_aborted_requests_total") {} "Number of requests aborted.";
        Ttft: streamed(HISTOGRAM, "sglang:time_to_first_token_seconds") { buckets: TIME_TO_FIRST_TOKEN } "Histogram of time to first token in seconds.";
        Itl: tokenizer(HISTOGRAM, "sglang:inter_token_latency_seconds") { buckets: INTER_TOKEN_LATENCY } "Histogram of inter-token latency in seconds.";
        Tpot: streamed(HISTOGRAM, "sglang:request_time_per_output_token_seconds") { buckets: INTER_TOKEN_LATENCY } "Per-request TPOT in seconds: (finished_time - first_token_time) / (completion_tokens - 1).";
        E2e: streamed(HISTOGRAM, "sglang:e2e_request_latency_seconds") { buckets: E2E_LATENCY } "Histogram of End-to-end request latency in seconds";
    }
}

/// Returns a metric family that SGLang's scheduler owns.
const fn scheduler(kind: MetricType, name: &'static str, help: &'static str) -> Family {
    const LABELS: &[&str] =
        &["dp_rank", "engine_type", "model_name", "moe_ep_rank", "pp_rank", "tp_rank"];
    sglang(family(kind, name, LABELS, Buckets::Bounds(&[]), help))
}

/// Returns a metric family that SGLang's tokenizer manager owns.
const fn tokenizer(kind: MetricType, name: &'static str, help: &'static str) -> Family {
    sglang(family(kind, name, &["engine_type", "model_name"], Buckets::Bounds(&[]), help))
}

/// Returns a metric family of SGLang's tokenizer manager with series for streamed and for other
/// requests.
const fn streamed(kind: MetricType, name: &'static str, help: &'static str) -> Family {
    const LABELS: &[&str] = &["engine_type", "is_streaming", "model_name"];
    Family { labels: LABELS, values: &[&["false", "true"]], ..tokenizer(kind, name, help) }
}

/// Returns a metric family as SGLang exposes it: series of counters and histograms are hidden until
/// they are first used.
const fn sglang(family: Family) -> Family {
    match family.kind {
        MetricType::GAUGE => family,
        _ => Family { hidden_from: 0, absent_when_empty: true, ..family },
    }
}
