//! `vllm-sim sglang --disaggregation-mode`: a prefill and a decode server, as a router sees them.
//!
//! The messages are those of SGLang 0.5.23 (`srt/disaggregation`), read from its sources.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::sglang_shapes::{CHAT, COMPLETION, members};
use super::sim::{Sim, eventually, post};
use super::transfer::free_port;
use super::wire::{Answer, Wire};

async fn prefiller(port: u16, more: &[&str]) -> Sim {
    let port = port.to_string();
    let flags = ["--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", &port];
    Sim::sglang(&[&flags[..], &["--enable-metrics"], more].concat()).await
}

async fn decoder(more: &[&str]) -> Sim {
    let flags = ["--disaggregation-mode", "decode", "--enable-metrics"];
    Sim::sglang(&[&flags[..], more].concat()).await
}

/// A request of a router: the same for both servers of a pair.
fn in_room(port: u16, room: u64) -> Value {
    json!({
        "input_ids": (5..25).collect::<Vec<u32>>(),
        "rid": "r",
        "sampling_params": {"max_new_tokens": 4, "ignore_eos": true, "temperature": 0},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": port,
        "bootstrap_room": room,
    })
}

fn bootstrap_address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

async fn ask(address: SocketAddr, request: impl AsRef<[u8]>) -> Answer {
    let mut wire = Wire::new(TcpStream::connect(address).await.unwrap());
    wire.send(request.as_ref()).await;
    wire.answer().await
}

async fn get(port: u16, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: sim\r\n\r\n");
    let answer = ask(bootstrap_address(port), request).await;
    (answer.status, answer.text())
}

/// The message of the error that a request gets.
async fn refused(sim: &Sim, body: &Value) -> (u16, String) {
    let answer = sim.post("/generate", body).await;
    let error = answer.json();
    let message = error["message"].as_str().or(error["error"]["message"].as_str());
    (answer.status, message.unwrap_or_else(|| panic!("no error: {error}")).to_owned())
}

fn failure(stage: &str, request: &str, room: u64, reason: &str) -> (u16, String) {
    let message = format!(
        "{stage} failed for request rank=0 {request}.rid='r' {request}.bootstrap_room={room} with \
         exception KVTransferError(bootstrap_room={room}): {reason}"
    );
    (500, message)
}

#[tokio::test]
async fn a_pair_answers_a_request_in_a_room() {
    let port = free_port();
    let (prefill, decode) = tokio::join!(prefiller(port, &[]), decoder(&[]));
    let whole = Sim::sglang(&[]).await;
    for room in [0, 7, u64::MAX >> 1] {
        let body = in_room(port, room);
        let (first, answer, expected) = tokio::join!(
            prefill.post("/generate", &body),
            decode.post("/generate", &body),
            whole.post("/generate", &body),
        );
        assert_eq!((first.status, answer.status), (200, 200), "{}", answer.text());
        let (first, answer, expected) = (first.json(), answer.json(), expected.json());
        assert_eq!(answer["text"], expected["text"]);
        assert_eq!(answer["output_ids"], expected["output_ids"]);
        // The prefill server computes one token.
        assert_eq!(first["output_ids"][0], expected["output_ids"][0]);
        assert_eq!(first["meta_info"]["completion_tokens"], 1);
        assert_eq!(first["meta_info"]["finish_reason"], json!({"type": "length", "length": 0}));
    }
    // The decode server has read all pages.
    assert!(prefill.shows("sglang:num_used_tokens", 0.0).await);
    assert_eq!(decode.metric("sglang:num_requests_total").await, 3.0);
    for (server, mode) in [(&prefill, "prefill"), (&decode, "decode"), (&whole, "null")] {
        for path in ["/server_info", "/model_info"] {
            assert_eq!(server.get(path).await.json()["disaggregation_mode"], mode);
        }
    }
}

#[tokio::test]
async fn a_decode_server_waits_for_the_prompt() {
    let port = free_port();
    let (prefill, decode) = tokio::join!(prefiller(port, &[]), decoder(&[]));
    let mut chat = json!({"model": "tiny-llama", "max_tokens": 4, "stream": true,
        "messages": [{"role": "user", "content": "Hello"}]});
    for (name, value) in in_room(port, 3).as_object().unwrap() {
        if name.starts_with("bootstrap") {
            chat[name] = value.clone();
        }
    }
    let mut waiting = decode.connect().await;
    waiting.send(&post(CHAT, &[], chat.to_string().as_bytes())).await;
    // Another room is not held up.
    let body = in_room(port, 4);
    let (_, other) =
        tokio::join!(prefill.post("/generate", &body), decode.post("/generate", &body));
    assert_eq!(other.status, 200);
    assert_eq!(decode.metric("sglang:num_requests_total").await, 1.0);
    let first = prefill.post(CHAT, &chat).await;
    assert_eq!(first.status, 200, "{}", first.text());
    let answer = waiting.answer().await;
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert_eq!(answer.text().matches("\"finish_reason\":\"length\"").count(), 1);
}

