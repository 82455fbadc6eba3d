//! Flags of other programs that are accepted without effect.
//!
//! Ignored flags of `vllm serve` are all flags of its list that [`flags`] does not define.
//!
//! **Source:** vLLM's `vllm/engine/arg_utils.py` and `vllm/entrypoints/common/cli_args.py` (0.6
//! to 0.33); llm-d-inference-sim's `pkg/common/config.go`; klog's flags; Dynamo's
//! `dynamo/mocker/args.py`.

use std::sync::LazyLock;

use super::error::{ConfigError, invalid};
use super::flag::FlagSpec;
use super::flags;
use vllm_sim_wire::VllmVersion;

/// Number of values that an ignored flag takes on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IgnoredFlagArity {
    /// The flag takes no value, or `true` or `false`; `--no-` negates it.
    Switch,
    /// The flag takes one value.
    Value,
    /// The flag takes any number of values, up to the next flag.
    List,
}

/// Flags of `vllm serve`, one per line: name, kind, short names. `lab/upstream` writes the list.
///
/// In the list, `since=0.31` is the first and `until=0.10` the last release with the flag. If
/// `since` is after `until`, the releases between lack it. `inverse=enable-x` marks another
/// spelling of `--no-enable-x`. `felt` marks flags with an effect that users of vLLM would miss.
const VLLM_SERVE_FLAG_LIST: &str = include_str!("vllm_serve_flags.txt");

/// Defaults of `vllm serve` that a later release changed: flag, last release with the default,
/// default value.
const OLDER_DEFAULT_LIST: &str = include_str!("vllm_older_defaults.txt");

/// A flag of `vllm serve` of any release from 0.6 on.
struct VllmServeFlag {
    name: &'static str,
    arity: IgnoredFlagArity,
    shorts: Vec<&'static str>,
    /// Name of the switch that this flag turns off, if the flag is a negation such as
    /// `disable-lora`.
    inverse: Option<&'static str>,
    since: Option<VllmRelease>,
    until: Option<VllmRelease>,
    /// Whether the flag has an effect in vLLM that users would miss.
    has_vllm_effect: bool,
}

impl VllmServeFlag {
    fn is_in(&self, release: VllmRelease) -> bool {
        let is_old = self.until.is_some_and(|until| release <= until);
        let is_new = self.since.is_none_or(|since| since <= release);
        match (self.since, self.until) {
            (Some(since), Some(until)) if until < since => is_old || is_new,
            (_, until) => is_new && (until.is_none() || is_old),
        }
    }

    /// Returns the releases with the flag, in words for a user whose release lacks it.
    fn releases_with_flag(&self, imitated: VllmRelease) -> String {
        match (self.since, self.until) {
            (Some((major, minor)), _) if imitated < (major, minor) => {
                format!("it came in {major}.{minor}")
            }
            (_, Some((major, minor))) => format!("the last release with it is {major}.{minor}"),
            _ => "all others have it".to_owned(),
        }
    }
}

static VLLM_SERVE_FLAGS: LazyLock<Vec<VllmServeFlag>> =
    LazyLock::new(|| VLLM_SERVE_FLAG_LIST.lines().filter_map(parse_vllm_serve_flag).collect());

fn parse_vllm_serve_flag(line: &'static str) -> Option<VllmServeFlag> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|name| !name.starts_with('#'))?;
    let arity = match words.next()? {
        "switch" => IgnoredFlagArity::Switch,
        "list" => IgnoredFlagArity::List,
        _ => IgnoredFlagArity::Value,
    };
    let mut flag = VllmServeFlag {
        name,
        arity,
        shorts: Vec::new(),
        inverse: None,
        since: None,
        until: None,
        has_vllm_effect: false,
    };
    for word in words {
        match word.split_once('=') {
            Some(("since", first)) => flag.since = parse_release(first),
            Some(("until", last)) => flag.until = parse_release(last),
            Some((_, inverse)) => flag.inverse = Some(inverse),
            None if word == "felt" => flag.has_vllm_effect = true,
            None => flag.shorts.push(word),
        }
    }
    Some(flag)
}

fn find_vllm_serve_flag(name: &str) -> Option<&'static VllmServeFlag> {
    VLLM_SERVE_FLAGS.iter().find(|flag| flag.name == name)
}

/// Returns whether `vllm serve` of any release from 0.6 to 0.33 has a flag of this name.
pub fn is_vllm_serve_flag(name: &str) -> bool {
    find_vllm_serve_flag(name).is_some()
}

/// Returns the name of the switch that a flag turns off: `enable-lora` for `disable-lora`.
pub(super) fn inverse_switch_name(name: &str) -> Option<&'static str> {
    find_vllm_serve_flag(name)?.inverse
}

/// Returns whether only some releases of vLLM have the flag.
pub(super) fn is_release_dependent_flag(name: &str) -> bool {
    find_vllm_serve_flag(name).is_some_and(|flag| flag.since.is_some() || flag.until.is_some())
}

