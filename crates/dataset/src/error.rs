use std::path::PathBuf;

/// Reports why a dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The file does not exist.
    #[error("dataset {} does not exist", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// The download failed.
    #[error("cannot fetch the dataset from {url}: {why}")]
    Download {
        /// URL of the file, without secrets.
        url: String,
        /// Reason of the failure.
        why: String,
    },
    /// This build has no SQLite.
    #[error("dataset {}: this program was built without the feature `sqlite`", path.display())]
    NotBuilt {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another process writes to the file.
    #[error("dataset {} is locked by another program", path.display())]
    Locked {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is not a database, truncated or corrupt.
    #[error("dataset {} is not a readable SQLite database: {why}", path.display())]
    Broken {
        /// Path of the file.
        path: PathBuf,
        /// Error message of SQLite.
        why: String,
    },
    /// The file has no table of this name.
    #[error("dataset {} has no table '{table}'; it has: {}", path.display(), listed(found))]
    NoTable {
        /// Path of the file.
        path: PathBuf,
        /// Requested table.
        table: String,
        /// Existing tables.
        found: Vec<String>,
    },
    /// A column is missing or has the wrong type.
    #[error(
        "table '{table}' of dataset {} must have the columns prompt_hash BLOB, \
         gen_tokens JSON, n_gen_tokens INTEGER: {why}",
        path.display()
    )]
    Shape {
        /// Path of the file.
        path: PathBuf,
        /// Name of the table.
        table: String,
        /// Description of the mismatch.
        why: String,
    },
    /// A row has an invalid value.
    #[error("table '{table}' of dataset {}, row {row}: {why}", path.display())]
    Row {
        /// Path of the file.
        path: PathBuf,
        /// Name of the table.
        table: String,
        /// Row id.
        row: i64,
        /// Description of the invalid value.
        why: String,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
