//! `gateway score`: gateways of the test's own in front of servers of ours.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{CliMode, LoadedConfig};
use vllm_sim_http_client::{
    CertificateVerification, HttpConnector, HttpServerEndpoint, PooledHttpClient,
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-llama");

/// Of every pod, and of the engine that is played offline.
const ENGINE: [&str; 2] = ["--latency-model=polynomial", "--num-gpu-blocks-override=2000"];

const WORKLOAD: &str = "--input-tokens 320 --output-tokens 4 --turns-per-session 3 \
    --turn-tokens 64 --shared-prefix-ratio 0.5 --num-prefix-groups 6 --request-count 60 \
    --request-rate 40";

pub(super) type Body = BoxBody<Bytes, std::io::Error>;

/// How a gateway chooses.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    RoundRobin,
    /// All turns of a session to one pod.
    SessionHash,
    /// Never twice in a row the pod that has a session's blocks, and some requests are lost.
    Broken,
}

struct Gateway {
    policy: Policy,
    /// Hides from pods and client who is who.
    hides: bool,
    pods: Vec<(SocketAddr, PooledHttpClient<Full<Bytes>>)>,
    next: AtomicUsize,
    sessions: Mutex<HashMap<String, usize>>,
}

impl Gateway {
    /// The pod of a request; `None`: it is lost.
    fn choose(&self, headers: &HeaderMap) -> Option<usize> {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        let session = headers.get("x-session-id")?.to_str().unwrap();
        let mut sessions = self.sessions.lock();
        let known = sessions.len();
        let at = sessions.entry(session.to_owned()).or_insert(known);
        Some(match self.policy {
            Policy::RoundRobin => count % self.pods.len(),
            Policy::SessionHash => *at % self.pods.len(),
            Policy::Broken if count % 4 == 3 => return None,
            Policy::Broken => {
                *at += 1;
                *at % self.pods.len()
            }
        })
    }

    async fn forward(&self, request: Request<Incoming>) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let is_asked =
            head.method == http::Method::POST && head.headers.contains_key("x-session-id");
        let chosen = match is_asked {
            true => self.choose(&head.headers),
            false => Some(0),
        };
        let Some(chosen) = chosen else {
            let lost = Full::new(Bytes::from("no pod")).map_err(|never| match never {});
            let mut answer = Response::new(lost.boxed());
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            return answer;
        };
        let (address, client) = &self.pods[chosen];
        head.headers.insert("host", address.to_string().parse().unwrap());
        if self.hides {
            head.headers.remove("x-request-id");
        }
        let body = body.collect().await.unwrap().to_bytes();
        let request = Request::from_parts(head, Full::new(body));
        let mut answer = client.send_request(request).await.unwrap();
        if self.hides {
            answer.headers_mut().remove("x-inference-pod");
            answer.headers_mut().remove("x-inference-port");
        }
        answer.map(|body| body.map_err(std::io::Error::other).boxed())
    }
}

/// Three pods and whatever stands in front of them.
pub(super) struct Fleet {
    pub(super) runtime: Runtime,
    pub(super) servers: Vec<SimulatorServer>,
    dir: TempDir,
}

impl Fleet {
    pub(super) fn start(more: &[&str]) -> Self {
        let runtime = Runtime::new().unwrap();
        let mut flags = vec![MODEL, "--port=0", "--host=127.0.0.1", "--dev-mode"];
        flags.extend(["--served-model-name=tiny", "--enable-prompt-tokens-details"]);
        flags.extend(ENGINE.into_iter().chain(more.iter().copied()));
        let loaded = LoadedConfig::from_flags(CliMode::Vllm, &flags).unwrap();
        let servers =
            (0..3).map(|_| runtime.block_on(SimulatorServer::start_server(loaded.clone())));
        let servers = servers.collect::<Result<_, _>>().unwrap();
        Self { runtime, servers, dir: tempfile::tempdir().unwrap() }
    }

