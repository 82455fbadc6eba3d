/// Error of loading a configuration. `Display` is for the person who typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An unknown flag, key or variable.
    #[error("unknown {what} {name}{}", hint(what, name, .nearest.as_deref()))]
    Unknown {
        /// Kind of name: `flag`, or `key of FILE`.
        what: String,
        /// Name as typed.
        name: String,
        /// Closest known name.
        nearest: Option<String>,
    },
    /// A value that cannot be parsed.
    #[error("{flag}: {value:?} is not {expected} (from {origin})")]
    Value {
        /// Flag, with its dashes.
        flag: String,
        /// Value as typed.
        value: String,
        /// Description of allowed values.
        expected: String,
        /// Source of the value: command line, variable or file.
        origin: String,
    },
    /// A value that is not supported, or two that contradict each other.
    #[error("{0}")]
    Invalid(String),
    /// An error, with warnings about probable mistakes.
    #[error("{error}{}", beside(.warnings))]
    Warned {
        /// Error of the configuration.
        error: Box<ConfigError>,
        /// Warnings, one sentence each.
        warnings: Vec<String>,
    },
    /// A tensor-parallel size that does not divide the attention heads, in vLLM's words.
    #[error(
        "Total number of attention heads ({heads}) must be divisible by tensor parallel size ({tensor})."
    )]
    UndividedHeads {
        /// Attention heads of the model.
        heads: u32,
        /// Value of `--tensor-parallel-size`.
        tensor: u32,
    },
    /// A file that cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// Path of the file.
        path: String,
        /// Reason reported by the parser or the operating system.
        reason: String,
    },
}

fn beside(warnings: &[String]) -> String {
    let lines = warnings
        .iter()
        .map(|warning| format!("\nwarning: {warning}"));
    lines.collect()
}

fn hint(what: &str, name: &str, nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean {nearest}?"),
        None if what == "command" => format!(
            "; `vllm-sim serve {name}` serves a model of this name, `vllm-sim --help` lists the commands"
        ),
        None => String::new(),
    }
}

impl ConfigError {
    /// Returns the error itself, without warnings.
    pub fn cause(&self) -> &Self {
        match self {
            Self::Warned { error, .. } => error.cause(),
            error => error,
        }
    }
}
