//! Flags of other programs that are accepted without effect.
//!
//! Ignored flags of `vllm serve` are all flags of its list that [`flags`] does not define.
//!
//! **Source:** vLLM's `vllm/engine/arg_utils.py` and `vllm/entrypoints/launchers/cli_args.py` (0.6
//! to 0.33); llm-d-inference-sim's `pkg/common/config.go`; klog's flags; Dynamo's
//! `dynamo/mocker/args.py`.

use std::sync::LazyLock;

use super::error::ConfigError;
use super::flags;

/// Number of values that an ignored flag takes on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arity {
    /// No value, or `true` or `false`; `--no-` negates the flag.
    Switch,
    /// One value.
    Value,
    /// Any number of values, up to the next flag.
    List,
}

/// Flags of `vllm serve`, one per line: name, kind, short names.
///
/// In the list, `until=0.10` is the last release with the flag. `felt` marks flags with an effect
/// that users of vLLM would miss. `generate/vllm_serve_flags.py` adds the flags of another release.
const VLLM_SERVE: &str = include_str!("vllm_serve_flags.txt");

/// Returns whether `vllm serve` of any release from 0.6 to 0.33 has a flag of this name.
pub fn is_vllm_serve_flag(name: &str) -> bool {
    let lines = VLLM_SERVE.lines();
    lines
        .filter(|line| !line.starts_with('#'))
        .any(|line| line.split(' ').next() == Some(name))
}

const OTHERS: &[(&str, Arity)] = &[
    // llm-d-inference-sim
    ("engine", Arity::Value),
    ("mm-render-timeout", Arity::Value),
    ("render-timeout", Arity::Value),
    ("render-url", Arity::Value),
    ("tokenizers-cache-dir", Arity::Value),
    ("zmq-max-connect-attempts", Arity::Value),
    // klog
    ("add-dir-header", Arity::Switch),
    ("alsologtostderr", Arity::Switch),
    ("logtostderr", Arity::Switch),
    ("one-output", Arity::Switch),
    ("skip-headers", Arity::Switch),
    ("skip-log-headers", Arity::Switch),
    ("log-backtrace-at", Arity::Value),
    ("log-dir", Arity::Value),
    ("log-file", Arity::Value),
    ("log-file-max-size", Arity::Value),
    ("stderrthreshold", Arity::Value),
    ("vmodule", Arity::Value),
    // Dynamo
    ("aic-perf-model", Arity::Switch),
    ("ais-perf-model", Arity::Switch),
    ("durable-kv-events", Arity::Switch),
    ("sglang-generate", Arity::Switch),
    ("ais-backend", Arity::Value),
    ("bootstrap-ports", Arity::Value),
    ("discovery-backend", Arity::Value),
    ("endpoint", Arity::Value),
    ("event-plane", Arity::Value),
    ("kv-transfer-timing-mode", Arity::Value),
    ("reasoning", Arity::Value),
    ("request-plane", Arity::Value),
    ("response-plane", Arity::Value),
    ("store-kv", Arity::Value),
    ("trtllm-capacity-scheduler-policy", Arity::Value),
    ("zmq-kv-events-ports", Arity::Value),
    ("zmq-replay-ports", Arity::Value),
];

struct IgnoredFlag {
    name: &'static str,
    arity: Arity,
    shorts: Vec<&'static str>,
    /// Last release of vLLM with the flag; `None`: the imitated release has the flag.
    until: Option<Release>,
    /// Whether the flag has an effect in vLLM that users would miss.
    has_vllm_effect: bool,
}

pub(super) type Release = (u32, u32);

pub(super) fn release(text: &str) -> Option<Release> {
    let mut parts = text.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

static IGNORED: LazyLock<Vec<IgnoredFlag>> = LazyLock::new(|| {
    let others = OTHERS.iter().map(|(name, arity)| IgnoredFlag {
        name,
        arity: *arity,
        shorts: Vec::new(),
        until: None,
        has_vllm_effect: false,
    });
    let all = VLLM_SERVE.lines().filter_map(read).chain(others);
    let mut flags: Vec<_> = all
        .filter(|flag| flags::long(flag.name).is_none())
        .collect();
    // The chart's schema keeps this order.
    flags.sort_by_key(|flag| flag.arity);
    flags
});

fn read(line: &'static str) -> Option<IgnoredFlag> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|name| !name.starts_with('#'))?;
    let arity = match words.next()? {
        "switch" => Arity::Switch,
        "list" => Arity::List,
        _ => Arity::Value,
    };
    let mut flag = IgnoredFlag {
        name,
        arity,
        shorts: Vec::new(),
        until: None,
        has_vllm_effect: false,
    };
    for word in words {
        match word.strip_prefix("until=") {
            Some(last) => flag.until = release(last),
            None if word == "felt" => flag.has_vllm_effect = true,
            None => flag.shorts.push(word),
        }
    }
    Some(flag)
}

/// Rejects command-line flags that the imitated release of vLLM has removed, as vLLM's parser does.
///
/// # Errors
/// [`ConfigError::Invalid`] with argparse's message and the last release with the flags.
pub(super) fn refuse_removed(typed: &[String], version: &str) -> Result<(), ConfigError> {
    let Some(imitated) = release(version) else {
        return Ok(());
    };
    let removed = typed.iter().filter_map(|typed| {
        let (major, minor) = last_release(typed.strip_prefix("--")?)?;
        ((major, minor) < imitated).then_some((typed, major, minor))
    });
    match removed.min() {
        None => Ok(()),
        Some((flag, major, minor)) => Err(ConfigError::Invalid(format!(
            "unrecognized arguments: {flag} (vLLM {version} has no such flag; --vllm-version \
             {major}.{minor} takes it)"
        ))),
    }
}

/// Returns the flags in `typed` that are ignored here but have an effect in vLLM.
pub(super) fn with_vllm_effect(typed: &[String]) -> Vec<String> {
    let has_vllm_effect = |typed: &&String| named(typed).is_some_and(|flag| flag.has_vllm_effect);
    typed.iter().filter(has_vllm_effect).cloned().collect()
}

/// Returns the last release of vLLM with this flag, also for flags that have an effect here.
pub(super) fn last_release(name: &str) -> Option<Release> {
    let mut lines = VLLM_SERVE.lines().filter_map(read);
    lines.find(|flag| flag.name == name)?.until
}

fn named(typed: &str) -> Option<&'static IgnoredFlag> {
    let name = typed.strip_prefix("--")?;
    IGNORED.iter().find(|flag| flag.name == name)
}

/// Returns every ignored flag and the number of values that it takes.
pub fn ignored_flags() -> impl Iterator<Item = (&'static str, Arity)> {
    IGNORED.iter().map(|flag| (flag.name, flag.arity))
}

pub(super) fn remarks() -> Vec<(&'static str, String)> {
    let mut flags: Vec<_> = IGNORED.iter().collect();
    flags.sort_unstable_by_key(|flag| flag.name);
    let remark = |flag: &IgnoredFlag| {
        let mark = if flag.has_vllm_effect { " *" } else { "" };
        let until = flag.until.map_or_else(String::new, |(major, minor)| {
            format!(", until {major}.{minor}")
        });
        format!("{mark}{until}")
    };
    flags.iter().map(|flag| (flag.name, remark(flag))).collect()
}

pub(super) fn long(name: &str) -> Option<(&'static str, Arity)> {
    ignored_flags().find(|(n, _)| *n == name)
}

pub(super) fn short(name: &str) -> Option<(&'static str, Arity)> {
    let flag = IGNORED.iter().find(|flag| flag.shorts.contains(&name))?;
    Some((flag.name, flag.arity))
}
