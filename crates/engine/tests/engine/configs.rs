//! Random settings of the schedulers `sglang` and `pool`.

use std::time::Duration;

use proptest::prelude::*;
use vllm_sim_engine::Delays;
use vllm_sim_engine::kv::{KvConfig, MockerTierConfig};
use vllm_sim_engine::latency::Speed;
use vllm_sim_engine::sched::mocker::{MockerConfig, MockerRole};
use vllm_sim_engine::sched::pool::PoolConfig;
use vllm_sim_engine::sched::sglang::{SchedulePolicy, SglangConfig};
use vllm_sim_engine::sched::vllm::Victim;

use crate::invariants::latency;

pub(crate) fn sglang() -> impl Strategy<Value = SglangConfig> {
    let sizes = (6..200u32, 1..9u32, 1..12u32, 1..12u32);
    let rest = (any::<bool>(), any::<bool>(), 0..3u32, 0.0..2.0, 1..40u32);
    (latency(), sizes, rest).prop_map(|(latency, sizes, rest)| {
        let (num_pages, page_size, max_num_seqs, chunk_pages) = sizes;
        let (caching, lpm, interval, conservativeness, clip) = rest;
        SglangConfig {
            latency,
            num_pages,
            page_size,
            max_num_seqs,
            enable_prefix_caching: caching,
            schedule_policy: if lpm {
                SchedulePolicy::Lpm
            } else {
                SchedulePolicy::Fifo
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

pub(crate) fn pool() -> impl Strategy<Value = PoolConfig> {
    let delays = (0..6u64, 0..3u64, 0..2u64, 1..4u32);
    let sizes = (1..12usize, 6..60u32, 1..20u32);
    let loras = (proptest::option::of(1..3usize), 0..4u64);
    (delays, sizes, loras).prop_map(|(delays, sizes, loras)| {
        let (ttft, itl, std_dev, factor) = delays;
        let (slots, num_blocks, block_size) = sizes;
        let ms = Duration::from_millis;
        PoolConfig {
            slots,
            queue: None,
            delays: Delays {
                ttft: (ms(ttft), ms(std_dev)),
                itl: (ms(itl), Duration::ZERO),
                factor_under_load: f64::from(factor),
                ..Delays::default()
            },
            seed: 5,
            max_loras: loras.0,
            lora_load: ms(loras.1),
            kv: Some(KvConfig {
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

/// Tokens that a sequence of the invariants may have: longer ones would be cut.
const LONGEST: u32 = 160;

/// Of whole engines: with prompts of others somebody above would have to move them.
pub(crate) fn mocker() -> impl Strategy<Value = MockerConfig> {
    let sizes = (6..60u32, 1..20u32, 1..12u32, 8..200u32, 1..5u32);
    let switches = proptest::array::uniform4(any::<bool>());
    let accept = proptest::option::weighted(0.3, proptest::collection::vec(0.0..=1.0, 1..4));
    let rest = (
        prop_oneof![Just(u32::MAX), LONGEST..2 * LONGEST],
        any::<u64>(),
    );
    let rates = (1..4u32, 1..3u32, proptest::option::of(0..9usize));
    (latency(), sizes, switches, accept, rest, rates).prop_map(
        |(latency, sizes, switches, accept, (max_model_len, seed), rates)| {
            let (num_gpu_blocks, block_size, max_num_seqs, max_num_batched_tokens, interval) =
                sizes;
            let [chunked, caching, first, no_evict] = switches;
            // Where nobody is preempted outputs end with the blocks there are, and where the oldest is,
            // two that lack blocks preempt each other hundreds of times for each token.
            let whole = LONGEST.div_ceil(block_size);
            let num_gpu_blocks = match (no_evict, first) {
                (true, _) => num_gpu_blocks.max(whole),
                (false, true) => num_gpu_blocks.max(4 * whole),
                (false, false) => num_gpu_blocks,
            };
            let (all, decode, max_waiting) = rates;
            let accept = accept.filter(|_| !no_evict).unwrap_or_default();
            let has_tier = accept.is_empty() && !no_evict;
            let tier = MockerTierConfig {
                blocks: 1 + num_gpu_blocks * block_size % 50,
                latency: Duration::from_millis(u64::from(block_size % 3)),
                block_ns: (f64::from(num_gpu_blocks) * 2e4, f64::from(block_size) * 1e4),
            };
            // No default: a new setting does not compile until its values are decided.
            MockerConfig {
                latency,
                speed: Speed {
                    all: f64::from(all),
                    decode: f64::from(decode),
                },
                num_gpu_blocks,
                block_size,
                max_num_seqs,
                max_num_batched_tokens,
                max_model_len,
                enable_chunked_prefill: chunked,
                enable_prefix_caching: caching,
                prefill_schedule_interval: interval,
                victim: if first { Victim::First } else { Victim::Last },
                no_evict,
                accept,
                role: MockerRole::Whole,
                tier: has_tier.then_some(tier),
                max_waiting,
                kv_events: true,
                // Invariants are told of each token.
                run_lengths: false,
                log_admissions: true,
                seed,
            }
        },
    )
}
