//! Prefill and decode behind a sidecar that speaks as llm-d's does.
//!
//! Source of its steps: `pkg/sidecar/proxy/connector_nixlv2.go` of llm-d-router.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, Uri};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use super::sim::{Sim, post};
use super::transfer::{free_port, holds};
use super::wire::{Answer, Wire};

const PREFILLER: &str = "x-prefiller-host-port";

/// Stands before a decoding server.
struct Sidecar {
    decoder: SocketAddr,
    client: reqwest::Client,
    /// Of each request that was split: its id, and what the prefilling server answered.
    split: Mutex<Vec<(String, Value)>>,
}

impl Sidecar {
    async fn start(decoder: &Sim) -> (Arc<Self>, SocketAddr) {
        // The client wants one even without TLS; a second call finds the first one's.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sidecar = Arc::new(Self {
            decoder: decoder.address(),
            client: reqwest::Client::new(),
            split: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().fallback(relay).with_state(sidecar.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(routes.clone());
                let stream = TokioIo::new(stream);
                tokio::spawn(http1::Builder::new().serve_connection(stream, service));
            }
        });
        (sidecar, address)
    }

    async fn send(&self, to: &str, path: &str, id: &str, body: &Value) -> reqwest::Response {
        let request = self.client.post(format!("http://{to}{path}"));
        let request = request.header("x-request-id", id).json(body);
        request.send().await.unwrap()
    }
}

async fn relay(
    State(sidecar): State<Arc<Sidecar>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let mut body: Value = serde_json::from_slice(&body).unwrap();
    let (path, decoder) = (uri.path(), sidecar.decoder.to_string());
    let Some(prefiller) = headers.get(PREFILLER) else {
        return pass(sidecar.send(&decoder, path, "plain", &body).await);
    };
    let id = format!("split-{}", sidecar.split.lock().len());
    let mut first = body.clone();
    first["stream"] = false.into();
    first.as_object_mut().unwrap().remove("stream_options");
    for limit in ["max_tokens", "max_completion_tokens", "min_tokens"] {
        first[limit] = 1.into();
    }
    first["kv_transfer_params"] = super::transfer::asked();
    let prefiller = prefiller.to_str().unwrap();
    let answer = sidecar.send(prefiller, path, &id, &first).await;
    if !answer.status().is_success() {
        return pass(answer);
    }
    let answer: Value = answer.json().await.unwrap();
    body["kv_transfer_params"] = answer["kv_transfer_params"].clone();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    sidecar.split.lock().push((id.clone(), answer));
    let decoded = sidecar.send(&decoder, path, &id, &body).await;
    if body["stream"] == true {
        return pass(decoded);
    }
    let mut decoded: Value = decoded.json().await.unwrap();
    decoded["usage"]["prompt_tokens_details"] = json!({"cached_tokens": cached.unwrap_or(0)});
    let told = Response::builder().header("content-type", "application/json");
    told.body(decoded.to_string().into()).unwrap()
}

/// An answer as it comes.
fn pass(answer: reqwest::Response) -> Response<Body> {
    let mut passed = Response::builder().status(answer.status().as_u16());
    if let Some(kind) = answer.headers().get("content-type") {
        passed = passed.header("content-type", kind);
    }
    passed.body(Body::from_stream(answer.bytes_stream())).unwrap()
}

/// Both servers, the sidecar, and what clients send it.
struct Pair {
    prefill: Sim,
    decode: Sim,
    sidecar: Arc<Sidecar>,
    address: SocketAddr,
}

impl Pair {
    async fn start() -> Self {
        let role = |role: &str| {
            json!({"kv_connector": "NixlConnector", "kv_role": role, "engine_id": role}).to_string()
        };
        let port = free_port().to_string();
        let (producer, consumer) = (role("kv_producer"), role("kv_consumer"));
        let common = ["--enable-prompt-tokens-details", "--block-size", "16", "--dev-mode"];
        let first = ["--kv-transfer-config", &producer, "--kv-side-channel-port", &port];
        let prefill = Sim::serve(&[&common[..], &first].concat()).await;
        let second = ["--kv-transfer-config", &consumer];
        let decode = Sim::serve(&[&common[..], &second].concat()).await;
        let (sidecar, address) = Sidecar::start(&decode).await;
        Self { prefill, decode, sidecar, address }
    }

