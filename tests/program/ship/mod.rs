//! What is shipped around the program fits it: dashboards, alerts, manifests.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

mod chart;
mod links;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{CliMode, LoadedConfig, ParsedCommand, load_config};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository(folder)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    assert!(!paths.is_empty(), "nothing in {folder}");
    paths
}

/// Names of series in a text of expressions.
fn series(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !word(c));
    let ours = |word: &&str| {
        let prefixes = ["vllm:", "vllm_sim_", "http_", "process_"];
        prefixes.iter().any(|prefix| word.starts_with(prefix))
    };
    words.filter(ours).map(str::to_owned).collect()
}

/// Names of series on a page in the Prometheus text format.
fn exposed(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

#[tokio::test]
async fn dashboards_and_alerts_use_existing_metrics() {
    // Adapters have series once one was asked for, faults once there are any.
    let flags = ["--model", "demo", "--port", "0", "--lora-modules", "a=/a"];
    let flags = [&flags[..], &["--dashboard-control"]].concat();
    let loaded = LoadedConfig::from_flags(CliMode::Vllm, &flags).unwrap();
    let server = SimulatorServer::start_server(loaded).await.unwrap();
    let address = server.address.unwrap();
    // The first to ask may install the provider; the answer to the others is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();
    let post = async |path: &str, body: &'static str| {
        let request = client.post(format!("http://{address}{path}"));
        let request = request.header("content-type", "application/json");
        request.body(body).send().await.unwrap().status()
    };
    let chat =
        r#"{"model": "demo", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}"#;
    assert_eq!(post("/v1/chat/completions", chat).await, 200);
    let drill = r#"{"phases": [{"set": {"failure-injection-rate": 100, "failure-types": ["server_error"]}}]}"#;
    assert_eq!(post("/admin/scenario", drill).await, 200);
    assert_eq!(post("/v1/chat/completions", chat).await, 503);
    let page = client.get(format!("http://{address}/metrics"));
    let exposed = exposed(&page.send().await.unwrap().text().await.unwrap());
    server.shut_down_server().await;

    let mut wanted = BTreeSet::new();
    for path in files("dashboards/grafana", "json") {
        let board: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let panels = board["panels"].as_array().unwrap().iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
        let marks = board["annotations"]["list"].as_array().unwrap();
        assert_eq!(marks.len(), 2);
        for query in targets.chain(marks) {
            wanted.extend(series(query["expr"].as_str().unwrap()));
        }
    }
    for path in files("dashboards/alerts", "yaml") {
        let text = std::fs::read_to_string(path).unwrap();
        let expressions = text.lines().filter(|line| !line.contains("record:"));
        wanted.extend(expressions.flat_map(series));
    }
    let page = std::fs::read_to_string(repository("crates/http/src/dashboard/page.js")).unwrap();
    let whole = |name: String| match exposed.contains(&format!("{name}_bucket")) {
        true => format!("{name}_bucket"),
        false => name,
    };
    wanted.extend(series(&page).into_iter().map(whole));
    assert!(wanted.len() > 30, "{wanted:?}");
    // Nothing has been turned away, and no adapter asked for: the family has no series yet.
    wanted.remove("vllm:lora_requests_info");
    let missing: Vec<_> = wanted.difference(&exposed).collect();
    assert_eq!(missing, Vec::<&String>::new());
}

/// A chart cannot reach files beside it.
#[test]
fn helm_dashboards_and_alerts_are_copies() {
    for (folder, extension) in [("grafana", "json"), ("alerts", "yaml")] {
        for copy in files(&format!("helm/vllm-sim/files/{folder}"), extension) {
            let name = copy.file_name().unwrap();
            let original = repository("dashboards").join(folder).join(name);
            if std::env::var_os("BLESS").is_some() {
                std::fs::copy(&original, &copy).unwrap();
            }
            let [original, copied] = [&original, &copy].map(|file| std::fs::read(file).unwrap());
            assert!(original == copied, "{copy:?} is old: run BLESS=1 cargo test");
        }
    }
}

