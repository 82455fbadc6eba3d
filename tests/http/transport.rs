//! Connections: keep-alive, pipelining, HTTP/1.0, HTTP/2, Unix sockets.

use serde_json::{Value, json};

use super::sim::{Sim, post};
use super::wire::Wire;

const VERSION: &[u8] = b"GET /version HTTP/1.1\r\nhost: sim\r\n\r\n";

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let mut wire = sim.connect().await;
    for stream in [true, false, true] {
        let body = json!({"prompt": "Hi", "stream": stream}).to_string();
        wire.send(&post("/v1/completions", &[], body.as_bytes())).await;
        let answer = wire.answer().await;
        assert_eq!(answer.said(0), "Hi");
        assert_eq!(answer.header("connection"), None);
    }
    wire.send(&[VERSION, VERSION].concat()).await;
    assert_eq!(wire.answer().await.status, 200);
    assert_eq!(wire.answer().await.status, 200);
    wire.send(b"GET /version HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n").await;
    assert_eq!(wire.answer().await.header("connection"), Some("close"));
    assert!(wire.is_closed().await);
}

#[tokio::test]
async fn unread_request_body_keeps_connection_open() {
    let sim = Sim::serve(&["--api-key", "k", "--max-request-body-size-mb", "1"]).await;
    let mut wire = sim.connect().await;
    let key = "authorization: Bearer k\r\n";
    for (request, header, status) in [
        ("POST /v1/chat/completions", "", 401),
        ("POST /nowhere", "", 404),
        ("PUT /v1/chat/completions", key, 405),
        ("OPTIONS /v1/chat/completions", "", 405),
        ("GET /v1/models", key, 200),
        ("POST /metrics", "", 200),
        ("POST /ping", "", 200),
    ] {
        for bytes in [1, 3_000, 1 << 20] {
            let head = format!(
                "{request} HTTP/1.1\r\nhost: sim\r\n{header}content-length: {bytes}\r\n\r\n"
            );
            wire.send(head.as_bytes()).await;
            let answer = wire.answer().await;
            let shown = (answer.status, answer.header("connection"));
            assert_eq!(shown, (status, None), "{request} with {bytes} bytes");
            // The answer is there, and so is the handler's end.
            wire.send(&vec![b'x'; bytes]).await;
        }
    }
    wire.send(VERSION).await;
    assert_eq!(wire.answer().await.status, 200);
}

#[tokio::test]
async fn oversized_body_closes_connection() {
    let sim = Sim::serve(&["--api-key", "k", "--max-request-body-size-mb", "1"]).await;
    let mut wire = sim.connect().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: 1048577\r\n\r\n";
    wire.send(head.as_bytes()).await;
    let answer = wire.answer().await;
    let shown = (answer.status, answer.header("connection"));
    assert_eq!(shown, (401, Some("close")));
    assert!(wire.is_closed().await);
}

#[tokio::test]
async fn http_1_request_forms_are_accepted() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    for request in [
        "GET /version HTTP/1.0\r\n\r\n",
        "GET /version HTTP/1.1\r\n\r\n",
        "GET http://sim/version HTTP/1.1\r\nhost: sim\r\n\r\n",
        "GET /version HTTP/1.1\r\nhost: sim\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        "GET /version?a=b#c HTTP/1.1\r\nhost: sim\r\naccept-encoding: gzip, br\r\n\r\n",
    ] {
        let answer = sim.ask(request).await;
        assert_eq!(answer.status, 200, "{request}");
        assert_eq!(answer.text(), "{\"version\":\"0.33.0\"}");
        assert_eq!(answer.header("content-encoding"), None);
    }
    // A stream to HTTP/1.0 has no chunks, so only the end of the connection ends it.
    let body = r#"{"prompt":"Hi","stream":true}"#;
    let head = format!(
        "POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(sim.address()).await.unwrap();
    let sent = [head.as_bytes(), body.as_bytes()].concat();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &sent).await.unwrap();
    let mut text = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.unwrap();
    assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    assert!(!text.contains("transfer-encoding"), "{text}");
}

