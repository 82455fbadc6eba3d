//! Metric families and the readiness check of open pull requests of vLLM (`--preview`).

use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::sim::{Sim, eventually, post};
use super::wire::Wire;

const TOKEN_USAGE: &str = "vllm:kv_cache_token_usage_perc";
const LOADED: &str = "vllm:lora_adapter_loaded";
/// Ten blocks, and a first token that no test waits for.
const SLOW: [&str; 6] =
    ["--block-size", "16", "--num-gpu-blocks-override", "11", "--time-to-first-token", "10m"];

/// Begins a completion.
async fn begin(sim: &Sim, body: Value) -> Wire<TcpStream> {
    let mut wire = sim.connect().await;
    wire.send(&post("/v1/completions", &[], body.to_string().as_bytes())).await;
    wire
}

fn prompt(tokens: u32) -> Vec<u32> {
    (100..100 + tokens).collect()
}

async fn has_family(sim: &Sim, name: &str) -> bool {
    sim.get("/metrics").await.text().contains(&format!("# TYPE {name} gauge"))
}

#[tokio::test]
async fn previews_are_off_by_default() {
    let sim = Sim::serve(&["--enable-lora", "--ready-check-idle-timeout", "0"]).await;
    for name in [TOKEN_USAGE, LOADED, "vllm:num_gpu_loaded_lora_adapters"] {
        assert!(!has_family(&sim, name).await, "{name}");
    }
    let slow = Sim::serve(&[&SLOW[..], &["--ready-check-idle-timeout", "0"]].concat()).await;
    let _running = begin(&slow, json!({"prompt": "x"})).await;
    assert!(slow.runs(1.0).await);
    assert_eq!(slow.get("/health/ready").await.status, 200);
}

/// Two blocks hold 17 tokens, and blocks that two sequences share count once.
#[tokio::test]
async fn token_usage_counts_filled_slots() {
    for scheduler in ["vllm", "pool"] {
        let flags = ["--preview", "kv-cache-token-usage", "--scheduler", scheduler];
        // With asynchronous scheduling, the token of the step after this one would count too.
        let flags = [&SLOW[..], &flags, &["--no-async-scheduling"]].concat();
        let sim = Sim::serve(&flags).await;
        assert!(has_family(&sim, TOKEN_USAGE).await);
        let short = begin(&sim, json!({"prompt": prompt(17)})).await;
        assert!(sim.shows("vllm:kv_cache_usage_perc", 0.2).await, "{scheduler}");
        assert!(sim.shows(TOKEN_USAGE, 17.0 / 160.0).await, "{scheduler}");
        drop(short);
        assert!(sim.shows(TOKEN_USAGE, 0.0).await, "{scheduler}");
        // Another server, because the step of the first request goes on.
        let sim = Sim::serve(&flags).await;
        let _shared = begin(&sim, json!({"prompt": [prompt(33), prompt(33)]})).await;
        assert!(sim.shows("vllm:kv_cache_usage_perc", 0.4).await, "{scheduler}");
        assert!(sim.shows(TOKEN_USAGE, 34.0 / 160.0).await, "{scheduler}");
    }
}

/// Returns name and level of each adapter in memory, sorted.
async fn loaded_adapters(sim: &Sim) -> Vec<String> {
    let page = sim.get("/metrics").await.text();
    let series = page.lines().filter(|line| line.starts_with("vllm:lora_adapter_loaded{"));
    let mut all: Vec<String> = series
        .map(|line| {
            assert!(line.ends_with("} 1.0") && line.contains("pinned=\"false\""), "{line}");
            assert!(line.contains("engine=\"0\"") && line.contains("model_name=\"tiny-llama\""));
            let label = |name: &str| {
                let value = line.split_once(&format!("{name}=\"")).unwrap().1;
                value.split_once('"').unwrap().0.to_owned()
            };
            format!("{} {}", label("adapter_name"), label("level"))
        })
        .collect();
    all.sort_unstable();
    all
}

