//! The way to a collector: OTLP over gRPC, or as protobuf over HTTP; with TLS if the scheme says so.
//!
//! **Source:** vLLM 0.33 `vllm/tracing/otel.py` (which protocols there are, and that an HTTP endpoint
//! is used as it is written), OpenTelemetry's exporters for Python (schemes, certificates).

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::protocol::OtlpProtocol;

/// How long one export may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a collector's answer that are read.
const ANSWER: u64 = 1 << 20;
/// Files with the certificates of authorities that a collector is checked against, instead of those
/// that browsers trust.
const AUTHORITIES: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
];

/// Why there is no way to a collector.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// What the exporter finds wrong.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
    /// The authorities' certificates.
    #[error("cannot read certificates from {0:?} ({variable}): {1}", variable = AUTHORITIES[0])]
    Certificates(PathBuf, String),
}

/// The exporter of spans to `endpoint`.
pub(super) fn exporter(endpoint: &str, protocol: OtlpProtocol) -> Result<SpanExporter, OtlpError> {
    let authorities = AUTHORITIES.iter().find_map(std::env::var_os);
    let authorities = authorities.filter(|path| !path.is_empty());
    let authorities = authorities.map(PathBuf::from);
    Ok(match protocol {
        OtlpProtocol::Grpc => {
            let url = grpc_url(endpoint);
            let secure = url.starts_with("https");
            let builder = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(url)
                .with_timeout(TIMEOUT);
            match secure {
                true => builder.with_tls_config(grpc_tls(authorities)?).build()?,
                false => builder.build()?,
            }
        }
        OtlpProtocol::HttpProtobuf => SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(http_url(endpoint))
            .with_timeout(TIMEOUT)
            .with_http_client(HttpExportClient::new(authorities)?)
            .build()?,
    })
}

/// OpenTelemetry's gRPC exporter for Python takes any scheme.
fn grpc_url(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let scheme = match scheme.eq_ignore_ascii_case("https") {
        true => "https",
        false => "http",
    };
    format!("{scheme}://{rest}")
}

fn http_url(endpoint: &str) -> String {
    match endpoint.contains("://") {
        true => endpoint.to_owned(),
        false => format!("http://{endpoint}"),
    }
}

fn grpc_tls(authorities: Option<PathBuf>) -> Result<ClientTlsConfig, OtlpError> {
    let config = ClientTlsConfig::new();
    Ok(match authorities {
        None => config.with_enabled_roots(),
        Some(path) => {
            let read = std::fs::read(&path);
            let pem = read.map_err(|error| OtlpError::Certificates(path, error.to_string()))?;
            config.ca_certificate(Certificate::from_pem(pem))
        }
    })
}

/// An HTTP client for the exporter's own thread, which it may block.
#[derive(Debug)]
struct HttpExportClient(ureq::Agent);

impl HttpExportClient {
    fn new(authorities: Option<PathBuf>) -> Result<Self, OtlpError> {
        let mut builder = ureq::AgentBuilder::new().timeout(TIMEOUT).redirects(0);
        if let Some(path) = authorities {
            let config = http_tls(&path);
            let config = config.map_err(|why| OtlpError::Certificates(path, why))?;
            builder = builder.tls_config(Arc::new(config));
        }
        Ok(Self(builder.build()))
    }

    fn post(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, HttpError> {
        let mut call = self.0.post(&request.uri().to_string());
        for (name, value) in request.headers() {
            call = call.set(name.as_str(), value.to_str()?);
        }
        let answer = match call.send_bytes(request.body()) {
            Ok(answer) | Err(ureq::Error::Status(_, answer)) => answer,
            Err(error) => return Err(error.into()),
        };
        let mut response = http::Response::builder().status(answer.status());
        if let Some(seconds) = answer.header("retry-after") {
            response = response.header("retry-after", seconds);
        }
        let mut body = Vec::new();
        answer.into_reader().take(ANSWER).read_to_end(&mut body)?;
        Ok(response.body(body.into())?)
    }
}

#[async_trait::async_trait]
impl HttpClient for HttpExportClient {
    async fn send_bytes(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, HttpError> {
        self.post(request)
    }
}

fn http_tls(path: &std::path::Path) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| e.to_string())? {
        let certificate = certificate.map_err(|e| e.to_string())?;
        roots.add(certificate).map_err(|e| e.to_string())?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| e.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_may_have_any_scheme_or_none() {
        for (written, meant) in [
            ("collector:4317", "http://collector:4317"),
            ("http://collector:4317", "http://collector:4317"),
            ("grpc://collector:4317", "http://collector:4317"),
            ("HTTPS://collector:4317", "https://collector:4317"),
        ] {
            assert_eq!(grpc_url(written), meant);
        }
        for (written, meant) in [
            (
                "collector:4318/v1/traces",
                "http://collector:4318/v1/traces",
            ),
            ("https://collector/v1/traces", "https://collector/v1/traces"),
        ] {
            assert_eq!(http_url(written), meant);
        }
    }
}
