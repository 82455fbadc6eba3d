//! What single flags of vLLM change, seen from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};
use vllm_sim::server::ServerFleet;
use vllm_sim_config::{CliMode, LoadedConfig};

use super::sim::{MODEL, Sim};
use super::wire::Wire;

const COMPLETIONS: &str = "/v1/completions";

fn prompt(seed: u32, tokens: u32) -> Value {
    let ids: Vec<u32> = (0..tokens).map(|i| (seed * 97 + i * 7) % 200 + 3).collect();
    json!({"prompt": ids, "max_tokens": 4, "ignore_eos": true})
}

#[tokio::test]
async fn render_only_server_has_no_generation_routes() {
    let sim = Sim::serve(&["--render-only"]).await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let rendered = sim.post("/v1/chat/completions/render", &chat).await;
    assert_eq!(rendered.status, 200, "{}", rendered.text());
    for path in [
        "/v1/chat/completions",
        COMPLETIONS,
        "/v1/responses",
        "/inference/v1/generate",
        "/v1/embeddings",
    ] {
        assert_eq!(sim.post(path, &chat).await.status, 404, "{path}");
    }
    for path in ["/health", "/v1/models", "/version"] {
        assert_eq!(sim.get(path).await.status, 200, "{path}");
    }
    let tokens = sim.post("/tokenize", &json!({"prompt": "a b"})).await;
    assert_eq!(tokens.status, 200);
    let page = sim.get("/metrics").await.text();
    assert!(!page.contains("vllm:num_requests_running"), "{page}");
}

#[tokio::test]
async fn disable_log_stats_hides_engine_metrics() {
    let sim = Sim::serve(&["--disable-log-stats"]).await;
    assert_eq!(sim.post(COMPLETIONS, &prompt(1, 20)).await.status, 200);
    let page = sim.get("/metrics").await.text();
    assert!(!page.contains("\nvllm:"), "{page}");
    assert!(page.contains("http_requests_total{"), "{page}");
    assert!(page.contains("python_info{"), "{page}");
}

#[tokio::test]
async fn several_api_servers_write_one_page() {
    let one = Sim::serve(&[]).await.get("/metrics").await.text();
    assert!(one.contains("_created") && one.contains("python_info"));
    let sim = Sim::serve(&["--api-server-count", "2"]).await;
    let page = sim.get("/metrics").await.text();
    assert!(!page.contains("_created") && !page.contains("python_info"), "{page}");
    let ranks = ["--data-parallel-size", "2", "--api-server-count", "1"];
    let page = Sim::serve(&ranks).await.get("/metrics").await.text();
    assert!(page.contains("_created") && page.contains("engine=\"1\""), "{page}");
}

#[tokio::test]
async fn blocks_are_tracked_from_allocation_to_eviction() {
    let flags = [
        "--kv-cache-metrics",
        "--kv-cache-metrics-sample",
        "1",
        "--num-gpu-blocks-override",
        "12",
        "--block-size",
        "16",
        "--max-model-len",
        "128",
    ];
    let sim = Sim::serve(&flags).await;
    for _ in 0..3 {
        sim.post(COMPLETIONS, &prompt(1, 64)).await;
    }
    let evicted = "vllm:kv_block_lifetime_seconds_count";
    assert_eq!(sim.metric(evicted).await, 0.0);
    for seed in 2..7 {
        sim.post(COMPLETIONS, &prompt(seed, 100)).await;
    }
    let count = sim.metric(evicted).await;
    assert!(count >= 4.0, "{count}");
    assert_eq!(sim.metric("vllm:kv_block_idle_before_evict_seconds_count").await, count);
    // The first prompt was found twice: one gap for each of its blocks but the last.
    let gaps = sim.metric("vllm:kv_block_reuse_gap_seconds_count").await;
    assert!((3.0..=4.0).contains(&gaps), "{gaps}");
}

#[tokio::test]
async fn mfu_metrics_follow_model_shape() {
    let sim = Sim::serve(&["--enable-mfu-metrics"]).await;
    sim.post(COMPLETIONS, &prompt(1, 50)).await;
    let flops = "vllm:estimated_flops_per_gpu_total";
    let first = sim.metric(flops).await;
    assert!(first > 0.0);
    assert!(sim.metric("vllm:estimated_read_bytes_per_gpu_total").await > 0.0);
    assert!(sim.metric("vllm:estimated_write_bytes_per_gpu_total").await > 0.0);
    sim.post(COMPLETIONS, &prompt(2, 100)).await;
    let second = sim.metric(flops).await - first;
    assert!((1.7..2.5).contains(&(second / first)), "{first} {second}");
    let plain = Sim::serve(&[]).await;
    plain.post(COMPLETIONS, &prompt(1, 50)).await;
    assert_eq!(plain.metric(flops).await, 0.0);
}

