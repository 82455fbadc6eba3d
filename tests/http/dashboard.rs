//! What the dashboard asks for beside `/metrics`.

use serde_json::{Value, json};
use tokio::net::TcpStream;
use vllm_sim_config::{CliMode, LoadedConfig};

use super::fleet::{ask, fleet};
use super::golden;
use super::sim::{Sim, post};
use super::wire::Wire;

/// One request runs, and others wait; a step takes longer than any test.
const SLOW: &[&str] = &["--scheduler", "vllm", "--max-num-seqs", "1"];
const FIRST_TOKEN: &[&str] = &["--time-to-first-token", "10m"];
const LATER_TOKENS: &[&str] = &["--inter-token-latency", "10m"];
/// A small cache.
const BLOCKS: &[&str] = &["--num-gpu-blocks-override", "12", "--block-size", "16"];

/// Begins a streamed completion, named by its id.
async fn begin(sim: &Sim, id: &str, prompt: &str) -> Wire<TcpStream> {
    let body = json!({"prompt": prompt, "max_tokens": 5, "ignore_eos": true, "stream": true});
    let mut wire = sim.connect().await;
    let id = format!("x-request-id: {id}");
    let request = post("/v1/completions", &[&id], body.to_string().as_bytes());
    wire.send(&request).await;
    wire
}

async fn check(sim: &Sim, name: &str, path: &str) {
    let answer = sim.get(path).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    golden::check(name, &format!("GET {path}"), &answer);
}

/// By phase, all ranks together.
async fn phases(sim: &Sim) -> Vec<(String, u64)> {
    let live = sim.get("/dashboard/requests").await.json();
    let mut sums: Vec<(String, u64)> = Vec::new();
    for rank in live["ranks"].as_array().unwrap() {
        for (index, (phase, count)) in rank["phases"].as_object().unwrap().iter().enumerate() {
            if sums.len() == index {
                sums.push((phase.clone(), 0));
            }
            sums[index].1 += count.as_u64().unwrap();
        }
    }
    sums.retain(|(_, count)| *count > 0);
    sums
}

