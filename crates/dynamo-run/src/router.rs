use serde_json::Value;

use vllm_sim_replay::{KvAwareRouterConfig, RouterQueuePolicy};

use super::error::DynamoRunError;
use super::json_args::DynamoJsonArgs;

/// Parses Dynamo's router configuration, with the names of `KvRouterConfig` (dynamo-kv-router
/// 1.6.1).
///
/// # Errors
/// Returns [`DynamoRunError`] with the name of the key.
pub fn parse_kv_router_config(value: &Value) -> Result<KvAwareRouterConfig, DynamoRunError> {
    let mut args = DynamoJsonArgs::new("router_config", value)?;
    let defaults = KvAwareRouterConfig::default();
    // Former name of the credit.
    let weight = args.take_optional_number("overlap_score_weight")?;
    let policies = [RouterQueuePolicy::Fcfs, RouterQueuePolicy::Lcfs, RouterQueuePolicy::Wspt];
    let policy = args.take_choice_index("router_queue_policy", &["fcfs", "lcfs", "wspt"])?;
    let config = KvAwareRouterConfig {
        overlap_score_credit: args
            .take_optional_number("overlap_score_credit")?
            .or(weight)
            .unwrap_or(defaults.overlap_score_credit),
        overlap_score_credit_decay: args
            .take_number("overlap_score_credit_decay", defaults.overlap_score_credit_decay)?,
        prefill_load_scale: args.take_number("prefill_load_scale", defaults.prefill_load_scale)?,
        decode_active_request_weight: args
            .take_number("decode_active_request_weight", defaults.decode_active_request_weight)?,
        temperature: args.take_number("router_temperature", defaults.temperature)?,
        queue_threshold: args.take_optional_number("router_queue_threshold")?,
        policy: policies[policy],
        track_prefill_tokens: args
            .take_optional_bool("router_track_prefill_tokens")?
            .unwrap_or(true),
        track_active_blocks: args.take_optional_bool("router_track_active_blocks")?.unwrap_or(true),
        assume_kv_reuse: args.take_optional_bool("router_assume_kv_reuse")?.unwrap_or(true),
        event_lag: defaults.event_lag,
    };
    // Transport and state of KV events, which make no difference in one process.
    args.ignore_fields(&[
        "use_kv_events",
        "router_replica_sync",
        "router_snapshot_threshold",
        "router_reset_states",
        "router_track_output_blocks",
        "router_ttl_secs",
        "router_max_tree_size",
        "router_prune_target_ratio",
        "router_event_threads",
        "host_cache_hit_weight",
        "disk_cache_hit_weight",
        "shared_cache_multiplier",
        "shared_cache_type",
        "skip_initial_worker_wait",
        "durable_kv_events",
    ]);
    args.reject_unknown_fields()?;
    Ok(config)
}
