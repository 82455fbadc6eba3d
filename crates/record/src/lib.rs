#![doc = include_str!("../README.md")]
//!
//! Implements `vllm-sim record`: a proxy that records the responses of a real endpoint into a
//! dataset.
//!
//! It forwards every byte as it arrives. For chats and completions it stores the tokens of prompt
//! and reply and the time of each token. llm-d-inference-sim can read the file too, without the
//! times.

mod captured;
mod cli;
pub mod dataset;
mod error;
mod exchange;
mod proxy;
mod store;
mod tee;
mod tokens;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::Empty;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use proxy::{RecordingProxy, WallClock};
use store::RecordingStore;
use vllm_sim_http_client::{
    CertificateVerification, HttpConnector, HttpServerEndpoint, PooledHttpClient, TlsSetupError,
};
use vllm_sim_tokenizer::Tokenizer;

pub use cli::{record_clap_command, run_record_command};
pub use error::RecordError;
pub(crate) use exchange::RecordedApi;
pub use store::RecordingSummary;
pub(crate) use tokens::prompt_token_ids;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const MODEL_QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Configuration of a [`Recorder`]: upstream endpoint, dataset file and listen address.
#[derive(Debug, Clone)]
pub struct RecorderConfig {
    /// URL of the recorded endpoint: scheme, host, port and an optional path (without `/v1`).
    pub upstream: String,
    /// Path of the dataset file to write.
    pub out: PathBuf,
    /// Name of the SQLite table to write.
    pub table: String,
    /// Whether to append to an existing dataset file.
    pub append: bool,
    /// Host and port on which the proxy listens; port 0 selects a free port.
    pub listen: (String, u16),
    /// PEM file of the CA certificates that verify the upstream; `None` uses the public ones.
    pub authority: Option<PathBuf>,
    /// Tokenizer for token counts and prompt hashes; a replaying server needs the same one.
    pub tokenizer: Arc<Tokenizer>,
}

/// Proxy in front of an endpoint, recording its responses into a dataset file.
pub struct Recorder {
    /// Listen address of the recording proxy.
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    store: RecordingStore,
}

impl Recorder {
    /// Creates the dataset file and starts the proxy.
    ///
    /// # Errors
    /// Returns [`RecordError`]; no task is left running.
    pub async fn start(recorder_config: RecorderConfig) -> Result<Self, RecordError> {
        let target = UpstreamEndpoint::parse_url(&recorder_config.upstream)?;
        let connector = target.tls_connector(recorder_config.authority.as_deref())?;
        let (host, port) = &recorder_config.listen;
        let listener = TcpListener::bind((host.as_str(), *port)).await;
        let listening = |why| RecordError::Listen { address: format!("{host}:{port}"), why };
        let listener = listener.map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let store = RecordingStore::open_recording_store(
            &recorder_config.out,
            &recorder_config.table,
            recorder_config.append,
            recorder_config.tokenizer,
        )?;
        let proxy = RecordingProxy {
            client: PooledHttpClient::new(connector),
            host: target.host,
            prefix: target.prefix,
            queue: store.queue.clone(),
            clock: WallClock::start_wall_clock(),
        };
        let (stop, stopping) = watch::channel(false);
        let accepting = tokio::spawn(accept_connections(listener, Arc::new(proxy), stopping));
        Ok(Self { address, stop, accepting, store })
    }

    /// Stops accepting connections, waits up to 5 s for open responses and completes the dataset
    /// file.
    ///
    /// # Errors
    /// Returns [`RecordError::File`] if not everything could be written.
    pub async fn stop(self) -> Result<RecordingSummary, RecordError> {
        let _ = self.stop.send(true);
        // The task holds the last queue.
        let _ = self.accepting.await;
        let store = self.store;
        match tokio::task::spawn_blocking(move || store.close_recording_store()).await {
            Ok(summary) => summary,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }
}

async fn accept_connections(
    listener: TcpListener,
    proxy: Arc<RecordingProxy>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.changed() => break,
            Some(_) = connections.join_next() => continue,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = socket.set_nodelay(true);
        let (proxy, mut stopping) = (proxy.clone(), stopping.clone());
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let proxy = proxy.clone();
                async move { Ok::<_, std::convert::Infallible>(proxy.forward_request(request).await) }
            });
            let mut builder = http1::Builder::new();
            builder.preserve_header_case(true);
            let connection = builder.serve_connection(TokioIo::new(socket), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = &mut connection => return,
                _ = stopping.changed() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await;
    connections.shutdown().await;
}

struct UpstreamEndpoint {
    endpoint: HttpServerEndpoint,
    host: HeaderValue,
    prefix: String,
}

impl UpstreamEndpoint {
    fn parse_url(url: &str) -> Result<Self, RecordError> {
        let wrong = |why: &str| RecordError::Upstream { url: url.to_owned(), why: why.to_owned() };
        let uri: Uri = url.parse().map_err(|_| wrong("it is not a valid address"))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.ok_or_else(|| wrong("it has no scheme"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(wrong("the scheme is neither http nor https"));
        }
        let path = parts.path_and_query.map(|path| path.path().to_owned());
        let path = path.unwrap_or_default();
        let path = path.trim_end_matches('/');
        let authority = parts.authority.ok_or_else(|| wrong("it has no host"))?;
        let endpoint = HttpServerEndpoint::new(scheme == Scheme::HTTPS, &authority);
        let (_, host) = authority.as_str().rsplit_once('@').unwrap_or(("", authority.as_str()));
        Ok(Self {
            endpoint: endpoint.ok_or_else(|| wrong("it has no host"))?,
            host: HeaderValue::from_str(host).map_err(|_| wrong("it has no host"))?,
            // Request paths contain `/v1` already.
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
        })
    }

    fn tls_connector(&self, authority: Option<&Path>) -> Result<HttpConnector, TlsSetupError> {
        let trust = match authority {
            Some(path) => CertificateVerification::Authorities(path.into()),
            None => CertificateVerification::PublicAuthorities,
        };
        HttpConnector::new(self.endpoint.clone(), &trust)
    }
}

/// Returns the name of the first model that the upstream endpoint lists.
///
/// # Errors
/// Returns [`RecordError`] if the upstream is unreachable or lists no model.
pub async fn first_model_of_upstream(
    upstream: &str,
    authority: Option<&Path>,
) -> Result<String, RecordError> {
    let target = UpstreamEndpoint::parse_url(upstream)?;
    let client: PooledHttpClient<Empty<bytes::Bytes>> =
        PooledHttpClient::new(target.tls_connector(authority)?);
    let path = format!("{}/v1/models", target.prefix);
    let failed = |why: String| RecordError::Model {
        url: format!("{}/v1/models", upstream.trim_end_matches('/').trim_end_matches("/v1")),
        why,
    };
    let request = Request::get(&path).header(header::HOST, target.host);
    let request = request.body(Empty::new());
    let request = request.map_err(|_| failed("it is not a valid address".to_owned()))?;
    let ask = async {
        let answer = client.fetch_response_body(request, 1 << 20).await?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("it returned {status}"));
        }
        let list: serde_json::Value =
            serde_json::from_slice(answer.body()).map_err(|error| error.to_string())?;
        let first = list["data"][0]["id"].as_str().map(str::to_owned);
        first.ok_or_else(|| "it lists no model".to_owned())
    };
    match tokio::time::timeout(MODEL_QUERY_TIMEOUT, ask).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(failed(format!("no response within {MODEL_QUERY_TIMEOUT:?}"))),
    }
}