    /// Returns the address and a client of each pod.
    pub(super) fn pods(&self) -> Vec<(SocketAddr, PooledHttpClient<Full<Bytes>>)> {
        let pods = self.servers.iter().map(|server| {
            let address = server.address.unwrap();
            let authority = address.to_string().parse().unwrap();
            let endpoint = HttpServerEndpoint::new(false, &authority).unwrap();
            let connector =
                HttpConnector::new(endpoint, &CertificateVerification::Disabled).unwrap();
            (address, PooledHttpClient::new(connector))
        });
        pods.collect()
    }

    fn gateway(&self, policy: Policy, hides: bool) -> SocketAddr {
        let gateway = Arc::new(Gateway {
            policy,
            hides,
            pods: self.pods(),
            next: AtomicUsize::new(0),
            sessions: Mutex::default(),
        });
        self.listen(move |request| {
            let gateway = gateway.clone();
            async move { gateway.forward(request).await }
        })
    }

    /// Serves requests with `answer` on a new port.
    pub(super) fn listen<F, R>(&self, answer: F) -> SocketAddr
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        self.runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                let answer = service_fn(move |request| {
                    let answered = answer(request);
                    async move { Ok::<_, Infallible>(answered.await) }
                });
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), answer));
            }
        });
        address
    }

    /// Exit code, what is printed on both outputs, and the JSON.
    pub(super) fn score(&self, gateway: SocketAddr, more: &str) -> (i32, String, String, Value) {
        let pods = self.servers.iter().map(|server| server.address.unwrap());
        self.score_pods(gateway, &pods.collect::<Vec<_>>(), more)
    }

    /// Scores with pods at other addresses than their own.
    pub(super) fn score_pods(
        &self,
        gateway: SocketAddr,
        pods: &[SocketAddr],
        more: &str,
    ) -> (i32, String, String, Value) {
        let json = self.dir.path().join("score.json");
        let pods = pods.iter().map(|address| format!("http://{address}"));
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-sim"))
            .current_dir(self.dir.path())
            .args(["gateway", "score", "--target", &format!("http://{gateway}")])
            .args(["--fleet", &pods.collect::<Vec<_>>().join(",")])
            .args(["--json", json.to_str().unwrap()])
            .args(ENGINE)
            .args(WORKLOAD.split_whitespace())
            .args(more.split_whitespace())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (printed, errors) = (text(output.stdout), text(output.stderr));
        let report = std::fs::read(json).unwrap_or_else(|_| panic!("{printed}{errors}"));
        let report = serde_json::from_slice(&report).unwrap();
        (output.status.code().unwrap(), printed, errors, report)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for server in std::mem::take(&mut self.servers) {
            self.runtime.block_on(server.shut_down_server());
        }
    }
}

