use std::path::PathBuf;

use super::error::{ConfigError, invalid};
use super::flags::faults;
use super::values::FlagValues;
use vllm_sim_engine::duration;
use vllm_sim_observe::kv_events::KvEventLossSchedule;
use vllm_sim_service::fault::{FaultRates, FaultSpec, InjectedFailure, StreamFault};

/// Settings of injected faults.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultInjectionConfig {
    /// Rates and kinds of injected faults (default rates 0; default kinds all failures, for streams
    /// `cut_after=5`).
    pub rates: FaultRates,
    /// HTTP status of responses from health routes (default 200).
    pub health_status: u16,
    /// Whether the publisher drops KV event messages (default no).
    pub lose_kv_events: bool,
    /// Schedule of lost KV event messages; `None`: no gaps.
    pub kv_event_gaps: Option<KvEventLossSchedule>,
    /// Whether the engines run no steps, while health checks succeed (default no).
    pub hang_engine: bool,
    /// Whether `/metrics` shows stale values (default no).
    pub stale_metrics: bool,
    /// Header `Retry-After` of responses with status 429 or 503, in seconds; `None`: no header.
    pub retry_after_seconds: Option<u32>,
    /// YAML file with scripted replies to requests.
    pub replies: Option<PathBuf>,
    /// Whether a request that no scripted reply matches is refused (default no).
    pub strict_replies: bool,
    /// YAML file with a scenario, a timeline of injected faults.
    pub scenario: Option<PathBuf>,
}

impl FaultInjectionConfig {
    pub(super) fn from_flag_values(v: &FlagValues) -> Result<Self, ConfigError> {
        let mut failures = Vec::new();
        for typed in v.read_comma_separated_list(&faults::FAILURE_TYPES)? {
            failures.push(
                InjectedFailure::from_injected_failure_name(&typed)
                    .ok_or_else(|| unknown_fault_error(&typed))?,
            );
        }
        let mut specs = Vec::new();
        for typed in v.get(&faults::STREAM_FAULTS)? {
            let spec: Result<FaultSpec, _> = typed.parse();
            specs.push(spec.map_err(|error| ConfigError::Invalid(error.to_string()))?);
        }
        if failures.is_empty() {
            failures.extend(InjectedFailure::ALL_INJECTED_FAILURES);
        }
        if specs.is_empty() {
            specs.push(FaultSpec {
                stream_faults: vec![StreamFault::CutAfter(5)],
                ..FaultSpec::default()
            });
        }
        Ok(Self {
            rates: FaultRates {
                rate: v.get(&faults::FAILURE_INJECTION_RATE)?,
                failures,
                stream_rate: v.get(&faults::STREAM_FAULT_RATE)?,
                specs,
            },
            health_status: v.get(&faults::HEALTH_STATUS)?,
            lose_kv_events: v.get(&faults::LOSE_KV_EVENTS)?,
            kv_event_gaps: v
                .get(&faults::KV_EVENT_GAPS)?
                .map(|typed| read_gaps(&typed))
                .transpose()?,
            hang_engine: v.get(&faults::HANG_ENGINE)?,
            stale_metrics: v.get(&faults::STALE_METRICS)?,
            retry_after_seconds: v.get(&faults::RETRY_AFTER)?,
            replies: v.get(&faults::REPLIES)?,
            strict_replies: v.get(&faults::STRICT_REPLIES)?,
            scenario: v.get(&faults::SCENARIO)?,
        })
    }
}

/// Parses a schedule of lost KV event messages: `3/10s` means three messages every ten seconds.
fn read_gaps(typed: &str) -> Result<KvEventLossSchedule, ConfigError> {
    let wrong = |why: &str| {
        invalid!("kv-event-gaps is {typed:?}, must be MESSAGES/INTERVAL such as 3/10s: {why}")
    };
    let (messages, interval) = typed.split_once('/').ok_or_else(|| wrong("there is no '/'"))?;
    let messages = messages.trim().parse::<u32>().ok().filter(|n| *n > 0);
    let messages = messages.ok_or_else(|| wrong("the number of messages is at least 1"))?;
    let every = duration::parse_duration(interval.trim()).map_err(|why| wrong(&why.to_string()))?;
    if every.is_zero() {
        return Err(wrong("the interval is more than 0"));
    }
    Ok(KvEventLossSchedule { messages, every })
}

fn unknown_fault_error(typed: &str) -> ConfigError {
    let allowed = InjectedFailure::ALL_INJECTED_FAILURES
        .map(InjectedFailure::injected_failure_name)
        .join(", ");
    invalid!("invalid failure type '{typed}', valid types are: {allowed}")
}
