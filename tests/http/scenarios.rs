//! Settings that change while requests run, and failures over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use vllm_sim::server::ServerFleet;
use vllm_sim_config::{CliMode, LoadedConfig};

use super::sim::{Sim, eventually, post};
use super::wire::Wire;

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "one two three four"}], "stream": true})
}

async fn status(sim: &Sim) -> u16 {
    sim.post("/v1/chat/completions", &chat()).await.status
}

const STORM: &str = "
name: storm
seed: 5
phases:
  - {name: calm, requests: 10}
  - name: burst
    requests: 40
    set: {failure-injection-rate: 40, failure-types: [rate_limit, server_error]}
  - name: cuts
    requests: 40
    set: {stream-fault-rate: 50, stream-faults: [missing_done]}
";

#[tokio::test]
async fn a_repeated_scenario_faults_the_same_requests() {
    let sim = Sim::llmd(&["--mode", "echo", "--force-dummy-tokenizer"]).await;
    let scenario = serde_json::to_value(STORM).unwrap();
    let begin = async || {
        let text = scenario.as_str().unwrap();
        let request = post("/admin/scenario", &[], text.as_bytes());
        let answer = sim.ask(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["phase"], "calm");
    };
    let play = async || {
        let mut fates = Vec::new();
        for _ in 0..90 {
            let answer = sim.post("/v1/chat/completions", &chat()).await;
            fates.push((answer.status, answer.text().contains("[DONE]")));
        }
        fates
    };
    begin().await;
    let first = play().await;
    let scene = sim.get("/admin/scenario").await.json();
    assert_eq!((&scene["running"], &scene["phase"]), (&json!(false), &Value::Null));
    begin().await;
    let second = play().await;
    assert_eq!(first, second);
    let spoiled = |from: usize, to: usize| {
        let part = first[from..to].iter();
        part.filter(|(status, done)| *status != 200 || !done).count()
    };
    assert_eq!(spoiled(0, 10), 0);
    assert!((8..25).contains(&spoiled(10, 50)), "{first:?}");
    assert!((10..31).contains(&spoiled(50, 90)), "{first:?}");
    let metrics = sim.get("/metrics").await.text();
    let line = "vllm_sim_faults_total{kind=\"missing_done\",phase=\"cuts\",scenario=\"storm\"}";
    assert!(metrics.contains(line), "{metrics}");
    // Over: nothing fails any more.
    assert_eq!(status(&sim).await, 200);
}

#[tokio::test]
async fn timed_phases_change_and_restore_settings() {
    let sim = Sim::llmd(&["--mode", "echo", "--latency-factor", "1"]).await;
    let scenario = json!({
        "name": "flap", "repeat": 0,
        "phases": [
            {"name": "down", "for": "60ms", "set": {"health-status": 503}},
            {"name": "up", "for": "60ms"},
        ],
    });
    let answer = sim.post("/admin/scenario", &scenario).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut seen = Vec::new();
    let changed = eventually(async || {
        let status = sim.get("/health").await.status;
        if seen.last() != Some(&status) {
            seen.push(status);
        }
        seen.len() == 5
    });
    assert!(changed.await, "it stays as it is");
    assert_eq!(seen, [503, 200, 503, 200, 503]);
    let delete = "DELETE /admin/scenario HTTP/1.1\r\nhost: sim\r\n\r\n";
    assert_eq!(sim.ask(delete).await.json(), json!({"ended": true}));
    assert_eq!(sim.get("/health").await.status, 200);
    assert_eq!(sim.ask(delete).await.json(), json!({"ended": false}));
}

#[tokio::test]
async fn a_restart_resets_every_connection_and_leaves_a_cold_cache() {
    let flags = ["--mode", "echo", "--enable-kvcache", "--inter-token-latency", "50ms"];
    let sim = Sim::llmd(&flags).await;
    let mut idle = sim.connect().await;
    let mut busy = sim.connect().await;
    let body = chat().to_string();
    busy.send(&post("/v1/chat/completions", &[], body.as_bytes())).await;
    assert_eq!(busy.head().await.status, 200);
    let scenario = json!({"phases": [{"for": "300ms", "do": [{"restart": "150ms"}]}]});
    // The answer to this very request may be lost with its connection.
    let mut operator = sim.connect().await;
    let request = post("/admin/scenario", &[], scenario.to_string().as_bytes());
    operator.send(&request).await;
    assert!(idle.is_closed().await);
    while busy.try_chunk().await.is_some() {}
    assert!(busy.is_closed().await);
    let mut down = sim.connect().await;
    assert!(down.is_closed().await);
    let back = eventually(async || {
        let mut wire = sim.connect().await;
        let health = b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n";
        wire.try_send(health).await && wire.try_head().await == Some(200)
    });
    assert!(back.await, "it does not come back");
    assert!(sim.is_idle().await);
}

