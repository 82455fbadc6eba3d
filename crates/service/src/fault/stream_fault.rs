use std::fmt;
use std::time::Duration;

use vllm_sim_engine::{LONGEST_DELAY, duration};

/// One thing that goes wrong with a reply that was accepted. Tokens are counted over all choices;
/// a reply that has fewer of them than a stream_fault waits for stays whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFault {
    /// Nothing is said for this long, not even a status.
    SlowFirstByte(Duration),
    /// Silence within the reply.
    Stall {
        /// Tokens before it.
        after: u32,
        /// How long.
        time: Duration,
    },
    /// The connection is closed after so many tokens, without the end of the reply.
    CutAfter(u32),
    /// The connection is reset after so many tokens (TCP RST).
    ResetAfter(u32),
    /// After so many tokens comes an event that is not JSON; the reply then goes on.
    MalformedAfter(u32),
    /// The last event of the stream (`[DONE]`, or what stands for it) comes twice.
    DuplicateDone,
    /// The stream ends properly, but without its last event.
    MissingDone,
    /// `content-length` announces so many bytes more (or less) than the reply has. A stream, whose
    /// length nobody knows, announces exactly so many bytes.
    WrongContentLength(i32),
    /// The prompt is not loaded from another engine or the memory of the host; of the blocks there so
    /// many percent come, 99 at most. A request that has nothing to load is answered as always.
    KvLoadFailure(u8),
}

/// The name of [`StreamFault::KvLoadFailure`].
pub const KV_LOAD_FAILURE: &str = "kv_load_failure";

/// Every kind: its name, the value it takes, what it does.
const KINDS: [(&str, &str); 9] = [
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
    /// Names of all kinds.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KINDS.iter().map(|(name, _)| *name)
    }

    /// How each kind is written: `cut_after=TOKENS`, ….
    pub fn forms() -> impl Iterator<Item = String> {
        KINDS.iter().map(|(name, value)| match *value {
            "" => (*name).to_owned(),
            value => format!("{name}={value}"),
        })
    }

    /// The word that headers, flags and metrics use.
    pub fn name(&self) -> &'static str {
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
        KINDS[index].0
    }

    /// Reads the value of a kind; `None`: there is no such kind.
    ///
    /// A count, length or percentage may be left out: one token, 64 bytes, 0 percent.
    pub(super) fn read(name: &str, value: Option<&str>) -> Option<Result<Self, String>> {
        let tokens = || match value {
            None => Ok(1),
            Some(text) => text
                .parse::<u32>()
                .map_err(|_| format!("{text:?} is not a number of tokens")),
        };
        let alone = |stream_fault| match value {
            None => Ok(stream_fault),
            Some(text) => Err(format!("it takes no value, not {text:?}")),
        };
        Some(match name {
            "slow_first_byte" => wait(value).map(Self::SlowFirstByte),
            "stall" => stall(value),
            "cut_after" => tokens().map(Self::CutAfter),
            "reset_after" => tokens().map(Self::ResetAfter),
            "malformed_after" => tokens().map(Self::MalformedAfter),
            "duplicate_done" => alone(Self::DuplicateDone),
            "missing_done" => alone(Self::MissingDone),
            "wrong_content_length" => match value {
                None => Ok(Self::WrongContentLength(64)),
                Some(text) => text
                    .parse::<i32>()
                    .ok()
                    .filter(|bytes| *bytes != 0)
                    .map(Self::WrongContentLength)
                    .ok_or_else(|| format!("{text:?} is not a number of bytes other than 0")),
            },
            KV_LOAD_FAILURE => match value {
                None => Ok(Self::KvLoadFailure(0)),
                Some(text) => text
                    .parse::<u8>()
                    .ok()
                    .filter(|percent| *percent < 100)
                    .map(Self::KvLoadFailure)
                    .ok_or_else(|| format!("{text:?} is not a percentage from 0 to 99")),
            },
            _ => return None,
        })
    }
}

impl fmt::Display for StreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::SlowFirstByte(time) => write!(f, "{name}={}", duration::show(*time)),
            Self::Stall { after, time } => write!(f, "{name}={after}:{}", duration::show(*time)),
            Self::CutAfter(n) | Self::ResetAfter(n) | Self::MalformedAfter(n) => {
                write!(f, "{name}={n}")
            }
            Self::DuplicateDone | Self::MissingDone => f.write_str(name),
            Self::WrongContentLength(bytes) => write!(f, "{name}={bytes}"),
            Self::KvLoadFailure(percent) => write!(f, "{name}={percent}"),
        }
    }
}

fn stall(value: Option<&str>) -> Result<StreamFault, String> {
    let (after, time) = match value.and_then(|text| text.split_once(':')) {
        Some((after, time)) => {
            let after = after.trim().parse::<u32>();
            let after =
                after.map_err(|_| "the part before ':' is a number of tokens".to_owned())?;
            (after, Some(time))
        }
        None => (1, value),
    };
    let time = wait(time)?;
    Ok(StreamFault::Stall { after, time })
}

fn wait(value: Option<&str>) -> Result<Duration, String> {
    let text = value.ok_or("it needs a duration, such as 2s or 250ms")?;
    let time = duration::read(text).map_err(|why| format!("{text:?} is not a duration: {why}"))?;
    if time > LONGEST_DELAY {
        return Err(format!("{text:?} is longer than 24h"));
    }
    Ok(time)
}
