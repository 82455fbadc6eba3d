//! Several servers in one process: replicas, and llm-d's data-parallel ranks.

use serde_json::json;
use tokio::net::TcpStream;
use vllm_sim::server::{ServerFleet, SimulatorServer};
use vllm_sim_config::{CliMode, LoadedConfig};

use super::sim::{MODEL, post};
use super::wire::{Answer, Wire};

pub(crate) async fn fleet(flags: &[&str]) -> ServerFleet {
    let mut words = vec!["--model", MODEL, "--served-model-name", "tiny-llama"];
    words.extend(flags);
    let mut loaded = LoadedConfig::from_flags(CliMode::Llmd, &words).expect("flags that are right");
    // Any free port for each of them.
    loaded.config.server.port = 0;
    loaded.config.server.host = Some("127.0.0.1".to_owned());
    ServerFleet::start_all_servers(loaded).await.expect("a start")
}

pub(crate) async fn ask(server: &SimulatorServer, request: impl AsRef<[u8]>) -> Answer {
    let address = server.address.expect("no Unix socket");
    let mut wire = Wire::new(TcpStream::connect(address).await.unwrap());
    wire.send(request.as_ref()).await;
    wire.answer().await
}

/// Tokens that a server says it made, by the engine that it says did.
async fn counted(server: &SimulatorServer) -> (String, f64) {
    let page = ask(server, "GET /metrics HTTP/1.1\r\nhost: sim\r\n\r\n").await;
    let page = page.text();
    let mut lines = page.lines();
    let line = lines
        .find(|line| line.starts_with("vllm:generation_tokens_total{"))
        .expect("a counter of tokens");
    let engine = line.split('"').nth(1).unwrap().to_owned();
    (engine, line.rsplit(' ').next().unwrap().parse().unwrap())
}

async fn complete(server: &SimulatorServer) {
    let body = json!({"prompt": "hello", "max_tokens": 2, "ignore_eos": true}).to_string();
    let answer = ask(server, post("/v1/completions", &[], body.as_bytes())).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn replicas_count_metrics_separately() {
    let fleet = fleet(&["--replicas", "3"]).await;
    let servers = fleet.running_servers();
    assert_eq!(servers.len(), 3);
    complete(&servers[1]).await;
    for (index, tokens) in [(0, 0.0), (1, 2.0), (2, 0.0)] {
        let expected = ("0".to_owned(), tokens);
        assert_eq!(counted(&servers[index]).await, expected, "{index}");
    }
    let last = servers[2].address.unwrap();
    fleet.shut_down_all_servers().await;
    assert!(TcpStream::connect(last).await.is_err());
}

#[tokio::test]
async fn every_rank_of_llmd_is_a_separate_server() {
    let fleet = fleet(&["--data-parallel-size", "2"]).await;
    let servers = fleet.running_servers();
    complete(&servers[1]).await;
    assert_eq!(counted(&servers[0]).await, ("0".to_owned(), 0.0));
    assert_eq!(counted(&servers[1]).await, ("1".to_owned(), 2.0));
    fleet.shut_down_all_servers().await;
}

#[tokio::test]
async fn ranks_that_step_together_serve_on_a_port_each() {
    let experts = "--data-parallel-size 2 --scheduler vllm --latency-model polynomial \
                   --speedup-ratio 20 --tokenizer";
    let mut words = vec!["--model", "Qwen/Qwen3-30B-A3B"];
    words.extend(experts.split_whitespace());
    words.push(MODEL);
    let mut loaded = LoadedConfig::from_flags(CliMode::Llmd, &words).expect("flags that are right");
    assert!(loaded.config.engine.lock_step);
    loaded.config.server.port = 0;
    loaded.config.server.host = Some("127.0.0.1".to_owned());
    let fleet = ServerFleet::start_all_servers(loaded).await.expect("a start");
    let servers = fleet.running_servers();
    tokio::join!(complete(&servers[0]), complete(&servers[1]));
    complete(&servers[1]).await;
    assert_eq!(counted(&servers[0]).await, ("0".to_owned(), 2.0));
    assert_eq!(counted(&servers[1]).await, ("1".to_owned(), 4.0));
    fleet.shut_down_all_servers().await;
}

#[tokio::test]
async fn every_port_of_llmd_names_the_engines_of_all_ranks() {
    let fleet = fleet(&["--data-parallel-size", "2", "--compat", "llm-d"]).await;
    let get = b"GET /query HTTP/1.1\r\nhost: sim\r\n\r\n".to_vec();
    let [first, second] = [0, 1].map(|rank| ask(&fleet.running_servers()[rank], get.clone()));
    let (first, second) = (first.await.json(), second.await.json());
    assert_eq!(first, second);
    let engines = [&first["0"]["engine_id"], &first["1"]["engine_id"]];
    assert!(engines.iter().all(|id| id.as_str().is_some_and(|id| id.len() == 36)));
    assert_ne!(engines[0], engines[1]);
    fleet.shut_down_all_servers().await;
}

/// A port with free neighbours, a moment ago.
fn free_ports(count: u16) -> u16 {
    let any = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port().min(65_000)
    };
    let free = |first: &u16| {
        (*first..*first + count).all(|port| std::net::TcpListener::bind(("0.0.0.0", port)).is_ok())
    };
    std::iter::repeat_with(any).take(100).find(free).unwrap()
}

