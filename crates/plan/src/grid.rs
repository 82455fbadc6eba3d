//! Parses varied flags (`NAME=VALUE,VALUE,…`) and builds all combinations of their values.

use std::collections::HashSet;

use anyhow::Result;
use clap::Parser;

use vllm_sim_command_line::{UsageError, refuse};
use vllm_sim_replay_cli::{ServeFlagSplitter, WeightsDoNotFitError, WorkerPools, split_known_args};

const MAX_GRID_POINTS: usize = 10_000;

/// Flags of `sweep` and `plan` that describe the comparison of all combinations, its files and its
/// run.
const COMMON_FLAGS: [&str; 19] = [
    "attainment",
    "bound",
    "deploy-dir",
    "fixed-workers",
    "grid",
    "helm-values",
    "html",
    "max-cost",
    "max-gpus",
    "merge",
    "per-request",
    "prices",
    "report-json",
    "require",
    "shard",
    "step-log",
    "threads",
    "trace-out",
    "vary",
];

pub(super) struct FlagGridAxis {
    /// Name of the varied flag, without the leading dashes.
    pub(super) name: String,
    pub(super) values: Vec<String>,
}

/// Parses the arguments of the repeatable option `flag` (`NAME=VALUE,VALUE,…`), one axis each.
///
/// # Errors
/// Returns a usage error for a missing `=`, an empty or repeated value, a flag that cannot vary, or
/// too many combinations.
pub(super) fn parse_grid_axes(flag: &str, given: &[String]) -> Result<Vec<FlagGridAxis>> {
    let axes = given.iter().map(|text| {
        let (name, values) = text
            .split_once('=')
            .ok_or_else(|| UsageError(format!("{flag} {text:?} must be NAME=VALUE,VALUE,…")))?;
        let values: Vec<String> = split_values(values);
        if values.iter().any(String::is_empty) {
            refuse!("{flag} {text:?} has an empty value");
        }
        let name = name.trim().trim_start_matches("--").replace('_', "-");
        Ok(FlagGridAxis { name, values })
    });
    let axes: Vec<FlagGridAxis> = axes.collect::<Result<_>>()?;
    let mut names = HashSet::new();
    if let Some(axis) = axes.iter().find(|axis| !names.insert(&axis.name)) {
        refuse!("{flag} {} is given twice: list all its values once", axis.name);
    }
    for FlagGridAxis { name, values } in &axes {
        if COMMON_FLAGS.contains(&name.as_str()) {
            refuse!("{flag} {name}: its value applies to all combinations");
        }
        let mut seen = HashSet::new();
        if let Some(value) = values.iter().find(|value| !seen.insert(*value)) {
            refuse!("{flag} {name} has {value} twice");
        }
    }
    let points = axes.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.values.len()));
    match points.filter(|&n| n <= MAX_GRID_POINTS) {
        Some(_) => Ok(axes),
        None => refuse!("{flag}: more than {MAX_GRID_POINTS} points"),
    }
}

/// Splits flag values at commas outside brackets: `none,{"a":1,"b":2}` has two values.
fn split_values(text: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let values = text.split(|c: char| {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    values.map(|value| value.trim().to_owned()).collect()
}

/// Returns all combinations of the values of `axes`; the last axis varies fastest.
pub(super) fn axis_value_combinations(axes: &[FlagGridAxis]) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    for axis in axes {
        all = all
            .into_iter()
            .flat_map(|values: Vec<String>| {
                axis.values.iter().map(move |value| {
                    let mut values = values.clone();
                    values.push(value.clone());
                    values
                })
            })
            .collect();
    }
    all
}

/// Parses the command line without varied flags; the inner `Err` is a help text.
///
/// # Errors
/// Returns a usage error for invalid arguments.
pub(super) fn parse_unvaried_args<T: Parser>(
    args: &[String],
    sort: ServeFlagSplitter<'_>,
) -> Result<Result<T, String>> {
    let parsed = split_known_args::<T>(args)?;
    if parsed.has_help_flag() {
        return parsed.parse_with_extra_words(&[]);
    }
    let (_, loose) = sort(&parsed.others)?;
    parsed.parse_with_extra_words(&loose)
}

/// Returns the flags of one combination of values, as a command line has them.
pub(super) fn flags_of_grid_point(axes: &[FlagGridAxis], values: &[String]) -> Vec<String> {
    let set = axes.iter().zip(values);
    set.map(|(axis, value)| format!("--{}={value}", axis.name)).collect()
}

/// Parses the command line with one combination of flags, and returns the worker pools, or the
/// reason why the model does not fit on the GPUs.
///
/// # Errors
/// Returns a usage error for invalid arguments, with the label of the combination as context.
pub(super) fn parse_grid_point<T: Parser>(
    args: &[String],
    flags: &[String],
    label: &str,
    sort: ServeFlagSplitter<'_>,
    pools: impl Fn(&T, &[String]) -> Result<WorkerPools>,
) -> Result<(T, Result<WorkerPools, WeightsDoNotFitError>)> {
    let parsed = split_known_args::<T>(&[args, flags].concat())?;
    let (flags, loose) =
        sort(&parsed.others).map_err(|error| with_grid_point_label(label, error))?;
    let args = parsed
        .parse_with_extra_words(&loose)
        .map_err(|error| with_grid_point_label(label, error))?;
    let Ok(args) = args else {
        refuse!("--help cannot be a flag of a grid");
    };
    let pools = match pools(&args, &flags) {
        Ok(pools) => Ok(pools),
        Err(error) => match error.downcast::<WeightsDoNotFitError>() {
            Ok(misfit) => Err(misfit),
            Err(error) => return Err(with_grid_point_label(label, error)),
        },
    };
    Ok((args, pools))
}

/// Adds the label of a flag combination to an error; an empty label adds nothing.
pub(super) fn with_grid_point_label(label: &str, error: anyhow::Error) -> anyhow::Error {
    match label {
        "" => error,
        label => error.context(label.to_owned()),
    }
}

/// Formats a flag combination as `name=value name=value`.
pub(super) fn flag_combination_label<N: AsRef<str>>(names: &[N], values: &[String]) -> String {
    let flags = names.iter().zip(values);
    let flags: Vec<String> =
        flags.map(|(name, value)| format!("{}={value}", name.as_ref())).collect();
    flags.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_values_split_at_commas_outside_brackets() {
        let values = split_values(r#"none, {"a":[1,2],"b":3},4"#);
        assert_eq!(values, ["none", r#"{"a":[1,2],"b":3}"#, "4"]);
    }
}
