#![doc = include_str!("../README.md")]

mod client;
mod connect;
mod get;
mod socket;

use std::path::PathBuf;

pub use client::{HttpSendError, PooledHttpClient, ResponseBody};
pub use connect::{HttpConnector, HttpServerEndpoint};
pub use get::get_on_new_connection;

/// The way in which a client verifies server certificates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CertificateVerification {
    /// Verification: a server certificate must be signed by a public certificate authority.
    #[default]
    PublicAuthorities,
    /// Verification: a server certificate must be signed by an authority in the given PEM file,
    /// instead of a public one.
    Authorities(PathBuf),
    /// Verification: any certificate of the server is accepted.
    Disabled,
}

/// Error of setting up TLS for a client.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    /// A file of certificate authorities cannot be read.
    #[error("cannot read certificates from {}: {why}", path.display())]
    Authorities {
        /// Path of the file of certificate authorities.
        path: PathBuf,
        /// Reason why the file of certificate authorities cannot be read.
        why: String,
    },
    /// The TLS library returned an error while TLS was set up.
    #[error("TLS: {0}")]
    Tls(String),
}