#[tokio::test]
async fn replicas_have_own_transfer_engine_id() {
    let port = free_ports(2);
    let number = port.to_string();
    let config = |connector: &str| {
        json!({"kv_connector": connector, "kv_role": "kv_producer", "engine_id": "e"}).to_string()
    };
    let nixl = config("NixlConnector");
    let flags = ["--replicas", "2", "--kv-transfer-config", &nixl];
    let fleet_of = fleet(&[&flags[..], &["--kv-side-channel-port", &number]].concat()).await;
    let mut seen = Vec::new();
    for server in fleet_of.running_servers() {
        let body = json!({"prompt": "hello", "max_tokens": 1,
            "kv_transfer_params": {"do_remote_decode": true}})
        .to_string();
        let answer = ask(server, post("/v1/completions", &[], body.as_bytes())).await;
        let params = answer.json()["kv_transfer_params"].take();
        let engine = params["remote_engine_id"].as_str().unwrap().to_owned();
        seen.push((engine, params["remote_port"].as_u64().unwrap()));
    }
    let first = u64::from(port);
    assert_eq!(seen, [("e".to_owned(), first), ("e-1".to_owned(), first + 1)]);
    fleet_of.shut_down_all_servers().await;

    let mooncake = config("MooncakeConnector");
    let flags = ["--replicas", "2", "--kv-transfer-config", &mooncake];
    let fleet = fleet(&[&flags[..], &["--mooncake-bootstrap-port", &number]].concat()).await;
    for (by, engine) in [(0, "e"), (1, "e-1")] {
        let stream = TcpStream::connect(("127.0.0.1", port + by)).await;
        let mut wire = Wire::new(stream.expect("a registry"));
        wire.send(b"GET /query HTTP/1.1\r\nhost: sim\r\n\r\n").await;
        assert_eq!(wire.answer().await.json()["0"]["engine_id"], engine);
    }
    fleet.shut_down_all_servers().await;
}

const CHAOS: &str = "
name: chaos
phases:
  - name: trouble
    for: 1h
    replicas:
      0: {set: {stale-metrics: true}}
      1: {set: {health-status: 503}}
      2: {do: [{restart: 1h}]}
";

/// One file says what goes wrong where.
#[tokio::test]
async fn scenario_selects_phases_by_replica() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chaos.yaml");
    std::fs::write(&file, CHAOS).unwrap();
    let fleet = fleet(&["--replicas", "3", "--scenario", file.to_str().unwrap()]).await;
    let servers = fleet.running_servers();
    for (index, health, tokens) in [(0, 200, 0.0), (1, 503, 2.0)] {
        let server = &servers[index];
        let answer = ask(server, "GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await;
        assert_eq!(answer.status, health, "{index}");
        complete(server).await;
        assert_eq!(counted(server).await.1, tokens, "{index}");
    }
    let address = servers[2].address.unwrap();
    let mut wire = Wire::new(TcpStream::connect(address).await.unwrap());
    assert!(wire.is_closed().await, "the third one is gone");
    fleet.shut_down_all_servers().await;
}

/// Servers of a fleet that are processes of their own are told which replica they are.
#[tokio::test]
async fn scenario_runs_part_of_given_replica() {
    let fleet = fleet(&[]).await;
    let server = &fleet.running_servers()[0];
    let health = async || {
        let get = "GET /health HTTP/1.1\r\nhost: sim\r\n\r\n";
        ask(server, get).await.status
    };
    let play = async |query: &str| {
        let path = format!("/admin/scenario{query}");
        ask(server, post(&path, &[], CHAOS.as_bytes())).await
    };
    let refused = play("").await;
    assert_eq!(refused.status, 400);
    let text = refused.text();
    assert!(text.contains("there is no replica 2: 1 replicas have the numbers from 0"), "{text}");
    assert_eq!(play("?replica=x").await.status, 400);
    for (query, expected) in [("?replica=1", 503), ("?replica=0", 200)] {
        assert_eq!(play(query).await.status, 200);
        assert_eq!(health().await, expected, "{query}");
    }
    // The page is stale until the scenario ends.
    complete(server).await;
    assert_eq!(counted(server).await.1, 0.0);
    ask(server, "DELETE /admin/scenario HTTP/1.1\r\nhost: sim\r\n\r\n").await;
    assert_eq!(counted(server).await.1, 2.0);
    fleet.shut_down_all_servers().await;
}
