use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::socket::{ArrivalTimedSocket, LatestBytesArrivalTime};
use super::{CertificateVerification, TlsSetupError};

/// Address of an HTTP server: host, port and whether it uses TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpServerEndpoint {
    /// Whether the server uses TLS.
    pub secure: bool,
    /// Host name of the server, as in certificates; IPv6 addresses without brackets.
    pub host: String,
    /// TCP port of the HTTP server.
    pub port: u16,
}

impl HttpServerEndpoint {
    /// Returns the endpoint of a URL's authority (host and optional port); `None` without a host.
    pub fn new(secure: bool, authority: &http::uri::Authority) -> Option<Self> {
        let host = authority.host().trim_matches(['[', ']']);
        let port = if secure { 443 } else { 80 };
        (!host.is_empty()).then(|| Self {
            secure,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(port),
        })
    }
}

/// Byte stream of a TCP connection with or without TLS.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> ByteStream for S {}

/// Opens TCP or TLS connections to one HTTP server.
#[derive(Clone)]
pub struct HttpConnector {
    endpoint: HttpServerEndpoint,
    tls: Option<TlsConnector>,
}

impl HttpConnector {
    /// Creates a connector for `endpoint`; `trust` selects how a TLS certificate is verified.
    ///
    /// # Errors
    /// [`TlsSetupError`] if the certificates of authorities cannot be read.
    pub fn new(
        endpoint: HttpServerEndpoint,
        trust: &CertificateVerification,
    ) -> Result<Self, TlsSetupError> {
        let tls = match endpoint.secure {
            true => Some(Arc::new(tls_config(trust)?).into()),
            false => None,
        };
        Ok(Self { endpoint, tls })
    }

    /// Opens a TCP connection, with TLS if the endpoint is secure. Returns it with the arrival time
    /// of its latest bytes.
    ///
    /// # Errors
    /// An I/O error of the network or of TLS.
    pub(super) async fn connect(
        &self,
    ) -> io::Result<(Box<dyn ByteStream>, LatestBytesArrivalTime)> {
        let HttpServerEndpoint { host, port, .. } = &self.endpoint;
        let socket = ArrivalTimedSocket::new(TcpStream::connect((host.as_str(), *port)).await?)?;
        let arrival = socket.arrival_time();
        let Some(tls) = &self.tls else {
            return Ok((Box::new(socket), arrival));
        };
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        Ok((Box::new(tls.connect(name, socket).await?), arrival))
    }
}

fn tls_config(trust: &CertificateVerification) -> Result<ClientConfig, TlsSetupError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsSetupError::Tls(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    match trust {
        CertificateVerification::PublicAuthorities => {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned())
        }
        CertificateVerification::Authorities(path) => {
            let wrong = |why: String| TlsSetupError::Authorities { path: path.clone(), why };
            let found = CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?;
            for certificate in found {
                let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
                roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong("it has no certificate".to_owned()));
            }
        }
        CertificateVerification::Disabled => {
            let verifier = Arc::new(AcceptAnyCertificate(provider));
            let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
            return Ok(builder.with_no_client_auth());
        }
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// TLS verification without a check of the certificate. The server must still prove that it has the
/// certificate's private key.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