#[tokio::test]
async fn an_invalid_scenario_changes_nothing() {
    let sim = Sim::llmd(&["--mode", "echo"]).await;
    let cases = [
        (json!({"phases": []}), "'phases' must be a list"),
        (
            json!({"phases": [{"name": "a", "for": "1s"}, {"name": "b", "set": {"port": 1}}]}),
            "phases[1] \"b\": field 'port' is not admin-configurable",
        ),
        (
            json!({"phases": [{"set": {"stream-faults": ["boom"]}}]}),
            "phases[0] \"phase-1\": fault \"boom\": unknown kind",
        ),
    ];
    for (scenario, why) in cases {
        let answer = sim.post("/admin/scenario", &scenario).await;
        assert_eq!(answer.status, 400);
        assert!(answer.text().replace("\\\"", "\"").contains(why), "{}", answer.text());
        assert_eq!(sim.get("/admin/scenario").await.json()["scenario"], Value::Null);
    }
}

#[tokio::test]
async fn admin_key_guards_admin_routes() {
    let sim = Sim::serve(&["--admin-api-key", "secret"]).await;
    for path in ["/admin/config", "/admin/scenario"] {
        assert_eq!(sim.get(path).await.status, 401, "{path}");
        let wrong = format!("GET {path} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer x\r\n\r\n");
        assert_eq!(sim.ask(wrong).await.status, 401, "{path}");
        let right =
            format!("GET {path} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer secret\r\n\r\n");
        let answer = sim.ask(right).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.text().contains("secret"), "{}", answer.text());
    }
    assert_eq!(Sim::serve(&[]).await.get("/admin/config").await.status, 404);
}

