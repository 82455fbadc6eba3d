use std::path::Path;

/// Error while loading a configuration. `Display` is written for the person who typed the flags.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An unknown flag, file key or environment variable.
    #[error("unknown {what} {name}{}", suggestion_for_unknown(what, name, .nearest.as_deref()))]
    Unknown {
        /// Kind of the unknown name: `flag`, or `key of FILE`.
        what: String,
        /// The unknown flag, file key or environment variable, as typed.
        name: String,
        /// The known flag, key or variable whose spelling is closest to the unknown name, if any.
        nearest: Option<String>,
    },
    /// A flag value that cannot be parsed.
    #[error("{flag}: {value:?} is not {expected} (from {origin})")]
    Value {
        /// Name of the flag with the invalid value, with its dashes.
        flag: String,
        /// Invalid value of the flag, as typed.
        value: String,
        /// Description of the values that the flag allows.
        expected: String,
        /// Source of the invalid value: command line, environment variable or file.
        origin: String,
    },
    /// A flag value that is not supported, or two that contradict each other.
    #[error("{0}")]
    Invalid(String),
    /// A configuration error, with warnings about probable mistakes.
    #[error("{error}{}", format_warning_lines(.warnings))]
    Warned {
        /// The configuration error, without the warnings.
        error: Box<ConfigError>,
        /// Warnings about probable mistakes, one sentence each.
        warnings: Vec<String>,
    },
    /// A tensor-parallel size that does not divide the number of attention heads, with vLLM's
    /// message.
    #[error(
        "Total number of attention heads ({heads}) must be divisible by tensor parallel size ({tensor})."
    )]
    UndividedHeads {
        /// Number of attention heads of the model.
        heads: u32,
        /// Value of `--tensor-parallel-size`, which does not divide the number of attention heads.
        tensor: u32,
    },
    /// A configuration file that cannot be read or parsed.
    #[error("{path}: {reason}")]
    File {
        /// Path of the unusable configuration file.
        path: String,
        /// Reason why reading failed, from the parser or the operating system.
        reason: String,
    },
}

fn format_warning_lines(warnings: &[String]) -> String {
    let lines = warnings.iter().map(|warning| format!("\nwarning: {warning}"));
    lines.collect()
}

fn suggestion_for_unknown(what: &str, name: &str, nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean {nearest}?"),
        None if what == "command" => format!(
            "; `vllm-sim serve {name}` serves a model of this name, `vllm-sim --help` lists the commands"
        ),
        None => String::new(),
    }
}

impl ConfigError {
    pub(crate) fn unusable_file(file: &Path, reason: impl ToString) -> Self {
        Self::File { path: file.display().to_string(), reason: reason.to_string() }
    }

    /// Returns the configuration error without its warnings.
    pub fn error_without_warnings(&self) -> &Self {
        match self {
            Self::Warned { error, .. } => error.error_without_warnings(),
            error => error,
        }
    }
}

impl ConfigError {
    /// Returns the error with the names of the flags that a user typed; `names` pairs the flags of
    /// this crate with them.
    pub(super) fn with_typed_names(self, names: &[(&str, &str)]) -> Self {
        match self {
            Self::Value { flag, value, expected, origin } => {
                Self::Value { flag: replace_flag_names(flag, names), value, expected, origin }
            }
            Self::Invalid(text) => Self::Invalid(replace_flag_names(text, names)),
            Self::Warned { error, warnings } => {
                Self::Warned { error: Box::new(error.with_typed_names(names)), warnings }
            }
            other => other,
        }
    }
}

/// Replaces whole flag names, with their dashes, in a text.
fn replace_flag_names(mut text: String, names: &[(&str, &str)]) -> String {
    for (ours, typed) in names.iter().filter(|(ours, typed)| ours != typed) {
        let ours = format!("--{ours}");
        let parts: Vec<&str> = text.split(&*ours).collect();
        let mut replaced = parts[0].to_owned();
        for part in &parts[1..] {
            let is_longer = part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
            let name = if is_longer { ours.clone() } else { format!("--{typed}") };
            replaced.push_str(&name);
            replaced.push_str(part);
        }
        text = replaced;
    }
    text
}

/// Creates a [`ConfigError::Invalid`] from a format string and its arguments.
macro_rules! invalid {
    ($($words:tt)*) => {
        $crate::error::ConfigError::Invalid(format!($($words)*))
    };
}

/// Returns a [`ConfigError::Invalid`] from the enclosing function, like `anyhow::bail!`.
macro_rules! bail {
    ($($words:tt)*) => {
        return Err($crate::error::invalid!($($words)*))
    };
}

pub(crate) use {bail, invalid};
