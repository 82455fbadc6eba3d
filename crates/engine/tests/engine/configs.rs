//! Generates random settings of the schedulers.

use std::time::Duration;

use proptest::prelude::*;
use vllm_sim_engine::TokenDelays;
use vllm_sim_engine::kv::{BlockPoolConfig, DynamoMockerHostCacheConfig};
use vllm_sim_engine::latency::SimulationSpeedFactors;
use vllm_sim_engine::sched::dynamo_mocker::{DynamoMockerConfig, DynamoMockerRole};
use vllm_sim_engine::sched::pool::SlotSchedulerConfig;
use vllm_sim_engine::sched::sglang::{SglangConfig, SglangSchedulePolicy};
use vllm_sim_engine::sched::vllm::{
    ChunkedPrefillConfig, LoraConfig, PreemptionVictim, PrefillTransferConfig,
    SchedulerReportingConfig, SchedulingPolicy, SpeculativeDecodingConfig, VllmSchedulerConfig,
};

use crate::host_tier::{any_host_cache_config, config_for_layer_groups};
use crate::invariants::any_latency_model;
use crate::media;
use crate::prefix_cache_events::any_groups;

pub(crate) fn sglang() -> impl Strategy<Value = SglangConfig> {
    let sizes = (6..200u32, 1..9u32, 1..12u32, 1..12u32);
    let rest = (any::<bool>(), any::<bool>(), 0..3u32, 0.0..2.0, 1..40u32);
    (any_latency_model(), sizes, rest).prop_map(|(latency, sizes, rest)| {
        let (num_pages, page_size, max_num_seqs, chunk_pages) = sizes;
        let (caching, lpm, interval, conservativeness, clip) = rest;
        SglangConfig {
            latency,
            num_pages,
            page_size,
            max_num_seqs,
            enable_prefix_caching: caching,
            schedule_policy: if lpm {
                SglangSchedulePolicy::Lpm
            } else {
                SglangSchedulePolicy::Fifo
            },
            chunked_prefill_size: chunk_pages * page_size,
            clip_max_new_tokens: clip,
            schedule_conservativeness: conservativeness,
            prefill_decode_interval: interval,
            kv_events: true,
            ..SglangConfig::default()
        }
    })
}

pub(crate) fn pool() -> impl Strategy<Value = SlotSchedulerConfig> {
    let delays = (0..6u64, 0..3u64, 0..2u64, 1..4u32);
    let sizes = (1..12usize, 6..60u32, 1..20u32);
    let loras = (proptest::option::of(1..3usize), 0..4u64);
    (delays, sizes, loras).prop_map(|(delays, sizes, loras)| {
        let (ttft, itl, std_dev, factor) = delays;
        let (slots, num_blocks, block_size) = sizes;
        let ms = Duration::from_millis;
        SlotSchedulerConfig {
            slots,
            queue: None,
            delays: TokenDelays {
                ttft: (ms(ttft), ms(std_dev)),
                itl: (ms(itl), Duration::ZERO),
                factor_under_load: f64::from(factor),
                ..TokenDelays::default()
            },
            seed: 5,
            max_loras: loras.0,
            lora_load: ms(loras.1),
            kv: Some(BlockPoolConfig {
                num_blocks,
                block_size,
                prefix_caching: true,
                events: true,
            }),
            caches_whole_prompts: block_size % 2 == 0,
            prompt_blocks_only: block_size % 3 == 0,
            delays_at_start: block_size % 2 == 0,
            lease: Some(ms(20)),
        }
    })
}

/// Maximum length of a sequence in the invariants, in tokens; longer ones would be cut.
const LONGEST: u32 = 160;

/// Only whole engines: the other roles need a caller that moves prompts.
pub(crate) fn mocker() -> impl Strategy<Value = DynamoMockerConfig> {
    let sizes = (6..60u32, 1..20u32, 1..12u32, 8..200u32, 1..5u32);
    let switches = proptest::array::uniform4(any::<bool>());
    let accept = proptest::option::weighted(0.3, proptest::collection::vec(0.0..=1.0, 1..4));
    let rest = (prop_oneof![Just(u32::MAX), LONGEST..2 * LONGEST], any::<u64>());
    let rates = (1..4u32, 1..3u32, proptest::option::of(0..9usize));
    (any_latency_model(), sizes, switches, accept, rest, rates).prop_map(
        |(latency, sizes, switches, accept, (max_model_len, seed), rates)| {
            let (num_gpu_blocks, block_size, max_num_seqs, max_num_batched_tokens, interval) =
                sizes;
            let [chunked, caching, first, no_evict] = switches;
            let accept = accept.filter(|_| !no_evict).unwrap_or_default();
            let whole = LONGEST.div_ceil(block_size);
            let least = match (no_evict, first || !accept.is_empty()) {
                // Outputs end with the existing blocks.
                (true, _) => whole,
                // Two sequences that lack blocks may preempt each other hundreds of times per
                // token.
                (false, true) => whole * max_num_seqs,
                (false, false) => 0,
            };
            let num_gpu_blocks = num_gpu_blocks.max(least);
            let (all, decode, max_waiting) = rates;
            let has_tier = accept.is_empty() && !no_evict;
            let tier = DynamoMockerHostCacheConfig {
                blocks: 1 + num_gpu_blocks * block_size % 50,
                latency: Duration::from_millis(u64::from(block_size % 3)),
                block_ns: (f64::from(num_gpu_blocks) * 2e4, f64::from(block_size) * 1e4),
            };
            // Without a default, so that a new setting does not compile until its values are
            // decided.
            DynamoMockerConfig {
                latency,
                speed: SimulationSpeedFactors { all: f64::from(all), decode: f64::from(decode) },
                num_gpu_blocks,
                block_size,
                max_num_seqs,
                max_num_batched_tokens,
                max_model_len,
                enable_chunked_prefill: chunked,
                enable_prefix_caching: caching,
                prefill_schedule_interval: interval,
                victim: if first { PreemptionVictim::First } else { PreemptionVictim::Last },
                no_evict,
                accept,
                role: DynamoMockerRole::Whole,
                tier: has_tier.then_some(tier),
                max_waiting,
                kv_events: true,
                // The invariants need an event per token.
                run_lengths: false,
                log_admissions: true,
                seed,
            }
        },
    )
}

