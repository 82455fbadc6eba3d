//! What pages of other origins cannot do to a local server.

use serde_json::json;

use super::sim::Sim;

/// A page on another origin reaches a local server through the reader's browser.
#[tokio::test]
async fn cross_origin_page_cannot_use_admin_routes() {
    let routes = [
        "/admin/config",
        "/admin/scenario",
        "/fake_metrics",
        "/sleep",
        "/wake_up",
        "/pause",
        "/reset_prefix_cache",
        "/abort_requests",
        "/update_weight_version",
        "/v1/load_lora_adapter",
        "/scale_elastic_ep",
    ];
    let flags = [
        "--dev-mode",
        "--admin-api-key",
        "k",
        "--enable-lora",
        "--allow-runtime-lora-updating",
        "--request-history",
        "10",
    ];
    let sim = Sim::serve(&flags).await;
    let key = "authorization: Bearer k";
    let body = json!({"time-to-first-token": "1s"});
    for path in routes {
        for page in ["origin: https://evil.example", "sec-fetch-site: cross-site"] {
            let answer = sim.post_with(path, &[key, page], &body).await;
            assert_eq!(answer.status, 403, "{path} {page}: {}", answer.text());
            let message = answer.json()["error"]["message"].to_string();
            assert!(message.contains("--allowed-origins"), "{message}");
        }
        // The dashboard's own page, and programs.
        for own in [&["origin: http://sim"][..], &["sec-fetch-site: same-origin"], &[]] {
            let headers = [&[key], own].concat();
            let answer = sim.post_with(path, &headers, &body).await;
            assert_ne!(answer.status, 403, "{path} {own:?}: {}", answer.text());
        }
        sim.poke("/resume").await;
    }
    for (path, from_page) in [
        ("/admin/config", 403),
        ("/admin/scenario", 403),
        ("/admin/requests", 403),
        ("/admin/usage", 403),
        ("/admin/replies", 403),
        ("/version", 200),
        ("/v1/models", 200),
    ] {
        let head = format!("GET {path} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer k\r\n");
        for page in ["origin: https://evil.example", "sec-fetch-site: cross-site"] {
            let answer = sim.ask(format!("{head}{page}\r\n\r\n")).await;
            assert_eq!(answer.status, from_page, "{path} {page}");
        }
        assert_eq!(sim.ask(format!("{head}\r\n")).await.status, 200, "{path}");
    }
    // A named origin is trusted; `*`, vLLM's default, names none.
    let origins = r#"["https://grafana.example"]"#;
    let sim = Sim::serve(&["--dev-mode", "--allowed-origins", origins]).await;
    let named = ["origin: https://grafana.example"];
    assert_eq!(sim.post_with("/pause", &named, &json!({})).await.status, 200);
}

/// A foreign page could otherwise lead the reader's clicks to the page's buttons.
#[tokio::test]
async fn documentation_pages_cannot_be_framed() {
    let sim = Sim::serve(&["--api-key", "k"]).await;
    for path in ["/docs", "/redoc", "/dashboard"] {
        let answer = sim.get(path).await;
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("frame-ancestors 'self'"), "{path}: {policy:?}");
        assert!(policy.contains("connect-src 'self'"), "{path}: {policy:?}");
        let page = answer.text();
        assert!(page.contains("Authorization: `Bearer ${key}`"), "{path} takes a key");
    }
}

/// A stranger's name that was made to resolve to this server (DNS rebinding).
#[tokio::test]
async fn a_page_under_a_strange_name_of_this_server_is_no_operators() {
    let sim = Sim::serve(&["--dashboard-control", "--allowed-hosts", r#"["sim.example"]"#]).await;
    let get = async |host: &str, page: &str| {
        let head = format!("GET /admin/config HTTP/1.1\r\nhost: {host}\r\n{page}\r\n");
        sim.ask(head).await
    };
    let rebound = "origin: http://evil.example:8000\r\nsec-fetch-site: same-origin\r\n";
    // What every browser sends, also where it sends no word of the origin.
    let language = "accept-language: en\r\n";
    for page in [rebound, language] {
        let answer = get("evil.example:8000", page).await;
        assert_eq!(answer.status, 403, "{page}");
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains("--allowed-hosts"), "{message}");
    }
    for host in
        ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "sim.example", "vllm-sim", "a.ns.svc"]
    {
        assert_eq!(get(host, language).await.status, 200, "{host}");
    }
    assert_eq!(get("evil.example", "").await.status, 200, "a program");
    let post = b"POST /admin/config HTTP/1.1\r\nhost: evil.example\r\naccept-language: en\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(sim.ask(post).await.status, 403);
}

/// A rebound page does not know the key that the operator routes need.
#[tokio::test]
async fn with_a_key_operators_may_use_any_host() {
    for key in ["--api-key", "--admin-api-key"] {
        let sim = Sim::serve(&["--dashboard-control", key, "k"]).await;
        let get = async |key: &str| {
            let head = format!(
                "GET /admin/config HTTP/1.1\r\nhost: sim.example\r\naccept-language: en\r\n{key}\r\n"
            );
            sim.ask(head).await.status
        };
        assert_eq!(get("authorization: Bearer k\r\n").await, 200, "{key}");
        assert_eq!(get("").await, 401, "{key}");
    }
}