#[tokio::test]
async fn requests_without_a_partner_fail_in_the_words_of_sglang() {
    let port = free_port();
    let prefill = prefiller(port, &["--disaggregation-bootstrap-timeout", "1"]).await;
    let decode = decoder(&["--disaggregation-waiting-timeout", "1"]).await;
    let body = in_room(port, 9);
    let timed_out = |state| format!("Request 9 timed out after 1.0s in KVPoll.{state}");
    let alone = failure("Prefill bootstrap", "req", 9, &timed_out("Bootstrapping"));
    assert_eq!(refused(&prefill, &body).await, alone);
    let unknown = failure("Decode transfer", "decode_req.req", 9, &timed_out("WaitingForInput"));
    assert_eq!(refused(&decode, &body).await, unknown);
    let answer = decode.post("/generate", &body).await.json();
    assert_eq!(members(&answer), "object message type param code");
    assert_eq!((&answer["type"], &answer["code"]), (&json!("500"), &json!(500)));
    // A stream has status 200, and the error as its only event.
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let answer = decode.post("/generate", &streamed).await;
    let event = answer.text();
    let event = event.strip_prefix("data: ").unwrap().strip_suffix("\n\ndata: [DONE]\n\n");
    let event: Value = serde_json::from_str(event.unwrap()).unwrap();
    let reason =
        json!({"type": "abort", "message": unknown.1, "status_code": 500, "err_type": null});
    assert_eq!((answer.status, &event["meta_info"]["finish_reason"]), (200, &reason));
    let completion = json!({"prompt": "x", "rid": "r", "stream": true, "bootstrap_room": 9,
        "bootstrap_host": "127.0.0.1", "bootstrap_port": port});
    let event = decode.post(COMPLETION, &completion).await.text();
    let error = json!({"error": {"object": "error", "message": unknown.1,
        "type": "INTERNAL_SERVER_ERROR", "param": null, "code": 500}});
    assert_eq!(event, format!("data: {error}\n\ndata: [DONE]\n\n"));
    let roomless = json!({"text": "x", "rid": "r"});
    let message = "Invalid request: Disaggregated request received without bootstrap room id. \
                   req.rid='r'";
    for server in [&prefill, &decode] {
        assert_eq!(refused(server, &roomless).await, (400, message.to_owned()));
    }
}

