use std::path::PathBuf;

/// Reports why a dataset file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The dataset file does not exist.
    #[error("dataset {} does not exist", path.display())]
    Missing {
        /// Path of the missing dataset file.
        path: PathBuf,
    },
    /// The download of the dataset file failed.
    #[error("cannot download the dataset from {url}: {why}")]
    Download {
        /// URL of the dataset file, without secrets.
        url: String,
        /// Reason why the download of the dataset file failed.
        why: String,
    },
    /// The program is built without SQLite, so it cannot open datasets.
    #[error("dataset {}: this program was built without the feature `sqlite`", path.display())]
    NotBuilt {
        /// Path of the dataset file that cannot be opened.
        path: PathBuf,
    },
    /// Another process writes to the dataset file.
    #[error("dataset {} is locked by another program", path.display())]
    Locked {
        /// Path of the locked dataset file.
        path: PathBuf,
    },
    /// The dataset file is truncated, corrupt or not a database.
    #[error("dataset {} is not a readable SQLite database: {why}", path.display())]
    Broken {
        /// Path of the broken dataset file.
        path: PathBuf,
        /// Error message of SQLite about the broken dataset file.
        why: String,
    },
    /// The dataset file has no table of the requested name.
    #[error("dataset {} has no table '{table}'; it has: {}", path.display(), comma_separated(found))]
    NoTable {
        /// Path of the dataset file that lacks the table.
        path: PathBuf,
        /// Name of the missing dataset table.
        table: String,
        /// Names of the tables that the dataset file has.
        found: Vec<String>,
    },
    /// A column of the dataset table is missing or has the wrong type.
    #[error(
        "table '{table}' of dataset {} must have the columns prompt_hash BLOB, \
         gen_tokens JSON, n_gen_tokens INTEGER: {why}",
        path.display()
    )]
    Shape {
        /// Path of the dataset file whose table has a missing or wrong column.
        path: PathBuf,
        /// Name of the dataset table with a missing or wrong column.
        table: String,
        /// Description of the mismatch between the expected and the found columns of the table.
        why: String,
    },
    /// A row of the dataset table has an invalid value.
    #[error("table '{table}' of dataset {}, row {row}: {why}", path.display())]
    Row {
        /// Path of the dataset file with the invalid row.
        path: PathBuf,
        /// Name of the dataset table with the invalid row.
        table: String,
        /// Row id (SQLite's `rowid`) of the invalid row in the dataset table.
        row: i64,
        /// Description of the invalid value in the dataset row.
        why: String,
    },
}

fn comma_separated(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
