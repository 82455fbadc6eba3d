//! The table of docs/disaggregation.md for MoRI-IO and Mooncake: prefill servers that are dead,
//! restarted, unknown or of another kind, as a decode server sees them. NIXL is in `peers.rs`.

use serde_json::{Value, json};

use super::peers::{body, decoded};
use super::sim::{Sim, eventually, post};
use super::transfer::{asked, free_port};

const COMPLETIONS: &str = "/v1/completions";

fn connector(name: &str, role: &str, policy: &str, extra: &Value) -> String {
    json!({"kv_connector": name, "kv_role": role, "kv_load_failure_policy": policy,
        "kv_connector_extra_config": extra})
    .to_string()
}

async fn server(config: &str, more: &[&str]) -> Sim {
    Sim::serve(&[&["--kv-transfer-config", config], more].concat()).await
}

async fn mooncake_prefiller(port: u16, more: &[&str]) -> (Sim, String) {
    let config = connector("MooncakeConnector", "kv_producer", "fail", &json!({}));
    let port_flag = port.to_string();
    let flags = [&["--mooncake-bootstrap-port", &port_flag], more].concat();
    let sim = server(&config, &flags).await;
    let listed = get_json(port, "/query").await;
    let engine = listed["0"]["engine_id"].as_str().unwrap().to_owned();
    (sim, engine)
}

async fn get_json(port: u16, path: &str) -> Value {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut wire = super::wire::Wire::new(stream);
    wire.send(format!("GET {path} HTTP/1.1\r\nhost: sim\r\n\r\n").as_bytes()).await;
    wire.answer().await.json()
}

fn mooncake_params(port: u16, engine: &str) -> Value {
    json!({"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": "t",
        "remote_engine_id": engine, "remote_bootstrap_addr": format!("http://127.0.0.1:{port}")})
}

/// Outcome of a decode request.
#[derive(Debug, PartialEq)]
enum Outcome {
    Loaded,
    Computed,
    Failed,
}

async fn outcome(sim: &Sim, first: u32, params: &Value) -> Outcome {
    match decoded(sim, &body(first, params)).await {
        (200, [_, loaded]) if loaded >= 50.0 => Outcome::Loaded,
        (200, [computed, _]) if computed >= 50.0 => Outcome::Computed,
        (500, _) => Outcome::Failed,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn mooncake_looks_for_the_engine_at_the_bootstrap_server() {
    let decoder = async |policy: &str, extra: Value| {
        server(&connector("MooncakeConnector", "kv_consumer", policy, &extra), &[]).await
    };
    let (port, small_port) = (free_port(), free_port());
    let (prefill, engine) = mooncake_prefiller(port, &[]).await;
    let (_small, small) = mooncake_prefiller(small_port, &["--block-size", "8"]).await;
    let gone = mooncake_params(free_port(), "gone");
    let unknown = mooncake_params(port, "somebody-else");
    let sizes = mooncake_params(small_port, &small);
    for (policy, expected) in [("fail", Outcome::Failed), ("recompute", Outcome::Computed)] {
        for params in [&gone, &unknown, &sizes] {
            let decode = decoder(policy, json!({})).await;
            assert_eq!(outcome(&decode, 10, params).await, expected, "{policy} {params}");
        }
    }
    let decode = decoder("fail", json!({})).await;
    assert_eq!(outcome(&decode, 10, &mooncake_params(port, &engine)).await, Outcome::Loaded);
    // Addresses that a test of a proxy makes up.
    let trusting = decoder("fail", json!({"sim_handshake": false})).await;
    assert_eq!(outcome(&trusting, 10, &gone).await, Outcome::Loaded);
    prefill.server.shut_down_server().await;
    let (_restarted, next) = mooncake_prefiller(port, &[]).await;
    assert_ne!(next, engine);
    let fresh = decoder("fail", json!({})).await;
    assert_eq!(outcome(&fresh, 10, &mooncake_params(port, &engine)).await, Outcome::Failed);
    let fresh = decoder("fail", json!({})).await;
    assert_eq!(outcome(&fresh, 10, &mooncake_params(port, &next)).await, Outcome::Loaded);
}

async fn mori_prefiller(port: u16, more: &[&str]) -> Sim {
    let config = connector("MoRIIOConnector", "kv_producer", "fail", &json!({"notify_port": port}));
    server(&config, more).await
}

/// Parameters of the prefill server, as it answers them.
async fn mori_params(prefiller: &Sim, first: u32) -> Value {
    let mut params = asked();
    params["transfer_id"] = "t".into();
    let mut request = body(first, &params);
    request["max_tokens"] = 1.into();
    let answer = prefiller.post(COMPLETIONS, &request).await.json();
    answer["kv_transfer_params"].clone()
}

#[tokio::test]
async fn mori_io_trusts_every_server_that_answers() {
    let decoder = async || {
        let extra = json!({});
        server(&connector("MoRIIOConnector", "kv_consumer", "fail", &extra), &[]).await
    };
    let port = free_port();
    let prefill = mori_prefiller(port, &["--block-size", "8"]).await;
    let params = mori_params(&prefill, 10).await;
    assert_eq!(outcome(&decoder().await, 10, &params).await, Outcome::Loaded);
    // Neither the id of the engine nor the size of its blocks is compared.
    let mut other = params.clone();
    other["remote_engine_id"] = "somebody-else".into();
    assert_eq!(outcome(&decoder().await, 10, &other).await, Outcome::Loaded);
    prefill.server.shut_down_server().await;
    let _restarted = mori_prefiller(port, &[]).await;
    assert_eq!(outcome(&decoder().await, 10, &params).await, Outcome::Loaded);
    // In WRITE mode the router names the servers in the id of the request.
    let id = format!(
        "x-request-id: a___prefill_addr_host:127.0.0.1,handshake:1,notify:{port}___decode_addr_\
         host:b,handshake:1,notify:2_0123456789abcdef0123456789abcdef"
    );
    let params = json!({"do_remote_prefill": true, "transfer_id": "t"});
    let decode = decoder().await;
    let answer = decode.post_with(COMPLETIONS, &[&id], &body(10, &params)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn mori_io_waits_for_a_server_without_a_limit() {
    let port = free_port();
    let extra = json!({});
    let decode = server(&connector("MoRIIOConnector", "kv_consumer", "fail", &extra), &[]).await;
    let params = json!({"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": "t",
        "remote_engine_id": "e", "remote_block_ids": [[1]], "remote_host": "127.0.0.1",
        "remote_notify_port": port, "remote_handshake_port": 1, "tp_size": 1});
    let mut waiting = decode.connect().await;
    let request = body(10, &params).to_string();
    waiting.send(&post(COMPLETIONS, &[], request.as_bytes())).await;
    // Requests that need no other server go on.
    let local = body(70, &Value::Null);
    assert!(eventually(async || decode.post(COMPLETIONS, &local).await.status == 200).await);
    let _prefill = mori_prefiller(port, &[]).await;
    assert_eq!(waiting.answer().await.status, 200);
}