#[tokio::test]
async fn without_a_tokenizer_only_tokens_are_taken_and_given() {
    let words = "Tokenizer not available when `skip_tokenizer_init=True`";
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    for flag in ["--skip-tokenizer-init", "--tokens-only"] {
        let sim = Sim::serve(&[flag]).await;
        for (path, body) in [
            ("/v1/chat/completions", &chat),
            (COMPLETIONS, &json!({"prompt": "hi"})),
            ("/tokenize", &json!({"prompt": "hi"})),
            ("/detokenize", &json!({"tokens": [1]})),
        ] {
            let answer = sim.post(path, body).await;
            assert_eq!(answer.status, 400, "{flag} {path}");
            assert_eq!(answer.json()["error"]["message"], words, "{flag} {path}");
        }
        let mut body = prompt(1, 20);
        body["return_token_ids"] = true.into();
        let answer = sim.post(COMPLETIONS, &body).await.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "", "{flag}: {answer}");
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), 4);
    }
}

#[tokio::test]
async fn an_adapter_of_too_high_a_rank_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let write = |adapter: Value| {
        std::fs::write(folder.path().join("adapter_config.json"), adapter.to_string()).unwrap();
    };
    write(json!({"r": 8, "rank_pattern": {"q_proj": 64}}));
    let flags = ["--enable-lora", "--allow-runtime-lora-updating"];
    let sim = Sim::serve(&flags).await;
    let load = json!({"lora_name": "a", "lora_path": path});
    let refused = sim.post("/v1/load_lora_adapter", &load).await;
    assert_eq!(refused.status, 500);
    assert_eq!(
        refused.json()["error"]["message"],
        "Call to add_lora method failed: LoRA rank 64 is greater than max_lora_rank 16."
    );
    let without = Sim::serve(&["--allow-runtime-lora-updating"]).await;
    let refused = without.post("/v1/load_lora_adapter", &load).await;
    assert_eq!(refused.status, 500);
    assert_eq!(
        refused.json()["error"]["message"],
        "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA."
    );
    let wide = Sim::serve(&[&flags[..], &["--max-lora-rank", "64"]].concat()).await;
    assert_eq!(wide.post("/v1/load_lora_adapter", &load).await.status, 200);
    let module = format!("a={path}");
    let line = ["--model", MODEL, "--enable-lora", "--lora-modules", &module];
    let error = LoadedConfig::from_flags(CliMode::Vllm, &line).unwrap_err().to_string();
    assert!(error.contains("LoRA rank 64 is greater than max_lora_rank 16."), "{error}");
}

#[tokio::test]
async fn a_supervisor_reports_whether_all_ranks_are_up() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let line = [
        "--model",
        MODEL,
        "--host",
        "127.0.0.1",
        "--data-parallel-size",
        "2",
        "--data-parallel-size-local",
        "2",
        "--data-parallel-multi-port-external-lb",
        "--data-parallel-supervisor-port",
        &port,
    ];
    let mut loaded = LoadedConfig::from_flags(CliMode::Vllm, &line).unwrap();
    loaded.config.server.port = 0;
    let fleet = ServerFleet::start_all_servers(loaded).await.unwrap();
    assert_eq!(fleet.running_servers().len(), 2);
    let at = fleet.supervisor_address().expect("a supervisor");
    let ask = async |path: &str| {
        let mut wire = Wire::new(tokio::net::TcpStream::connect(at).await.unwrap());
        let request = format!("GET {path} HTTP/1.1\r\nhost: sim\r\n\r\n");
        wire.send(request.as_bytes()).await;
        wire.answer().await.status
    };
    for path in ["/health", "/ready", "/readyz"] {
        assert_eq!(ask(path).await, 200);
    }
    assert_eq!(ask("/metrics").await, 404);
    fleet.running_servers()[1].app_state().begin_shutdown();
    assert_eq!(ask("/health").await, 503);
    fleet.shut_down_all_servers().await;
    assert!(tokio::net::TcpStream::connect(at).await.is_err());
    let overlaps = [&line[..], &["--port", &port]].concat();
    let error = LoadedConfig::from_flags(CliMode::Vllm, &overlaps).unwrap_err().to_string();
    assert!(error.contains("overlaps with child rank ports"), "{error}");
}

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server and the lines of its log.
fn spawn(flags: &[&str]) -> (Running, mpsc::Receiver<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(["serve", MODEL, "--host", "127.0.0.1"]);
    command.args(flags).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let log = BufReader::new(running.0.stderr.take().unwrap());
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = log.lines().map_while(Result::ok);
        // Nobody listens once the test has what it wants.
        lines.for_each(|line| drop(send.send(line)));
    });
    (running, lines)
}

/// The next line that has all these words.
fn next(lines: &mpsc::Receiver<String>, words: &[&str]) -> String {
    loop {
        let line = lines.recv_timeout(Duration::from_secs(60));
        let line = line.expect("a line with these words");
        if words.iter().all(|word| line.contains(word)) {
            return line;
        }
    }
}

fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

#[test]
fn the_log_has_a_line_about_each_engine() {
    let port = free_port();
    let (_running, lines) = spawn(&["--port", &port.to_string(), "--log-stats-interval", "0.3"]);
    next(&lines, &["listening"]);
    let body = prompt(1, 40).to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        stream,
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
    // One more line follows the last token, at least.
    let idle =
        "Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%";
    next(&lines, &["Engine 000: Avg prompt throughput: ", idle]);
}

#[test]
fn headless_server_opens_no_port() {
    let port = free_port();
    let flags = ["--headless", "--data-parallel-size", "2"];
    let (_running, lines) = spawn(&[&["--port", &port.to_string()], &flags[..]].concat());
    next(&lines, &["Launching 2 data parallel engine(s) in headless mode"]);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}
