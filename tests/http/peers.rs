//! Prefill servers that are gone, restarted or of another kind, as a decode server sees them.

use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::sim::{Sim, post};
use super::transfer::{asked, child_of_multi_connector, free_port};

const COMPLETIONS: &str = "/v1/completions";

fn connector(role: &str, policy: &str, more: &Value) -> String {
    json!({"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": policy,
        "kv_connector_extra_config": more})
    .to_string()
}

async fn decoder(policy: &str, more: &[&str]) -> Sim {
    let config = connector("kv_consumer", policy, &json!({}));
    Sim::serve(&[&["--kv-transfer-config", &config], more].concat()).await
}

async fn prefiller(port: u16, more: &[&str]) -> Sim {
    let (config, port) = (connector("kv_producer", "fail", &json!({})), port.to_string());
    let flags = ["--kv-transfer-config", &config, "--kv-side-channel-port", &port];
    Sim::serve(&[&flags[..], more].concat()).await
}

/// A prompt of 50 tokens; each `first` token makes another one.
pub(crate) fn body(first: u32, params: &Value) -> Value {
    let ids: Vec<u32> = std::iter::once(first).chain(11..60).collect();
    json!({"prompt": ids, "max_tokens": 2, "ignore_eos": true, "kv_transfer_params": params})
}

/// The parameters that a prefill server answers for the prompt of `first`.
async fn prefilled(prefiller: &Sim, first: u32) -> Value {
    let mut body = body(first, &asked());
    body["max_tokens"] = json!(1);
    let answer = prefiller.post(COMPLETIONS, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["kv_transfer_params"].clone()
}

/// Parameters of a server that never was.
fn made_up(engine_id: &str) -> Value {
    json!({"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]],
        "remote_engine_id": engine_id, "remote_request_id": "cmpl-0",
        "remote_host": "127.0.0.1", "remote_port": free_port(), "tp_size": 1})
}

/// Status of a decode request, and the numbers of tokens computed here and loaded.
pub(crate) async fn decoded(sim: &Sim, body: &Value) -> (u16, [f64; 2]) {
    let status = sim.post(COMPLETIONS, body).await.status;
    let text = sim.get("/metrics").await.text();
    let sources = ["local_compute", "external_kv_transfer"].map(|source| {
        let part = format!("source=\"{source}\"");
        let mut lines = text.lines().filter(|line| line.contains(&part) && line.contains("_total"));
        let value = lines.next().and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("{source} is not in {text}"))
    });
    (status, sources)
}

#[tokio::test]
async fn a_prefill_server_that_is_gone_is_a_failed_load() {
    let fail = decoder("fail", &[]).await;
    let recompute = decoder("recompute", &[]).await;
    let trusting = connector("kv_consumer", "fail", &json!({"sim_handshake": false}));
    let child = child_of_multi_connector(&serde_json::from_str(&trusting).unwrap());
    let trusting = Sim::serve(&["--kv-transfer-config", &trusting]).await;
    let trusting_child = Sim::serve(&["--kv-transfer-config", &child]).await;
    let gone = body(10, &made_up("gone"));
    let mut streamed = body(10, &made_up("gone"));
    streamed["stream"] = true.into();
    // vLLM waits five seconds for an answer.
    let (failed, computed, loaded, loaded_by_child, stream) = tokio::join!(
        decoded(&fail, &gone),
        decoded(&recompute, &gone),
        decoded(&trusting, &gone),
        decoded(&trusting_child, &gone),
        recompute.post(COMPLETIONS, &streamed),
    );
    assert_eq!(failed.0, 500);
    assert_eq!((computed.0, computed.1[1]), (200, 0.0));
    assert!(computed.1[0] >= 50.0, "{computed:?}");
    assert_eq!(loaded, (200, [0.0, 50.0]));
    assert_eq!(loaded_by_child, (200, [0.0, 50.0]));
    assert_eq!(stream.status, 200);
    // A failed handshake is a failed transfer, as in NixlPromMetrics of vLLM 0.33.
    assert_eq!(fail.metric("vllm:nixl_num_failed_transfers_total").await, 1.0);
}

