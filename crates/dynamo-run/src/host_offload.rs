//! Reads the arguments for a worker's KV cache tier in host memory (`native_host_offload`).
//!
//! **Source:** aisimulate-core 0.13.0 `src/engine/config.rs`,
//! `src/engine/host_offload/registry.rs`.

use std::time::Duration;

use vllm_sim_engine::kv::DynamoMockerHostCacheConfig;
use vllm_sim_engine::sched::SchedulerSpec;

use super::error::DynamoRunError;
use super::json_args::{DynamoJsonArgs, invalid_field_error};

const HOST_OFFLOAD_KEY: &str = "extra_engine_args.engine.native_host_offload";

/// Default bandwidth between GPU and host memory, in GB/s (10^9 bytes).
const DEFAULT_HOST_LINK_GBPS: f64 = 32.0;

pub(super) struct HostKvOffloadArgs {
    blocks: u32,
    /// Bandwidth from the GPU to host memory and bandwidth from host memory to the GPU, in GB/s.
    gbps: (f64, f64),
    latency: Duration,
    token_bytes: u32,
}

pub(super) fn has_host_kv_offload(engine: &SchedulerSpec) -> bool {
    matches!(engine, SchedulerSpec::Mocker(config) if config.tier.is_some())
}

/// Removes the arguments of the host-memory KV cache from the engine's arguments and parses them;
/// returns `None` if there are none.
pub(super) fn take_host_kv_offload_args(
    engine: &mut DynamoJsonArgs,
) -> Result<Option<HostKvOffloadArgs>, DynamoRunError> {
    let token_bytes = engine.take_optional_count("kv_cache_bytes_per_token")?;
    let Some(value) = engine.take_value("native_host_offload") else {
        return Ok(None);
    };
    let mut args = DynamoJsonArgs::new(HOST_OFFLOAD_KEY, &value)?;
    args.take_choice_index("scope", &["dp_rank_local"])?;
    let blocks = args.take_optional_count("num_host_blocks")?.filter(|blocks| *blocks > 0);
    let blocks =
        blocks.ok_or_else(|| args.invalid_field("num_host_blocks", "must be at least 1"))?;
    let latency = args.take_milliseconds("latency_to_first_byte_ms")?;
    let to_host = args.take_number("d2h_bandwidth_gbps", DEFAULT_HOST_LINK_GBPS)?;
    let to_gpu = args.take_number("h2d_bandwidth_gbps", DEFAULT_HOST_LINK_GBPS)?;
    // These values belong to a pool that several workers share.
    args.ignore_fields(&["shared_d2h_bandwidth_gbps", "shared_h2d_bandwidth_gbps"]);
    args.reject_unknown_fields()?;
    let token_bytes = token_bytes.filter(|bytes| *bytes > 0);
    let token_bytes = token_bytes
        .ok_or_else(|| invalid_field_error(HOST_OFFLOAD_KEY, "needs kv_cache_bytes_per_token"))?;
    Ok(Some(HostKvOffloadArgs { blocks, gbps: (to_host, to_gpu), latency, token_bytes }))
}

impl HostKvOffloadArgs {
    /// Adds the host-memory KV cache to an engine's configuration; `is_whole` is true in an
    /// aggregated deployment.
    pub(super) fn add_host_kv_tier(
        self,
        engine: &mut SchedulerSpec,
        (ranks, is_whole): (u32, bool),
    ) -> Result<(), DynamoRunError> {
        let config = match engine {
            SchedulerSpec::Mocker(config) if !config.no_evict => config,
            _ => return Err(invalid_field_error(HOST_OFFLOAD_KEY, "needs backend vllm")),
        };
        if !config.enable_prefix_caching {
            return Err(invalid_field_error(HOST_OFFLOAD_KEY, "needs enable_prefix_caching"));
        }
        if !config.accept.is_empty() {
            return Err(invalid_field_error(HOST_OFFLOAD_KEY, "cannot be used with aic_nextn"));
        }
        if ranks > 1 || !is_whole {
            let problem = "is modelled for dp_size 1 and worker_type aggregated only";
            return Err(invalid_field_error(HOST_OFFLOAD_KEY, problem));
        }
        let bytes = f64::from(self.token_bytes) * f64::from(config.block_size);
        // Gigabytes per second are bytes per nanosecond; a rate of 0 means no transfer time.
        let takes = |gbps: f64| if gbps > 0.0 { bytes / gbps } else { 0.0 };
        config.tier = Some(DynamoMockerHostCacheConfig {
            blocks: self.blocks,
            latency: self.latency,
            block_ns: (takes(self.gbps.0), takes(self.gbps.1)),
        });
        Ok(())
    }
}
