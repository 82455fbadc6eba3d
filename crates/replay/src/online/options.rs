use std::sync::Arc;
use std::time::Duration;

use crate::workload::WorkloadError;
use vllm_sim_http_client::CertificateVerification;

/// HTTP endpoint for the generation requests of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GenerationApi {
    /// Endpoint `/v1/completions`, with prompts of token ids and therefore of exact length.
    #[default]
    Completions,
    /// Endpoint `/v1/chat/completions`, with prompts of text whose length `/tokenize` measures.
    Chat,
}

/// Options of a replay over HTTP.
#[derive(Debug, Clone)]
pub struct OnlineReplayOptions {
    /// URLs of the target servers, `http://host:port` or `https://…`, with or without `/v1`;
    /// sessions use the servers in rotation.
    pub targets: Vec<String>,
    /// HTTP endpoint to which the replay sends generation requests.
    pub api: GenerationApi,
    /// Model name in requests. Default: the first model of the first target.
    pub model: Option<String>,
    /// API key for the target servers, sent as a bearer token.
    pub api_key: Option<String>,
    /// Certificate verification for `https` targets.
    pub trust: CertificateVerification,
    /// Number of sessions, or of agent runs, in flight in a closed loop; `None`: sessions are sent
    /// at their start times.
    pub concurrency: Option<u32>,
    /// Maximum number of sessions in flight, or of requests if sessions wait for one another.
    /// Default 4096.
    pub max_in_flight: u32,
    /// Divisor of the session start times and of the delays between turns.
    pub speedup: f64,
    /// Timeout of one request. Default 10 minutes.
    pub timeout: Duration,
    /// Maximum duration of the replay over HTTP; requests in flight at its end count as incomplete.
    pub limit: Option<Duration>,
    /// Seed of the random token ids in generated prompts.
    pub seed: u64,
    /// URL of the server whose `/tokenize` measures prompts. Default: the first target.
    pub tokenizer: Option<String>,
    /// Names of the headers with the ids of requests and sessions, for use behind a gateway.
    /// Default: no such headers.
    pub identity: Option<RequestHeaderNames>,
    /// Index of the target server of each turn, as `[session][turn]`. Default: sessions use the
    /// targets in rotation.
    pub placement: Option<Arc<Vec<Vec<u32>>>>,
}

/// Names of HTTP headers that identify requests, sessions and servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeaderNames {
    /// Name of the run, the first part of [`RequestHeaderNames::request_id_of_turn`] in
    /// `X-Request-Id`.
    pub run: String,
    /// Name of a request header with the session id.
    pub session_header: Option<String>,
    /// Names of the response headers that identify the server of a request.
    ///
    /// [`crate::outcome::HttpResponseInfo::pod`] joins their values with colons.
    pub pod_headers: Vec<String>,
}

impl RequestHeaderNames {
    /// Returns the `X-Request-Id` of a turn: run name, session and turn, joined by `-`.
    pub fn request_id_of_turn(&self, session: u64, turn: u32) -> String {
        format!("{}-{session}-{turn}", self.run)
    }

    /// Returns the name of the server in the response headers, if the headers contain one.
    pub fn pod_from_headers(&self, headers: &http::HeaderMap) -> Option<String> {
        let values = self.pod_headers.iter().filter_map(|name| headers.get(name));
        let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
        (!values.is_empty()).then(|| values.join(":"))
    }
}

impl Default for OnlineReplayOptions {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            api: GenerationApi::Completions,
            model: None,
            api_key: None,
            trust: CertificateVerification::PublicAuthorities,
            concurrency: None,
            max_in_flight: 4096,
            speedup: 1.0,
            timeout: Duration::from_secs(600),
            limit: None,
            seed: 42,
            tokenizer: None,
            identity: None,
            placement: None,
        }
    }
}

/// Reason why a replay over HTTP cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum OnlineReplayError {
    /// A replay option is invalid.
    #[error("{0}")]
    Option(String),
    /// The workload source is unreadable.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A target server is unusable.
    #[error("{target}: {problem}")]
    Target {
        /// URL of the unusable target server.
        target: String,
        /// Description of the problem with the target server.
        problem: String,
    },
    /// The threads of the replay cannot be started.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

/// Totals of a replay over HTTP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnlineReplaySummary {
    /// Number of requests in all sessions that were started.
    pub requests: u64,
    /// Duration of the replay in real time.
    pub wall: Duration,
    /// Maximum time by which a request was sent after its scheduled time.
    ///
    /// A busy sender or the limit on requests in flight causes it.
    pub latest: Duration,
    /// Number of sessions that were delayed by the limit on requests in flight.
    pub held_up: u64,
}
