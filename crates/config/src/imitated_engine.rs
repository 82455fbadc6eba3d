//! Command lines of other servers than vLLM, and what these servers set differently.

mod sglang;

use super::error::ConfigError;
use super::layers::ConfigLayer;
use vllm_sim_engine::kv::BlockHashAlgorithm;
use vllm_sim_observe::kv_events::KvEventFormat;
use vllm_sim_observe::metrics::MetricsCompat;

pub use sglang::disaggregation::DisaggregationConfig;

/// Command lines of servers other than vLLM. To add a server, add a module and an element of this
/// list.
pub(super) const OTHER_COMMAND_LINES: [&ImitatedEngineCommandLine; 1] = [&sglang::COMMAND_LINE];

/// Command line of another server than vLLM, such as SGLang, which is translated to the flags of
/// this crate.
pub(super) struct ImitatedEngineCommandLine {
    pub(super) compat: MetricsCompat,
    /// Name of the command of `vllm-sim` that serves the imitated server.
    pub(super) command: &'static str,
    /// Name of the Python module of the imitated server (`python3 -m`).
    pub(super) module: &'static str,
    /// Description of the command in the program's help page.
    pub(super) summary: &'static str,
    pub(super) translate: fn(&[String]) -> Result<TranslatedCommandLine, ConfigError>,
    pub(super) help_page: &'static str,
    /// Sets the imitated server's defaults for settings that neither a flag nor a file sets.
    pub(super) set_defaults: fn(&mut ConfigLayer),
    /// Values of `--tool-call-parser` accepted by the imitated server.
    pub(super) tool_parsers: &'static [&'static str],
    /// Values of `--reasoning-parser` accepted by the imitated server.
    pub(super) reasoning_parsers: &'static [&'static str],
    /// Format of the imitated server's KV events.
    pub(super) kv_event_format: KvEventFormat,
    /// Algorithm of the block hashes in the imitated server's KV events.
    pub(super) block_hash_algorithm: BlockHashAlgorithm,
}

/// Command line of another server, translated to the flags of this crate.
#[derive(Debug, Default)]
pub(super) struct TranslatedCommandLine {
    /// Arguments for the command-line parser of this crate.
    pub(super) words: Vec<String>,
    /// Warnings about flags without effect; a single warning names all such flags.
    pub(super) warnings: Vec<String>,
    /// Flags of this crate with the typed flags that they replace, without dashes.
    pub(super) typed_names: Vec<(&'static str, &'static str)>,
}

/// Returns the command line of an imitated server with flags of its own, such as SGLang; `None` for
/// vLLM and llm-d.
pub(super) fn imitated_engine_command_line(
    compat: Option<MetricsCompat>,
) -> Option<&'static ImitatedEngineCommandLine> {
    OTHER_COMMAND_LINES.into_iter().find(|own| compat == Some(own.compat))
}

/// Returns the imitated server's command line that the first arguments select (a command of
/// `vllm-sim` or a Python module), and the arguments after them.
pub(super) fn select_command_line(
    words: &[String],
) -> Option<(&'static ImitatedEngineCommandLine, &[String])> {
    match words {
        [first, module, rest @ ..] if first == "-m" => {
            let own = OTHER_COMMAND_LINES.into_iter().find(|own| own.module == module);
            own.map(|own| (own, rest))
        }
        [command, rest @ ..] => {
            let own = OTHER_COMMAND_LINES.into_iter().find(|own| own.command == command);
            own.map(|own| (own, rest))
        }
        [] => None,
    }
}