#[test]
fn latency_profiles_are_valid_configs() {
    for path in files("manifests/latency-profiles", "yaml") {
        let words = ["vllm-sim", "--strict-config", "--config", path.to_str().unwrap()];
        let loaded = match load_config(&words.map(str::to_owned), &|_| None) {
            Ok(ParsedCommand::Serve(loaded)) => loaded,
            other => panic!("{}: {other:?}", path.display()),
        };
        let config = &loaded.config;
        let roofline = path.to_string_lossy().contains("roofline-");
        assert_eq!(config.model.cli_mode, if roofline { CliMode::Vllm } else { CliMode::Llmd });
        if roofline {
            // The weights fit into the memory of the GPUs.
            let (_, setup) = vllm_sim::server::batching_engine_config(config)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(setup.is_some(), "{}", path.display());
        }
    }
}

/// Starts a server and asks it for `path`: status, content type, body.
async fn get(cli_mode: CliMode, flags: &[&str], path: &str) -> (u16, String, String) {
    let flags = [&["--model", "demo"], flags].concat();
    let mut loaded = LoadedConfig::from_flags(cli_mode, &flags).unwrap();
    loaded.config.server.port = 0;
    let server = SimulatorServer::start_server(loaded).await.unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = format!("http://{}{path}", server.address.unwrap());
    let answer = reqwest::Client::new().get(url).send().await.unwrap();
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let status = answer.status().as_u16();
    let body = answer.text().await.unwrap();
    server.shut_down_server().await;
    (status, kind, body)
}

#[tokio::test]
async fn dashboard_actions_need_enabled_routes() {
    for cli_mode in [CliMode::Llmd, CliMode::Vllm] {
        let (status, kind, page) = get(cli_mode, &[], "/dashboard").await;
        assert_eq!((status, kind.as_str()), (200, "text/html; charset=utf-8"));
        assert!(page.contains("data-control=\"false\""));
        let (_, _, page) = get(cli_mode, &["--dashboard-control"], "/dashboard").await;
        assert!(page.contains("data-control=\"true\""));
    }
    // It asks for settings only where it gets them: a 404 would be counted on the page itself.
    for (cli_mode, flags, asks) in [
        (CliMode::Llmd, &[][..], true),
        (CliMode::Vllm, &[], false),
        (CliMode::Vllm, &["--dev-mode"], true),
    ] {
        let (_, _, page) = get(cli_mode, flags, "/dashboard").await;
        assert!(page.contains(&format!("data-config=\"{asks}\"")), "{flags:?}");
        let (status, _, _) = get(cli_mode, flags, "/admin/config").await;
        assert_eq!(status == 200, asks, "{flags:?}");
    }
    // With `serve` its switches bring the route that they call.
    let (status, _, _) = get(CliMode::Vllm, &[], "/admin/config").await;
    assert_eq!(status, 404);
    let (status, _, _) = get(CliMode::Vllm, &["--dashboard-control"], "/admin/config").await;
    assert_eq!(status, 200);
}

#[test]
fn image_runs_as_replaced_program() {
    let dockerfile = std::fs::read_to_string(repository("Dockerfile")).unwrap();
    let stages: Vec<&str> = dockerfile.split("\nFROM ").collect();
    let entry = |name: &str| {
        let stage = stages.iter().find(|stage| {
            let first = stage.lines().next().unwrap_or_default();
            first.ends_with(&format!(" AS {name}"))
        });
        let lines = stage.unwrap().lines();
        lines.filter_map(|line| line.strip_prefix("ENTRYPOINT ")).collect::<Vec<_>>()
    };
    assert_eq!(entry("llm-d"), ["[\"/app/llm-d-inference-sim\"]"]);
    // The last stage is what `docker build` builds.
    assert!(stages.last().unwrap().starts_with("runtime AS final\n"));
    assert_eq!(entry("final"), ["[\"/usr/local/bin/vllm-sim\"]"]);
}
