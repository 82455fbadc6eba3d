//! Shapes of values: lists, switches, objects, durations, numbers.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use vllm_sim_config::{LogLevel, load_config};
use vllm_sim_service::fault::InjectedFailure;

use super::{env, refusal, serve, shell, sim, try_words};

fn loaras(words: &[&str]) -> Vec<(String, String, Option<String>)> {
    let modules = sim(words).lora.modules;
    let parts = modules.into_iter().map(|m| (m.name, m.path, m.base_model_name));
    parts.collect()
}

#[test]
fn lora_modules_accept_all_forms() {
    let a = ("a".to_owned(), "/a".to_owned(), None);
    let b = ("b".to_owned(), "/b".to_owned(), Some("m".to_owned()));
    let object_b = r#"{"name":"b","path":"/b","base_model_name":"m"}"#;
    let array = format!(r#"[{{"name":"a","path":"/a"}},{object_b}]"#);
    for words in [
        &["--lora-modules", "a=/a", object_b][..],
        &["--lora-modules", &array],
        &[&format!("--lora-modules={array}")],
        &["--lora-modules", "a=/a", "--lora-modules", object_b],
        &["--lora-modules", r#"{"a":"/a","b":{"path":"/b","base_model_name":"m"}}"#],
        &["--lora", r#"{"name":"a","path":"/a"}"#, object_b],
    ] {
        assert_eq!(loaras(words), [a.clone(), b.clone()], "{words:?}");
    }
    let name_only = r#"[{"name":"tweet-summary-0"}]"#;
    assert_eq!(sim(&["--lora-modules", name_only]).lora.modules[0].path, "");
}

#[test]
fn adapters_in_yaml_can_be_texts_mappings_or_a_mapping_of_paths() {
    for text in [
        "lora-modules:\n- name: a\n  path: /a\n",
        "lora-modules:\n- '{\"name\":\"a\",\"path\":\"/a\"}'\n",
        "lora-modules:\n- a=/a\n",
        "lora-modules:\n  a: /a\n",
        "lora-modules: '[{\"name\":\"a\",\"path\":\"/a\"}]'\n",
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(loaras(&["--config", path])[0].1, "/a", "{text}");
    }
}

#[test]
fn switches_take_every_form() {
    for words in [
        &["--omni"][..],
        &["--omni=true"],
        &["--omni", "true"],
        &["--omni", "True"],
        &["--omni=1"],
        &["--no-omni", "--omni"],
    ] {
        assert!(sim(words).content.omni, "{words:?}");
    }
    for words in
        [&["--no-omni"][..], &["--omni=false"], &["--omni", "false"], &["--omni", "--no-omni"]]
    {
        assert!(!sim(words).content.omni, "{words:?}");
    }
    let loaded = try_words(&["vllm-sim", "--model", "m", "--omni", "false"], &[]).unwrap();
    assert_eq!(loaded.warnings, ["--omni false: read as --omni=false"]);
}

#[test]
fn list_flag_ends_at_next_flag() {
    let config = serve(&["--served-model-name", "a", "b", "-tp", "2", "--api-key", "k1", "k2"]);
    assert_eq!(config.model.served_names, ["a", "b"]);
    assert_eq!(config.server.api_keys, ["k1", "k2"]);
    assert_eq!(config.engine.parallel.tensor, 2);
    let cors = serve(&["--allowed-origins", r#"["http://a","*"]"#]).server.cors;
    assert_eq!(
        (cors.origins, cors.methods),
        (vec!["http://a".into(), "*".into()], vec!["*".into()])
    );
}

#[test]
fn failure_types_may_be_separated_by_words_or_commas() {
    let expected = [InjectedFailure::RateLimit, InjectedFailure::ContextLength];
    for words in [
        &["--failure-types", "rate_limit", "context_length"][..],
        &["--failure-types", "rate_limit,context_length"],
        &["--failure-types", r#"["rate_limit","context_length"]"#],
    ] {
        assert_eq!(sim(words).faults.rates.failures, expected, "{words:?}");
    }
}

#[test]
fn underscores_in_flags_equal_dashes() {
    let config = sim(&["--max_num_seqs", "7", "--kv_events_config.enable_kv_cache_events=true"]);
    assert_eq!(config.engine.max_num_seqs, 7);
    assert!(config.kv_events.enabled);
}

#[test]
fn json_flags_accept_dotted_keys() {
    let config = serve(&[
        "--kv-transfer-config.kv_connector",
        "NixlConnector",
        "--kv-transfer-config.kv_role=kv_producer",
        "--kv-transfer-config.kv_connector_extra_config.threads",
        "4",
        "--kv-transfer-config.kv_connector_extra_config.backends+",
        "UCX",
        "--kv-transfer-config.kv_connector_extra_config.backends+=GDS,POSIX",
    ]);
    let transfer = config.kv_transfer.unwrap();
    assert!(transfer.producer && !transfer.consumer);
    assert_eq!(
        transfer.raw,
        json!({
            "kv_connector": "NixlConnector", "kv_role": "kv_producer",
            "kv_connector_extra_config": {"threads": 4, "backends": ["UCX", "GDS", "POSIX"]},
        })
    );
}

#[test]
fn dotted_key_depth_is_bounded() {
    let deep = format!("--hf-overrides{}", ".a".repeat(5000));
    let error = refusal(&[&deep, "1"]);
    assert!(error.contains("is not a path of at most 100 keys"), "{error}");
    let most = format!("--hf-overrides{}", ".a".repeat(100));
    serve(&[&most, "1"]);
}

#[test]
fn numbers_accept_vllm_size_suffixes() {
    for (text, tokens) in
        [("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("4096", 4096), ("1m", 1_000_000)]
    {
        assert_eq!(serve(&["--max-model-len", text]).model.max_model_len, tokens, "{text}");
    }
    assert!(refusal(&["--max-model-len", "1.5K"]).contains("is not a whole number"));
}

#[test]
fn bare_durations_are_milliseconds() {
    let words =
        ["vllm-sim", "--model", "m", "--time-to-first-token", "1000", "--inter-token-latency=0.5"];
    let loaded = try_words(&words, &[]).unwrap();
    let delays = &loaded.config.engine.timing.delays;
    assert_eq!(delays.ttft.0, Duration::from_secs(1));
    assert_eq!(delays.itl.0, Duration::from_micros(500));
    assert_eq!(loaded.warnings.len(), 1);
    assert!(
        try_words(&["vllm-sim", "--model", "m", "--inter-token-latency", "0"], &[])
            .unwrap()
            .warnings
            .is_empty()
    );
    assert_eq!(
        serve(&["--shutdown-timeout", "20"]).server.timeouts.shutdown,
        Duration::from_secs(20)
    );
    assert_eq!(sim(&["--startup-time", "2"]).server.timeouts.startup, Duration::from_secs(2));
}

#[test]
fn std_dev_ratio_is_compared_as_f32() {
    let config =
        sim(&["--inter-token-latency", "1000ms", "--inter-token-latency-std-dev", "300ms"]);
    assert_eq!(config.engine.timing.delays.itl.1, Duration::from_millis(300));
}

#[test]
fn flag_equals_value_is_split() {
    let words = ["vllm-sim", r#"--model "meta-llama/Llama-3.1-8B-Instruct""#, "--port 8000"];
    let loaded = try_words(&words, &[]).unwrap();
    assert_eq!(loaded.config.model.name, "meta-llama/Llama-3.1-8B-Instruct");
    assert_eq!(loaded.warnings.len(), 2);
}

#[test]
fn unique_flag_prefix_is_accepted() {
    assert_eq!(serve(&["--tensor-parallel", "4"]).engine.parallel.tensor, 4);
    assert!(refusal(&["--max-num", "4"]).starts_with("unknown flag --max-num"));
}

#[test]
fn klog_verbosity_sets_log_level() {
    for (words, level) in [
        (&["-v", "5"][..], LogLevel::Trace),
        (&["--v=4", "--logtostderr=true"], LogLevel::Debug),
        (&["-v=2"], LogLevel::Info),
        (&["-v0"], LogLevel::Warn),
        (&["--log-level", "error", "-v", "5"], LogLevel::Error),
        (&["--uvicorn-log-level", "warning"], LogLevel::Warn),
        (&[], LogLevel::Info),
    ] {
        assert_eq!(sim(words).server.log.level, level, "{words:?}");
    }
}

#[test]
fn acceptance_rate_per_draft_position() {
    let spec = r#"{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3}"#;
    let spec = serve(&["--speculative-config", spec]).engine.speculative.unwrap();
    assert_eq!((spec.method.as_str(), spec.num_tokens), ("ngram", 3));
    assert_eq!(spec.acceptance, [0.12, 0.85, 0.9]);
    assert_eq!(spec.prompt_lookup, Some((3, 3)));
    let as_dynamo = serve(&["--spec-tokens", "3"]).engine.speculative.unwrap();
    assert_eq!(as_dynamo.acceptance, [0.85, 0.3, 0.0]);
    assert!(as_dynamo.drops_last_block && as_dynamo.prompt_lookup.is_none());
    let words = ["--spec-tokens", "2", "--spec-acceptance-rates", "0.5", "0.25"];
    assert_eq!(serve(&words).engine.speculative.unwrap().acceptance, [0.5, 0.25]);
    assert!(serve(&[]).engine.speculative.is_none());
}

fn drafts(config: serde_json::Value) -> vllm_sim_config::SpeculativeConfig {
    let config = serve(&["--speculative-config", &config.to_string()]);
    config.engine.speculative.unwrap()
}

#[test]
fn synthetic_acceptance_matches_vllm() {
    let of = |key: &str, value: serde_json::Value| {
        let mut config = json!({"method": "eagle3", "model": "d", "num_speculative_tokens": 4,
            "rejection_sample_method": "synthetic"});
        config[key] = value;
        drafts(config).acceptance
    };
    let close = |found: Vec<f64>, expected: [f64; 4]| {
        let pairs = found.iter().zip(expected);
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}");
    };
    close(of("synthetic_acceptance_length", json!(3.24)), [1.0, 1.0, 0.24, 0.0]);
    close(of("synthetic_acceptance_length", json!(1)), [0.0; 4]);
    close(of("synthetic_acceptance_length", json!(5.0)), [1.0; 4]);
    let rates = json!([0.8, 0.4, 0.4, 0.0]);
    close(of("synthetic_acceptance_rates", rates), [0.8, 0.5, 1.0, 0.0]);
}

#[test]
fn only_target_state_drafters_drop_last_block() {
    let of = |method: &str, key: &str, on: bool| {
        let mut config = json!({"method": method, "model": "d", "num_speculative_tokens": 2});
        config[key] = on.into();
        drafts(config).drops_last_block
    };
    let plain = "disable_lookahead_block_hashes";
    assert!(of("eagle3", plain, true) && of("mtp", plain, true));
    assert!(!of("eagle3", plain, false) && !of("draft_model", plain, true));
    let transfer = r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#;
    for (drop, expected) in [(false, true), (true, false)] {
        let config = json!({"method": "eagle", "model": "d", "num_speculative_tokens": 2,
            "disable_eagle_block_drop": drop});
        let words = ["--kv-transfer-config", transfer, "--speculative-config"];
        let config = serve(&[&words[..], &[&config.to_string()]].concat());
        assert_eq!(config.engine.speculative.unwrap().drops_last_block, expected);
    }
}

#[test]
fn fake_metrics_may_hold_adapters_as_texts() {
    let text = r#"{"running-requests":"oscillate:0:5:1s",
        "loras":["{\"running\":\"a\",\"waiting\":\"\",\"timestamp\":7}"]}"#;
    let fake = sim(&["--fake-metrics", text]).metrics.fake.unwrap();
    assert_eq!(fake["loras"], json!([{"running": "a", "waiting": "", "timestamp": 7}]));
}

/// Command lines of the documents that users have, and of the recorded vLLM servers.
const LINES: &[&str] = &[
    "vllm serve deepseek-ai/DeepSeek-R1 --host 127.0.0.1 --port 8888 --gpu b200 --tensor-parallel-size 8 --gpu-memory-utilization 0.9 --max-model-len 10240 --max-num-seqs 512 --kv-cache-dtype fp8 --no-enable-prefix-caching --compilation-config '{\"cudagraph_mode\":\"FULL_DECODE_ONLY\"}' --speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":3,\"rejection_sample_method\":\"synthetic\",\"synthetic_acceptance_length\":2.83}'",
    "llm-d-inference-sim --port 8000 --model Qwen/Qwen2.5-1.5B-Instruct --lora-modules '[{\"name\":\"tweet-summary-0\"}]' --time-to-first-token 1000 --inter-token-latency 50",
    "llm-d-inference-sim --model my_model --port 8000 --data-parallel-size 4",
    "llm-d-inference-sim --model m --v=2 --logtostderr=true",
    "llm-d-inference-sim --model m --time-to-first-token 1000 --time-to-first-token-std-dev 100 --inter-token-latency 50 --inter-token-latency-std-dev 10 --kv-cache-transfer-latency 200 --kv-cache-transfer-latency-std-dev 20 --time-factor-under-load 1.0",
    "llm-d-inference-sim --model m --prefill-overhead 100 --prefill-time-per-token 2 --prefill-time-std-dev 0.5 --kv-cache-transfer-time-per-token 1.5 --kv-cache-transfer-time-std-dev 0.3",
    "llm-d-inference-sim --model m --enable-kvcache --kv-cache-size 100000 --block-size 64 --tokenizers-cache-dir /tmp/cache --zmq-endpoint tcp://localhost:5555 --event-batch-size 16 --zmq-max-connect-attempts 3",
    "llm-d-inference-sim --model m --failure-injection-rate 5 --failure-types 'rate_limit,invalid_api_key,context_length,server_error'",
    "llm-d-inference-sim --model m --dataset-path /path/to/dataset.sqlite3 --dataset-url https://example.com/dataset.sqlite3 --dataset-in-memory",
    "vllm-sim --model-path Qwen/Qwen3-0.6B --num-gpu-blocks-override 8192 --block-size 16 --speedup-ratio 10.0 --max-num-seqs 512 --num-workers 4 --enable-prefix-caching",
    "vllm-sim --model-path m --engine-type sglang --sglang-schedule-policy lpm --sglang-page-size 1 --sglang-max-prefill-tokens 16384",
    "vllm-sim --model-path m --planner-profile-data tests/planner/H200_TP1P_TP1D --speedup-ratio 1.0",
    "vllm serve m --load-format dummy --served-model-name tiny-llama --host 127.0.0.1 --max-model-len 1024 --block-size 32 --enforce-eager --enable-prefix-caching --enable-lora --max-loras 2 --max-lora-rank 8 --lora-modules sql-lora=adapters/sql-lora --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://127.0.0.1:5557\",\"replay_endpoint\":\"tcp://127.0.0.1:5558\",\"topic\":\"kv@tiny\"}' --enable-prompt-tokens-details --enable-request-id-headers --enable-auto-tool-choice --tool-call-parser hermes --enable-server-load-tracking --enable-scale-out --num-gpu-blocks-override 50 --prefix-caching-hash-algo sha256_cbor",
    "vllm serve m --load-format dummy --served-model-name tiny-llama --host 127.0.0.1 --max-model-len 1024 --block-size 32 --enforce-eager --api-key sekret --reasoning-parser deepseek_r1 --enable-tokenizer-info-endpoint --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://127.0.0.1:5557\",\"replay_endpoint\":\"tcp://127.0.0.1:5558\"}' --enable-prompt-tokens-details --num-gpu-blocks-override 40 --max-num-seqs 2 --enable-force-include-usage --enable-per-request-metrics --show-hidden-metrics-for-version 0.31 --kv-cache-metrics --kv-cache-metrics-sample 1.0",
    "vllm serve m --load-format dummy --served-model-name tiny-llama --host 127.0.0.1 --max-model-len 1024 --block-size 32 --enforce-eager --max-num-seqs 1 --max-num-queued-reqs 1 --shutdown-timeout 20 --sse-keep-alive-interval 1 --scheduling-policy priority --prefix-caching-hash-algo xxhash_cbor --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://127.0.0.1:5557\"}' --num-gpu-blocks-override 40 --enable-mfu-metrics --disable-uvicorn-access-log --speculative-config '{\"method\":\"ngram\",\"num_speculative_tokens\":3,\"prompt_lookup_max\":3}'",
    "vllm serve m --load-format dummy --served-model-name tiny-llama --host 127.0.0.1 --max-model-len 1024 --block-size 32 --enforce-eager --data-parallel-size 2 --max-num-seqs 1 --sse-keep-alive-interval 1 --enable-lora --max-loras 1 --max-lora-rank 8 --lora-modules sql-lora=adapters/sql-lora --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://127.0.0.1:5557\"}' --num-gpu-blocks-override 40 --prefix-caching-hash-algo sha256",
    "vllm serve tests/fixtures/tiny-llama --served-model-name NAME publishers/NS/models/NAME --port 8000 --disable-access-log-for-endpoints /health,/metrics,/ping --shutdown-timeout 60 --tensor-parallel-size 2 --kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}' --enable-ssl-refresh --ssl-certfile /c --ssl-keyfile /k",
    "vllm serve m -tp 2 -dp 4 -pp 1 -q fp8 -O3 -cc.mode=3 -ac.backend FLASH_ATTN -n 2 -r 0 --no-enable-log-requests --disable-log-requests --gpu-memory-utilization=0.95 --trust-remote-code --cudagraph-capture-sizes 1 2 4 --compilation-config.cudagraph_mode FULL_DECODE_ONLY --tool-strict-level parameter --structured-outputs-config.disable_any_whitespace true",
    "vllm serve --config /dev/null m --data-parallel-size 8 --data-parallel-size-local 8 --data-parallel-multi-port-external-lb --data-parallel-supervisor-port 8020 --async-scheduling --max-num-batched-tokens 8k --all2all-backend naive",
];

#[test]
fn users_command_lines_are_accepted() {
    for line in LINES {
        let words = shell(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let loaded = try_words(&words, &[]);
        assert!(loaded.is_ok(), "{line}\n{}", loaded.unwrap_err());
    }
}

proptest! {
    #[test]
    fn no_command_line_panics(words in proptest::collection::vec(word(), 0..8)) {
        let args: Vec<String> = std::iter::once("vllm-sim".to_owned()).chain(words).collect();
        let _ = load_config(&args, &env(&[]));
    }
}

/// Words that are likely to be read as flags and values.
fn word() -> impl Strategy<Value = String> {
    let flags: Vec<String> = vllm_sim_config::all_effective_flags()
        .filter(|flag| flag.name != "config")
        .map(|flag| format!("--{}", flag.name))
        .collect();
    prop_oneof![
        proptest::sample::select(flags),
        "(serve|config|m|true|-1|1e400|9223372036854775808|none|auto|1h|\\[\\]|\\{\\}|-dp|-v)",
        "-{0,2}[a-z.=+\u{e9}-]{0,6}",
        "[ -~]{0,12}",
    ]
}

/// As llm-d's introduction writes it.
#[test]
fn quoted_served_names_are_split() {
    let read = |words: &[&str]| {
        let words = [&["vllm-sim", "--model", "m", "--served-model-name"], words].concat();
        try_words(&words, &[]).unwrap().config.model.served_names
    };
    assert_eq!(read(&["model1 model2"]), ["model1", "model2"]);
    assert_eq!(read(&["a b", "c"]), ["a b", "c"]);
}

#[test]
fn missing_model_folders_are_refused_by_serve() {
    let lost = |words: &[&str], model: &str| {
        let words = [&["vllm-sim"], words, &[model]].concat();
        let loaded = try_words(&words, &[]);
        let told = |text: &str| text.contains(&format!("--model {model}: no such folder"));
        match loaded {
            Ok(loaded) => loaded.warnings.iter().any(|text| told(text)).then_some("warning"),
            Err(error) => told(&error.to_string()).then_some("error"),
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none").display().to_string();
    for model in ["./nofolder", "../nofolder/x", "~/models/nofolder", &missing] {
        assert_eq!(lost(&["serve"], model), Some("error"), "{model}");
        // llm-d's simulator takes any name.
        assert_eq!(lost(&["--model"], model), Some("warning"), "{model}");
    }
    for model in ["demo", "a/b", &folder.path().display().to_string()] {
        assert_eq!(lost(&["serve"], model), None, "{model}");
    }
}

fn warned(words: &[&str]) -> String {
    let words = [&["vllm-sim", "serve", "m"], words].concat();
    try_words(&words, &[]).unwrap().warnings.join("\n")
}

fn refused(words: &[&str]) -> String {
    let words = [&["vllm-sim", "serve", "m"], words].concat();
    try_words(&words, &[]).unwrap_err().to_string()
}

#[test]
fn a_cache_in_the_host_makes_eagle_give_up_the_last_block() {
    let config = r#"{"method":"eagle3","model":"d","num_speculative_tokens":2}"#;
    let words = ["--kv-offloading-size", "10", "--speculative-config", config];
    assert!(serve(&words).engine.speculative.unwrap().drops_last_block);
}

#[test]
fn speculative_keys_and_methods_are_checked() {
    let of = |text: &str| ["--speculative-config".to_owned(), text.to_owned()];
    let refused = |text: &str| {
        let [flag, text] = of(text);
        refused(&[&flag, &text])
    };
    let warned = |text: &str| {
        let [flag, text] = of(text);
        warned(&[&flag, &text])
    };
    let typo = refused(r#"{"method":"ngram","num_speculative_token":3}"#);
    assert!(typo.contains("\"num_speculative_tokens\"?"), "{typo}");
    let gone = refused(r#"{"method":"medusa","num_speculative_tokens":3}"#);
    assert!(gone.contains("\"medusa\" is not one of ngram"), "{gone}");
    let ranks = refused(r#"{"method":"mtp","num_speculative_tokens":1,"tensor_parallel_size":1}"#);
    assert!(ranks.contains("draft_tensor_parallel_size"), "{ranks}");
    let alone = refused(r#"{"method":"mtp"}"#);
    assert!(alone.contains("contains an n_predict parameter"), "{alone}");
    let idle = warned(
        r#"{"method":"eagle3","model":"d","num_speculative_tokens":2,"max_model_len":100,
            "draft_sample_method":"probabilistic"}"#,
    );
    assert!(idle.contains("no effect of max_model_len, draft_sample_method"), "{idle}");
    let old = r#"{"method":"deepseek_mtp","num_speculative_tokens":1}"#;
    assert!(warned(old).contains("deprecated and replaced with mtp"));
    assert_eq!(drafts(serde_json::from_str(old).unwrap()).method, "mtp");
}

#[test]
fn a_draft_models_own_number_of_drafts_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"num_nextn_predict_layers": 3});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let config = json!({"method": "mtp", "model": folder.path()});
    assert_eq!(drafts(config).num_tokens, 3);
}

#[test]
fn async_scheduling_is_off_where_vllm_disables_it() {
    let suffix = ["--speculative-config", r#"{"method":"suffix"}"#];
    assert!(!serve(&suffix).engine.scheduling.async_scheduling);
    assert!(warned(&suffix).contains("suffix-based speculative decoding"));
    let typed = refused(&[&suffix[..], &["--async-scheduling"]].concat());
    assert!(typed.contains("Async scheduling is not supported"), "{typed}");
    assert!(!serve(&["--runner", "pooling"]).engine.scheduling.async_scheduling);
    assert!(
        serve(&["--runner", "pooling", "--async-scheduling"]).engine.scheduling.async_scheduling
    );
    let ngram = r#"{"method":"ngram","num_speculative_tokens":2}"#;
    assert!(serve(&["--speculative-config", ngram]).engine.scheduling.async_scheduling);
}

#[test]
fn flags_that_vllm_has_dropped_are_refused_though_they_mean_something_here() {
    for words in [
        &["--num-speculative-tokens", "3"][..],
        &["--speculative-model", "d"],
        &["--preemption-mode", "swap"],
    ] {
        assert!(refused(words).starts_with("unrecognized arguments: --"), "{words:?}");
    }
    // Values and words of this program's own.
    serve(&["--preemption-mode", "fifo"]);
    assert!(warned(&["--task", "embed"]).contains("--runner and --convert"));
}

#[test]
fn kv_connectors_are_checked_by_name() {
    let config = |text: &str| format!(r#"{{"kv_role":"kv_both",{text}}}"#);
    let warned = |text: &str| warned(&["--kv-transfer-config", &config(text)]);
    let refused = |text: &str| refused(&["--kv-transfer-config", &config(text)]);
    let typo = refused(r#""kv_connector":"NixlConector""#);
    assert_eq!(typo, "Unsupported connector type: NixlConector; did you mean NixlConnector?");
    let idle = warned(r#""kv_connector":"MooncakeStoreConnector""#);
    assert!(idle.contains("MooncakeStoreConnector has no effect"), "{idle}");
    let own = warned(r#""kv_connector":"Mine","kv_connector_module_path":"my.module""#);
    assert!(own.contains("kv_connector Mine has no effect"), "{own}");
    let policy = refused(r#""kv_connector":"NixlConnector","kv_load_failure_policy":"retry""#);
    assert!(policy.contains("fail or recompute"), "{policy}");
    let server = warned(r#""kv_connector":"LMCacheMPConnector""#);
    assert!(server.contains("LMCacheMPConnector has no effect"), "{server}");
}

#[test]
fn lmcache_uses_its_own_chunk_size() {
    let of = |extra: serde_json::Value| {
        let config = json!({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both",
            "kv_connector_extra_config": extra});
        let words = ["--kv-transfer-config", &config.to_string()];
        let words = [&words[..], &["--kv-bytes-per-token", "1024"]].concat();
        serve(&words).engine.kv_offload.unwrap()
    };
    let usual = of(json!({}));
    assert_eq!((usual.bytes, usual.tier.blocks_per_chunk), (5 << 30, 16));
    let typed = of(json!({"lmcache.max_local_cpu_size": 1, "lmcache.chunk_size": 64}));
    assert_eq!((typed.bytes, typed.tier.blocks_per_chunk), (1 << 30, 4));
}

#[test]
fn per_request_draft_metrics_require_speculation() {
    let error = refused(&["--per-request-spec-decode-metrics", "summary"]);
    assert!(error.contains("requires speculative decoding to be enabled"), "{error}");
}