/// A key that protects the API protects the operator's routes, too.
#[tokio::test]
async fn without_an_operators_key_the_apis_keys_guard_the_operators_routes() {
    let sim = Sim::serve(&["--api-key", "one", "two", "--dev-mode", "--request-history=9"]).await;
    for path in ["/admin/config", "/admin/scenario", "/admin/replies", "/admin/requests"] {
        let refused = sim.get(path).await;
        assert_eq!(refused.status, 401, "{path}");
        assert!(refused.text().contains("key of --api-key"), "{}", refused.text());
        let right =
            format!("GET {path} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer two\r\n\r\n");
        assert_eq!(sim.ask(right).await.status, 200, "{path}");
    }
    let change = super::sim::post("/admin/config", &[], br#"{"failure-injection-rate": 100}"#);
    assert_eq!(sim.ask(change).await.status, 401);
    let listed = sim.get("/dashboard/requests").await.json();
    assert_eq!(listed["requests"], json!([]), "{listed}");
    // With a key of its own the operator's routes do not take those of the API.
    let sim = Sim::serve(&["--api-key", "one", "--admin-api-key", "secret"]).await;
    let wrong = "GET /admin/config HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer one\r\n\r\n";
    assert_eq!(sim.ask(wrong).await.status, 401);
}

#[tokio::test]
async fn admin_change_applies_to_all_or_one_rank() {
    // Ranks need ports that follow each other: try until a pair is free.
    let mut started = None;
    for port in (21_000..22_000).step_by(7) {
        let port = port.to_string();
        let flags =
            ["--model", "m", "--host", "127.0.0.1", "--port", &port, "--data-parallel-size", "2"];
        let loaded = LoadedConfig::from_flags(CliMode::Llmd, &flags).unwrap();
        if let Ok(fleet) = ServerFleet::start_all_servers(loaded).await {
            started = Some(fleet);
            break;
        }
    }
    let fleet = started.expect("two free ports");
    let servers = fleet.running_servers().iter();
    let addresses: Vec<_> = servers.map(|server| server.address.unwrap()).collect();
    let ask = async |rank: usize, request: Vec<u8>| {
        let mut wire = Wire::new(TcpStream::connect(addresses[rank]).await.unwrap());
        wire.send(&request).await;
        wire.answer().await
    };
    let rates = async || {
        let get = b"GET /admin/config HTTP/1.1\r\nhost: sim\r\n\r\n";
        let first = ask(0, get.to_vec()).await.json();
        let second = ask(1, get.to_vec()).await.json();
        let rate = |shown: &Value| shown["failure-injection-rate"].as_u64().unwrap();
        vec![rate(&first), rate(&second)]
    };
    let change = async |query: &str, rate: u64| {
        let body = json!({"failure-injection-rate": rate}).to_string();
        let path = format!("/admin/config{query}");
        ask(0, post(&path, &[], body.as_bytes())).await.status
    };
    assert_eq!((change("", 30).await, rates().await), (200, vec![30, 30]));
    assert_eq!((change("?rank=1", 60).await, rates().await), (200, vec![30, 60]));
    assert_eq!((change("", 101).await, rates().await), (400, vec![30, 60]));
    assert_eq!((change("?rank=2", 5).await, rates().await), (404, vec![30, 60]));
    assert_eq!((change("?rank=x", 5).await, rates().await), (400, vec![30, 60]));
    fleet.shut_down_all_servers().await;
}

/// Two settings that differ in every respect a client can see: refused at once, or answered
/// slowly. A mix would be a refusal of the slow setting or a quick answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "delays are what is looked at")]
async fn request_sees_consistent_settings() {
    const CLIENTS: usize = 50;
    const FLIPS: usize = 100;
    const SEVERAL: u32 = 10;
    let flags = ["--mode", "echo", "--force-dummy-tokenizer", "--max-num-seqs", "64"];
    let sim = Sim::llmd(&flags).await;
    let settings = |slow: bool| {
        json!({
            "time-to-first-token": if slow { "30ms" } else { "0s" },
            "inter-token-latency": if slow { "10ms" } else { "0s" },
            "failure-injection-rate": if slow { 0 } else { 100 },
            "failure-types": if slow { json!(["rate_limit"]) } else { json!(["server_error"]) },
        })
    };
    sim.post("/admin/config", &settings(true)).await;
    let sim = Arc::new(sim);
    let over = Arc::new(AtomicBool::new(false));
    let answers = Arc::new(Semaphore::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (sim, over, answers) = (sim.clone(), over.clone(), answers.clone());
            tokio::spawn(async move {
                let mut seen = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    let answer = sim.post("/v1/chat/completions", &chat()).await;
                    match answer.status {
                        503 => seen.0 += 1,
                        200 => {
                            // Four tokens: the first one, and three gaps.
                            let least = Duration::from_millis(60);
                            assert!(begin.elapsed() >= least, "a quick answer of a slow setting");
                            seen.1 += 1;
                        }
                        other => panic!("{other} belongs to neither setting"),
                    }
                    answers.add_permits(1);
                }
                seen
            })
        })
        .collect();
    for flip in 0..FLIPS {
        let answer = sim.post("/admin/config", &settings(flip % 2 == 1)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // Both settings are seen by several.
        answers.acquire_many(SEVERAL).await.unwrap().forget();
    }
    over.store(true, Ordering::Relaxed);
    let (mut refused, mut answered) = (0, 0);
    for client in clients {
        let seen = client.await.unwrap();
        (refused, answered) = (refused + seen.0, answered + seen.1);
    }
    assert!(refused > CLIENTS && answered > CLIENTS, "{refused} {answered}");
}

#[tokio::test]
async fn the_example_scenarios_are_valid() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/scenarios");
    let sim = Sim::llmd(&["--mode", "echo"]).await;
    let mut played = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read(&path).unwrap();
        let answer = sim.ask(post("/admin/scenario", &[], &text)).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let scene = answer.json();
        assert_eq!((&scene["scenario"], &scene["running"]), (&json!(name), &json!(true)));
        played.push(name);
    }
    assert!(played.len() >= 8, "{played:?}");
    // As `--scenario` starts one.
    let file = format!("{folder}/overload.yaml");
    let sim = Sim::serve(&["--scenario", &file, "--dev-mode"]).await;
    let scene = sim.get("/admin/scenario").await.json();
    assert_eq!((&scene["scenario"], &scene["phase"]), (&json!("overload"), &json!("normal")));
    let line = "vllm_sim_scenario_phase{phase=\"normal\",scenario=\"overload\"} 1.0";
    assert!(sim.get("/metrics").await.text().contains(line));
}

