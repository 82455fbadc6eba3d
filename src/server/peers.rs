//! HTTP client for the servers of `--dashboard-peers`.

use std::sync::Arc;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{Request, header};
use http_body_util::Empty;

use super::error::StartError;
use vllm_sim_config::{Config, ConfigError};
use vllm_sim_http::{DashboardPeer, SUMMARY_PATH};
use vllm_sim_http_client::{
    CertificateVerification, HttpConnector, HttpServerEndpoint, PooledHttpClient,
};

/// Maximum size of a peer server's response, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

struct PeerClient {
    host: String,
    path: String,
    client: PooledHttpClient<Empty<Bytes>>,
}

/// Returns the servers in `--dashboard-peers`, each with a function to request its summary.
///
/// # Errors
/// [`StartError::Config`] for a URL without a valid host.
pub(super) fn dashboard_peers(config: &Config) -> Result<Vec<DashboardPeer>, StartError> {
    let urls = config.server.dashboard.peers.iter();
    let peers = urls.map(|url| {
        let client = Arc::new(PeerClient::new(url)?);
        let ask = move || {
            let client = client.clone();
            Box::pin(async move { client.request_summary().await }) as _
        };
        Ok(DashboardPeer { url: url.clone(), ask: Box::new(ask) })
    });
    peers.collect()
}

impl PeerClient {
    fn new(url: &str) -> Result<Self, StartError> {
        let wrong = |why: &str| {
            let text =
                format!("--dashboard-peers {url:?}: {why}; use a URL such as http://10.0.0.2:8000");
            StartError::Config(ConfigError::Invalid(text))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("no scheme"))?;
        let (host, base) = rest.split_once('/').unwrap_or((rest, ""));
        let authority: Authority = host.parse().map_err(|_| wrong("has no host"))?;
        let port = host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
        if port.is_some_and(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(wrong("its port is not a number from 0 to 65535"));
        }
        let endpoint = HttpServerEndpoint::new(scheme == "https", &authority);
        let endpoint = endpoint.ok_or_else(|| wrong("has no host"))?;
        // The request has no secrets, and deployments often have self-signed certificates.
        let connector = HttpConnector::new(endpoint, &CertificateVerification::Disabled);
        let connector = connector.map_err(|error| wrong(&error.to_string()))?;
        let base = match base {
            "" => String::new(),
            base => format!("/{base}"),
        };
        let path = format!("{base}{SUMMARY_PATH}");
        if path.parse::<PathAndQuery>().is_err() {
            return Err(wrong("its path is not valid"));
        }
        Ok(Self { host: host.to_owned(), path, client: PooledHttpClient::new(connector) })
    }

    async fn request_summary(&self) -> Result<Bytes, String> {
        let request = Request::get(&self.path).header(header::HOST, &self.host);
        let request = request.body(Empty::new());
        let request = request.map_err(|error| error.to_string())?;
        let answer = self.client.fetch_response_body(request, MAX_RESPONSE_BYTES).await?;
        if !answer.status().is_success() {
            return Err(format!("it returned {} for {}", answer.status(), self.path));
        }
        Ok(answer.into_body())
    }
}
