use std::sync::Arc;
use std::time::Duration;

use crate::workload::WorkloadError;
use vllm_sim_http_client::Trust;

/// Which API is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Api {
    /// `/v1/completions`, with prompts of token ids: their lengths are exact.
    #[default]
    Completions,
    /// `/v1/chat/completions`, with text whose length is measured with `/tokenize`.
    Chat,
}

/// How to send.
#[derive(Debug, Clone)]
pub struct OnlineOptions {
    /// `http://host:port` or `https://…`, with or without `/v1`; sessions go to them in turn.
    pub targets: Vec<String>,
    /// Which API.
    pub api: Api,
    /// Model to name. Default: the first that the first target lists.
    pub model: Option<String>,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// Whose certificates are believed where a target is `https`.
    pub trust: Trust,
    /// Sessions in flight in a closed loop; `None`: sessions start at their times.
    pub concurrency: Option<u32>,
    /// Most sessions in flight at all. Default 4096.
    pub max_in_flight: u32,
    /// Divides starts and pauses.
    pub speedup: f64,
    /// Longest time of one request. Default 10 minutes.
    pub timeout: Duration,
    /// Time of the whole run; what is unfinished then is reported as incomplete.
    pub limit: Option<Duration>,
    /// Ask for exactly the planned number of tokens. Default yes.
    pub ignore_eos: bool,
    /// Token ids that prompts are made of: the first, and one past the last. Default: ids that the
    /// tokenizer's `/tokenize` makes of words; 100 to 30,000 where it has none.
    pub token_ids: Option<(u32, u32)>,
    /// Seed of the words.
    pub seed: u64,
    /// The server whose `/tokenize` measures prompts. Default: the first target.
    pub tokenizer: Option<String>,
    /// How requests are named, behind a gateway. Default not at all.
    pub identity: Option<RequestIdentity>,
    /// The place of the target of each turn, by session and turn. Default: sessions in turn.
    pub placement: Option<Arc<Vec<Vec<u32>>>>,
}

/// How requests are named, and how an answer names the server behind a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestIdentity {
    /// The header `X-Request-Id` is [`RequestIdentity::request_id`].
    pub run: String,
    /// A header that names the session.
    pub session_header: Option<String>,
    /// Headers of an answer that name the server; [`crate::outcome::HttpReply::pod`] joins their
    /// values with colons.
    pub pod_headers: Vec<String>,
}

impl RequestIdentity {
    /// The id of a turn.
    pub fn request_id(&self, session: u64, turn: u32) -> String {
        format!("{}-{session}-{turn}", self.run)
    }

    /// The server that an answer names.
    pub fn pod(&self, headers: &http::HeaderMap) -> Option<String> {
        let values = self.pod_headers.iter().filter_map(|name| headers.get(name));
        let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
        (!values.is_empty()).then(|| values.join(":"))
    }
}

impl Default for OnlineOptions {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            api: Api::Completions,
            model: None,
            api_key: None,
            trust: Trust::Browsers,
            concurrency: None,
            max_in_flight: 4096,
            speedup: 1.0,
            timeout: Duration::from_secs(600),
            limit: None,
            ignore_eos: true,
            token_ids: None,
            seed: 42,
            tokenizer: None,
            identity: None,
            placement: None,
        }
    }
}

/// Why nothing was sent, or no more.
#[derive(Debug, thiserror::Error)]
pub enum OnlineError {
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
    /// The workload is broken.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A server cannot be used at all.
    #[error("{target}: {problem}")]
    Target {
        /// Which.
        target: String,
        /// Why.
        problem: String,
    },
    /// No threads.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

/// What is known of a run besides its requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnlineSummary {
    /// Requests that were to be sent until the run ended.
    pub requests: u64,
    /// How long it took.
    pub wall: Duration,
    /// Greatest delay of a request behind its time, because of the bound on what is in flight or
    /// of a busy sender.
    pub latest: Duration,
    /// Sessions whose time had come while the bound on what is in flight was reached.
    pub held_up: u64,
}
