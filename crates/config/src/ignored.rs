//! Flags that are taken and mean nothing to a simulator.
//!
//! Of `vllm serve` they are all that its list has and [`flags`] has not, so a flag that gets a
//! meaning here leaves by itself.
//!
//! **Source:** vLLM's `vllm/engine/arg_utils.py` and `vllm/entrypoints/launchers/cli_args.py`
//! (0.31 and the months after it) with what 0.6 to 0.30 had; llm-d-inference-sim's
//! `pkg/common/config.go`; klog's flags; Dynamo's `dynamo/mocker/args.py`.

use std::sync::LazyLock;

use super::flags;

/// How many words a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arity {
    /// None, or `true` / `false`; has a `--no-` twin.
    Switch,
    /// One.
    Value,
    /// Any number, up to the next flag.
    List,
}

/// `vllm serve`'s flags, a line each: name, what it takes, names after one dash.
/// `generate/vllm_serve_flags.py` adds those of another release.
const VLLM_SERVE: &str = include_str!("vllm_serve_flags.txt");

/// Flags of other programs whose command lines are taken.
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
    ("aic-backend-version", Arity::Value),
    ("ais-backend", Arity::Value),
    ("ais-backend-version", Arity::Value),
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
}

static IGNORED: LazyLock<Vec<IgnoredFlag>> = LazyLock::new(|| {
    let others = OTHERS.iter().map(|(name, arity)| IgnoredFlag {
        name,
        arity: *arity,
        shorts: Vec::new(),
    });
    let all = VLLM_SERVE.lines().filter_map(read).chain(others);
    let mut flags: Vec<_> = all
        .filter(|flag| flags::long(flag.name).is_none())
        .collect();
    // The chart's schema lists them in this order.
    flags.sort_by_key(|flag| flag.arity);
    flags
});

/// Reads a line of [`VLLM_SERVE`]; `None` for a comment.
fn read(line: &'static str) -> Option<IgnoredFlag> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|name| !name.starts_with('#'))?;
    let arity = match words.next()? {
        "switch" => Arity::Switch,
        "list" => Arity::List,
        _ => Arity::Value,
    };
    let shorts = words.collect();
    Some(IgnoredFlag {
        name,
        arity,
        shorts,
    })
}

/// Every flag that is accepted and ignored, with the words it takes.
pub fn ignored_flags() -> impl Iterator<Item = (&'static str, Arity)> {
    IGNORED.iter().map(|flag| (flag.name, flag.arity))
}

/// The ignored flag of this long name.
pub(super) fn long(name: &str) -> Option<(&'static str, Arity)> {
    ignored_flags().find(|(n, _)| *n == name)
}

/// The ignored flag of this name after one dash.
pub(super) fn short(name: &str) -> Option<(&'static str, Arity)> {
    let flag = IGNORED.iter().find(|flag| flag.shorts.contains(&name))?;
    Some((flag.name, flag.arity))
}
