//! Models, tokenizer, operations and refusals that no endpoint owns.

use serde_json::json;

use super::golden;
use super::sim::{MODEL, Sim};

async fn golden(sim: &Sim, name: &str, method: &str, path: &str, headers: &[&str]) {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let host = "host: sim\r\n";
    let answer = sim.ask(format!("{method} {path} HTTP/1.1\r\n{host}{lines}\r\n")).await;
    let request = format!("{method} {path}\n{}", headers.join("\n"));
    golden::check(name, request.trim_end(), &answer);
}

#[tokio::test]
async fn admin_route_response_shapes() {
    let sim = Sim::serve(&[]).await;
    for (name, method, path) in [
        ("models", "GET", "/v1/models"),
        ("health", "GET", "/health"),
        ("ping", "GET", "/ping"),
        ("ping-post", "POST", "/ping"),
        ("version", "GET", "/version"),
        ("load", "GET", "/load"),
        ("unknown-path", "GET", "/v1/nothing"),
        ("unknown-model-path", "GET", "/v1/models/tiny-llama"),
        ("wrong-method", "GET", "/v1/chat/completions"),
        ("wrong-method-ping", "DELETE", "/ping"),
        ("trailing-slash", "GET", "/v1/models/"),
        ("trailing-slash-query", "POST", "/v1/completions/?a=b"),
    ] {
        golden(&sim, name, method, path, &[]).await;
    }
}

