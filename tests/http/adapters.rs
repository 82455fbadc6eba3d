//! `vllm:lora_requests_info`, as an endpoint picker reads it: the series with the largest value.

use serde_json::json;

use vllm_sim_config::CliMode;

use super::sim::{Sim, eventually, post};
use super::wire::Wire;

const ADAPTERS: &[&str] = &[
    "--enable-lora",
    "--max-loras",
    "2",
    "--max-num-seqs",
    "1",
    "--time-to-first-token",
    "60s",
    "--lora-modules",
    r#"{"name":"a","path":"adapters/a"}"#,
    r#"{"name":"b","path":"adapters/b"}"#,
];

/// Running and waiting adapters of the newest series.
async fn adapters(sim: &Sim) -> Option<(String, String)> {
    let page = sim.get("/metrics").await.text();
    let series = page.lines().filter_map(|line| {
        let (labels, value) = line.strip_prefix("vllm:lora_requests_info{")?.split_once("} ")?;
        let label = |name: &str| {
            let at = labels.split_once(&format!("{name}=\""))?.1;
            Some(at.split_once('"')?.0.to_owned())
        };
        let lists = (label("running_lora_adapters")?, label("waiting_lora_adapters")?);
        Some((value.parse::<f64>().ok()?, lists))
    });
    let newest = series.max_by(|a, b| a.0.total_cmp(&b.0));
    newest.map(|(_, lists)| lists)
}

async fn shows(sim: &Sim, running: &str, waiting: &str) -> bool {
    let lists = Some((running.to_owned(), waiting.to_owned()));
    eventually(async || adapters(sim).await == lists).await
}

async fn ask(sim: &Sim, model: &str) -> Wire<tokio::net::TcpStream> {
    let mut wire = sim.connect().await;
    let body = json!({"model": model, "prompt": "Hi", "max_tokens": 9}).to_string();
    wire.send(&post("/v1/completions", &[], body.as_bytes())).await;
    wire
}

#[tokio::test]
async fn a_server_that_never_had_a_request_shows_that_no_adapter_has_one() {
    let none = Some((String::new(), String::new()));
    assert_eq!(adapters(&Sim::serve(ADAPTERS).await).await, none);
    let ranks = [ADAPTERS, &["--data-parallel-size", "2"]].concat();
    assert_eq!(adapters(&Sim::serve(&ranks).await).await, none);
    assert_eq!(adapters(&Sim::llmd(&[]).await).await, none);
    assert_eq!(adapters(&Sim::serve(&[]).await).await, None, "no adapters");
}

#[tokio::test]
async fn an_adapter_disappears_with_its_last_request() {
    for scheduler in ["pool", "vllm", "sglang"] {
        let sim = Sim::serve(&[ADAPTERS, &["--scheduler", scheduler]].concat()).await;
        let running = ask(&sim, "b").await;
        assert!(shows(&sim, "b", "b").await, "{scheduler}");
        let waiting = ask(&sim, "a").await;
        assert!(shows(&sim, "b,a", "b,a").await, "{scheduler}");
        drop(waiting);
        assert!(shows(&sim, "b", "b").await, "{scheduler}");
        drop(running);
        assert!(shows(&sim, "", "").await, "{scheduler}");
    }
}

#[tokio::test]
async fn control_characters_in_adapter_name_are_escaped() {
    let sim = Sim::llmd(&["--max-loras", "4"]).await;
    let names = ["esc\u{1b}[2J", "nul\0", "cr\rvllm:up 1", "two\nlines 1", "quote\"} 1"];
    for name in names {
        let load = json!({"lora_name": name, "lora_path": "p"});
        assert_eq!(sim.post("/v1/load_lora_adapter", &load).await.status, 200);
        let body = json!({"model": name, "prompt": "Hi", "max_tokens": 1});
        assert_eq!(sim.post("/v1/completions", &body).await.status, 200, "{name:?}");
    }
    let page = sim.get("/metrics").await.text();
    let wrong = page.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(wrong, None);
    let series = page.lines().filter(|line| line.contains("running_lora_adapters"));
    let shown = series.inspect(|line| assert!(line.starts_with("vllm:lora_requests_info{")));
    assert!(shown.count() > names.len());
}

/// llm-d's simulator lists an adapter where it is; the times are whole seconds, so what is shown
/// at last is waited for.
#[tokio::test]
async fn llmd_lists_an_adapter_where_it_is() {
    let more = [r#"{"name":"always","path":"p"}"#, "--compat", "llm-d"];
    let sim = Sim::llmd(&[ADAPTERS, &more].concat()).await;
    let running = ask(&sim, "a").await;
    assert!(sim.runs(1.0).await);
    let waiting = ask(&sim, "b").await;
    let listed = |running: &str, waiting: &str| {
        let labels = format!(
            "max_lora=\"2\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\""
        );
        let sim = &sim;
        async move { eventually(async || sim.get("/metrics").await.text().contains(&labels)).await }
    };
    assert!(listed("a", "b").await);
    let page = sim.get("/metrics").await.text();
    assert!(!page.contains("waiting_lora_adapters=\"a\""), "a started at once");
    drop(waiting);
    assert!(sim.shows("vllm:num_requests_waiting", 0.0).await);
    drop(running);
    assert!(sim.is_idle().await);
    // The context is looked at when its turn comes.
    assert!(!sim.get("/metrics").await.text().contains("adapters=\"always\""));
    let body = json!({"model": "always", "prompt": vec!["Hi"; 3000].join(" ")});
    let refused = sim.post("/v1/completions", &body).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(listed("always", "").await);
    let next = ask(&sim, "b").await;
    assert!(listed("b", "").await, "no request of b waits any more");
    drop(next);
}

/// A request that names a folder below the resolver's loads the adapter in it, if it is one of this
/// model.
#[tokio::test]
async fn an_adapter_in_the_resolvers_folder_is_loaded_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let add = |name: &str, base: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        let config = json!({"peft_type": "LORA", "base_model_name_or_path": base, "r": 8});
        std::fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
    };
    add("lora/mine", "m");
    add("lora/other", "n");
    let resolver = folder.path().join("lora").display().to_string();
    let flags = ["--model", "m", "--force-dummy-tokenizer", "--enable-lora"];
    let resolver = ["--lora-resolver-cache-dir", &resolver];
    let updating = ["--allow-runtime-lora-updating"];
    let sim = Sim::start(CliMode::Vllm, &[&flags[..], &resolver, &updating].concat()).await;
    let ask = async |sim: &Sim, model: &str| {
        let body = json!({"model": model, "prompt": "a", "max_tokens": 1});
        sim.post("/v1/completions", &body).await
    };
    let answer = ask(&sim, "mine").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["model"], "mine");
    let listed = sim.get("/v1/models").await.json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    for model in ["other", "none", "../lora/mine", "/", ".", "mine/", "mine//", "mine/.", "./mine"]
    {
        assert_eq!(ask(&sim, model).await.status, 404, "{model}");
    }
    let sim = Sim::start(CliMode::Vllm, &[&flags[..], &resolver].concat()).await;
    assert_eq!(ask(&sim, "mine").await.status, 404, "without runtime updating");
}