#[tokio::test]
async fn chunked_body_and_expect_continue() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\n";
    let mut wire = sim.connect().await;
    let chunks = "5\r\n{\"pro\r\nb\r\nmpt\":\"Hi\"} \r\n0\r\n\r\n";
    wire.send(format!("{head}transfer-encoding: chunked\r\n\r\n{chunks}").as_bytes()).await;
    assert_eq!(wire.answer().await.said(0), "Hi");
    wire.send(format!("{head}content-length: 15\r\nexpect: 100-continue\r\n\r\n").as_bytes()).await;
    assert_eq!(wire.head().await.status, 100);
    wire.send(b"{\"prompt\":\"Hi\"}").await;
    assert_eq!(wire.answer().await.said(0), "Hi");
}

#[tokio::test]
async fn streams_are_chunked_at_events() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let body = json!({"prompt": "Hello there, world.", "stream": true});
    let answer = sim.post("/v1/completions", &body).await;
    let kinds: Vec<&str> = [
        "content-type",
        "transfer-encoding",
        "content-length",
        "cache-control",
        "x-accel-buffering",
    ]
    .iter()
    .map(|name| answer.header(name).unwrap_or("-"))
    .collect();
    assert_eq!(kinds, ["text/event-stream; charset=utf-8", "chunked", "-", "-", "-"]);
    for chunk in &answer.chunks {
        assert!(chunk.starts_with("data: ") && chunk.ends_with("\n\n"), "{chunk:?}");
    }
    assert_eq!(answer.said(0), "Hello there, world.");
}

#[tokio::test]
async fn a_long_complete_reply_is_sent_in_large_frames() {
    let sim = Sim::serve(&[]).await;
    for choices in [1, 3] {
        let ask = async |usage: bool| {
            let body = json!({
                "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 300, "seed": 7,
                "n": choices, "ignore_eos": true, "stream": true,
                "stream_options": {"include_usage": true, "continuous_usage_stats": usage},
            });
            sim.post("/v1/chat/completions", &body).await
        };
        let answer = ask(false).await;
        let text = answer.text();
        let frames = answer.chunks.len();
        // Behind the roles the first ones hold an event each.
        assert!(answer.chunks[1..24].iter().all(|chunk| chunk.matches("data: ").count() == 1));
        assert!(frames <= 25 + text.len() / 8192, "{frames} frames");
        // Role, tokens, usage and the end.
        let events = choices * 301 + 2;
        assert_eq!(text.matches("data: ").count(), events);
        // Chunks that tell how far they are are written one by one.
        assert_eq!(said(&text), said(&ask(true).await.text()));
    }
}

/// Index, text and reason of each chunk of a stream.
fn said(text: &str) -> Vec<[Value; 3]> {
    let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let chunks = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let choices = chunks.map(|chunk| chunk["choices"][0].clone());
    choices
        .map(|choice| {
            let text = &choice["delta"]["content"];
            [&choice["index"], text, &choice["finish_reason"]].map(Value::clone)
        })
        .collect()
}

#[tokio::test]
async fn idle_streams_get_keep_alive_comments() {
    let flags = ["--time-to-first-token", "400ms", "--sse-keep-alive-interval", "0.1"];
    let sim = Sim::serve(&flags).await;
    let body = json!({"prompt": "Hi", "max_tokens": 1, "stream": true});
    let answer = sim.post("/v1/completions", &body).await;
    let comments = answer.chunks.iter().filter(|chunk| *chunk == ": keep-alive\n\n");
    assert!(comments.count() >= 2, "{:?}", answer.chunks);
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let sim = Sim::serve(&["--keep-alive-timeout", "1"]).await;
    let mut used = sim.connect().await;
    used.send(VERSION).await;
    assert_eq!(used.answer().await.status, 200);
    let mut unused = sim.connect().await;
    assert!(used.is_closed().await);
    assert!(unused.is_closed().await);
    // A request that takes longer is not idle.
    let sim = Sim::serve(&["--keep-alive-timeout", "1", "--time-to-first-token", "1500ms"]).await;
    let body = json!({"prompt": "Hi", "max_tokens": 1});
    assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
}