/// Returns the flags whose default in the vLLM release `version` differs from the current default,
/// each with its default in that release.
pub(super) fn flags_with_release_dependent_defaults(
    version: VllmVersion,
) -> Vec<(&'static FlagSpec, &'static str)> {
    let mut out: Vec<(&'static FlagSpec, &'static str)> = Vec::new();
    for line in OLDER_DEFAULT_LIST.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.splitn(3, ' ');
        let (Some(name), Some(until), Some(value)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let until = until.strip_prefix("until=").and_then(parse_release);
        let is_older = until.is_some_and(|until| version.major_minor() <= until);
        // The first line that fits has the oldest value.
        if let Some(flag) = flags::find_long_flag(name).filter(|_| is_older)
            && !out.iter().any(|(known, _)| known.name == flag.name)
        {
            out.push((flag, value));
        }
    }
    out
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
    /// Entry of the ignored flag in the list of vLLM's flags; `None`: the flag belongs to another
    /// program.
    vllm: Option<&'static VllmServeFlag>,
}

type VllmRelease = (u32, u32);

fn parse_release(text: &str) -> Option<VllmRelease> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

static IGNORED_FLAGS: LazyLock<Vec<IgnoredFlag>> = LazyLock::new(|| {
    // An inverse spelling that is also an older flag stays a key of files and of the chart.
    let is_own = |flag: &&VllmServeFlag| flag.inverse.is_none() || flag.until.is_some();
    let vllm = VLLM_SERVE_FLAGS.iter().filter(is_own);
    let vllm =
        vllm.map(|flag| IgnoredFlag { name: flag.name, arity: flag.arity, vllm: Some(flag) });
    let others = OTHER_IGNORED_FLAGS.iter();
    let others = others.map(|(name, arity)| IgnoredFlag { name, arity: *arity, vllm: None });
    let all = vllm.chain(others);
    let mut flags: Vec<_> = all.filter(|flag| flags::find_long_flag(flag.name).is_none()).collect();
    // The chart's schema keeps this order.
    flags.sort_by_key(|flag| flag.arity);
    flags
});

/// Rejects flags that the imitated release of vLLM does not have, with the error of vLLM's parser.
///
/// # Errors
/// [`ConfigError::Invalid`] with argparse's message and the releases with the flag.
pub(super) fn refuse_flags_of_other_releases(
    typed: &[String],
    version: VllmVersion,
) -> Result<(), ConfigError> {
    let imitated = version.major_minor();
    let missing = typed.iter().filter_map(|typed| {
        let flag = find_vllm_serve_flag(typed.strip_prefix("--")?)?;
        (!flag.is_in(imitated)).then_some((typed, flag))
    });
    match missing.min_by_key(|(typed, _)| *typed) {
        None => Ok(()),
        Some((typed, flag)) => Err(invalid!(
            "unrecognized arguments: {typed} (vLLM {} has no such flag; {})",
            version.as_str(),
            flag.releases_with_flag(imitated)
        )),
    }
}

/// Returns the flags in `typed` that are ignored here but have an effect in vLLM.
pub(super) fn ignored_flags_with_vllm_effect(typed: &[String]) -> Vec<String> {
    let has_vllm_effect = |typed: &&String| {
        let name = typed.strip_prefix("--").unwrap_or_default();
        let ignored = IGNORED_FLAGS.iter().find(|flag| flag.name == name);
        ignored.and_then(|flag| flag.vllm).is_some_and(|flag| flag.has_vllm_effect)
    };
    typed.iter().filter(has_vllm_effect).cloned().collect()
}

/// Returns every ignored flag and the number of values that it takes.
pub fn all_ignored_flags() -> impl Iterator<Item = (&'static str, IgnoredFlagArity)> {
    IGNORED_FLAGS.iter().map(|flag| (flag.name, flag.arity))
}

pub(super) fn ignored_flags_for_docs() -> Vec<(&'static str, String)> {
    let mut flags: Vec<_> = IGNORED_FLAGS.iter().collect();
    flags.sort_unstable_by_key(|flag| flag.name);
    let remark = |flag: &IgnoredFlag| {
        let Some(flag) = flag.vllm else { return String::new() };
        let mark = if flag.has_vllm_effect { " *" } else { "" };
        let release = |word: &str, release: Option<VllmRelease>| {
            release.map_or_else(String::new, |(major, minor)| format!(", {word} {major}.{minor}"))
        };
        format!("{mark}{}{}", release("since", flag.since), release("until", flag.until))
    };
    flags.iter().map(|flag| (flag.name, remark(flag))).collect()
}

pub(super) fn find_ignored_long_flag(name: &str) -> Option<(&'static str, IgnoredFlagArity)> {
    all_ignored_flags().find(|(n, _)| *n == name)
}

pub(super) fn find_ignored_short_flag(name: &str) -> Option<(&'static str, IgnoredFlagArity)> {
    let has_short = |flag: &VllmServeFlag| flag.shorts.contains(&name);
    let flag = IGNORED_FLAGS.iter().find(|flag| flag.vllm.is_some_and(has_short))?;
    Some((flag.name, flag.arity))
}
