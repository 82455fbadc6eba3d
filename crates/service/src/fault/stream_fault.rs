use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use vllm_sim_engine::{MAX_SIMULATED_DELAY, duration};

/// A fault injected into an accepted reply.
///
/// Tokens are counted over all choices. A reply with fewer tokens than the fault needs is not
/// changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFault {
    /// Injected fault: delays the whole response, including its status line, by the given time.
    SlowFirstByte(Duration),
    /// Injected fault: pauses the reply after a number of output tokens.
    Stall {
        /// Number of output tokens sent before the injected pause of the reply.
        after: u32,
        /// Length of the pause in the reply.
        time: Duration,
    },
    /// Injected fault: closes the connection after this number of output tokens, before the end of
    /// the reply.
    CutAfter(u32),
    /// Injected fault: resets the connection (TCP RST) after this number of output tokens.
    ResetAfter(u32),
    /// Injected fault: sends an event that is not JSON after this number of output tokens; the
    /// reply then continues.
    MalformedAfter(u32),
    /// Injected fault: sends the last event of the stream (`[DONE]` or its equivalent) twice.
    DuplicateDone,
    /// Injected fault: omits the last event of the stream, which otherwise ends regularly.
    MissingDone,
    /// Injected fault: adds this number of bytes (possibly negative) to the header
    /// `content-length`.
    ///
    /// A stream, which has no known length, announces this number itself.
    WrongContentLength(i32),
    /// Injected fault: the prompt's KV cache cannot be loaded from another engine or from CPU
    /// memory.
    ///
    /// The value is the percentage of blocks that are still loaded, at most 99. A request that
    /// loads no blocks is not affected.
    KvLoadFailure(u8),
}

/// Name of [`StreamFault::KvLoadFailure`] in headers, flags and metrics.
pub const KV_LOAD_FAILURE: &str = "kv_load_failure";

/// Name and value syntax of each stream fault.
const FAULT_FORMS: [(&str, &str); 9] = [
    ("slow_first_byte", "DURATION"),
    ("stall", "[TOKENS:]DURATION"),
    ("cut_after", "TOKENS"),
    ("reset_after", "TOKENS"),
    ("malformed_after", "TOKENS"),
    ("duplicate_done", ""),
    ("missing_done", ""),
    ("wrong_content_length", "BYTES"),
    (KV_LOAD_FAILURE, "PERCENT"),
];

impl StreamFault {
    /// Returns the syntax of each stream fault, such as `cut_after=TOKENS`.
    pub fn all_fault_syntax_forms() -> impl Iterator<Item = String> {
        FAULT_FORMS.iter().map(|(name, value)| match *value {
            "" => (*name).to_owned(),
            value => format!("{name}={value}"),
        })
    }

    /// Returns the name of the fault in headers, flags and metrics.
    pub fn stream_fault_name(&self) -> &'static str {
        let index = match self {
            Self::SlowFirstByte(_) => 0,
            Self::Stall { .. } => 1,
            Self::CutAfter(_) => 2,
            Self::ResetAfter(_) => 3,
            Self::MalformedAfter(_) => 4,
            Self::DuplicateDone => 5,
            Self::MissingDone => 6,
            Self::WrongContentLength(_) => 7,
            Self::KvLoadFailure(_) => 8,
        };
        FAULT_FORMS[index].0
    }

    /// Parses the value of the stream fault with the given name; `None` if there is no such fault.
    ///
    /// Defaults for the omitted value of a fault: 1 token, 64 bytes, 0 percent.
    pub(super) fn parse_fault_value(
        name: &str,
        value: Option<&str>,
    ) -> Option<Result<Self, String>> {
        let tokens = || parse_number(value, 1, |_| true, "a number of tokens");
        let alone = |stream_fault| match value {
            None => Ok(stream_fault),
            Some(text) => Err(format!("it takes no value, not {text:?}")),
        };
        Some(match name {
            "slow_first_byte" => parse_wait(value).map(Self::SlowFirstByte),
            "stall" => parse_stall(value),
            "cut_after" => tokens().map(Self::CutAfter),
            "reset_after" => tokens().map(Self::ResetAfter),
            "malformed_after" => tokens().map(Self::MalformedAfter),
            "duplicate_done" => alone(Self::DuplicateDone),
            "missing_done" => alone(Self::MissingDone),
            "wrong_content_length" => {
                parse_number(value, 64, |bytes| *bytes != 0, "a number of bytes other than 0")
                    .map(Self::WrongContentLength)
            }
            KV_LOAD_FAILURE => {
                parse_number(value, 0, |percent| *percent < 100, "a percentage from 0 to 99")
                    .map(Self::KvLoadFailure)
            }
            _ => return None,
        })
    }
}

impl fmt::Display for StreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.stream_fault_name();
        match self {
            Self::SlowFirstByte(time) => {
                write!(f, "{name}={}", duration::format_go_duration(*time))
            }
            Self::Stall { after, time } => {
                write!(f, "{name}={after}:{}", duration::format_go_duration(*time))
            }
            Self::CutAfter(n) | Self::ResetAfter(n) | Self::MalformedAfter(n) => {
                write!(f, "{name}={n}")
            }
            Self::DuplicateDone | Self::MissingDone => f.write_str(name),
            Self::WrongContentLength(bytes) => write!(f, "{name}={bytes}"),
            Self::KvLoadFailure(percent) => write!(f, "{name}={percent}"),
        }
    }
}

/// Parses the number of a fault, or returns `default` without a value; `what` describes a number
/// that `is_allowed` accepts.
fn parse_number<T: FromStr>(
    value: Option<&str>,
    default: T,
    is_allowed: fn(&T) -> bool,
    what: &str,
) -> Result<T, String> {
    let Some(text) = value else {
        return Ok(default);
    };
    let number = text.parse().ok().filter(is_allowed);
    number.ok_or_else(|| format!("{text:?} is not {what}"))
}

fn parse_stall(value: Option<&str>) -> Result<StreamFault, String> {
    let (after, time) = match value.and_then(|text| text.split_once(':')) {
        Some((after, time)) => {
            let after = after.trim().parse::<u32>();
            let after =
                after.map_err(|_| "the part before ':' is a number of tokens".to_owned())?;
            (after, Some(time))
        }
        None => (1, value),
    };
    let time = parse_wait(time)?;
    Ok(StreamFault::Stall { after, time })
}

fn parse_wait(value: Option<&str>) -> Result<Duration, String> {
    let text = value.ok_or("it needs a duration, such as 2s or 250ms")?;
    let time = duration::parse_duration(text)
        .map_err(|why| format!("{text:?} is not a duration: {why}"))?;
    if time > MAX_SIMULATED_DELAY {
        return Err(format!("{text:?} is longer than 24h"));
    }
    Ok(time)
}
