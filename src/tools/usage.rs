//! Wrong command lines of tools: what is said, and clap's words for it.

use anyhow::Result;
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use vllm_sim_config::closest;

/// The command line of a tool is wrong: the exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Returns a [`UsageError`], made as by `format!`.
macro_rules! refuse {
    ($($text:tt)*) => {
        return Err($crate::tools::usage::UsageError(format!($($text)*)).into())
    };
}
pub(crate) use refuse;

/// Words as `T` reads them; `Err` inside is a help text.
///
/// # Errors
/// [`UsageError`].
pub fn parse<T: Parser>(words: &[String]) -> Result<Result<T, String>> {
    let error = match T::try_parse_from(words) {
        Ok(args) => return Ok(Ok(args)),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::DisplayHelp {
        return Ok(Err(error.to_string()));
    }
    let text = suggest::<T>(error).to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    refuse!("{}", text.trim_end())
}

/// Puts the name that is nearest by edit distance in the place of clap's own suggestion.
fn suggest<T: Parser>(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(typed) = text(ContextKind::InvalidArg) else {
                return error;
            };
            let command = T::command();
            let names = command.get_arguments().filter_map(clap::Arg::get_long);
            error.remove(ContextKind::SuggestedArg);
            error.remove(ContextKind::Suggested);
            if let Some(name) = closest(typed.trim_start_matches('-'), names) {
                let name = ContextValue::String(format!("--{name}"));
                error.insert(ContextKind::SuggestedArg, name);
            }
        }
        ErrorKind::InvalidValue => {
            let (Some(typed), Some(ContextValue::Strings(names))) = (
                text(ContextKind::InvalidValue),
                error.get(ContextKind::ValidValue).cloned(),
            ) else {
                return error;
            };
            error.remove(ContextKind::SuggestedValue);
            if let Some(name) = closest(&typed, names.iter().map(String::as_str)) {
                let name = ContextValue::String(name.to_owned());
                error.insert(ContextKind::SuggestedValue, name);
            }
        }
        _ => {}
    }
    error
}