pub(super) fn number(report: &Value, path: &str) -> f64 {
    let value = report.pointer(path).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{path} of {report:#}"))
}

/// What the report has to say, but for how busy this machine is.
pub(super) fn notes(report: &Value) -> Vec<&str> {
    let notes = report["notes"].as_array().unwrap().iter();
    let notes = notes.map(|note| note.as_str().unwrap());
    let busy = ["ms late", "better than the reference"];
    notes.filter(|note| !busy.iter().any(|words| note.contains(words))).collect()
}

#[test]
fn round_robin_score_matches_simulation() {
    let fleet = Fleet::start(&["--pod-name=pod", "--request-history=1000"]);
    let gateway = fleet.gateway(Policy::RoundRobin, false);
    let (code, printed, errors, report) =
        fleet.score(gateway, "--html page.html --require served>=1 --require retries<=0");
    assert_eq!(code, 0, "{printed}{errors}");
    assert_eq!(report["version"], 1);
    assert_eq!(report["pods_known_by"], "response header");
    assert_eq!(notes(&report), [""; 0], "{printed}");
    assert_eq!(number(&report, "/requests"), 180.0);
    assert_eq!(number(&report, "/misroutes"), 0.0);
    let live = number(&report, "/gateway/reuse");
    let offline = number(&report, "/policies/round-robin/reuse");
    assert!((live - offline).abs() <= 0.03, "{live}, offline {offline}");
    let best = number(&report, "/ideal/reuse");
    assert!(best > offline + 0.1, "{best} {offline}");
    assert!((number(&report, "/share_of_ideal/reuse") - live / best).abs() < 1e-9);
    assert_eq!(number(&report, "/gateway/balance"), 1.0);
    // Times compare with those of the best placements, sent directly to the same pods.
    assert!(report["direct_placements"].is_string(), "{printed}");
    assert_eq!(number(&report, "/direct/served"), 1.0);
    assert_eq!(number(&report, "/direct/ttft"), number(&report, "/ideal/ttft"));
    for policy in ["session-hash", "llm-d+session"] {
        number(&report, &format!("/policies/{policy}/reuse"));
    }
    for pod in report["pods"].as_array().unwrap() {
        assert_eq!((&pod["state"], &pod["requests"]), (&"ready".into(), &60.into()));
    }
    for word in ["Prefix reuse", "oracle", "llm-d", "Score: "] {
        assert!(printed.contains(word), "{word}: {printed}");
    }
    let page = std::fs::read_to_string(fleet.file("page.html")).unwrap();
    assert!(page.contains("Time to first token") && page.contains("gateway score --target"));
}

#[test]
fn sessions_that_stay_are_seen_and_a_broken_gateway_scores_badly() {
    // Pods have no names: their histories tell.
    let fleet = Fleet::start(&["--request-history=1000"]);
    let sticky = fleet.gateway(Policy::SessionHash, false);
    let (code, printed, errors, good) = fleet.score(sticky, "--require stickiness>=0.99");
    assert_eq!(code, 0, "{printed}{errors}");
    assert_eq!(good["pods_known_by"], "request history", "{printed}");
    assert_eq!(number(&good, "/gateway/stickiness"), 1.0);
    let broken = fleet.gateway(Policy::Broken, false);
    let (code, printed, errors, bad) =
        fleet.score(broken, "--require reuse>=0.9 --require misroutes<=0");
    assert_eq!(code, 1, "{printed}{errors}");
    for told in ["error: --require missed: reuse>=0.9 (it is ", "misroutes<=0 (it is "] {
        assert!(errors.contains(told), "{errors}");
    }
    assert!(printed.contains("Score: "), "{printed}");
    assert_eq!(number(&bad, "/gateway/stickiness"), 0.0);
    assert!(number(&bad, "/misroutes") > 10.0);
    assert!(number(&bad, "/share_of_ideal/reuse") < 0.7, "{printed}");
    assert!(number(&good, "/gateway/reuse") > number(&bad, "/gateway/reuse") + 0.1);
    assert!(number(&bad, "/score") < 0.6, "{printed}");
    assert_eq!(bad["requirements"][0]["met"], false);
}

#[test]
fn routing_to_failing_pod_is_reported() {
    let fleet = Fleet::start(&["--pod-name=pod", "--request-history=1000"]);
    let gateway = fleet.gateway(Policy::RoundRobin, false);
    let (code, printed, errors, report) = fleet.score(gateway, "--disturb 1=fail");
    assert_eq!(code, 0, "{printed}{errors}");
    assert_eq!(number(&report, "/ideal/served"), 1.0, "{printed}");
    assert!(number(&report, "/gateway/served") < 0.7, "{printed}");
    // Every session that met the pod ended there.
    let lost = 60.0 - number(&report, "/misroutes");
    assert!((0.0..40.0).contains(&lost), "{printed}");
    let notes = notes(&report);
    assert!(notes.iter().any(|note| note.contains("status 503")), "{printed}");
    // Afterwards the pod is as before.
    let (_, printed, _, report) = fleet.score(gateway, "");
    assert_eq!(number(&report, "/gateway/served"), 1.0, "{printed}");
    // What was to be tested was not: the workload is over before.
    let (code, printed, errors, _) = fleet.score(gateway, "--disturb 1=slow@9999");
    assert_eq!(code, 1, "{printed}{errors}");
    assert!(printed.contains("Score: ") && errors.contains("--disturb: pod 1"), "{errors}");
    let (code, _, errors, _) = fleet.score(gateway, "--disturb 7=slow");
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("there is no pod 7, the last is 2"), "{errors}");
}