/// A client that speaks HTTP/2 from the first byte.
pub(crate) fn http_2() -> reqwest::Client {
    // No TLS here, yet the client wants to know how; another test may have said so already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().http2_prior_knowledge();
    builder.build().unwrap()
}

#[tokio::test]
async fn the_same_port_serves_http_2() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let client = http_2();
    let url = format!("http://{}/v1/completions", sim.address());
    let mut answers = Vec::new();
    for stream in [false, true] {
        let body = json!({"prompt": "Hi", "stream": stream});
        let answer = client.post(&url).json(&body).send().await.unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        assert_eq!(answer.status(), 200);
        answers.push(answer.text().await.unwrap());
    }
    assert!(answers[0].contains("\"text\":\"Hi\""), "{}", answers[0]);
    assert!(answers[1].ends_with("data: [DONE]\n\n"), "{}", answers[1]);
    assert!(sim.is_idle().await);
}

#[tokio::test]
async fn a_stream_of_http_2_that_is_reset_frees_its_slot() {
    let sim = Sim::serve(&["--inter-token-latency", "500ms"]).await;
    let client = http_2();
    let url = format!("http://{}/v1/completions", sim.address());
    let body = json!({"prompt": "Hi", "stream": true, "max_tokens": 1000, "ignore_eos": true});
    let answer = client.post(&url).json(&body).send().await.unwrap();
    assert!(sim.runs(1.0).await);
    drop(answer);
    assert!(sim.is_idle().await);
    let whole =
        client.post(&url).json(&json!({"prompt": "Hi", "max_tokens": 1000, "ignore_eos": true}));
    let whole = tokio::spawn(whole.send());
    assert!(sim.runs(1.0).await);
    whole.abort();
    assert!(sim.is_idle().await);
}

#[tokio::test]
async fn a_unix_socket_instead_of_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sim.sock");
    let sim = Sim::serve(&["--uds", path.to_str().unwrap()]).await;
    let mut wire = Wire::new(tokio::net::UnixStream::connect(&path).await.unwrap());
    wire.send(VERSION).await;
    assert_eq!(wire.answer().await.status, 200);
    sim.server.shut_down_server().await;
    assert!(!path.exists(), "the socket stays behind");
    // One that another run left behind is replaced; a file of somebody else is not.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let sim = Sim::serve(&["--uds", path.to_str().unwrap()]).await;
    assert!(tokio::net::UnixStream::connect(&path).await.is_ok());
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn invalid_http_gets_uvicorn_error() {
    let sim = Sim::serve(&[]).await;
    for rubbish in
        ["RUBBISH\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n", "\u{16}\u{3}\u{1}\r\n\r\n"]
    {
        let mut wire = sim.connect().await;
        wire.send(rubbish.as_bytes()).await;
        let answer = wire.answer().await;
        assert_eq!(answer.status, 400, "{rubbish:?}");
        assert_eq!(answer.text(), "Invalid HTTP request received.");
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(wire.is_closed().await);
    }
}

#[tokio::test]
async fn head_of_a_stream_waits_a_millisecond_for_the_first_token() {
    let sim = Sim::serve(&["--time-to-first-token", "60s"]).await;
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true}).to_string();
    for _ in 0..5 {
        let mut wire = sim.connect().await;
        let sent = tokio::time::Instant::now();
        wire.send(&post("/v1/chat/completions", &[], body.as_bytes())).await;
        assert_eq!(wire.head().await.status, 200);
        let waited = sent.elapsed();
        assert!(waited.as_micros() >= 1000, "{waited:?}");
        assert!(waited.as_secs() < 30, "{waited:?}");
    }
}
