#![doc = include_str!("../README.md")]

mod client;
mod connect;
mod socket;
mod stream;

use std::path::PathBuf;

pub use client::{Client, ResponseBody, SendError};
pub use connect::{Connector, Endpoint};
pub use socket::Arrival;
pub use stream::Stream;

/// Whose certificates are believed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Trust {
    /// Authorities that browsers trust.
    #[default]
    Browsers,
    /// Authorities in this file (PEM).
    Authorities(PathBuf),
    /// Anybody: the certificate is not checked.
    Anyone,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The authorities cannot be read.
    #[error("cannot read certificates from {}: {why}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The library refuses.
    #[error("TLS: {0}")]
    Tls(String),
}