#[tokio::test]
async fn servers_that_have_met_trust_each_other_until_a_restart() {
    let port = free_port();
    let decode = decoder("fail", &[]).await;
    let first = prefiller(port, &[]).await;
    let met = prefilled(&first, 10).await;
    assert_eq!(decoded(&decode, &body(10, &met)).await.0, 200);
    let later = prefilled(&first, 100).await;
    let unknown = {
        let mut params = prefilled(&first, 101).await;
        params["remote_engine_id"] = json!("somebody-else");
        params
    };
    // The address answers, but with the id of another engine.
    assert_eq!(decoded(&decode, &body(101, &unknown)).await.0, 500);
    first.server.shut_down_server().await;
    assert_eq!(decoded(&decode, &body(100, &later)).await.0, 200, "they have met");
    let second = prefiller(port, &[]).await;
    let fresh = decoder("fail", &[]).await;
    assert_eq!(decoded(&fresh, &body(100, &later)).await.0, 500, "an id from before the restart");
    let params = prefilled(&second, 10).await;
    assert_eq!(decoded(&fresh, &body(10, &params)).await.0, 200);
}

#[tokio::test]
async fn block_sizes_must_be_multiples() {
    let small = prefiller(free_port(), &["--block-size", "16"]).await;
    let large = prefiller(free_port(), &["--block-size", "64"]).await;
    let decode = decoder("fail", &["--block-size", "32"]).await;
    let params = prefilled(&small, 10).await;
    assert_eq!(decoded(&decode, &body(10, &params)).await.0, 200);
    let params = prefilled(&large, 100).await;
    assert_eq!(decoded(&decode, &body(100, &params)).await.0, 500);
}

/// Every failure of a handshake is a failed load, which the policy turns into an error or into work.
#[tokio::test]
async fn failed_handshakes_follow_the_policy() {
    let port = free_port();
    let first = prefiller(port, &[]).await;
    let before = prefilled(&first, 10).await;
    first.server.shut_down_server().await;
    let restarted = prefiller(port, &[]).await;
    let mut unknown = prefilled(&restarted, 10).await;
    unknown["remote_engine_id"] = json!("somebody-else");
    let large = prefiller(free_port(), &["--block-size", "64"]).await;
    let other_size = prefilled(&large, 10).await;
    for (name, params) in [("restarted", before), ("unknown", unknown), ("size", other_size)] {
        let fail = decoder("fail", &["--block-size", "32"]).await;
        assert_eq!(decoded(&fail, &body(10, &params)).await.0, 500, "{name}");
        let recompute = decoder("recompute", &["--block-size", "32"]).await;
        let (status, [computed, loaded]) = decoded(&recompute, &body(10, &params)).await;
        assert_eq!((status, loaded), (200, 0.0), "{name}");
        assert!(computed >= 50.0, "{name}: {computed}");
    }
}

/// A prefill server that answers within five seconds is used, one that does not is a failed load.
#[tokio::test]
async fn slow_prefill_servers_have_five_seconds_to_answer() {
    let port = free_port();
    let prefill = prefiller(port, &[]).await;
    let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut params = prefilled(&prefill, 10).await;
    let mut through = |listener: &TcpListener| {
        params["remote_port"] = listener.local_addr().unwrap().port().into();
        body(10, &params)
    };
    let (late, never) = (through(&slow), through(&silent));
    let (decode, fail) = (decoder("fail", &[]).await, decoder("fail", &[]).await);
    let (asked, was_asked) = oneshot::channel();
    let (answers, may_answer) = oneshot::channel();
    let proxy = tokio::spawn(async move {
        let (mut peer, _) = slow.accept().await.unwrap();
        asked.send(()).unwrap();
        let () = may_answer.await.unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        copy_bidirectional(&mut peer, &mut server).await
    });
    let answered_late = async {
        let mut waiting = decode.connect().await;
        waiting.send(&post(COMPLETIONS, &[], late.to_string().as_bytes())).await;
        was_asked.await.unwrap();
        // A request that needs no other server does not wait.
        assert_eq!(decode.post(COMPLETIONS, &body(70, &Value::Null)).await.status, 200);
        answers.send(()).unwrap();
        waiting.answer().await.status
    };
    let (late, never) = tokio::join!(answered_late, decoded(&fail, &never));
    assert_eq!((late, never.0), (200, 500));
    proxy.abort();
}