/// One file says what goes wrong in which pod.
#[test]
fn a_scenario_runs_on_the_pods_behind_the_gateway() {
    let fleet = Fleet::start(&["--pod-name=pod", "--request-history=1000"]);
    let gateway = fleet.gateway(Policy::RoundRobin, false);
    let play = |phase: &str| {
        let text = format!("phases: [{{for: 1h, replicas: {phase}}}]");
        std::fs::write(fleet.file("chaos.yaml"), text).unwrap();
        fleet.score(gateway, "--fleet-scenario chaos.yaml")
    };
    let fails = "{set: {failure-injection-rate: 100, failure-types: [server_error]}}";
    let (code, printed, errors, report) =
        play(&format!("{{1: {fails}, 2: {{set: {{latency-factor: 2}}}}}}"));
    assert_eq!(code, 0, "{printed}{errors}");
    assert!(number(&report, "/gateway/served") < 0.7, "{printed}");
    assert!(number(&report, "/misroutes_by_kind/refused") > 10.0, "{printed}");
    assert!(notes(&report).iter().any(|n| n.contains("were disturbed")), "{printed}");
    // Afterwards the pods are as before.
    let (_, printed, _, report) = fleet.score(gateway, "");
    assert_eq!(number(&report, "/gateway/served"), 1.0, "{printed}");
    let (code, _, errors, _) = play("{7: {do: [reset-prefix-cache]}}");
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors.contains("there is no replica 7: 3 replicas have the numbers from 0"),
        "{errors}"
    );
}

#[test]
fn a_request_to_a_sleeping_pod_is_a_misroute() {
    let fleet = Fleet::start(&["--pod-name=pod", "--request-history=1000"]);
    let gateway = fleet.gateway(Policy::RoundRobin, false);
    // It wakes up again, so that all but what it had at that moment is answered in the end.
    let (code, printed, errors, report) = fleet.score(gateway, "--disturb 1=sleep@0.2..1");
    assert_eq!(code, 0, "{printed}{errors}");
    assert!(number(&report, "/gateway/served") > 0.9, "{printed}");
    let asleep = number(&report, "/misroutes_by_kind/not_ready");
    assert!(asleep >= 3.0, "{printed}");
    assert!(report["direct"].is_null(), "{printed}");

    // It slept before, and nobody waits for it.
    let asleep = fleet.servers[1].address.unwrap();
    let post = |path: &str| {
        let endpoint =
            HttpServerEndpoint::new(false, &asleep.to_string().parse().unwrap()).unwrap();
        let client = PooledHttpClient::new(
            HttpConnector::new(endpoint, &CertificateVerification::Disabled).unwrap(),
        );
        let request = Request::post(path).header("host", asleep.to_string());
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let answer = fleet.runtime.block_on(client.send_request(request)).unwrap();
        assert!(answer.status().is_success(), "{path}");
    };
    post("/sleep?level=1");
    let (_, printed, _, report) = fleet.score(gateway, "--target-timeout 1");
    post("/wake_up");
    assert_eq!(report["pods"][1]["state"], "asleep", "{printed}");
    assert!(number(&report, "/misroutes_by_kind/not_ready") >= 10.0, "{printed}");
}