#[tokio::test]
async fn head_request_has_no_body() {
    let sim = Sim::serve(&[]).await;
    for (path, status) in [("/v1/models", 405), ("/nothing", 404), ("/metrics", 200)] {
        let mut wire = sim.connect().await;
        let request = format!("HEAD {path} HTTP/1.1\r\nhost: sim\r\n\r\n");
        wire.send(request.as_bytes()).await;
        assert_eq!(wire.head().await.status, status, "{path}");
        // The next answer follows at once: there was no body.
        wire.send(b"GET /version HTTP/1.1\r\nhost: sim\r\n\r\n").await;
        assert_eq!(wire.answer().await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn metrics_route_accepts_any_method() {
    let sim = Sim::serve(&[]).await;
    for (method, path, version) in [
        ("GET", "/metrics", "1.0.0"),
        ("POST", "/metrics", "0.0.4"),
        ("GET", "/metrics/", "0.0.4"),
        ("GET", "/metrics/x?y=z", "0.0.4"),
    ] {
        let answer = sim.ask(format!("{method} {path} HTTP/1.1\r\nhost: sim\r\n\r\n")).await;
        assert_eq!(answer.status, 200, "{method} {path}");
        let kind = format!("text/plain; version={version}; charset=utf-8");
        assert_eq!(answer.header("content-type"), Some(kind.as_str()));
        assert!(answer.text().contains("vllm:num_requests_running"));
    }
}

#[tokio::test]
async fn served_model_names_response_shapes() {
    let flags = ["--served-model-name", "first", "second", "--enable-lora"];
    let adapters = ["--lora-modules", r#"{"name":"sql","path":"adapters/sql"}"#];
    let sim = Sim::serve(&[flags.as_slice(), &adapters].concat()).await;
    golden(&sim, "models-several", "GET", "/v1/models", &[]).await;
    let body = json!({"model": "second", "prompt": "Hi", "max_tokens": 1});
    assert_eq!(sim.post("/v1/completions", &body).await.json()["model"], "first");
    let body = json!({"model": "sql", "prompt": "Hi", "max_tokens": 1});
    assert_eq!(sim.post("/v1/completions", &body).await.json()["model"], "sql");
    let body = json!({"model": "third", "prompt": "Hi"});
    let answer = sim.post("/v1/completions", &body).await;
    golden::check("models-several-unknown", &format!("POST /v1/completions\n{body}"), &answer);
}

#[tokio::test]
async fn tokenizer_route_response_shapes() {
    let sim = Sim::serve(&[]).await;
    let chat = json!([{"role": "user", "content": "Grüße, 世界"}]);
    for (name, path, body) in [
        ("tokenize", "/tokenize", json!({"prompt": "Hello there"})),
        (
            "tokenize-bare",
            "/tokenize",
            json!({"prompt": "Hello there", "add_special_tokens": false}),
        ),
        (
            "tokenize-pieces",
            "/tokenize",
            json!({"prompt": "Hello there", "return_token_strs": true}),
        ),
        ("tokenize-chat", "/tokenize", json!({"messages": chat, "return_token_strs": true})),
        (
            "tokenize-chat-bare",
            "/tokenize",
            json!({"messages": chat, "add_generation_prompt": false, "return_token_strs": true}),
        ),
        ("detokenize", "/detokenize", json!({"tokens": [39, 68, 75, 75, 78]})),
        ("detokenize-outside", "/detokenize", json!({"tokens": [39, 999_999, 4_294_967_335_u64]})),
    ] {
        let answer = sim.post(path, &body).await;
        golden::check(name, &format!("POST {path}\n{body}"), &answer);
    }
}

#[tokio::test]
async fn malformed_body_error_shapes() {
    let sim = Sim::serve(&["--max-request-body-size-mb", "1"]).await;
    let big = vec![b' '; (1 << 20) + 1];
    let cases: &[(&str, Option<&str>, &[u8])] = &[
        ("body-json", Some("application/json"), b"{\"prompt\":}"),
        ("body-empty", Some("application/json"), b""),
        ("body-null", Some("application/json"), b"null"),
        ("body-array", Some("application/json"), b"[]"),
        ("body-type", Some("text/plain"), b"{}"),
        ("body-no-type", None, b"{\"prompt\":\"Hi\"}"),
        ("body-charset", Some("application/json; charset=utf-8"), b"{\"prompt\":\"\"}"),
        ("body-not-utf8", Some("application/json"), b"{\"prompt\":\"\xff\"}"),
        ("body-too-large", Some("application/json"), &big),
    ];
    for (name, kind, body) in cases {
        let kind = kind.map_or(String::new(), |kind| format!("content-type: {kind}\r\n"));
        let head = format!("content-length: {}\r\n{kind}", body.len());
        let mut request = format!("POST /v1/completions HTTP/1.1\r\n{head}\r\n").into_bytes();
        request.extend_from_slice(body);
        let answer = sim.ask(request).await;
        let shown = if body.len() > 100 {
            format!("({} bytes)", body.len())
        } else {
            String::from_utf8_lossy(body).into_owned()
        };
        golden::check(name, &format!("POST /v1/completions\n{kind}{shown}"), &answer);
    }
}

#[tokio::test]
async fn api_key_response_shapes() {
    let sim = Sim::serve(&["--api-key", "one", "two"]).await;
    golden(&sim, "key-missing", "GET", "/v1/models", &[]).await;
    for (headers, path, status) in [
        (&["authorization: Bearer one"][..], "/v1/models", 200),
        (&["authorization: bEARER two"], "/v1/models", 200),
        // Blanks behind a header's value are no part of it.
        (&["authorization: Bearer one "], "/v1/models", 200),
        (&["Authorization: Bearer one\t"], "/v1/models", 200),
        (&["authorization: Bearer  one"], "/v1/models", 401),
        (&["authorization: Bearer three"], "/v1/models", 401),
        (&["authorization: one"], "/v1/models", 401),
        (&["x-api-key: one"], "/v1/models", 401),
        (&[], "/v1/nothing", 401),
        (&[], "/health", 200),
        (&[], "/metrics", 200),
        (&[], "/nothing", 404),
    ] {
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let answer = sim.ask(format!("GET {path} HTTP/1.1\r\nhost: sim\r\n{lines}\r\n")).await;
        assert_eq!(answer.status, status, "{path} {headers:?}");
    }
}

#[tokio::test]
async fn cors_response_shapes() {
    let preflight = [
        "origin: http://a.example",
        "access-control-request-method: POST",
        "access-control-request-headers: content-type",
    ];
    let closed = Sim::serve(&[]).await;
    let path = "/v1/completions";
    golden(&closed, "cors-closed", "OPTIONS", path, &preflight).await;
    golden(&closed, "cors-closed-get", "GET", "/version", &preflight[..1]).await;
    let open = Sim::serve(&["--allowed-origins", r#"["*"]"#]).await;
    golden(&open, "cors-open", "OPTIONS", path, &preflight).await;
    golden(&open, "cors-open-get", "GET", "/version", &preflight[..1]).await;
    golden(&open, "cors-open-not-found", "GET", "/nothing", &preflight[..1]).await;
}

#[tokio::test]
async fn headers_on_request() {
    let sim = Sim::serve(&["--enable-request-id-headers", "--api-key", "k"]).await;
    golden(&sim, "request-id", "GET", "/version", &["x-request-id: mine"]).await;
    golden(&sim, "request-id-fresh", "GET", "/nothing", &[]).await;
    golden(&sim, "request-id-unauthorized", "GET", "/v1/models", &[]).await;
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let body = json!({"prompt": "Hi", "max_tokens": 1});
    for (name, header) in [
        ("orca-text", "endpoint-load-metrics-format: text"),
        ("orca-json", "endpoint-load-metrics-format: JSON"),
        ("orca-other", "endpoint-load-metrics-format: BIN"),
        ("request-id-body", "x-request-id: mine"),
    ] {
        let answer = sim.post_with("/v1/completions", &[header], &body).await;
        golden::check(name, &format!("POST /v1/completions\n{header}\n{body}"), &answer);
    }
    let sim = Sim::llmd(&["--pod-name", "pod-1", "--pod-namespace", "ns"]).await;
    let answer = sim.get("/health").await;
    let port = sim.address().port().to_string();
    assert_eq!(answer.header("x-inference-pod"), Some("pod-1"));
    assert_eq!(answer.header("x-inference-namespace"), Some("ns"));
    assert_eq!(answer.header("x-inference-port"), Some(port.as_str()));
}

#[tokio::test]
async fn root_path_prefix_is_optional() {
    let sim = Sim::serve(&["--root-path", "/llm"]).await;
    assert_eq!(sim.get("/llm/version").await.status, 200);
    assert_eq!(sim.get("/version").await.status, 200);
    assert_eq!(sim.get("/llmversion").await.status, 404);
    golden(&sim, "root-path-slash", "GET", "/llm/v1/models/", &[]).await;
    let models = sim.get("/llm/v1/models").await.json();
    assert_eq!(models["data"][0]["root"], MODEL);
}
