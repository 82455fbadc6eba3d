//! Reads flags for tools that simulate engines without a server.

use super::cli_mode::CliMode;
use super::command_line::{self, UnknownFlagPolicy};
use super::did_you_mean::closest_known_name;
use super::error::{ConfigError, bail, invalid};
use super::flag::FlagSpec;
use super::flags::all_effective_flags;
use super::flags::content::SEED;
use super::flags::model::{self, REPLICAS};
use super::group::FlagHelpGroup;
use super::loaded::{LoadedConfig, load_config_and_unknown_args};

/// Flags in the groups of engine flags that do not affect the speed of an engine.
const FLAGS_WITHOUT_SPEED_EFFECT: [&str; 19] = [
    "data-parallel-rank",
    "data-parallel-start-rank",
    "data-parallel-size-local",
    "data-parallel-external-lb",
    "data-parallel-hybrid-lb",
    "data-parallel-multi-port-external-lb",
    "data-parallel-supervisor-port",
    "api-server-count",
    "max-num-queued-reqs",
    "max-num-queued-tokens",
    "is-prefill-worker",
    "is-decode-worker",
    "prefix-caching-hash-algo",
    "hash-seed",
    "global-cache-hit-threshold",
    "kv-side-channel-host",
    "kv-side-channel-port",
    "mooncake-bootstrap-port",
    "mooncake-abort-request-timeout",
];

/// Loads a configuration like [`load_config_and_unknown_args`], for a tool that simulates a single
/// engine. Rejects server flags on the command line, and settings of several engines from any
/// source.
///
/// # Errors
/// [`ConfigError::Invalid`] with the names of flags without effect; else the errors of
/// [`load_config_and_unknown_args`].
pub fn load_single_engine_config(
    words: &[String],
    cli_mode: CliMode,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(LoadedConfig, Vec<String>), ConfigError> {
    let typed = command_line::parse_command_line(words, UnknownFlagPolicy::Return)?.layer;
    let named = typed.settings.keys().copied();
    let unused = named.filter(|name| {
        !all_effective_flags().any(|flag| flag.name == *name && affects_engine(flag))
    });
    let unused: Vec<String> = unused.map(|name| format!("--{name}")).collect();
    let unused = [unused, typed.ignored].concat();
    if !unused.is_empty() {
        bail!(
            "{}: no effect here; of the flags of `vllm-sim serve`, only those that describe one \
             engine apply",
            unused.join(", ")
        );
    }
    let (loaded, rest) = load_config_and_unknown_args(words, cli_mode, env)?;
    let engine = &loaded.config.engine;
    let ranks = engine.parallel.data;
    if engine.replicas.count > 1 {
        return Err(several_engines_error(&loaded, REPLICAS.name, engine.replicas.count));
    }
    // Ranks that share experts form one worker: the size determines the experts per GPU.
    if ranks > 1 && !engine.parallel.expert && !engine.lock_step {
        return Err(several_engines_error(&loaded, "data-parallel-size", ranks));
    }
    Ok((loaded, rest))
}

fn several_engines_error(loaded: &LoadedConfig, name: &str, value: u32) -> ConfigError {
    let found = loaded.resolved_flags.iter().find(|flag| flag.name == name);
    let origin = found.map_or_else(String::new, |flag| format!(" (from {})", flag.source));
    invalid!(
        "--{name} is {value}{origin}, but must be 1 here: these flags describe one engine; \
         `replay` and `sweep` take --num-workers"
    )
}

/// Returns whether a flag affects the speed of an engine or names a file of such flags.
///
/// [`load_single_engine_config`] itself checks flags with a number of engines, such as
/// `--replicas`.
fn affects_engine(flag: &FlagSpec) -> bool {
    if FLAGS_WITHOUT_SPEED_EFFECT.contains(&flag.name) || flag.name.starts_with("disaggregation-") {
        return false;
    }
    match flag.group {
        FlagHelpGroup::Delays
        | FlagHelpGroup::Scheduler
        | FlagHelpGroup::Timing
        | FlagHelpGroup::KvCache
        | FlagHelpGroup::Parallel => true,
        FlagHelpGroup::General => {
            let some = [model::CONFIG.name, model::STRICT_CONFIG.name, REPLICAS.name];
            some.contains(&flag.name)
        }
        FlagHelpGroup::Model => {
            let some = [
                model::MODEL.name,
                model::MAX_MODEL_LEN.name,
                model::REVISION.name,
                model::QUANTIZATION.name,
                model::GENERATION_CONFIG.name,
                model::OVERRIDE_GENERATION_CONFIG.name,
                model::DOWNLOAD_DIR.name,
            ];
            some.contains(&flag.name) || flag.name.starts_with("hf-")
        }
        _ => flag.name == SEED.name,
    }
}

/// Returns the name of the flag of `vllm-sim serve`, or the name in `other_flag_names`, whose
/// spelling is closest to `typed`, without dashes.
pub fn nearest_engine_flag_name(typed: &str, other_flag_names: &[String]) -> Option<String> {
    let all: Vec<&str> = command_line::known_flag_names().collect();
    let others = other_flag_names.iter().map(String::as_str);
    closest_known_name(typed, all.into_iter().chain(others)).map(str::to_owned)
}
