use std::path::PathBuf;

/// Reports why kernel tables cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AicError {
    /// The folder contains no tables.
    #[error("{} holds no kernel tables (query_versions.yaml): name the folder of an installed aiconfigurator-core or aisimulate, or its `systems`", .0.display())]
    NoTables(PathBuf),
    /// The GPU was not measured.
    #[error("there are no tables of {gpu}, but of {known}")]
    Gpu {
        /// GPU name.
        gpu: &'static str,
        /// Available GPUs.
        known: String,
    },
    /// The system does not exist.
    #[error("the tables have no system {system:?}, there are {known}")]
    System {
        /// Requested system.
        system: String,
        /// Available systems.
        known: String,
    },
    /// The backend does not exist.
    #[error("the tables have no backend {backend:?}, there are {known}")]
    Backend {
        /// Requested backend.
        backend: String,
        /// Available backends.
        known: String,
    },
    /// The tables do not support the version.
    #[error("the tables do not answer for {backend} {version} on {system}, but for {known}")]
    Version {
        /// Requested version.
        version: String,
        /// Backend.
        backend: String,
        /// System.
        system: String,
        /// Supported versions.
        known: String,
    },
    /// A file cannot be read.
    #[error("{}: {problem}", .file.display())]
    File {
        /// File.
        file: PathBuf,
        /// Description of the problem.
        problem: String,
    },
    /// A shape was not measured.
    #[error("{table} has no {what} ({of})")]
    Missing {
        /// Table.
        table: &'static str,
        /// Missing key.
        what: String,
        /// System, backend and version of the table.
        of: String,
    },
    /// The model family is not supported.
    #[error("kernel tables: {0}")]
    Model(&'static str),
}
