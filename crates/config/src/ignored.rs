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
pub enum IgnoredFlagArity {
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
const VLLM_SERVE_FLAG_LIST: &str = include_str!("vllm_serve_flags.txt");

/// Returns whether `vllm serve` of any release from 0.6 to 0.33 has a flag of this name.
pub fn is_vllm_serve_flag(name: &str) -> bool {
    let lines = VLLM_SERVE_FLAG_LIST.lines();
    lines.filter(|line| !line.starts_with('#')).any(|line| line.split(' ').next() == Some(name))
}

const OTHER_IGNORED_FLAGS: &[(&str, IgnoredFlagArity)] = &[
    // llm-d-inference-sim
    ("engine", IgnoredFlagArity::Value),
    ("mm-render-timeout", IgnoredFlagArity::Value),
    ("render-timeout", IgnoredFlagArity::Value),
    ("render-url", IgnoredFlagArity::Value),
    ("tokenizers-cache-dir", IgnoredFlagArity::Value),
    ("zmq-max-connect-attempts", IgnoredFlagArity::Value),
    // klog
    ("add-dir-header", IgnoredFlagArity::Switch),
    ("alsologtostderr", IgnoredFlagArity::Switch),
    ("logtostderr", IgnoredFlagArity::Switch),
    ("one-output", IgnoredFlagArity::Switch),
    ("skip-headers", IgnoredFlagArity::Switch),
    ("skip-log-headers", IgnoredFlagArity::Switch),
    ("log-backtrace-at", IgnoredFlagArity::Value),
    ("log-dir", IgnoredFlagArity::Value),
    ("log-file", IgnoredFlagArity::Value),
    ("log-file-max-size", IgnoredFlagArity::Value),
    ("stderrthreshold", IgnoredFlagArity::Value),
    ("vmodule", IgnoredFlagArity::Value),
    // Dynamo
    ("aic-perf-model", IgnoredFlagArity::Switch),
    ("ais-perf-model", IgnoredFlagArity::Switch),
    ("durable-kv-events", IgnoredFlagArity::Switch),
    ("sglang-generate", IgnoredFlagArity::Switch),
    ("ais-backend", IgnoredFlagArity::Value),
    ("bootstrap-ports", IgnoredFlagArity::Value),
    ("discovery-backend", IgnoredFlagArity::Value),
    ("endpoint", IgnoredFlagArity::Value),
    ("event-plane", IgnoredFlagArity::Value),
    ("kv-transfer-timing-mode", IgnoredFlagArity::Value),
    ("reasoning", IgnoredFlagArity::Value),
    ("request-plane", IgnoredFlagArity::Value),
    ("response-plane", IgnoredFlagArity::Value),
    ("store-kv", IgnoredFlagArity::Value),
    ("trtllm-capacity-scheduler-policy", IgnoredFlagArity::Value),
    ("zmq-kv-events-ports", IgnoredFlagArity::Value),
    ("zmq-replay-ports", IgnoredFlagArity::Value),
];

struct IgnoredFlag {
    name: &'static str,
    arity: IgnoredFlagArity,
    shorts: Vec<&'static str>,
    /// Last release of vLLM with the flag; `None`: the imitated release has the flag.
    until: Option<VllmRelease>,
    /// Whether the flag has an effect in vLLM that users would miss.
    has_vllm_effect: bool,
}

pub(super) type VllmRelease = (u32, u32);

pub(super) fn parse_release(text: &str) -> Option<VllmRelease> {
    let mut parts = text.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

static IGNORED_FLAGS: LazyLock<Vec<IgnoredFlag>> = LazyLock::new(|| {
    let others = OTHER_IGNORED_FLAGS.iter().map(|(name, arity)| IgnoredFlag {
        name,
        arity: *arity,
        shorts: Vec::new(),
        until: None,
        has_vllm_effect: false,
    });
    let all = VLLM_SERVE_FLAG_LIST.lines().filter_map(parse_ignored_flag_line).chain(others);
    let mut flags: Vec<_> = all.filter(|flag| flags::find_long_flag(flag.name).is_none()).collect();
    // The chart's schema keeps this order.
    flags.sort_by_key(|flag| flag.arity);
    flags
});

fn parse_ignored_flag_line(line: &'static str) -> Option<IgnoredFlag> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|name| !name.starts_with('#'))?;
    let arity = match words.next()? {
        "switch" => IgnoredFlagArity::Switch,
        "list" => IgnoredFlagArity::List,
        _ => IgnoredFlagArity::Value,
    };
    let mut flag =
        IgnoredFlag { name, arity, shorts: Vec::new(), until: None, has_vllm_effect: false };
    for word in words {
        match word.strip_prefix("until=") {
            Some(last) => flag.until = parse_release(last),
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
    let Some(imitated) = parse_release(version) else {
        return Ok(());
    };
    let removed = typed.iter().filter_map(|typed| {
        let (major, minor) = last_vllm_release_with_flag(typed.strip_prefix("--")?)?;
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
pub(super) fn ignored_flags_with_vllm_effect(typed: &[String]) -> Vec<String> {
    let has_vllm_effect =
        |typed: &&String| find_ignored_flag(typed).is_some_and(|flag| flag.has_vllm_effect);
    typed.iter().filter(has_vllm_effect).cloned().collect()
}

/// Returns the last release of vLLM with this flag, also for flags that have an effect here.
pub(super) fn last_vllm_release_with_flag(name: &str) -> Option<VllmRelease> {
    let mut lines = VLLM_SERVE_FLAG_LIST.lines().filter_map(parse_ignored_flag_line);
    lines.find(|flag| flag.name == name)?.until
}

fn find_ignored_flag(typed: &str) -> Option<&'static IgnoredFlag> {
    let name = typed.strip_prefix("--")?;
    IGNORED_FLAGS.iter().find(|flag| flag.name == name)
}

/// Returns every ignored flag and the number of values that it takes.
pub fn ignored_flags() -> impl Iterator<Item = (&'static str, IgnoredFlagArity)> {
    IGNORED_FLAGS.iter().map(|flag| (flag.name, flag.arity))
}

pub(super) fn ignored_flags_for_docs() -> Vec<(&'static str, String)> {
    let mut flags: Vec<_> = IGNORED_FLAGS.iter().collect();
    flags.sort_unstable_by_key(|flag| flag.name);
    let remark = |flag: &IgnoredFlag| {
        let mark = if flag.has_vllm_effect { " *" } else { "" };
        let until = flag
            .until
            .map_or_else(String::new, |(major, minor)| format!(", until {major}.{minor}"));
        format!("{mark}{until}")
    };
    flags.iter().map(|flag| (flag.name, remark(flag))).collect()
}

pub(super) fn find_ignored_long_flag(name: &str) -> Option<(&'static str, IgnoredFlagArity)> {
    ignored_flags().find(|(n, _)| *n == name)
}

pub(super) fn find_ignored_short_flag(name: &str) -> Option<(&'static str, IgnoredFlagArity)> {
    let flag = IGNORED_FLAGS.iter().find(|flag| flag.shorts.contains(&name))?;
    Some((flag.name, flag.arity))
}
