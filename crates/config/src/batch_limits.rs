//! Limits of one scheduler step: number of sequences and of tokens.

use super::choices::{PerformanceMode, SchedulerKind};
use super::cli_mode::CliMode;
use super::error::{ConfigError, bail};
use super::flags::engine;
use super::values::FlagValues;
use vllm_sim_engine::latency::find_gpu;
use vllm_sim_wire::VllmVersion;

/// GPU memory, in GiB, from which vLLM uses its highest default limits (B200, MI300X).
const LARGEST_GPU_CLASS_GIB: f64 = 160.0;
/// GPU memory, in GiB, from which vLLM uses its second-highest default limits (H100, H200; not
/// A100).
const LARGE_GPU_CLASS_GIB: f64 = 70.0;
/// Names of all-to-all kernels of expert parallelism that support small batches only.
const LOW_LATENCY_ALL2ALL_BACKENDS: [&str; 2] = ["deepep_low_latency", "nixl_ep"];
const LOW_LATENCY_ALL2ALL_MAX_TOKENS: u32 = 256;

/// Limits of one scheduler step: `max_num_seqs` and `max_num_batched_tokens`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchedulerBatchLimits {
    pub(super) seqs: u32,
    pub(super) tokens: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DefaultWithRule {
    value: u32,
    rule: String,
}

impl DefaultWithRule {
    fn new(value: u32, rule: &str) -> Self {
        let rule = rule.to_owned();
        Self { value, rule }
    }

    /// Replaces the default of a scheduler limit if `value` differs from the default, and appends
    /// `reason` to the rule that explains the limit.
    fn override_with(&mut self, value: u32, reason: &str) {
        if value != self.value {
            self.value = value;
            self.rule = format!("{}; {reason}", self.rule);
        }
    }
}

impl SchedulerBatchLimits {
    /// Reads `--max-num-seqs` and `--max-num-batched-tokens`; a limit that is unset gets the
    /// default of vLLM's API server on this GPU.
    ///
    /// **Source:** vLLM 0.33 `vllm/engine/arg_utils.py`, `get_batch_defaults` and
    /// `_set_default_max_num_seqs_and_batched_tokens_args`.
    pub(super) fn from_flag_values(
        v: &FlagValues,
        scheduler: SchedulerKind,
        context: u32,
    ) -> Result<Self, ConfigError> {
        let typed_seqs = v.get(&engine::MAX_NUM_SEQS)?;
        let seqs_given = v.is_flag_set(&engine::MAX_NUM_SEQS);
        let typed_tokens = v.get(&engine::MAX_NUM_BATCHED_TOKENS)?;
        let tokens_given = v.is_flag_set(&engine::MAX_NUM_BATCHED_TOKENS);
        let (mut seqs, mut tokens) = (typed_seqs, typed_tokens.unwrap_or(typed_seqs));
        let mode = v.get_choice(&engine::PERFORMANCE_MODE)?.unwrap_or_default();
        if v.cli_mode == CliMode::Vllm && scheduler == SchedulerKind::Vllm {
            let (mut seqs_default, mut tokens_default) = gpu_default_limits(v, (seqs, tokens))?;
            adjust_default_limits(v, mode, &mut seqs_default, &mut tokens_default)?;
            if !seqs_given {
                seqs = seqs_default.value;
            }
            if !tokens_given {
                if !v.get(&engine::ENABLE_CHUNKED_PREFILL)? {
                    let least = tokens_default.value.max(context);
                    tokens_default
                        .override_with(least, "at least max-model-len, without chunked prefill");
                }
                let most = tokens_default.value.min(seqs.saturating_mul(context));
                tokens_default.override_with(most, "at most max-num-seqs x max-model-len");
                tokens = tokens_default.value;
                v.record_value_derived_by_rule(
                    &engine::MAX_NUM_BATCHED_TOKENS,
                    tokens,
                    tokens_default.rule,
                );
            }
            if !seqs_given {
                let most = seqs.min(tokens);
                seqs_default.override_with(most, "at most max-num-batched-tokens");
                seqs = seqs_default.value;
                v.record_value_derived_by_rule(&engine::MAX_NUM_SEQS, seqs, seqs_default.rule);
            }
        }
        let tokens = check_token_budget(v, seqs, tokens, context)?;
        let seqs = read_max_num_active_seqs(v, seqs)?;
        Ok(Self { seqs, tokens })
    }
}

