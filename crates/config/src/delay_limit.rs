//! Bound of the configured delays after multiplication with their factors.

use super::error::ConfigError;
use super::flags::engine;
use super::values::FlagValues;
use vllm_sim_engine::{MAX_SIMULATED_DELAY, TokenDelays, duration};

/// Returns `delays` if each mean delay is at most [`MAX_SIMULATED_DELAY`] at full load.
///
/// # Errors
/// [`ConfigError::Invalid`] with the flag of the first longer delay and its factor.
pub(super) fn check_delays_with_factors(
    v: &FlagValues,
    delays: TokenDelays,
) -> Result<TokenDelays, ConfigError> {
    let at_any_load = 1.0 / delays.speedup;
    let at_full_load = at_any_load * delays.factor_under_load;
    for (flag, delay, factor) in [
        (&engine::TIME_TO_FIRST_TOKEN.spec, delays.ttft.0, at_full_load),
        (&engine::INTER_TOKEN_LATENCY.spec, delays.itl.0, at_full_load),
        (&engine::PREFILL_OVERHEAD.spec, delays.prefill_overhead, at_full_load),
        (&engine::PREFILL_TIME_PER_TOKEN.spec, delays.prefill_per_token, at_full_load),
        (&engine::KV_CACHE_TRANSFER_LATENCY.spec, delays.kv_transfer.0, at_any_load),
        (&engine::KV_CACHE_TRANSFER_TIME_PER_TOKEN.spec, delays.kv_transfer_per_token, at_any_load),
    ] {
        let nanos = (delay.as_nanos() as f64 * factor).round();
        if nanos > MAX_SIMULATED_DELAY.as_nanos() as f64 {
            let words = format!(
                "{} times {factor} (latency-factor and time-factor-under-load, divided by \
                 speedup-ratio) is longer than {}",
                flag.name,
                duration::format_go_duration(MAX_SIMULATED_DELAY),
            );
            return Err(v.unsupported_value_error(words, flag));
        }
    }
    Ok(delays)
}
