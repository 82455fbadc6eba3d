use std::path::PathBuf;

/// Why there are no step times from tables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AicError {
    /// No tables where they were said to be.
    #[error("{} holds no kernel tables (query_versions.yaml): name the folder of an installed aiconfigurator-core or aisimulate, or its `systems`", .0.display())]
    NoTables(PathBuf),
    /// A GPU that was not measured.
    #[error("there are no tables of {gpu}, but of {known}")]
    Gpu {
        /// Its name.
        gpu: &'static str,
        /// Those that are there.
        known: String,
    },
    /// No such system.
    #[error("the tables have no system {system:?}, there are {known}")]
    System {
        /// As asked for.
        system: String,
        /// Those that are there.
        known: String,
    },
    /// No such backend.
    #[error("the tables have no backend {backend:?}, there are {known}")]
    Backend {
        /// As asked for.
        backend: String,
        /// Those that are there.
        known: String,
    },
    /// A version that the tables do not answer for.
    #[error("the tables do not answer for {backend} {version} on {system}, but for {known}")]
    Version {
        /// As asked for.
        version: String,
        /// Backend.
        backend: String,
        /// System.
        system: String,
        /// What they answer for.
        known: String,
    },
    /// A file that cannot be read.
    #[error("{}: {problem}", .file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        problem: String,
    },
    /// A shape that was not measured.
    #[error("{table} has no {what} ({of})")]
    Missing {
        /// Table.
        table: &'static str,
        /// Key.
        what: String,
        /// Whose table.
        of: String,
    },
    /// A model of a family that is not supported.
    #[error("kernel tables: {0}")]
    Model(&'static str),
}
