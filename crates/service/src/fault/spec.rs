use std::fmt;
use std::str::FromStr;

use super::{InjectedFailure, StreamFault};

const MAX_FAULTS_PER_REQUEST: usize = 16;

/// The faults injected into one request, read from `kind[=value][;kind=value]`.
///
/// The header `X-Sim-Fault` and the flag `--stream-faults` have this format. At most 16 faults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultSpec {
    /// Injected error response, which replaces the reply, so `stream_faults` then has no effect.
    pub failure: Option<InjectedFailure>,
    /// Faults injected into the reply.
    pub stream_faults: Vec<StreamFault>,
}

/// Error for a text that is not a valid fault spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault {part:?}: {why}; allowed are {}", allowed_fault_forms())]
pub struct FaultSpecError {
    part: String,
    why: String,
}

fn allowed_fault_forms() -> String {
    let failures =
        InjectedFailure::ALL_INJECTED_FAILURES.map(|f| f.injected_failure_name().to_owned());
    let all: Vec<String> = StreamFault::all_fault_syntax_forms().chain(failures).collect();
    all.join(", ")
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        let wrong =
            |part: &str, why: &str| FaultSpecError { part: part.to_owned(), why: why.to_owned() };
        let mut spec = Self::default();
        for part in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
            if spec.stream_faults.len() == MAX_FAULTS_PER_REQUEST {
                return Err(wrong(part, "at most 16 faults are allowed in one request"));
            }
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value.trim())),
                None => (part, None),
            };
            if let Some(failure) = InjectedFailure::from_injected_failure_name(name) {
                if value.is_some() {
                    return Err(wrong(part, "it takes no value"));
                }
                if spec.failure.replace(failure).is_some() {
                    return Err(wrong(part, "only one failure is allowed in one request"));
                }
                continue;
            }
            match StreamFault::parse_fault_value(name, value) {
                Some(Ok(stream_fault)) => spec.stream_faults.push(stream_fault),
                Some(Err(why)) => return Err(wrong(part, &why)),
                None => return Err(wrong(part, "unknown kind")),
            }
        }
        if spec == Self::default() {
            return Err(wrong(text, "it is empty"));
        }
        Ok(spec)
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = self.failure.map(|failure| failure.injected_failure_name().to_owned());
        let parts = failure.into_iter();
        let parts: Vec<String> =
            parts.chain(self.stream_faults.iter().map(StreamFault::to_string)).collect();
        f.write_str(&parts.join(";"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fault_survives_a_round_trip() {
        let text = "rate_limit;slow_first_byte=250ms;stall=3:2s;cut_after=5;reset_after=1;malformed_after=0;duplicate_done;missing_done;wrong_content_length=-7;kv_load_failure=50";
        let spec: FaultSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!(spec.stream_faults.len(), 9);
        let short: FaultSpec = " stall = 2s ; cut_after ".parse().unwrap();
        let time = Duration::from_secs(2);
        assert_eq!(
            short.stream_faults,
            [StreamFault::Stall { after: 1, time }, StreamFault::CutAfter(1)]
        );
    }

    #[test]
    fn a_bad_fault_lists_what_is_allowed() {
        let cases = [
            ("", "it is empty"),
            ("explode", "unknown kind"),
            ("cut_after=-1", "\"-1\" is not a number of tokens"),
            ("stall", "it needs a duration"),
            ("stall=x:2s", "the part before ':' is a number of tokens"),
            ("slow_first_byte=25h", "longer than 24h"),
            ("missing_done=1", "it takes no value"),
            ("rate_limit=3", "it takes no value"),
            ("rate_limit;server_error", "only one failure is allowed in one request"),
            ("wrong_content_length=0", "other than 0"),
            ("kv_load_failure=100", "a percentage from 0 to 99"),
        ];
        for (text, why) in cases {
            let error = text.parse::<FaultSpec>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("cut_after=TOKENS"), "{error}");
            assert!(error.contains("model_not_found"), "{error}");
        }
    }
}
