//! `gateway score` with gateways that degrade or forge the answers of their pods.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Incoming};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use vllm_sim_http_client::PooledHttpClient;

use super::gateway::{Body, Fleet, notes, number};

const WORKLOAD: &str = "--output-tokens 24 --request-count 16 --target-timeout 2";

/// Flags with which a pod reports its name and its requests.
const NAMED: [&str; 2] = ["--pod-name=pod", "--request-history=1000"];

/// Fault of a gateway with round-robin routing.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Misdeed {
    None,
    /// Forwards three chunks of each answer, and the end.
    Cuts,
    /// As `Cuts`, with usage and finish reason of the complete answer.
    CutsAndCounts,
    /// Lowers `max_tokens` to two.
    Lowers,
    /// Answers without a pod.
    Invents,
    /// Answers every second request without a pod, in the name of the first pod.
    InventsHalf,
    /// Sends each answer only when it is complete.
    Buffers,
    /// Sends each request to two pods.
    Hedges,
    /// Adds a cache salt, so that no prompts share a prefix cache.
    Salts,
    /// Names the first pod in every answer.
    Lies,
    /// Removes the headers of every answer, and the id of every request.
    Hides,
    /// As `Hides`, for every second request.
    HidesHalf,
    Refuses,
    Hangs,
    /// Forwards one request at a time.
    Serialises,
}

struct Gateway {
    misdeed: Misdeed,
    pods: Vec<(SocketAddr, PooledHttpClient<Full<Bytes>>)>,
    next: AtomicUsize,
    turnstile: Arc<Mutex<()>>,
}

fn answer(body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {});
    Response::new(body.boxed())
}

impl Gateway {
    async fn ask(
        &self,
        pod: usize,
        headers: &HeaderMap,
        path: &str,
        body: Bytes,
    ) -> Response<Body> {
        let (address, client) = &self.pods[pod];
        let mut request = match body.is_empty() {
            true => Request::get(path),
            false => Request::post(path),
        };
        *request.headers_mut().unwrap() = headers.clone();
        let host = address.to_string().parse().unwrap();
        request.headers_mut().unwrap().insert("host", host);
        request.headers_mut().unwrap().remove("content-length");
        let request = request.body(Full::new(body)).unwrap();
        let answer = client.send_request(request).await.unwrap();
        answer.map(|body| body.map_err(std::io::Error::other).boxed())
    }

    async fn forward(&self, request: Request<Incoming>) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let mut body = body.collect().await.unwrap().to_bytes();
        let path = head.uri.path().to_owned();
        if !head.headers.contains_key("x-session-id") {
            return self.ask(0, &head.headers, &path, body).await;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (pod, is_second) = (number % self.pods.len(), number % 2 == 1);
        let hides = match self.misdeed {
            Misdeed::Hides => true,
            Misdeed::HidesHalf => is_second,
            _ => false,
        };
        match self.misdeed {
            Misdeed::Lowers => body = changed(&body, "max_tokens", json!(2)),
            Misdeed::Salts => body = changed(&body, "cache_salt", json!(number.to_string())),
            Misdeed::Invents => return self.invented(&body),
            Misdeed::InventsHalf if is_second => return self.invented(&body),
            Misdeed::Refuses if is_second => {
                let mut refusal = answer("busy");
                *refusal.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                return refusal;
            }
            Misdeed::Hangs if is_second => std::future::pending().await,
            _ if hides => drop(head.headers.remove("x-request-id")),
            _ => {}
        }
        let headers = &head.headers;
        if self.misdeed == Misdeed::Serialises {
            let turn = self.turnstile.clone().lock_owned().await;
            let answer = self.ask(pod, headers, &path, body).await;
            return answer.map(|body| held_until_its_end(body, turn));
        }
        if self.misdeed == Misdeed::Hedges {
            let other = (pod + 1) % self.pods.len();
            let both = (
                self.ask(pod, headers, &path, body.clone()),
                self.ask(other, headers, &path, body),
            );
            let (first, second) = tokio::join!(both.0, both.1);
            second.into_body().collect().await.unwrap();
            return first;
        }
        let mut told = self.ask(pod, headers, &path, body).await;
        if hides {
            told.headers_mut().remove("x-inference-pod");
            told.headers_mut().remove("x-inference-port");
        }
        if self.misdeed == Misdeed::Lies {
            told.headers_mut().remove("x-inference-port");
            let first = self.pods[0].0.to_string().parse().unwrap();
            told.headers_mut().insert("x-inference-pod", first);
        }
        self.rewritten(told).await
    }

    async fn rewritten(&self, told: Response<Body>) -> Response<Body> {
        let (cuts, counts) = match self.misdeed {
            Misdeed::Cuts => (true, false),
            Misdeed::CutsAndCounts => (true, true),
            Misdeed::Buffers => (false, false),
            _ => return told,
        };
        let (head, body) = told.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let events: Vec<&str> = text.split_inclusive("\n\n").collect();
        let end = match counts {
            true => events.len() - 3,
            false => events.len() - 1,
        };
        let text = match cuts {
            true => [&events[..3], &events[end..]].concat().concat(),
            false => text,
        };
        Response::from_parts(head, answer(text).into_body())
    }

