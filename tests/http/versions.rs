//! The answers of each imitated vLLM release, which `--vllm-version` selects.

use serde_json::json;

use super::sim::Sim;

const RELEASES: [&str; 4] = ["0.26.0", "0.31.0", "0.32.0", "0.33.0"];

/// Paths, each with the first release that has it.
const PATHS: [(&str, &str); 5] = [
    ("/v1/completions", "0.26.0"),
    ("/kv_event_sources", "0.31.0"),
    ("/weight_checker", "0.32.0"),
    ("/v1/systemone", "0.32.0"),
    ("/v1/decisions", "0.33.0"),
];

/// Metric families, each with the first release that has it.
const FAMILIES: [(&str, &str); 4] = [
    ("vllm:num_requests_running", "0.26.0"),
    ("vllm:request_num_preemptions", "0.31.0"),
    ("vllm:admission_rejections_total", "0.32.0"),
    ("vllm:prompt_tokens_cached_by_source_total", "0.32.0"),
];

/// Labels of `vllm:cache_config_info`, each with the first and the last release that has it.
const LABELS: [(&str, &str, &str); 5] = [
    ("block_size=\"16\"", "0.26.0", "0.33.0"),
    ("calculate_kv_scales=\"False\"", "0.26.0", "0.26.0"),
    ("user_specified_mamba_block_size=\"False\"", "0.26.0", "0.31.0"),
    ("hash_block_size=\"None\"", "0.32.0", "0.33.0"),
    ("simple_cpu_offload_num_blocks=\"None\"", "0.33.0", "0.33.0"),
];

#[tokio::test]
async fn each_release_has_its_own_paths_families_and_labels() {
    for release in RELEASES {
        let sim = Sim::serve(&["--vllm-version", release, "--dev-mode"]).await;
        assert_eq!(sim.get("/version").await.json(), json!({"version": release}));
        let document = sim.get("/openapi.json").await.json();
        for (path, first) in PATHS {
            let status = sim.poke(path).await.status;
            assert_eq!(status != 404, first <= release, "{path} {release}: {status}");
            let is_listed = document["paths"].get(path).is_some();
            assert_eq!(is_listed, first <= release, "{path} {release}");
        }
        let page = sim.get("/metrics").await.text();
        for (family, first) in FAMILIES {
            let header = format!("# TYPE {family} ");
            assert_eq!(page.contains(&header), first <= release, "{family} {release}");
        }
        let info = page.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap();
        for (label, first, last) in LABELS {
            let has = (first..=last).contains(&release);
            assert_eq!(info.contains(label), has, "{label} {release}: {info}");
        }
    }
}

/// Schemas of requests, each field with the first release that has it.
#[tokio::test]
async fn the_openapi_document_is_that_of_the_release() {
    for (release, fields) in [("0.26.0", 0), ("0.31.0", 1), ("0.32.0", 1), ("0.33.0", 2)] {
        let sim = Sim::serve(&["--vllm-version", release]).await;
        let document = sim.get("/openapi.json").await.json();
        let chat = &document["components"]["schemas"]["ChatCompletionRequest"]["properties"];
        let found = ["stream_interval", "return_weight_versions"]
            .iter()
            .filter(|field| chat.get(**field).is_some())
            .count();
        assert_eq!(found, fields, "{release}");
    }
}

#[tokio::test]
async fn up_to_0_31_prompt_and_output_must_fit_together() {
    let body = json!({"model": "tiny-llama", "prompt": "one two three", "max_tokens": 62});
    for (release, status) in [("0.26", 400), ("0.31", 400), ("0.32", 200), ("0.33", 200)] {
        let flags = ["--vllm-version", release, "--max-model-len", "64"];
        let answer = Sim::serve(&flags).await.post("/v1/completions", &body).await;
        assert_eq!(answer.status, status, "{release}: {}", answer.text());
        if status == 400 {
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(
                message.starts_with(
                    "This model's maximum context length is 64 tokens. However, you requested 62 \
                     output tokens and your prompt contains at least 3 input tokens, for a total \
                     of at least 65 tokens."
                ),
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn up_to_0_31_every_origin_is_allowed() {
    let request = "GET /v1/models HTTP/1.1\r\nhost: sim\r\norigin: http://a\r\n\r\n";
    for (release, allowed) in [("0.31.0", Some("*")), ("0.32.0", None)] {
        let answer = Sim::serve(&["--vllm-version", release]).await.ask(request).await;
        assert_eq!(answer.header("access-control-allow-origin"), allowed, "{release}");
    }
}
