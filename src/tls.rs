//! TLS certificates of a server: from files, reloaded when they change, or self-signed at start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use vllm_sim_config::{ClientCertificatePolicy, TlsCertificateSource, TlsConfig};

/// Interval between checks of the certificate files.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// An error of the TLS setup of a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// A certificate or key file is missing or is not PEM.
    #[error("cannot read {what} {path}: {why}")]
    File {
        /// Expected content of the certificate or key file, such as `private key`.
        what: &'static str,
        /// Path of the unusable certificate or key file.
        path: PathBuf,
        /// Reason why the certificate or key file cannot be used.
        why: String,
    },
    /// TLS certificate, key and certificate authorities do not match.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    /// The client certificate authorities cannot be used.
    #[error("TLS client certificates: {0}")]
    Verifier(String),
    /// The self-signed certificate could not be created.
    #[error("cannot create a self-signed certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
}

/// TLS configuration of a server, replaced when certificate files change.
#[derive(Clone)]
pub struct ReloadingTlsAcceptor(Arc<ArcSwap<ServerConfig>>);

impl ReloadingTlsAcceptor {
    /// Loads the configured certificate, or creates a self-signed one for `self_signed_cert_names`.
    ///
    /// # Errors
    /// [`ServerTlsError`] if the certificate or an authority cannot be used.
    pub fn new(
        tls: &TlsConfig,
        self_signed_cert_names: Vec<String>,
    ) -> Result<Self, ServerTlsError> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(load_server_config(tls, self_signed_cert_names)?))))
    }

    /// Returns a TLS acceptor with the current certificate.
    pub fn current_tls_acceptor(&self) -> tokio_rustls::TlsAcceptor {
        self.0.load_full().into()
    }

    /// Watches the certificate files for changes until the future is dropped.
    ///
    /// A change reloads them; if that fails, the old certificate is kept and a warning is logged.
    pub fn reload_on_certificate_change(self, tls: TlsConfig) -> impl Future<Output = ()> {
        // A change between this call and the first check counts.
        let mut seen = certificate_modification_times(&tls.certificate);
        async move {
            let TlsCertificateSource::Files { cert, .. } = &tls.certificate else { return };
            loop {
                tokio::time::sleep(CERTIFICATE_CHECK_INTERVAL).await;
                if certificate_modification_times(&tls.certificate) == seen {
                    continue;
                }
                // Both files are replaced one after the other, so wait until the second is complete.
                tokio::time::sleep(CERTIFICATE_CHECK_INTERVAL / 2).await;
                seen = certificate_modification_times(&tls.certificate);
                match load_server_config(&tls, Vec::new()) {
                    Ok(config) => {
                        self.0.store(Arc::new(config));
                        tracing::info!(cert = %cert.display(), "certificate reloaded");
                    }
                    Err(error) => tracing::warn!(%error, "certificate not reloaded"),
                }
            }
        }
    }
}

/// Returns the modification times of a certificate's file and of its key.
fn certificate_modification_times(certificate: &TlsCertificateSource) -> [Option<SystemTime>; 2] {
    match certificate {
        TlsCertificateSource::Files { cert, key } => {
            [modification_time(cert), modification_time(key)]
        }
        TlsCertificateSource::SelfSigned => [None; 2],
    }
}

fn modification_time(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}

fn load_server_config(tls: &TlsConfig, names: Vec<String>) -> Result<ServerConfig, ServerTlsError> {
    let (chain, key) = match &tls.certificate {
        TlsCertificateSource::Files { cert, key } => (read_certificates(cert)?, private_key(key)?),
        TlsCertificateSource::SelfSigned => self_signed(names)?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)?;
    let builder = match (&tls.ca_certs, tls.client_certs) {
        (Some(path), wanted) if wanted != ClientCertificatePolicy::None => {
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(path)? {
                roots.add(certificate)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            let verifier = match wanted {
                ClientCertificatePolicy::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build().map_err(|e| ServerTlsError::Verifier(e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerTlsError> {
    let failed =
        |why: String| ServerTlsError::File { what: "certificates", path: path.into(), why };
    let read = CertificateDer::pem_file_iter(path).map_err(|e| failed(e.to_string()))?;
    let chain: Vec<_> = read.collect::<Result<_, _>>().map_err(|e| failed(e.to_string()))?;
    if chain.is_empty() { Err(failed("the file has no certificate".into())) } else { Ok(chain) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ServerTlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| ServerTlsError::File {
        what: "private key",
        path: path.into(),
        why: e.to_string(),
    })
}

type CertificateAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn self_signed(names: Vec<String>) -> Result<CertificateAndKey, ServerTlsError> {
    let made = rcgen::generate_simple_self_signed(names)?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    Ok((vec![made.cert.der().clone()], key))
}