/// The steps of the test report of the pull request, with the numbers that it shows.
#[tokio::test]
async fn idle_adapters_stay_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"peft_type": "LORA", "r": 8}).to_string();
    std::fs::write(folder.path().join("adapter_config.json"), config).unwrap();
    let path = folder.path().to_str().unwrap();
    let alice = json!({"name": "alice", "path": path}).to_string();
    let flags = ["--preview", "lora-adapter-loaded", "--enable-lora", "--max-loras", "2"];
    let more = ["--max-cpu-loras", "3", "--allow-runtime-lora-updating", "--lora-modules", &alice];
    let sim = Sim::serve(&[&flags[..], &more].concat()).await;
    let counts = async || {
        let count =
            async |level: &str| sim.metric(&format!("vllm:num_{level}_loaded_lora_adapters")).await;
        (count("gpu").await, count("cpu").await)
    };
    assert_eq!(
        (loaded_adapters(&sim).await, counts().await),
        (vec!["alice gpu".to_owned()], (1.0, 1.0))
    );
    assert_eq!(sim.metric("vllm:max_gpu_lora_adapters").await, 2.0);
    for name in ["bob", "carol"] {
        let load = json!({"lora_name": name, "lora_path": path});
        assert_eq!(sim.post("/v1/load_lora_adapter", &load).await.status, 200);
    }
    assert_eq!(loaded_adapters(&sim).await, ["alice cpu", "bob gpu", "carol gpu"]);
    assert_eq!(counts().await, (2.0, 3.0));
    let body = json!({"model": "alice", "prompt": "x", "max_tokens": 1});
    assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
    assert!(sim.is_idle().await);
    assert_eq!(loaded_adapters(&sim).await, ["alice gpu", "bob cpu", "carol gpu"]);
    // Unloading only makes the API server forget the adapter, until another one takes its place.
    let unload = json!({"lora_name": "bob"});
    assert_eq!(sim.post("/v1/unload_lora_adapter", &unload).await.status, 200);
    assert_eq!(loaded_adapters(&sim).await, ["alice gpu", "bob cpu", "carol gpu"]);
    let load = json!({"lora_name": "dave", "lora_path": path});
    assert_eq!(sim.post("/v1/load_lora_adapter", &load).await.status, 200);
    assert_eq!(loaded_adapters(&sim).await, ["alice gpu", "carol cpu", "dave gpu"]);
}

async fn readiness(sim: &Sim, status: u16) -> bool {
    eventually(async || sim.get("/health/ready").await.status == status).await
}

#[tokio::test]
async fn an_engine_without_first_output_is_not_ready() {
    let flags = ["--preview", "readiness", "--ready-check-idle-timeout", "0"];
    let sim = Sim::serve(&[&SLOW[..], &flags].concat()).await;
    assert_eq!(sim.get("/health/ready").await.status, 200, "an idle engine");
    let running = begin(&sim, json!({"prompt": "x"})).await;
    assert!(readiness(&sim, 503).await);
    let answer = sim.get("/health/ready").await;
    assert_eq!((answer.status, answer.text()), (503, String::new()));
    assert_eq!(sim.get("/health").await.status, 200);
    drop(running);
    assert!(readiness(&sim, 200).await);
}

#[tokio::test]
async fn the_time_since_the_last_output_has_its_own_limit() {
    let flags = ["--preview", "readiness", "--inter-token-latency", "10m"];
    let body = json!({"prompt": "x", "max_tokens": 5, "ignore_eos": true, "stream": true});
    for (limit, status) in [("0", 503), ("1h", 200)] {
        let limit = ["--ready-check-progress-timeout", limit, "--ready-check-idle-timeout", "1h"];
        let sim = Sim::serve(&[&flags[..], &limit].concat()).await;
        let mut wire = begin(&sim, body.clone()).await;
        assert_eq!(wire.head().await.status, 200);
        assert!(wire.chunk().await.is_some());
        assert!(readiness(&sim, status).await);
    }
}

/// The drill: the engine is alive and `/health` is green, but no request gets on.
#[tokio::test]
async fn a_hung_engine_is_found_by_the_readiness_check_alone() {
    let check = ["--preview", "readiness", "--ready-check-idle-timeout", "0"];
    for scheduler in ["vllm", "pool", "sglang"] {
        let more = ["--scheduler", scheduler, "--dev-mode"];
        let sim = Sim::serve(&[&check[..], &more].concat()).await;
        let body = json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true});
        assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
        let scenario = json!({"name": "hang", "phases": [
            {"name": "hung", "set": {"hang-engine": true}},
        ]});
        assert_eq!(sim.post("/admin/scenario", &scenario).await.status, 200);
        let mut first = begin(&sim, body.clone()).await;
        assert!(sim.shows("vllm:num_requests_waiting", 1.0).await, "{scheduler}");
        assert!(readiness(&sim, 503).await, "{scheduler}");
        assert_eq!(sim.get("/health").await.status, 200);
        assert_eq!(sim.metric("vllm_sim_scenario_phase").await, 1.0);
        assert_eq!(sim.get("/is_paused").await.json(), json!({"is_paused": false}));
        let mut second = begin(&sim, body.clone()).await;
        assert!(sim.shows("vllm:num_requests_waiting", 2.0).await, "{scheduler}");
        // A pause and its end do not wake the engine.
        assert_eq!(sim.poke("/pause?mode=keep").await.status, 200);
        assert_eq!(sim.poke("/resume").await.status, 200);
        assert!(readiness(&sim, 503).await, "{scheduler}");
        let delete = "DELETE /admin/scenario HTTP/1.1\r\nhost: sim\r\n\r\n";
        assert_eq!(sim.ask(delete).await.json(), json!({"ended": true}));
        assert_eq!(first.answer().await.status, 200, "{scheduler}");
        assert_eq!(second.answer().await.status, 200, "{scheduler}");
        assert!(readiness(&sim, 200).await, "{scheduler}");
    }
}