#[tokio::test]
async fn a_prefill_server_that_is_gone_is_noticed() {
    let (port, other) = (free_port(), free_port());
    let prefill = prefiller(port, &[]).await;
    let large = prefiller(other, &["--page-size", "16"]).await;
    let checks =
        ["--disaggregation-heartbeat-interval", "2", "--disaggregation-heartbeat-max-failure", "1"];
    let decode = decoder(&checks).await;
    let (body, gone) = (in_room(port, 1), in_room(free_port(), 2));
    let met = tokio::join!(prefill.post("/generate", &body), decode.post("/generate", &body));
    assert_eq!((met.0.status, met.1.status), (200, 200));
    let handshake =
        |room, reason: &str| failure("Decode handshake", "decode_req.req", room, reason);
    let sizes = "Page size mismatch: prefill server has page_size=16, but decode server has \
                 page_size=1. Both servers must use the same --page-size value.";
    let lost = format!("Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:{port})");
    let stop = async {
        let body = in_room(port, 5);
        let answer = refused(&decode, &body);
        let (answer, ()) = tokio::join!(answer, prefill.server.shut_down_server());
        answer
    };
    // The bootstrap server is asked 15 times in 14 s.
    let (mismatch, lost_request, unreachable) =
        tokio::join!(async { refused(&decode, &in_room(other, 4)).await }, stop, async {
            refused(&decode, &gone).await
        },);
    assert_eq!(mismatch, handshake(4, sizes));
    assert_eq!(lost_request, failure("Decode transfer", "decode_req.req", 5, &lost));
    assert_eq!(unreachable, handshake(2, "Aborted by AbortReq."));
    drop(large);
    // A server at the same address works again.
    let prefill = prefiller(port, &[]).await;
    let met = tokio::join!(prefill.post("/generate", &body), decode.post("/generate", &body));
    assert_eq!((met.0.status, met.1.status), (200, 200), "{}", met.1.text());
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_other_server() {
    let port = free_port();
    let (prefill, decode) = tokio::join!(prefiller(port, &[]), decoder(&[]));
    let body = in_room(port, 6);
    let mut waiting = decode.connect().await;
    waiting.send(&post("/generate", &[], body.to_string().as_bytes())).await;
    // The prefill server has heard of the room once its own request is not held up.
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    assert_eq!(prefill.post("/generate", &streamed).await.status, 200);
    drop(waiting);
    assert!(prefill.shows("sglang:num_used_tokens", 0.0).await);
    assert!(eventually(async || decode.metric("sglang:num_running_reqs").await == 0.0).await);
}

#[tokio::test]
async fn warm_up_and_the_fake_backend_need_no_partner() {
    let port = free_port();
    let (prefill, decode) = tokio::join!(prefiller(port, &[]), decoder(&[]));
    let fake = decoder(&["--disaggregation-transfer-backend", "fake"]).await;
    let mut body = in_room(port, 0);
    body["bootstrap_host"] = "2.2.2.2".into();
    for server in [&prefill, &decode] {
        assert_eq!(server.post("/generate", &body).await.status, 200);
    }
    assert!(prefill.shows("sglang:num_used_tokens", 0.0).await);
    let plain = json!({"text": "x", "sampling_params": {"max_new_tokens": 2}});
    assert_eq!(fake.post("/generate", &plain).await.status, 200);
}

#[tokio::test]
async fn the_bootstrap_server_describes_its_ranks() {
    let port = free_port();
    let prefill = prefiller(port, &["--dp-size", "2", "--tp-size", "1"]).await;
    let decode = decoder(&[]).await;
    let route = |dp: i64, others: i64| {
        format!(
            "/route?prefill_dp_rank={dp}&prefill_cp_rank={others}&target_tp_rank={others}\
             &target_pp_rank={others}"
        )
    };
    let (status, text) = get(port, &route(-1, -1)).await;
    let info: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status, 200);
    assert_eq!(
        members(&info),
        "attn_tp_size attn_cp_size dp_size pp_size page_size kv_cache_dtype \
         follow_bootstrap_room enable_dsa_cache_layer_split decode_allocation_policy \
         enable_kv_cache_sharding prefill_http_port target_tp_rank target_tp_ranks \
         target_cp_ranks target_pp_ranks required_dst_info_num required_prefill_response_num"
    );
    assert_eq!((&info["dp_size"], &info["page_size"]), (&json!(2), &json!(1)));
    assert_eq!(info["prefill_http_port"], prefill.address().port());
    let (status, text) = get(port, &route(1, 0)).await;
    let rank: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &rank["rank_ip"]), (200, &json!("127.0.0.1")));
    assert_eq!(
        get(port, &route(2, 0)).await,
        (404, "Bootstrap info not found for dp_rank=2 cp_rank=0 tp_rank=0 pp_rank=0".to_owned())
    );
    let missing = "Missing inputs for bootstrap server.".to_owned();
    assert_eq!(get(port, "/route?prefill_dp_rank=0").await, (400, missing));
    assert_eq!(get(port, "/health").await, (200, "OK".to_owned()));
    let send = async |path: &str, body: &str| {
        let answer = ask(bootstrap_address(port), post(path, &[], body.as_bytes())).await;
        (answer.status, answer.text())
    };
    let ok = (200, "OK".to_owned());
    let room = r#"{"bootstrap_room": 8, "dp_rank": 1}"#;
    assert_eq!(send("/register_dp_rank", room).await, ok);
    let rooms = r#"{"bootstrap_rooms": [8, 9]}"#;
    assert_eq!(send("/query_dp_ranks", rooms).await, (200, r#"{"8":1}"#.to_owned()));
    assert_eq!(send("/route", "{}").await, (405, "Method not allowed".to_owned()));
    // Even and odd rooms are computed by different ranks.
    for room in [10, 11] {
        let body = in_room(port, room);
        let met = tokio::join!(prefill.post("/generate", &body), decode.post("/generate", &body));
        assert_eq!((met.0.status, met.1.status), (200, 200));
        let line = format!("dp_rank=\"{}\"", room % 2);
        let text = prefill.get("/metrics").await.text();
        let prefills = text.lines().filter(|line| line.starts_with("sglang:cache_hit_rate"));
        assert!(prefills.clone().any(|shown| shown.contains(&line)), "{text}");
    }
}
