#![doc = include_str!("../README.md")]

pub mod metric_requirement;
pub mod output_files;
pub mod progress;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use vllm_sim_config::{all_effective_flags, closest_known_name, mask_url_passwords};

/// Error in the command line of a tool, such as `vllm-sim plan`; the exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Error of a tool whose result misses a `--require` condition.
///
/// The result is printed, and the exit code is 1.
#[derive(Debug, thiserror::Error)]
#[error("{missed}")]
pub struct MissedMetricRequirementsError {
    /// Text of the tool's result, printed on standard output.
    pub printed: String,
    /// Message about the missed `--require` conditions.
    pub missed: String,
}

/// Returns a [`UsageError`] from the enclosing function, with a text formatted as by `format!`.
#[macro_export]
macro_rules! refuse {
    ($($text:tt)*) => {
        return Err($crate::UsageError(format!($($text)*)).into())
    };
}

/// Parses the words of a tool's command line into `T`. The inner `Err` holds the help text if the
/// words ask for help.
///
/// # Errors
/// [`UsageError`] with clap's message.
pub fn parse_tool_args<T: Parser>(words: &[String]) -> Result<Result<T, String>> {
    let error = match T::try_parse_from(words) {
        Ok(args) => return Ok(Ok(args)),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::DisplayHelp {
        return Ok(Err(error.to_string()));
    }
    let text = suggest_similar_flag::<T>(error).to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    refuse!("{}", text.trim_end())
}

fn suggest_similar_flag<T: Parser>(mut error: clap::Error) -> clap::Error {
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
            if let Some(name) = closest_known_name(typed.trim_start_matches('-'), names) {
                let name = ContextValue::String(format!("--{name}"));
                error.insert(ContextKind::SuggestedArg, name);
            }
        }
        ErrorKind::InvalidValue => {
            let (Some(typed), Some(ContextValue::Strings(names))) =
                (text(ContextKind::InvalidValue), error.get(ContextKind::ValidValue).cloned())
            else {
                return error;
            };
            error.remove(ContextKind::SuggestedValue);
            if let Some(name) = closest_known_name(&typed, names.iter().map(String::as_str)) {
                let name = ContextValue::String(name.to_owned());
                error.insert(ContextKind::SuggestedValue, name);
            }
        }
        _ => {}
    }
    error
}

/// Formats a tool's command line so that it can be run again, with secrets masked.
pub fn format_command_line(tool: &str, words: &[String]) -> String {
    let is_secret = |name: &str| {
        name == "target-api-key"
            || all_effective_flags().any(|flag| flag.secret && flag.name == name)
    };
    let mut line = format!("vllm-sim {tool}");
    let mut hides = false;
    for word in words {
        let (flag, value) = match word.split_once('=') {
            Some((flag, _)) => (flag, Some(flag)),
            None => (word.as_str(), None),
        };
        let secret = flag.strip_prefix("--").is_some_and(|name| is_secret(&name.replace('_', "-")));
        line.push(' ');
        match value {
            _ if hides => line.push_str("***"),
            Some(flag) if secret => line.push_str(&format!("{flag}=***")),
            _ => line.push_str(&shell_quote(&mask_url_passwords(word))),
        }
        hides = secret && value.is_none() && !hides;
    }
    line
}

/// Converts the seconds of a flag to a duration.
///
/// # Errors
/// [`UsageError`] unless the value is a number above 0.
pub fn parse_positive_seconds(flag: &str, value: f64) -> Result<Duration> {
    let duration = Duration::try_from_secs_f64(value).ok();
    match duration.filter(|duration| !duration.is_zero()) {
        Some(duration) => Ok(duration),
        None => refuse!("{flag} is {value}, must be a number of seconds above 0"),
    }
}

/// Quotes a word for a POSIX shell if needed.
pub fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:=,+@%-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Renders a heading and rows as the lines of a text table. The first `left_aligned` columns are
/// aligned to the left, all others to the right.
pub fn render_text_table(
    head: &[String],
    rows: &[Vec<String>],
    left_aligned: usize,
) -> Vec<String> {
    let all = || std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column < left_aligned {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all().map(line).collect()
}

/// Applies the function `play` to each item on up to `threads` threads; results are in the order of
/// the items.
pub fn map_in_parallel<T: Sync, R: Send + Sync>(
    items: &[T],
    threads: usize,
    play: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Vec<OnceLock<R>> = items.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(item), Some(result)) = (items.get(at), results.get(at)) else {
                return;
            };
            let _ = result.set(play(item));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, items.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    results.into_iter().filter_map(OnceLock::into_inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_is_quoted_and_hides_secrets() {
        let words = [
            "trace file.jsonl",
            "--target-api-key",
            "s3cret",
            "--api-key=x",
            "--gpu",
            "H100",
            "it's",
        ];
        let words = words.map(str::to_owned);
        assert_eq!(
            format_command_line("replay", &words),
            r"vllm-sim replay 'trace file.jsonl' --target-api-key *** --api-key=*** --gpu H100 'it'\''s'"
        );
    }
}