    /// Returns an answer that looks like one of the first pod.
    fn invented(&self, body: &[u8]) -> Response<Body> {
        let asked: Value = serde_json::from_slice(body).unwrap();
        let tokens = asked["max_tokens"].as_u64().unwrap();
        let prompt = asked["prompt"].as_array().unwrap().len();
        let event = |event: Value| format!("data: {event}\n\n");
        let mut text = String::new();
        for n in 1..=tokens {
            let reason = (n == tokens).then_some("length");
            let choice =
                json!({"index": 0, "text": "a", "token_ids": [5], "finish_reason": reason});
            text += &event(json!({"id": "cmpl-1", "choices": [choice]}));
        }
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": prompt}});
        text += &event(json!({"id": "cmpl-1", "choices": [], "usage": usage}));
        let mut invented = answer(text + "data: [DONE]\n\n");
        if self.misdeed == Misdeed::InventsHalf {
            let first = self.pods[0].0.to_string().parse().unwrap();
            invented.headers_mut().insert("x-inference-pod", first);
        }
        invented
    }
}

fn changed(body: &[u8], key: &str, value: Value) -> Bytes {
    let mut body: Value = serde_json::from_slice(body).unwrap();
    body.as_object_mut().unwrap().insert(key.to_owned(), value);
    body.to_string().into()
}

fn held_until_its_end(body: Body, turn: tokio::sync::OwnedMutexGuard<()>) -> Body {
    let (to, frames) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut body = body;
        while let Some(frame) = body.frame().await {
            if to.send(frame).is_err() {
                break;
            }
        }
        drop(turn);
    });
    let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(frames);
    StreamBody::new(frames).boxed()
}

impl Fleet {
    /// Returns the address of a faulty gateway.
    fn answering(&self, misdeed: Misdeed) -> SocketAddr {
        let gateway = Arc::new(Gateway {
            misdeed,
            pods: self.pods(),
            next: AtomicUsize::new(0),
            turnstile: Arc::default(),
        });
        self.listen(move |request| {
            let gateway = gateway.clone();
            async move { gateway.forward(request).await }
        })
    }

    /// Returns exit code, output and JSON report of a run with a faulty gateway.
    fn judged(&self, misdeed: Misdeed, more: &str) -> (i32, String, Value) {
        let address = self.answering(misdeed);
        let (code, printed, errors, report) = self.score(address, &format!("{WORKLOAD} {more}"));
        (code, format!("{misdeed:?}: {printed}{errors}"), report)
    }
}

/// Answers that the pods did not generate, or generated differently, are not completed requests.
#[test]
fn a_completed_request_has_all_tokens_from_a_pod() {
    let fleet = Fleet::start(&NAMED);
    let (code, printed, honest) = fleet.judged(Misdeed::None, "--require served>=1");
    assert_eq!(code, 0, "{printed}");
    assert_eq!(notes(&honest), [""; 0], "{printed}");
    for (misdeed, told) in [
        (Misdeed::Cuts, "first failure: 3 of 24 tokens came"),
        (Misdeed::CutsAndCounts, "first failure: 4 of 24 tokens came"),
        (Misdeed::Lowers, "first failure: 2 of 24 tokens came"),
    ] {
        let (code, printed, report) = fleet.judged(misdeed, "--require score>=0.5");
        assert_eq!(code, 1, "{printed}");
        assert_eq!(number(&report, "/gateway/served"), 0.0, "{printed}");
        assert_eq!(number(&report, "/score"), 0.0, "{printed}");
        assert_eq!(number(&report, "/misroutes_by_kind/unanswered"), 16.0, "{printed}");
        assert!(printed.contains(told), "{printed}");
    }
    let (_, printed, report) = fleet.judged(Misdeed::InventsHalf, "");
    assert!(number(&report, "/score") < 0.6, "{printed}");
    assert!(printed.contains("no pod of the fleet served this answer"), "{printed}");
    // All pods except the one whose name was used have their share.
    assert_eq!(number(&report, "/gateway/served"), 0.5, "{printed}");
    assert_eq!(number(&report, "/misroutes_by_kind/unrouted"), 24.0, "{printed}");
    let (_, printed, report) = fleet.judged(Misdeed::Refuses, "");
    assert!(number(&report, "/score") < 0.6, "{printed}");
    let (_, printed, report) = fleet.judged(Misdeed::Hangs, "");
    assert!(number(&report, "/score") < 0.6, "{printed}");
    assert!(number(&report, "/misroutes_by_kind/unanswered") >= 8.0, "{printed}");
}

