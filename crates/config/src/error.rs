/// Why there is no configuration. `Display` is for the person who typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A flag, key or variable that does not exist.
    #[error("unknown {what} {name}{}", hint(what, name, .nearest.as_deref()))]
    Unknown {
        /// flag, key of FILE.
        what: String,
        /// As typed.
        name: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// A value that cannot be read as what the flag takes.
    #[error("{flag}: {value:?} is not {expected} (from {origin})")]
    Value {
        /// The flag, with its dashes.
        flag: String,
        /// As typed.
        value: String,
        /// What is allowed.
        expected: String,
        /// Where it was typed.
        origin: String,
    },
    /// A value that can be read but not used, or two that contradict each other.
    #[error("{0}")]
    Invalid(String),
    /// A file that cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
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
