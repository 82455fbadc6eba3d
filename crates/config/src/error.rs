/// Why there is no configuration. `Display` is for the person who typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A flag, key or variable that does not exist.
    #[error("unknown {what} {name}{}", hint(.nearest.as_deref()))]
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
    /// What else looks like a mistake beside an error.
    #[error("{error}{}", beside(.warnings))]
    Warned {
        /// The error.
        error: Box<ConfigError>,
        /// One sentence each.
        warnings: Vec<String>,
    },
    /// A file that cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
}

fn beside(warnings: &[String]) -> String {
    let lines = warnings
        .iter()
        .map(|warning| format!("\nwarning: {warning}"));
    lines.collect()
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |n| format!("; did you mean {n}?"))
}
