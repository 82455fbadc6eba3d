//! Exports trace spans to a collector: OTLP over gRPC or HTTP, with TLS if the scheme requires it.
//!
//! **Source:** vLLM 0.33 `vllm/tracing/otel.py` (protocols; an HTTP endpoint is used unchanged),
//! OpenTelemetry's exporters for Python (schemes, certificates).

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header;
use http::uri::{InvalidUri, Scheme};
use http_body_util::Full;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use tokio::runtime::Handle;
use tokio::time::timeout;
use vllm_sim_http_client::{
    CertificateVerification, HttpConnector, HttpServerEndpoint, PooledHttpClient, TlsSetupError,
};

use super::protocol::OtlpProtocol;

const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes read from the response of an OpenTelemetry collector.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Environment variables for a file of certificate authorities, which replaces the public ones.
const CA_FILE_VARIABLES: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];

/// Error of creating the OTLP exporter.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// Error of the OpenTelemetry library.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
    /// Error of a certificate file that cannot be read: its path and the reason.
    #[error("cannot read certificates from {0:?} ({variable}): {1}", variable = CA_FILE_VARIABLES[0])]
    Certificates(PathBuf, String),
}

impl From<TlsSetupError> for OtlpError {
    fn from(error: TlsSetupError) -> Self {
        match error {
            TlsSetupError::Authorities { path, why } => Self::Certificates(path, why),
            TlsSetupError::Tls(why) => Self::Exporter(ExporterBuildError::InternalFailure(why)),
        }
    }
}

pub(super) fn create_span_exporter(
    endpoint: &str,
    protocol: OtlpProtocol,
) -> Result<SpanExporter, OtlpError> {
    let authorities = CA_FILE_VARIABLES.iter().find_map(std::env::var_os);
    let authorities = authorities.filter(|path| !path.is_empty());
    let authorities = authorities.map(PathBuf::from);
    Ok(match protocol {
        OtlpProtocol::Grpc => {
            let url = grpc_url(endpoint);
            let secure = url.starts_with("https");
            let builder = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(url)
                .with_timeout(EXPORT_TIMEOUT);
            match secure {
                true => builder.with_tls_config(grpc_tls(authorities)?).build()?,
                false => builder.build()?,
            }
        }
        OtlpProtocol::HttpProtobuf => SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(http_url(endpoint))
            .with_timeout(EXPORT_TIMEOUT)
            .with_http_client(HttpExportClient::new(&http_url(endpoint), authorities)?)
            .build()?,
    })
}

/// Returns an endpoint as URL for gRPC; any scheme is accepted, as in OpenTelemetry's Python
/// exporter.
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

/// HTTP client of the OTLP exporter. The client sends from the exporter's thread, on the tokio
/// runtime in which it was created.
#[derive(Debug)]
struct HttpExportClient {
    client: PooledHttpClient<Full<Bytes>>,
    host: String,
    credentials: Option<String>,
    runtime: Handle,
}

impl HttpExportClient {
    fn new(url: &str, authorities: Option<PathBuf>) -> Result<Self, OtlpError> {
        let wrong = |why: String| {
            let why = format!("endpoint: invalid endpoint '{url}': {why}");
            ExporterBuildError::InvalidConfiguration(why)
        };
        let uri: http::Uri = url.parse().map_err(|why: InvalidUri| wrong(why.to_string()))?;
        let secure = uri.scheme() == Some(&Scheme::HTTPS);
        let no_host = || wrong("it has no host".to_owned());
        let authority = uri.authority().ok_or_else(no_host)?;
        let endpoint = HttpServerEndpoint::new(secure, authority).ok_or_else(no_host)?;
        let trust = authorities.map_or(
            CertificateVerification::PublicAuthorities,
            CertificateVerification::Authorities,
        );
        let (user, host) = match authority.as_str().rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority.as_str()),
        };
        Ok(Self {
            client: PooledHttpClient::new(HttpConnector::new(endpoint, &trust)?),
            host: host.to_owned(),
            credentials: user.map(|user| format!("Basic {}", STANDARD.encode(user))),
            runtime: Handle::current(),
        })
    }
}

#[async_trait::async_trait]
impl HttpClient for HttpExportClient {
    async fn send_bytes(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, HttpError> {
        let mut request = request.map(Full::new);
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = path.into();
        }
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.host.parse()?);
        if let Some(credentials) = &self.credentials {
            let named = headers.entry(header::AUTHORIZATION);
            named.or_insert(credentials.parse()?);
        }
        let client = self.client.clone();
        let sent = async move {
            timeout(EXPORT_TIMEOUT, client.fetch_response_body(request, MAX_RESPONSE_BYTES)).await
        };
        Ok(self.runtime.spawn(sent).await???)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn otlp_endpoint_scheme_is_optional() {
        for (written, meant) in [
            ("collector:4317", "http://collector:4317"),
            ("http://collector:4317", "http://collector:4317"),
            ("grpc://collector:4317", "http://collector:4317"),
            ("HTTPS://collector:4317", "https://collector:4317"),
        ] {
            assert_eq!(grpc_url(written), meant);
        }
        for (written, meant) in [
            ("collector:4318/v1/traces", "http://collector:4318/v1/traces"),
            ("https://collector/v1/traces", "https://collector/v1/traces"),
        ] {
            assert_eq!(http_url(written), meant);
        }
    }
}
