//! Command lines of other engines than vLLM.

use super::error::ConfigError;
use super::layers::ConfigLayer;
use super::sglang::{self, TranslatedSglangCommandLine};
use vllm_sim_observe::metrics::MetricsCompat;

/// Command line of another engine, such as SGLang, which is translated to the flags of this crate.
pub(super) struct OtherCommandLine {
    pub(super) translate: fn(&[String]) -> Result<TranslatedSglangCommandLine, ConfigError>,
    pub(super) help_page: &'static str,
    /// Sets the imitated engine's defaults for settings that neither a flag nor a file sets.
    pub(super) set_defaults: fn(&mut ConfigLayer),
    /// Values of `--tool-call-parser` accepted by the imitated engine.
    pub(super) tool_parsers: &'static [&'static str],
    /// Values of `--reasoning-parser` accepted by the imitated engine.
    pub(super) reasoning_parsers: &'static [&'static str],
}

/// Returns the command line of an imitated engine with flags of its own, such as SGLang; `None` for
/// vLLM and llm-d.
pub(super) fn other_command_line(
    compat: Option<MetricsCompat>,
) -> Option<&'static OtherCommandLine> {
    (compat == Some(MetricsCompat::Sglang)).then_some(&sglang::COMMAND_LINE)
}
