//! Certificates: made at start, from files, asked of clients, changed while running.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::log::Log;
use super::sim::{Sim, eventually};
use super::wire::Wire;

/// An authority, and what it has signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// A certificate for `name` and its key, as PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        (cert.pem(), key.serialize_pem())
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }
}

/// Certificate and key in files of these names.
fn write(folder: &Path, name: &str, (cert, key): &(String, String)) -> (String, String) {
    let path = |suffix: &str| folder.join(format!("{name}.{suffix}")).display().to_string();
    std::fs::write(path("crt"), cert).unwrap();
    std::fs::write(path("key"), key).unwrap();
    (path("crt"), path("key"))
}

/// A client that trusts `roots` and may show a certificate.
fn client(roots: RootCertStore, identity: Option<&(String, String)>) -> ClientConfig {
    use rustls::pki_types::pem::PemObject;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        Some((cert, key)) => {
            let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    }
}

async fn connect(
    sim: &Sim,
    config: ClientConfig,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(sim.address()).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The version, if the server lets us ask.
async fn version(stream: TlsStream<TcpStream>) -> Option<u16> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = stream;
    // A refusal of the client's certificate comes after the client's part of the handshake.
    stream.write_all(b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n").await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

#[tokio::test]
async fn serves_tls_with_certificate_files() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (cert, key) = write(folder.path(), "server", &authority.sign("sim.test"));
    let sim = Sim::serve(&["--ssl-certfile", &cert, "--ssl-keyfile", &key]).await;
    let stream = connect(&sim, client(authority.roots(), None), "sim.test").await.unwrap();
    let mut wire = Wire::new(stream);
    wire.send(b"GET /v1/models/ HTTP/1.1\r\nhost: sim.test\r\n\r\n").await;
    let answer = wire.answer().await;
    assert_eq!(answer.header("location"), Some("https://sim.test/v1/models"));
    let stranger = connect(&sim, client(Authority::new().roots(), None), "sim.test").await;
    assert!(stranger.is_err());
    let misnamed = connect(&sim, client(authority.roots(), None), "other.test").await;
    assert!(misnamed.is_err());
    // Plain text on this port harms nobody.
    let mut plain = sim.connect().await;
    plain.send(b"GET /version HTTP/1.1\r\nhost: sim\r\n\r\n").await;
    let stream = connect(&sim, client(authority.roots(), None), "sim.test").await.unwrap();
    assert_eq!(version(stream).await, Some(200));
}

#[tokio::test]
async fn serves_tls_with_self_signed_certificate() {
    let sim = Sim::serve(&["--self-signed-certs"]).await;
    let url = format!("https://{}/version", sim.address());
    let client = reqwest::Client::builder()
        .use_preconfigured_tls({
            let mut config = trusting();
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            config
        })
        .build()
        .unwrap();
    let answer = client.get(&url).send().await.unwrap();
    assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    assert_eq!(answer.text().await.unwrap(), "{\"version\":\"0.33.0\"}");
}

/// A client that takes any certificate, as `curl -k` does.
fn trusting() -> ClientConfig {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    #[derive(Debug)]
    struct Any;
    impl ServerCertVerifier for Any {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: rustls::pki_types::UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            let ring = rustls::crypto::ring::default_provider();
            ring.signature_verification_algorithms.supported_schemes()
        }
    }
    let mut config = client(RootCertStore::empty(), None);
    config.dangerous().set_certificate_verifier(Arc::new(Any));
    config
}

#[tokio::test]
async fn client_certificates_are_verified() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, clients) = (Authority::new(), Authority::new());
    let (cert, key) = write(folder.path(), "server", &servers.sign("sim.test"));
    let ca = folder.path().join("ca.crt").display().to_string();
    std::fs::write(&ca, clients.0.pem()).unwrap();
    let mut log = Log::new();
    let known = clients.sign("client.test");
    let stranger = Authority::new().sign("client.test");
    for (wanted, identity, answered) in [
        ("0", None, true),
        ("1", None, true),
        ("1", Some(&known), true),
        ("1", Some(&stranger), false),
        ("2", None, false),
        ("2", Some(&known), true),
        ("2", Some(&stranger), false),
    ] {
        let files = ["--ssl-certfile", &cert, "--ssl-keyfile", &key, "--ssl-ca-certs", &ca];
        let sim = Sim::serve(&[&files[..], &["--ssl-cert-reqs", wanted]].concat()).await;
        let config = client(servers.roots(), identity);
        let status = match connect(&sim, config, "sim.test").await {
            Ok(stream) => version(stream).await,
            Err(_) => None,
        };
        let shown = identity.is_some();
        assert_eq!(status.is_some(), answered, "--ssl-cert-reqs {wanted}, shown: {shown}");
        if shown && !answered {
            log.wait_for("TLS: client certificate refused").await;
        }
    }
}

#[tokio::test]
async fn changed_certificate_is_reloaded() {
    let mut log = Log::new();
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    let (cert, key) = write(folder.path(), "server", &old.sign("sim.test"));
    let files = ["--ssl-certfile", &cert, "--ssl-keyfile", &key];
    let sim = Sim::serve(&[&files[..], &["--enable-ssl-refresh"]].concat()).await;
    let before = connect(&sim, client(old.roots(), None), "sim.test").await.unwrap();
    // Something broken first: what was loaded stays.
    std::fs::write(&cert, "not a certificate").unwrap();
    log.wait_for("certificate not reloaded").await;
    assert!(connect(&sim, client(old.roots(), None), "sim.test").await.is_ok());
    write(folder.path(), "server", &new.sign("sim.test"));
    log.wait_for("certificate reloaded").await;
    let picked_up = connect(&sim, client(new.roots(), None), "sim.test").await;
    assert!(picked_up.is_ok(), "the old certificate is still shown");
    // Connections that are open stay.
    assert_eq!(version(before).await, Some(200));
}

/// vLLM loads changed files with `--enable-ssl-refresh` only, llm-d-inference-sim always.
#[tokio::test]
async fn changed_certificate_is_reloaded_only_with_ssl_refresh() {
    // A thread without a log would turn the messages off for which the test above waits.
    let _log = Log::new();
    let folder = tempfile::tempdir().unwrap();
    let (first, second, third) = (Authority::new(), Authority::new(), Authority::new());
    let (cert, key) = write(folder.path(), "server", &first.sign("sim.test"));
    let files = ["--ssl-certfile", &cert, "--ssl-keyfile", &key];
    let with = |flag| [&files[..], &[flag]].concat();
    let fixed = [
        Sim::serve(&files).await,
        Sim::serve(&with("--no-enable-ssl-refresh")).await,
        Sim::llmd(&with("--no-enable-ssl-refresh")).await,
    ];
    let reloading = [Sim::serve(&with("--enable-ssl-refresh")).await, Sim::llmd(&files).await];
    // A server that reloads at all has loaded the second certificate before others load the third.
    for new in [&second, &third] {
        write(folder.path(), "server", &new.sign("sim.test"));
        for sim in &reloading {
            let shows_new =
                async || connect(sim, client(new.roots(), None), "sim.test").await.is_ok();
            assert!(eventually(shows_new).await, "the new certificate is not shown");
        }
    }
    for sim in &fixed {
        let shown = connect(sim, client(first.roots(), None), "sim.test").await;
        assert!(shown.is_ok(), "the certificate was replaced: {:?}", shown.err());
    }
}
