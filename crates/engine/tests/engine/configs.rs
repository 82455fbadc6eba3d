//! Random settings of the schedulers `sglang` and `pool`.

use std::time::Duration;

use proptest::prelude::*;
use vllm_sim_engine::Delays;
use vllm_sim_engine::kv::KvConfig;
use vllm_sim_engine::sched::pool::PoolConfig;
use vllm_sim_engine::sched::sglang::{SchedulePolicy, SglangConfig};

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