pub(crate) fn vllm() -> impl Strategy<Value = VllmSchedulerConfig> {
    let sizes = (6..60u32, 1..20u32, 1..12u32, 8..200u32);
    let switches = proptest::array::uniform8(any::<bool>());
    let rest = (
        prop_oneof![Just(0u32), 5..40u32],
        prop_oneof![3 => Just(0.0), 1 => 0.0..0.5],
        proptest::option::weighted(0.3, proptest::collection::vec(0.0..=1.0, 1..4)),
        (0..2u32, 0..4u32, 0..3u64),
        prop_oneof![Just(u32::MAX), LONGEST..2 * LONGEST],
    );
    let times = (1..4u32, 1..3u32, 0..2u64);
    let more = (proptest::option::weighted(0.2, 0..9usize), any::<u64>());
    let memory = (any_host_cache_config(), any_groups(), media::any_encoder());
    let all = (any_latency_model(), sizes, switches, rest, times, more, memory);
    all.prop_map(|(latency, sizes, switches, rest, times, more, memory)| {
        let (num_gpu_blocks, block_size, max_num_seqs, max_num_batched_tokens) = sizes;
        let [r#async, chunked, caching, priority, first, reserve, whole, drops] = switches;
        let (threshold, watermark, drafts, loras, max_model_len) = rest;
        let (all, decode, weights_ms) = times;
        let (host_tier, layer_groups, encoder) = memory;
        // Preempting the oldest is only possible without layer groups.
        let layer_groups = layer_groups.filter(|_| !first);
        // Without a default, so that a new setting does not compile until its values are decided.
        VllmSchedulerConfig {
            latency,
            speed: SimulationSpeedFactors { all: f64::from(all), decode: f64::from(decode) },
            num_gpu_blocks,
            block_size,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            prefill: ChunkedPrefillConfig {
                max_num_scheduled_tokens: whole.then_some(max_num_batched_tokens.div_ceil(2)),
                enable_chunked_prefill: chunked,
                long_prefill_token_threshold: threshold,
                long_prefill_token_threshold_adaptive: first,
                prefill_schedule_interval: 1 + threshold % 4,
                reserve_full_prompt: reserve,
            },
            enable_prefix_caching: caching,
            layer_groups,
            policy: if priority { SchedulingPolicy::Priority } else { SchedulingPolicy::Fcfs },
            async_scheduling: r#async,
            victim: if first { PreemptionVictim::First } else { PreemptionVictim::Last },
            watermark,
            speculation: drafts.map(|accept| SpeculativeDecodingConfig {
                lookahead_slots: if priority { accept.len() as u32 } else { 0 },
                input_slots: u32::from(reserve),
                accept,
                drops_last_block: drops,
            }),
            // Encoding takes no time here; a roofline would only add to the step time.
            drafting: None,
            weights_from_host: Duration::from_millis(weights_ms),
            loras: LoraConfig {
                max_loras: loras.0,
                max_cpu_loras: loras.1,
                load_time: Duration::from_millis(loras.2),
            },
            encoder: encoder.map(Box::new),
            max_waiting: more.0,
            transfer: PrefillTransferConfig {
                fetch: (Duration::from_millis(3), Duration::from_micros(50)),
                fetch_whole_prompt: whole,
                lease: Some(Duration::from_millis(20)),
                is_producer: chunked,
                is_consumer: caching,
            },
            // `lock_step` tests ranks together.
            lock_step: false,
            host_tier: config_for_layer_groups(host_tier, layer_groups),
            reporting: SchedulerReportingConfig {
                kv_events: true,
                // The invariants need an event per token; `runs` compares both.
                run_lengths: false,
                log_admissions: true,
                step_log: false,
            },
            seed: more.1,
        }
    })
}