#[tokio::test]
async fn settings_of_the_active_phase_are_shown() {
    let sim = Sim::llmd(&["--time-to-first-token", "1ms"]).await;
    let scenario = "phases: [{name: a, requests: 1000000, set: {failure-injection-rate: 30, \
                    latency-factor: 2}}]";
    let begin = post("/admin/scenario", &[], scenario.as_bytes());
    assert_eq!(sim.ask(begin).await.status, 200);
    let shown = sim.get("/admin/config").await.json();
    let of = |shown: &Value| {
        let names = ["failure-injection-rate", "latency-factor", "time-to-first-token"];
        names.map(|name| shown[name].to_string())
    };
    assert_eq!(of(&shown), ["30", "2", "\"1ms\""]);
    let shown = sim.get("/admin/config?rank=0").await.json();
    assert_eq!(of(&shown), ["30", "2", "\"1ms\""]);
    // What an operator sets lies below the phase, and is in force behind it.
    let update = json!({"failure-injection-rate": 7, "time-to-first-token": "2ms"});
    let shown = sim.post("/admin/config", &update).await.json();
    assert_eq!(of(&shown), ["30", "2", "\"2ms\""]);
    let delete = "DELETE /admin/scenario HTTP/1.1\r\nhost: sim\r\n\r\n";
    assert_eq!(sim.ask(delete).await.status, 200);
    let shown = sim.get("/admin/config").await.json();
    assert_eq!(of(&shown), ["7", "1", "\"2ms\""]);
}

#[tokio::test]
async fn setting_that_the_active_phase_overrides_is_named() {
    let scenario = json!({"name": "storm",
        "phases": [{"name": "down", "set": {"failure-injection-rate": 100}}]});
    let words = "199 vllm-sim \"--failure-injection-rate: no effect because phase 'down' of \
                 scenario 'storm' sets it\"";
    for sim in [Sim::llmd(&[]).await, Sim::serve(&["--dev-mode"]).await] {
        assert_eq!(sim.post("/admin/scenario", &scenario).await.status, 200);
        let update = json!({"failure_injection_rate": 1, "latency-factor": 2});
        let answer = sim.post("/admin/config", &update).await;
        assert_eq!(answer.header("warning"), Some(words));
        let shown = answer.json();
        assert_eq!(shown["changed"], json!({"latency-factor": {"from": 1, "to": 2}}));
        let overridden = json!({"failure-injection-rate": {"from": 0, "to": 1, "in_effect": 100,
            "scenario": "storm", "phase": "down"}});
        assert_eq!(shown["overridden"], overridden);
        for update in [
            json!({"failure-injection-rate": 1}),
            json!({"failure-injection-rate": 0}),
            json!({"reset": ["failure-injection-rate"]}),
        ] {
            let answer = sim.post("/admin/config", &update).await;
            assert_eq!(answer.header("warning"), Some(words), "{update}");
            let shown = answer.json();
            assert_eq!(shown["changed"], json!({}), "{update}");
            assert_eq!(shown["overridden"]["failure-injection-rate"]["in_effect"], 100);
        }
        let delete = "DELETE /admin/scenario HTTP/1.1\r\nhost: sim\r\n\r\n";
        assert_eq!(sim.ask(delete).await.status, 200);
        let answer = sim.post("/admin/config", &json!({"failure-injection-rate": 2})).await;
        assert_eq!(answer.header("warning"), None);
        let shown = answer.json();
        assert_eq!(shown["changed"], json!({"failure-injection-rate": {"from": 0, "to": 2}}));
        assert!(shown.get("overridden").is_none());
    }
    // llm-d's form of the answer has the header only.
    let sim = Sim::llmd(&["--compat", "llm-d"]).await;
    assert_eq!(sim.post("/admin/scenario", &scenario).await.status, 200);
    let answer = sim.post("/admin/config", &json!({"failure-injection-rate": 1})).await;
    assert_eq!(answer.header("warning"), Some(words));
    assert!(answer.json().get("overridden").is_none());
}
