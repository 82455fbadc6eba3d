//! `docs/endpoints.md` against the routes that there are.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::json;

use super::sim::Sim;

/// Flags that leave no route out.
const EVERYTHING: &[&str] = &[
    "--dev-mode",
    "--enable-tokenizer-info-endpoint",
    "--enable-fault-tolerance",
    "--profiler-config",
    r#"{"profiler":"torch","torch_profiler_dir":"traces"}"#,
];

/// A WebSocket is no route of HTTP, and not in the list of routes.
const WEBSOCKET: &str = "GET /v1/realtime";

#[tokio::test]
async fn endpoints_page_lists_all_routes() {
    let sim = Sim::llmd(EVERYTHING).await;
    let config = sim.server.config().clone();
    let mut served = BTreeSet::from([WEBSOCKET.to_owned()]);
    for path in vllm_sim_http::build_routes(&config).0.served_paths() {
        // The others redirect to these.
        if !path.ends_with('/') {
            let methods = methods(&sim, &path).await;
            served.extend(methods.iter().map(|method| format!("{method} {}", plain(&path))));
        }
    }
    let page = include_str!("../../docs/endpoints.md");
    let route = Regex::new("`([A-Z]+ /[^` ]*)`").unwrap();
    let listed: BTreeSet<_> = route.captures_iter(page).map(|c| plain(&c[1])).collect();
    let missing: Vec<_> = served.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&served).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "docs/endpoints.md lacks {missing:?}, and has {unknown:?}, which are not served"
    );
}

#[tokio::test]
async fn the_openapi_document_has_every_route_and_its_page_needs_no_other_host() {
    let sim = Sim::llmd(EVERYTHING).await;
    let config = sim.server.config().clone();
    let document = sim.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    let mut listed = BTreeSet::new();
    for (path, operations) in paths {
        for method in operations.as_object().unwrap().keys() {
            listed.insert(format!("{} {}", method.to_uppercase(), plain(path)));
        }
    }
    for path in vllm_sim_http::build_routes(&config).0.served_paths() {
        // FastAPI leaves its own pages out.
        let is_page = ["/docs", "/redoc", "/openapi"].iter().any(|page| path.starts_with(page));
        if path.ends_with('/') || is_page {
            continue;
        }
        for method in methods(&sim, &path).await {
            let route = format!("{method} {}", plain(&path));
            assert!(listed.contains(&route), "{route} is not in the document");
        }
    }
    let change = &document["paths"]["/admin/config"]["post"];
    assert_eq!(change["tags"][0], "vllm-sim");
    assert!(change["requestBody"]["content"]["application/json"]["example"].is_object());
    for page in ["/docs", "/redoc"] {
        let page = sim.get(page).await.text();
        assert!(page.contains("\"/openapi.json\"") && !page.contains("//cdn."), "{page}");
        assert!(!page.contains("src=\"http") && !page.contains("href=\"http"), "{page}");
        assert!(!page.contains("{root}"), "{page}");
    }
    // A server that has no operator routes has none in the document.
    let plain = Sim::serve(&[]).await;
    let document = plain.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.contains_key("/dashboard") && !paths.contains_key("/admin/config"));
}

/// The methods of a route, HEAD left out, as it names them to a method that it does not have.
async fn methods(sim: &Sim, path: &str) -> Vec<String> {
    let request = format!("PATCH {} HTTP/1.1\r\nhost: sim\r\n\r\n", plain(path));
    let answer = sim.ask(request.replace("{}", "x")).await;
    if path == "/metrics" {
        // It answers any method.
        return vec!["GET".to_owned()];
    }
    assert_eq!(answer.status, 405, "{path}");
    let allow = answer.header("allow").expect("methods of a route");
    let methods = allow.split(", ").filter(|method| *method != "HEAD");
    methods.map(str::to_owned).collect()
}

/// A path without the names of its parameters.
fn plain(path: &str) -> String {
    let parameter = Regex::new(r"\{[^}]*\}").unwrap();
    parameter.replace_all(path, "{}").into_owned()
}

/// Between the buckets 0.3 s and 0.5 s of `/metrics` an estimate cannot tell 350 ms from 400 ms.
#[tokio::test]
async fn the_dashboard_has_exact_percentiles() {
    let delays = ["--time-to-first-token", "350ms"];
    let sim = Sim::llmd(&[&delays[..], &["--inter-token-latency", "7ms"]].concat()).await;
    let before = sim.get("/dashboard/latencies").await.json();
    assert_eq!(before, json!({"ttft": null, "itl": null}));

    let body = json!({"model": "tiny-llama", "prompt": "One two three", "max_tokens": 5, "ignore_eos": true});
    sim.post("/v1/completions", &body).await;
    assert!(sim.is_idle().await);
    let after = sim.get("/dashboard/latencies").await.json();
    let tokens = after["itl"]["count"].as_u64().map(|gaps| gaps + 1);
    assert_eq!((after["ttft"]["count"].as_u64(), tokens), (Some(1), Some(5)));
    for percentile in ["p50", "p95", "p99"] {
        let seconds = after["ttft"][percentile].as_f64().unwrap();
        assert!((0.349..0.46).contains(&seconds), "{after}");
        let gap = after["itl"][percentile].as_f64().unwrap();
        assert!((0.001..0.1).contains(&gap), "{after}");
    }
}

#[tokio::test]
async fn the_dashboard_has_no_latencies_with_fake_metrics() {
    let sim = Sim::llmd(&["--fake-metrics", r#"{"running-requests": 1}"#]).await;
    let answer = sim.get("/dashboard/latencies").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "null"));
}