#[test]
fn a_gateway_that_hides_its_pods_is_reported() {
    let fleet = Fleet::start(&["--pod-name=pod"]);
    let gateway = fleet.gateway(Policy::RoundRobin, true);
    let (code, printed, errors, report) = fleet.score(gateway, "--require stickiness>=0.1");
    assert_eq!(code, 1, "{printed}{errors}");
    assert!(errors.contains("stickiness>=0.1 (it is unknown)"), "{errors}");
    assert!(printed.contains("the pod is unknown for"), "{printed}");
    assert!(report["pods_known_by"].is_null() && report["retries"].is_null());
    assert!(number(&report, "/gateway/reuse") > 0.1);
}

#[test]
fn lora_affinity_is_measured() {
    let lora = ["--enable-lora", "--lora-modules", "sql=a", "--lora-modules", "law=b"];
    let fleet = Fleet::start(&[&lora[..], &["--pod-name=pod"]].concat());
    let gateway = fleet.gateway(Policy::SessionHash, false);
    let (code, printed, errors, report) = fleet.score(gateway, "--lora sql,law --lora-share 0.5");
    assert_eq!(code, 0, "{printed}{errors}");
    assert_eq!(number(&report, "/gateway/served"), 1.0, "{printed}");
    let affinity = number(&report, "/gateway/lora-affinity");
    assert!(affinity > 0.5 && affinity < 1.0, "{printed}");
    let live = number(&report, "/gateway/reuse");
    let best = number(&report, "/ideal/reuse");
    assert!(live < best + 0.03, "{printed}");
    number(&report, "/policies/llm-d+lora/lora-affinity");
}

#[test]
fn pods_of_its_own_are_started_with_adapters_and_ended() {
    // A port that nobody has at this moment; without a gateway a pod is its own.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket);
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-sim"))
        .current_dir(dir.path())
        .args(["gateway", "score", "--target", &format!("http://{address}")])
        .args(["--replicas", "1", "--base-port", &address.port().to_string()])
        .args(["--json", "-", "--lora", "sql,law", "--request-count", "6"])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(number(&report, "/gateway/served"), 1.0, "{report:#}");
    assert_eq!(report["pods"][0]["requests"], 18);
    assert_eq!((number(&report, "/retries"), notes(&report)), (0.0, vec![]));
    let live = number(&report, "/gateway/reuse");
    assert!((live - number(&report, "/ideal/reuse")).abs() < 0.03, "{report:#}");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn invalid_usage_names_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    let run = |words: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-sim"))
            .current_dir(dir.path())
            .args(words.split_whitespace())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), errors)
    };
    for (words, told) in [
        ("gateway", "gateway needs a command"),
        ("gateway rank", "use `vllm-sim gateway score`"),
        ("gateway score", "--target"),
        ("gateway score --target http://x", "no pods: give --fleet"),
        ("gateway score --target http://x --replicas 2 --require reuze>=1", "unknown measure"),
        (
            "gateway score --target http://x --replicas 2 --disturb 1=burn",
            "must be POD=TROUBLE@FROM..TO",
        ),
        (
            "gateway score --target http://x --replicas 2 --lora a --lora-share 2",
            "--lora-share is 2",
        ),
        ("gateway score --target http://x --replicas 2 --replcias 3", "did you mean --replicas?"),
        ("gateway score --target ftp://x --replicas 2", "--target \"ftp://x\" has the scheme"),
        ("gateway score --target http://x --replicas 9 --base-port 65530", "leaves no room"),
        (
            "gateway score --target http://x --replicas 2 --session-header a:b",
            "cannot be the name of a header",
        ),
    ] {
        let (code, errors) = run(words);
        assert_eq!(code, 2, "{words}: {errors}");
        assert!(errors.contains(told), "{words}: {errors}");
    }
    let (code, errors) =
        run("gateway score --target http://127.0.0.1:9 --fleet http://127.0.0.1:9");
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("no pod is ready: http://127.0.0.1:9 is dead"), "{errors}");
}
