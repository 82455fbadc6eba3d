use std::path::PathBuf;

/// Why a dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// There is no such file.
    #[error("dataset {} does not exist", path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// It could not be fetched.
    #[error("cannot fetch the dataset from {url}: {why}")]
    Download {
        /// Where from, without secrets.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// This build has no SQLite.
    #[error("dataset {}: this program was built without the feature `sqlite`", path.display())]
    NotBuilt {
        /// The file.
        path: PathBuf,
    },
    /// Another program writes to it.
    #[error("dataset {} is locked by another program", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Not a database, cut off or damaged.
    #[error("dataset {} is not a readable SQLite database: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        why: String,
    },
    /// No table of that name.
    #[error("dataset {} has no table '{table}'; it has: {}", path.display(), listed(found))]
    NoTable {
        /// The file.
        path: PathBuf,
        /// The name looked for.
        table: String,
        /// The tables there are.
        found: Vec<String>,
    },
    /// A column is missing or of another type.
    #[error(
        "table '{table}' of dataset {} must have the columns prompt_hash BLOB, \
         gen_tokens JSON, n_gen_tokens INTEGER: {why}",
        path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
        /// What is wrong.
        why: String,
    },
    /// A row does not hold what its column promises.
    #[error("table '{table}' of dataset {}, row {row}: {why}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
        /// Its `id`.
        row: i64,
        /// What is wrong.
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