/// A gateway without pods must not get a score.
#[test]
fn unknown_pod_makes_measures_unknown() {
    let fleet = Fleet::start(&NAMED);
    for misdeed in [Misdeed::Invents, Misdeed::Hides, Misdeed::HidesHalf] {
        let (code, printed, report) = fleet.judged(misdeed, "--require served>=0.5");
        assert_eq!(code, 1, "{printed}");
        assert!(report["score"].is_null(), "{printed}");
        let shares = report["share_of_ideal"].as_object().unwrap();
        assert!(shares.values().all(Value::is_null), "{printed}");
        assert!(printed.contains("the pod is unknown for"), "{printed}");
        let served = f64::from(misdeed != Misdeed::Invents);
        assert_eq!(number(&report, "/gateway/served"), served, "{printed}");
    }
    // Without histories, only headers name the pod.
    let fleet = Fleet::start(&["--pod-name=pod"]);
    let (_, printed, report) = fleet.judged(Misdeed::HidesHalf, "");
    assert!(report["score"].is_null(), "{printed}");
}

#[test]
fn worse_latency_and_reuse_lower_score() {
    let fleet = Fleet::start(&NAMED);
    let (_, buffered, report) = fleet.judged(Misdeed::Buffers, "");
    let share = |report: &Value, name: &str| number(report, &format!("/share_of_ideal/{name}"));
    // The first token comes with the last one, 23 steps later, whatever the load of the machine.
    assert!(share(&report, "ttft") < 0.75, "{buffered}");
    let (ttft, e2e) = (number(&report, "/gateway/ttft"), number(&report, "/gateway/e2e"));
    assert!(ttft > 0.9 * e2e, "{buffered}");
    // Most requests wait longer than their bound.
    let (_, serial, report) = fleet.judged(Misdeed::Serialises, "");
    assert!(number(&report, "/score") < 0.5, "{serial}");
    let (_, salted, report) = fleet.judged(Misdeed::Salts, "");
    assert_eq!(share(&report, "reuse"), 0.0, "{salted}");
    let (code, hedged, report) = fleet.judged(Misdeed::Hedges, "--require retries<=0");
    assert_eq!((code, number(&report, "/retries")), (1, 48.0), "{hedged}");
    // The histories of the pods correct the headers.
    let (_, lies, report) = fleet.judged(Misdeed::Lies, "");
    assert_eq!(number(&report, "/gateway/balance"), 1.0, "{lies}");
}

/// Relays connections to a pod, and resets each one at its second request, as a pod does that
/// closed an idle connection at that moment.
async fn resetting(listener: TcpListener, pod: SocketAddr, resets: Arc<AtomicUsize>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let resets = resets.clone();
        tokio::spawn(async move {
            let mut server = TcpStream::connect(pod).await.unwrap();
            let (mut asked, mut answered) = ([0; 65_536], vec![0; 65_536]);
            let mut requests = 0;
            loop {
                tokio::select! {
                    read = client.read(&mut asked) => match read {
                        Ok(0) | Err(_) => return,
                        Ok(_) if requests == 1 => {
                            resets.fetch_add(1, Ordering::Relaxed);
                            client.set_zero_linger().unwrap();
                            return;
                        }
                        Ok(n) => {
                            requests += 1;
                            server.write_all(&asked[..n]).await.unwrap();
                        }
                    },
                    read = server.read(&mut answered) => match read {
                        Ok(0) | Err(_) => return,
                        Ok(n) => client.write_all(&answered[..n]).await.unwrap(),
                    },
                }
            }
        });
    }
}

/// A call that fails on a connection that the pod has just closed is sent again on a fresh one.
#[test]
fn a_disturbance_that_is_lost_on_an_idle_connection_is_sent_again() {
    let fleet = Fleet::start(&NAMED);
    let gateway = fleet.answering(Misdeed::None);
    let mut pods: Vec<SocketAddr> = fleet.servers.iter().map(|s| s.address.unwrap()).collect();
    let listener = fleet.runtime.block_on(TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    let resets = Arc::new(AtomicUsize::new(0));
    let relay = resetting(listener, pods[1], resets.clone());
    fleet.runtime.spawn(relay);
    pods[1] = address;
    let more = format!("{WORKLOAD} --disturb 1=fail");
    let (code, printed, errors, report) = fleet.score_pods(gateway, &pods, &more);
    assert_eq!(code, 0, "{printed}{errors}");
    assert!(resets.load(Ordering::Relaxed) > 3, "{resets:?}");
    assert!(number(&report, "/gateway/served") < 0.8, "{printed}");
    assert!(number(&report, "/misroutes_by_kind/refused") > 0.0, "{printed}");
    let notes = notes(&report);
    assert!(!notes.iter().any(|note| note.contains("--disturb")), "{notes:?}");
    // Whatever was faster than the reference counts as 1.
    let shares = report["share_of_ideal"].as_object().unwrap();
    assert!(shares.values().all(|share| share.as_f64().is_none_or(|s| s <= 1.0)), "{printed}");
}
