use std::path::PathBuf;

/// Reports the reason why AIConfigurator's kernel-time tables cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AiConfiguratorError {
    /// The given folder contains no kernel-time tables.
    #[error("{} contains no kernel tables (query_versions.yaml); give the folder of an installed \
         aiconfigurator-core or aisimulate, or its folder `systems`", .0.display())]
    NoTables(PathBuf),
    /// The kernel-time tables have no measurements of the requested GPU.
    #[error("there are no tables for {gpu}; available are {known}")]
    Gpu {
        /// Name of the requested GPU.
        gpu: &'static str,
        /// Names of the GPUs in the kernel-time tables, separated by commas.
        known: String,
    },
    /// The kernel-time tables have no folder for the requested system (GPU type).
    #[error("the tables have no system {system:?}; available are {known}")]
    System {
        /// Requested system, such as `h100_sxm`.
        system: String,
        /// Systems in the kernel-time tables, separated by commas.
        known: String,
    },
    /// The kernel-time tables have no folder for the requested backend (inference engine).
    #[error("the tables have no backend {backend:?}; available are {known}")]
    Backend {
        /// Requested backend, such as `vllm`.
        backend: String,
        /// Comma-separated names of the inference engines that the kernel-time tables cover.
        known: String,
    },
    /// The kernel-time tables hold no measurements of the requested backend version.
    #[error("the tables have no {backend} {version} on {system}; available are {known}")]
    Version {
        /// Requested backend version.
        version: String,
        /// Backend (inference engine) of the requested version.
        backend: String,
        /// System (GPU type) of the requested version.
        system: String,
        /// Backend versions in the kernel-time tables, separated by commas.
        known: String,
    },
    /// A file of kernel-time tables cannot be read.
    #[error("{}: {problem}", .file.display())]
    File {
        /// Path of the unreadable file of kernel-time tables.
        file: PathBuf,
        /// Description of the problem with the file of kernel-time tables.
        problem: String,
    },
    /// A kernel-time table has no measurement of a needed kernel shape.
    #[error("{table} has no {what} ({of})")]
    Missing {
        /// Name of the kernel-time table that lacks the measurement.
        table: &'static str,
        /// Kernel shape without a measurement in the table.
        what: String,
        /// System (GPU type), backend (inference engine) and version of the kernel-time table.
        of: String,
    },
    /// The kernel-time tables do not support the model family; the text names the reason.
    #[error("kernel tables: {0}")]
    Model(&'static str),
}