fn some(phases: &[(&str, u64)]) -> Vec<(String, u64)> {
    let phases = phases.iter();
    phases.map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[tokio::test]
async fn requests_are_listed_with_their_phase() {
    let sim = Sim::serve(&[SLOW, FIRST_TOKEN, BLOCKS].concat()).await;
    let first = begin(&sim, "first", "One two three").await;
    assert!(sim.runs(1.0).await);
    let second = begin(&sim, "second", "Four five").await;
    assert!(sim.shows("vllm:num_requests_waiting", 1.0).await);
    check(&sim, "dashboard-requests", "/dashboard/requests").await;
    assert_eq!(phases(&sim).await, some(&[("waiting", 1), ("prefill", 1)]));
    drop((first, second));
    assert!(sim.is_idle().await);
    let none: &[(String, u64)] = &[];
    assert_eq!(phases(&sim).await, none);
}

#[tokio::test]
async fn request_with_output_is_in_decode_phase() {
    let sim = Sim::serve(&[SLOW, LATER_TOKENS].concat()).await;
    let mut wire = begin(&sim, "one", "One two three").await;
    assert_eq!(wire.head().await.status, 200);
    assert!(wire.chunk().await.is_some());
    assert_eq!(phases(&sim).await, some(&[("decode", 1)]));
    let live = sim.get("/dashboard/requests").await.json();
    let request = &live["requests"][0];
    assert_eq!((&request["output_tokens"], &request["max_tokens"]), (&json!(1), &json!(5)));
}

#[tokio::test]
async fn remote_prefill_request_waits_for_transfer() {
    let transfer = json!({"kv_connector": "NixlConnector", "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"sim_handshake": false}})
    .to_string();
    let flags = ["--kv-transfer-config", &transfer, "--kv-cache-transfer-latency", "10m"];
    let sim = Sim::serve(&[SLOW, &flags].concat()).await;
    let body = json!({"prompt": "One two three", "max_tokens": 5, "kv_transfer_params": {
        "do_remote_prefill": true, "remote_block_ids": [[1]], "remote_engine_id": "p",
        "remote_host": "127.0.0.1", "remote_port": 1, "remote_request_id": "r"}});
    let mut wire = sim.connect().await;
    let request = post("/v1/completions", &[], body.to_string().as_bytes());
    wire.send(&request).await;
    assert!(sim.shows("vllm:num_requests_waiting_by_reason", 1.0).await);
    assert_eq!(phases(&sim).await, some(&[("waiting_for_remote_kvs", 1)]));
}

#[tokio::test]
async fn request_list_is_limited_to_200() {
    let sim = Sim::serve(&[SLOW, FIRST_TOKEN].concat()).await;
    let body = json!({"prompt": vec!["One"; 210], "max_tokens": 5, "stream": true});
    let mut wire = sim.connect().await;
    let request = post("/v1/completions", &[], body.to_string().as_bytes());
    wire.send(&request).await;
    assert!(sim.shows("vllm:num_requests_waiting", 209.0).await);
    let live = sim.get("/dashboard/requests").await.json();
    let listed = live["requests"].as_array().map(Vec::len);
    assert_eq!((listed, live["left_out"].as_u64()), (Some(200), Some(10)));
}

#[tokio::test]
async fn kv_blocks_are_shown_by_use() {
    let sim = Sim::serve(&[&SLOW[..2], FIRST_TOKEN, BLOCKS].concat()).await;
    check(&sim, "dashboard-cache-empty", "/dashboard/cache").await;
    // Full blocks are shared, and each has one of its own for the rest.
    let prompt = "One two three four five six seven eight nine ten. ".repeat(4);
    let body = json!({"prompt": [prompt, prompt], "max_tokens": 5, "stream": true});
    let mut wire = sim.connect().await;
    let request = post("/v1/completions", &[], body.to_string().as_bytes());
    wire.send(&request).await;
    assert!(sim.runs(2.0).await);
    check(&sim, "dashboard-cache-shared", "/dashboard/cache").await;
    drop(wire);
    assert!(sim.is_idle().await);
    check(&sim, "dashboard-cache-idle", "/dashboard/cache").await;
}

#[tokio::test]
async fn host_memory_chunks_are_counted() {
    let flags = ["--kv-offloading-size", "1", "--kv-bytes-per-token", "1024"];
    let sim = Sim::serve(&[&flags[..], &["--block-size", "16"]].concat()).await;
    let prompt: Vec<u32> = (100..164).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1});
    assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
    assert!(sim.is_idle().await);
    let map = sim.get("/dashboard/cache").await.json();
    // 1 GiB holds so many blocks of 16 KiB; the prompt has four.
    let host = json!({"total": 65_536, "used": 4});
    assert_eq!(map["ranks"][0]["host"], host);
}

#[tokio::test]
async fn pages_of_other_origins_cannot_read_requests() {
    let sim = Sim::serve(&[]).await;
    for path in
        ["requests", "cache", "drills", "history", "replicas", "scenarios", "summary", "trace"]
    {
        let path = format!("/dashboard/{path}");
        for (site, status) in [("same-origin", 200), ("cross-site", 403)] {
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: sim\r\nsec-fetch-site: {site}\r\n\r\n");
            assert_eq!(sim.ask(request).await.status, status, "{path} {site}");
        }
    }
    let nothing: Value = sim.get("/dashboard/requests").await.json();
    assert_eq!(nothing["requests"], json!([]));
}

#[tokio::test]
async fn a_server_has_a_summary() {
    let sim = Sim::serve(&["--data-parallel-size", "2", "--failure-injection-rate", "3"]).await;
    check(&sim, "dashboard-summary", "/dashboard/summary").await;
}

#[tokio::test]
async fn replicas_and_peers_share_one_page() {
    let peer = Sim::serve(&["--health-status", "503"]).await;
    let address = peer.address();
    // Nobody listens on port 1, and nothing is below /nothing.
    let peers = format!("http://{address}/,http://{address}/nothing,http://127.0.0.1:1");
    let fleet = fleet(&["--replicas", "2", "--dashboard-peers", &peers]).await;
    let servers = fleet.running_servers();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: sim\r\n\r\n");
    let page = ask(&servers[1], get("/dashboard")).await.text();
    assert!(page.contains("data-replicas=\"true\""));
    let rows = ask(&servers[1], get("/dashboard/replicas")).await.json();
    let rows = rows["replicas"].as_array().unwrap();
    let port = |index: usize| json!(servers[index].address.unwrap().port());
    let seen: Vec<_> = rows.iter().map(|row| (&row["port"], &row["url"])).collect();
    let url = |rest: &str| json!(format!("http://{rest}"));
    let (whole, nothing) = (url(&address.to_string()), url(&format!("{address}/nothing")));
    let (first, own, none) = (port(0), port(1), Value::Null);
    let gone = url("127.0.0.1:1");
    let expected =
        [(&own, &none), (&first, &none), (&none, &whole), (&none, &nothing), (&none, &gone)];
    assert_eq!(seen, expected);
    let models: Vec<_> = rows[..3].iter().map(|row| &row["state"]["model"]).collect();
    assert_eq!(models, ["tiny-llama"; 3]);
    assert_eq!(rows[2]["state"]["in_force"], json!({"health-status": 503}));
    let errors: Vec<_> = rows[3..].iter().map(|row| row["error"].as_str()).collect();
    let missing = "it returned 404 Not Found for /nothing/dashboard/summary";
    assert_eq!(errors[0], Some(missing));
    assert!(errors[1].is_some_and(|error| error.starts_with("cannot connect")), "{errors:?}");
    assert!(rows[3..].iter().all(|row| row["state"].is_null()));
    fleet.shut_down_all_servers().await;
}

#[tokio::test]
async fn a_single_server_requests_no_peers() {
    let sim = Sim::serve(&[]).await;
    assert!(sim.get("/dashboard").await.text().contains("data-replicas=\"false\""));
    let rows = sim.get("/dashboard/replicas").await.json();
    assert_eq!(rows["replicas"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_peer_is_the_url_of_a_server() {
    let read = |peers: &str| {
        let flags = ["--model", "m", "--dashboard-peers", peers];
        LoadedConfig::from_flags(CliMode::Vllm, &flags)
            .map(|loaded| loaded.config.server.dashboard.peers)
    };
    let urls = read("http://a:1/,https://b/c").map_err(|error| error.to_string());
    assert_eq!(urls, Ok(vec!["http://a:1".to_owned(), "https://b/c".to_owned()]));
    for wrong in ["10.0.0.2:8000", "ftp://a", "http://", "http://u:p@a", "http://a?b"] {
        let error = read(wrong).unwrap_err().to_string();
        let expected = format!("dashboard-peers: {wrong:?} must be a URL such as http://");
        assert!(error.contains(&expected), "{error}");
    }
    let many = read(&vec!["http://a"; 65].join(",")).unwrap_err().to_string();
    assert!(many.contains("dashboard-peers names 65 servers, at most 64 are allowed"), "{many}");
}

/// What `/dashboard/drills` lists, without times, which never run back.
async fn drills(sim: &Sim, key: &str) -> Vec<Value> {
    let head = format!("GET /dashboard/drills HTTP/1.1\r\nhost: sim\r\n{key}\r\n");
    let mut list = sim.ask(head).await.json();
    let now = list["now"].as_f64().unwrap();
    let events = list["events"].as_array_mut().unwrap();
    let times = events.iter_mut().map(|event| {
        let time = event.as_object_mut().and_then(|event| event.remove("time"));
        time.and_then(|time| time.as_f64()).unwrap()
    });
    let times: Vec<f64> = times.collect();
    assert!(times.is_sorted() && times.iter().all(|time| *time <= now), "{times:?}");
    std::mem::take(events)
}

/// Returns the samples of the server's metric history, each with its Unix time.
async fn history(sim: &Sim) -> Vec<(f64, String)> {
    let history = sim.get("/dashboard/history").await.json();
    let now = history["now"].as_f64().unwrap();
    let samples: Vec<(f64, String)> = serde_json::from_value(history["samples"].clone()).unwrap();
    assert!(samples.iter().all(|(time, _)| *time <= now), "{samples:?}");
    samples
}

#[tokio::test]
async fn metrics_are_sampled_once_the_history_is_asked_for() {
    let sim = Sim::serve(&[]).await;
    assert_eq!(history(&sim).await, []);
    let body = json!({"prompt": "Hi", "max_tokens": 1});
    assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
    let done = |text: &str| {
        let line = text.lines().find(|line| line.contains("finished_reason=\"length\""));
        line.is_some_and(|line| line.ends_with(" 1.0"))
    };
    let mut samples = history(&sim).await;
    while !samples.last().is_some_and(|(_, text)| done(text)) {
        tokio::task::yield_now().await;
        samples = history(&sim).await;
    }
    assert!(samples.is_sorted_by(|a, b| a.0 < b.0), "{samples:?}");
    let text = &samples[samples.len() - 1].1;
    assert!(text.contains("vllm:num_requests_running{"), "{text}");
    assert!(!text.contains("_bucket") && !text.contains('#'), "{text}");
}

#[tokio::test]
async fn ready_scenarios_are_those_of_the_folder() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/scenarios");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    files.sort();
    let sim = Sim::serve(&[]).await;
    let list = sim.get("/dashboard/scenarios").await.json();
    let list = list["scenarios"].as_array().unwrap();
    let mut texts: Vec<&str> = list.iter().map(|one| one["text"].as_str().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, files);
    let restart = list.iter().find(|one| one["name"] == "restart").unwrap();
    assert!(restart["about"].as_str().unwrap().starts_with("The pod is killed"), "{restart}");
    let killed = json!({"name": "killed", "seconds": 5.0, "requests": null, "set": {},
        "actions": ["restart 5s"]});
    assert_eq!(restart["phases"][1], killed);
    let cut = list.iter().find(|one| one["name"] == "cut-streams").unwrap();
    assert_eq!(cut["phases"][0]["requests"], 20);
}

#[tokio::test]
async fn page_links_to_the_documentation_that_is_served() {
    for (flags, hidden) in [(&[][..], false), (&["--disable-fastapi-docs"][..], true)] {
        let page = Sim::serve(flags).await.get("/dashboard").await.text();
        assert_eq!(page.contains("href=\"docs\" hidden"), hidden, "{flags:?}");
        assert!(page.contains("href=\"metrics\""), "{flags:?}");
    }
}

#[tokio::test]
async fn drills_are_listed_and_values_need_admin_key() {
    let sim = Sim::llmd(&["--mode", "echo", "--admin-api-key", "secret"]).await;
    let key = "authorization: Bearer secret";
    let change = json!({"latency-factor": 2});
    assert_eq!(sim.post_with("/admin/config", &[key], &change).await.status, 200);
    let scenario = json!({"name": "flap", "phases": [
        {"name": "storm", "requests": 1, "set": {"failure-injection-rate": 100}},
        {"name": "calm", "requests": 1},
    ]});
    assert_eq!(sim.post_with("/admin/scenario", &[key], &scenario).await.status, 200);
    let summary = sim.get("/dashboard/summary").await.json();
    assert_eq!(summary["scenario"], json!({"name": "flap", "phase": "storm"}));
    let names = json!({"latency-factor": null, "failure-injection-rate": null});
    assert_eq!(summary["in_force"], names);
    let body = json!({"prompt": "Hi", "max_tokens": 1});
    for status in [true, false] {
        let answer = sim.post("/v1/completions", &body).await;
        assert_eq!(answer.status != 200, status, "{}", answer.text());
    }
    let phase =
        |phase: &str| json!({"event": "phase", "scenario": "flap", "phase": phase, "round": 1});
    let settings = |value: Value| json!({"event": "settings", "changed": {"latency-factor": value}, "rank": null});
    let end = json!({"event": "end", "scenario": "flap"});
    let expected = |value: Value| [settings(value), phase("storm"), phase("calm"), end.clone()];
    assert_eq!(drills(&sim, "").await, expected(Value::Null));
    assert_eq!(drills(&sim, &format!("{key}\r\n")).await, expected(json!(2)));
}