fn gpu_default_limits(
    v: &FlagValues,
    without: (u32, u32),
) -> Result<(DefaultWithRule, DefaultWithRule), ConfigError> {
    let name = v.get(&engine::GPU)?;
    let Some(gpu) = name.as_deref().and_then(find_gpu) else {
        let rule = "vLLM's default without a GPU of 70 GiB";
        return Ok((DefaultWithRule::new(without.0, rule), DefaultWithRule::new(without.1, rule)));
    };
    let is_a100 = gpu.name.to_ascii_lowercase().contains("a100");
    let has_largest_class = v.vllm_version()? > VllmVersion::V026;
    let (seqs, tokens, class) = if gpu.memory_gib >= LARGEST_GPU_CLASS_GIB && has_largest_class {
        (1024, 16_384, "with 160 GiB or more")
    } else if gpu.memory_gib >= LARGE_GPU_CLASS_GIB && !is_a100 {
        (1024, 8192, "with 70 GiB or more, except A100")
    } else {
        (256, 2048, "below 70 GiB, and for A100")
    };
    let rule = format!("vLLM's default of GPUs {class} ({})", gpu.name);
    Ok((DefaultWithRule::new(seqs, &rule), DefaultWithRule::new(tokens, &rule)))
}

fn adjust_default_limits(
    v: &FlagValues,
    mode: PerformanceMode,
    seqs: &mut DefaultWithRule,
    tokens: &mut DefaultWithRule,
) -> Result<(), ConfigError> {
    let backend = v.get(&engine::ALL2ALL_BACKEND)?;
    let batched = backend.is_some_and(|name| LOW_LATENCY_ALL2ALL_BACKENDS.contains(&name.as_str()));
    let spread = v.get(&engine::ENABLE_EXPERT_PARALLEL)? && v.get(&engine::DATA_PARALLEL_SIZE)? > 1;
    if batched && spread {
        tokens.override_with(LOW_LATENCY_ALL2ALL_MAX_TOKENS, "256 with this all2all-backend");
    }
    if mode == PerformanceMode::Throughput {
        let reason = "twice that with performance-mode throughput";
        seqs.override_with(seqs.value * 2, reason);
        tokens.override_with(tokens.value * 2, reason);
    }
    Ok(())
}

/// Checks and returns the token budget of a scheduler step; increases a default that vLLM would
/// reject.
///
/// **Source:** vLLM `vllm/config/scheduler.py`, `verify_max_model_len`.
fn check_token_budget(
    v: &FlagValues,
    seqs: u32,
    tokens: u32,
    context: u32,
) -> Result<u32, ConfigError> {
    let flag = &engine::MAX_NUM_BATCHED_TOKENS;
    let threshold = v.get(&engine::LONG_PREFILL_TOKEN_THRESHOLD)?;
    if v.cli_mode == CliMode::Vllm && threshold > context {
        bail!(
            "long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len \
             ({context})."
        );
    }
    let chunked = v.get(&engine::ENABLE_CHUNKED_PREFILL)?;
    let least = if chunked { seqs } else { seqs.max(context) };
    if tokens >= least {
        return Ok(tokens);
    }
    if !v.is_flag_set(flag) {
        let rule = "raised to max-num-seqs; vLLM would refuse to start";
        v.record_value_derived_by_rule(flag, least, rule);
        return Ok(least);
    }
    Err(ConfigError::Invalid(if tokens < seqs {
        format!(
            "max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs \
             ({seqs})."
        )
    } else {
        format!(
            "max_num_batched_tokens ({tokens}) is smaller than max_model_len ({context}) and \
             chunked prefill is off: the longest prompts could never be computed"
        )
    }))
}

fn read_max_num_active_seqs(v: &FlagValues, seqs: u32) -> Result<u32, ConfigError> {
    let flag = &engine::MAX_NUM_ACTIVE_SEQS;
    let words = "max num active seqs cannot be less than 1 or more than max num seqs";
    v.get(flag)?.map_or(Ok(seqs), |n| v.check_integer_range(flag, n, 1..=i64::from(seqs), words))
}