    async fn ask(&self, path: &str, split: bool, body: &Value) -> Answer {
        let header = format!("{PREFILLER}: {}", self.prefill.address());
        let headers = [&*header];
        let headers = if split { &headers[..] } else { &[] };
        let mut wire = Wire::new(TcpStream::connect(self.address).await.unwrap());
        let body = body.to_string();
        wire.send(&post(path, headers, body.as_bytes())).await;
        wire.answer().await
    }

    async fn fetched(&self) -> f64 {
        let hits = "vllm:external_prefix_cache_hits_total";
        self.decode.metric(hits).await
    }
}

fn text_of_words(count: usize) -> String {
    "hello ".repeat(count)
}

fn requests() -> [(&'static str, Value); 2] {
    let rest = json!({"max_tokens": 5, "ignore_eos": true, "model": "tiny-llama"});
    let with = |key: &str, value: Value| {
        let mut body = rest.clone();
        body[key] = value;
        body
    };
    let said = json!([{"role": "user", "content": text_of_words(60)}]);
    [
        ("/v1/chat/completions", with("messages", said)),
        ("/v1/completions", with("prompt", text_of_words(70).into())),
    ]
}

#[tokio::test]
async fn a_sidecar_splits_requests_between_two_servers() {
    for (path, body) in requests() {
        let pair = Pair::start().await;
        let whole = pair.ask(path, false, &body).await;
        assert_eq!(whole.status, 200, "{}", whole.text());
        assert_eq!(pair.fetched().await, 0.0, "{path}");
        assert_eq!(pair.prefill.metric("vllm:prompt_tokens_total").await, 0.0);
        let prompt = whole.json()["usage"]["prompt_tokens"].as_u64().unwrap();

        // Its own cache would spare the decoding server the fetch.
        pair.decode.post("/reset_prefix_cache", &json!({})).await;
        let split = pair.ask(path, true, &body).await;
        let (id, first) = pair.sidecar.split.lock()[0].clone();
        assert_eq!(first["usage"]["completion_tokens"], 1);
        assert_eq!(first["kv_transfer_params"]["remote_engine_id"], "kv_producer");
        let json = split.json();
        assert!(json["id"].as_str().unwrap().contains(&id), "{json}");
        assert_eq!(json["usage"]["prompt_tokens"], prompt);
        assert_eq!(json["usage"]["completion_tokens"], 5);
        assert_eq!(json["choices"][0]["finish_reason"], "length");
        let cached = &json["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached, 0, "the first server computed all of it");
        assert!(json["kv_transfer_params"].is_null());
        assert_eq!(pair.fetched().await, prompt as f64, "{path}");
        // Once they are read, nobody keeps the blocks.
        holds(&pair.prefill, 0).await;
    }
}

#[tokio::test]
async fn a_split_stream_reports_the_cached_tokens_of_the_prefill_server() {
    for (path, mut body) in requests() {
        let pair = Pair::start().await;
        let once = pair.ask(path, true, &body).await;
        assert_eq!(once.status, 200, "{}", once.text());
        let usage = once.json()["usage"].take();
        let prompt = usage["prompt_tokens"].as_u64().unwrap();
        pair.decode.post("/reset_prefix_cache", &json!({})).await;
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let stream = pair.ask(path, true, &body).await;
        let (id, first) = pair.sidecar.split.lock()[1].clone();
        // The first server has seen this prompt: all full blocks before its last token.
        let cached = &first["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached.as_u64(), Some((prompt - 1) / 16 * 16), "{path}");
        let deltas = stream.deltas();
        assert!(deltas.iter().all(|d| d["id"].as_str().unwrap().contains(&id)));
        assert_eq!(deltas.last().unwrap()["usage"]["completion_tokens"], 5);
        assert!(deltas.len() > 5, "it was not sent at once: {deltas:?}");
        assert_eq!(pair.fetched().await, 2.0 * prompt as f64, "{path}");
        holds(&pair.prefill, 0).await;
    }
}

#[tokio::test]
async fn a_refusal_of_the_first_server_reaches_the_client() {
    let pair = Pair::start().await;
    for (path, mut body) in requests() {
        body["model"] = "nobody".into();
        let refused = pair.ask(path, true, &body).await;
        assert_eq!(refused.status, 404, "{}", refused.text());
        assert_eq!(refused.json()["error"]["param"], "model");
    }
    assert_eq!(pair.sidecar.split.lock().len(), 0);
    assert_eq!(pair.decode.metric("vllm:prompt_tokens_total").await, 0.0);
}
