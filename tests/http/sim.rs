//! A server in this process, started from the flags that a user would type.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpStream;
use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{CliMode, LoadedConfig, ParsedCommand, load_config};

use super::wire::{Answer, Wire};

/// The folder of the model, as a command line names it.
pub(crate) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-llama");

/// Longest wait for a condition. Only a failure takes that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Looks until a condition holds; whether it came to hold.
pub(crate) async fn eventually(mut holds: impl AsyncFnMut() -> bool) -> bool {
    let looks = async {
        while !holds().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.is_ok()
}

/// A running server.
pub(crate) struct Sim {
    /// Its public handle.
    pub(crate) server: SimulatorServer,
    address: Option<SocketAddr>,
}

impl Sim {
    /// `vllm-sim serve tests/fixtures/tiny-llama …`: vLLM's defaults.
    pub(crate) async fn serve(flags: &[&str]) -> Self {
        Self::with_model(CliMode::Vllm, flags).await
    }

    /// `vllm-sim --model tests/fixtures/tiny-llama …`: llm-d's defaults.
    pub(crate) async fn llmd(flags: &[&str]) -> Self {
        Self::with_model(CliMode::Llmd, flags).await
    }

    async fn with_model(cli_mode: CliMode, flags: &[&str]) -> Self {
        let mut args = vec!["--model", MODEL, "--seed", "7"];
        // A list that is named twice grows.
        if !flags.contains(&"--served-model-name") {
            args.extend(["--served-model-name", "tiny-llama"]);
        }
        args.extend(flags);
        Self::start(cli_mode, &args).await
    }

    /// A server of these arguments alone, on any free port.
    pub(crate) async fn start(cli_mode: CliMode, args: &[&str]) -> Self {
        let host: &[&str] = match args.contains(&"--uds") {
            true => &[],
            false => &["--host", "127.0.0.1"],
        };
        let loaded = LoadedConfig::from_flags(cli_mode, &[host, args].concat())
            .expect("flags that are right");
        Self::from_loaded(loaded).await
    }

    /// `vllm-sim sglang --model-path tests/fixtures/tiny-llama …`.
    pub(crate) async fn sglang(flags: &[&str]) -> Self {
        let named = ["--served-model-name", "tiny-llama", "--random-seed", "7"];
        let words = [&["vllm-sim", "sglang", "--model-path", MODEL][..], &named, flags].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        match load_config(&words, &|_| None).expect("flags that are right") {
            ParsedCommand::Serve(loaded) => Self::from_loaded(*loaded).await,
            other => panic!("no server: {other:?}"),
        }
    }

    async fn from_loaded(mut loaded: LoadedConfig) -> Self {
        // Any free port, which llm-d's command line cannot ask for.
        loaded.config.server.port = 0;
        // Lines that no test reads.
        loaded.config.server.log.access = false;
        let server = SimulatorServer::start_server(loaded).await.expect("a start");
        let address = server.address;
        Self { server, address }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address.expect("it does not listen on a Unix socket")
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> Wire<TcpStream> {
        Wire::new(TcpStream::connect(self.address()).await.unwrap())
    }

    /// Sends a whole request on a new connection and reads the answer.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut wire = self.connect().await;
        wire.send(request.as_ref()).await;
        wire.answer().await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(format!("GET {path} HTTP/1.1\r\nhost: sim\r\n\r\n")).await
    }

    /// A POST without a body.
    pub(crate) async fn poke(&self, path: &str) -> Answer {
        let head = format!("POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-length: 0\r\n\r\n");
        self.ask(head).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &[], body).await
    }

    pub(crate) async fn post_with(&self, path: &str, headers: &[&str], body: &Value) -> Answer {
        self.ask(post(path, headers, body.to_string().as_bytes())).await
    }

    /// What one line of `/metrics` shows, labels left out; the sum over all of that name.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text();
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let values = lines.map(|line| line.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok()));
        values.map(Option::unwrap).sum()
    }

    /// Waits until nothing runs or waits any more.
    pub(crate) async fn is_idle(&self) -> bool {
        eventually(async || {
            let running = self.metric("vllm:num_requests_running").await;
            let waiting = self.metric("vllm:num_requests_waiting").await;
            running + waiting == 0.0
        })
        .await
    }

    /// Waits until that many requests run.
    pub(crate) async fn runs(&self, requests: f64) -> bool {
        self.shows("vllm:num_requests_running", requests).await
    }

    /// Waits until `/metrics` shows this.
    pub(crate) async fn shows(&self, name: &str, value: f64) -> bool {
        eventually(async || (self.metric(name).await - value).abs() < 1e-9).await
    }
}

/// The bytes of a POST of JSON.
pub(crate) fn post(path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    for header in headers {
        request.push_str(header);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    let mut bytes = request.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
