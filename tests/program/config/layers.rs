//! File < environment < command line.

use std::io::Write;
use std::time::Duration;

use tempfile::NamedTempFile;
use vllm_sim_config::{KvConnector, LoadedConfig};
use vllm_sim_observe::kv_events::KvEventHashFormat;

use super::try_words;

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn with_file(text: &str, words: &[&str], vars: &[(&str, &str)]) -> LoadedConfig {
    let file = file(text);
    let path = file.path().to_str().unwrap();
    let words = [&["vllm-sim", "--config", path], words].concat();
    try_words(&words, vars).unwrap()
}

/// llm-d-inference-sim's `manifests/config.yaml`.
const LLMD: &str = r#"
port: 8001
model: "Qwen/Qwen2-0.5B"
served-model-name:
- "model1"
- "model2"
max-loras: 2
max-cpu-loras: 5
max-num-seqs: 5
lora-modules:
- '{"name":"lora1","path":"/path/to/lora1"}'
- '{"name":"lora2","path":"/path/to/lora2"}'
time-to-first-token: 2s
inter-token-latency: 1000
kv-cache-transfer-latency: 100ms
seed: 100100100
"#;

#[test]
fn a_file_can_contain_the_whole_configuration() {
    let loaded = with_file(LLMD, &[], &[]);
    let config = &loaded.config;
    assert_eq!((config.server.port, config.content.seed), (8001, Some(100_100_100)));
    assert_eq!(config.model.served_names, ["model1", "model2"]);
    assert_eq!(config.lora.modules[1].path, "/path/to/lora2");
    assert_eq!(config.engine.timing.delays.ttft.0, Duration::from_secs(2));
    assert_eq!(config.engine.timing.delays.itl.0, Duration::from_secs(1));
    assert_eq!(
        loaded.warnings,
        [
            "--max-cpu-loras: no effect because --scheduler pool keeps no adapters in CPU memory",
            "durations without a unit are read as milliseconds: inter-token-latency",
        ]
    );
}

#[test]
fn upper_layer_replaces_whole_flag() {
    let words = [
        "--served-model-name",
        "alias1",
        "alias2",
        "--lora-modules",
        r#"{"name":"lora3","path":"/path/to/lora3"}"#,
        "--port",
        "8002",
    ];
    let config = with_file(LLMD, &words, &[]).config;
    assert_eq!(config.model.served_names, ["alias1", "alias2"]);
    assert_eq!(config.lora.modules.len(), 1);
    assert_eq!((config.server.port, config.lora.max_cpu_loras), (8002, 5));
}

#[test]
fn empty_list_overrides_file_list() {
    for words in [
        &["--lora-modules", ""][..],
        &["--lora-modules"],
        &["--lora-modules="],
        &["--lora-modules", "[]"],
        &["--lora-modules", "--log-http"],
    ] {
        let config = with_file(LLMD, words, &[]).config;
        assert!(config.lora.modules.is_empty(), "{words:?}");
    }
    let config = with_file(LLMD, &["--served-model-name"], &[]).config;
    assert_eq!(config.model.served_names, ["Qwen/Qwen2-0.5B"]);
}

#[test]
fn the_environment_overrides_the_file_and_not_the_command_line() {
    let vars = [("SIM_MODEL", "env-model"), ("PYTHONHASHSEED", "7"), ("VLLM_SIM_PORT", "9000")];
    let config = with_file("model: file-model\nhash-seed: file\n", &[], &vars).config;
    assert_eq!(config.model.name, "env-model");
    assert_eq!(
        (config.engine.prefix_cache.hash_seed.as_deref(), config.server.port),
        (Some("7"), 9000)
    );
    let words = ["--model", "typed", "--port", "1", "--hash-seed", "x"];
    let config = with_file("model: file-model\n", &words, &vars).config;
    assert_eq!(config.model.name, "typed");
    assert_eq!(
        (config.engine.prefix_cache.hash_seed.as_deref(), config.server.port),
        (Some("x"), 1)
    );
}

#[test]
fn no_prefix_flag_undoes_switch_of_file() {
    let text = "model: m\nomni: true\nenable-sleep-mode: yes\nno-enable-prefix-caching: true\n";
    let config = with_file(text, &["--no-omni"], &[]).config;
    assert!(!config.content.omni && config.server.routes.enable_sleep_mode);
    assert!(!config.engine.prefix_cache.enable_prefix_caching);
    let config = with_file(text, &["--enable-prefix-caching"], &[]).config;
    assert!(config.engine.prefix_cache.enable_prefix_caching && config.content.omni);
}

#[test]
fn vllms_variables_are_read() {
    let vars = [
        ("VLLM_API_KEY", "secret"),
        ("VLLM_SERVER_DEV_MODE", "1"),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True"),
        ("VLLM_ENABLE_RESPONSES_API_STORE", "1"),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "7"),
        ("VLLM_MAX_N_SEQUENCES", "3"),
        ("VLLM_MAX_COMPLETION_PROMPTS", "4"),
        ("VLLM_MAX_STOP_STRINGS", "5"),
        ("VLLM_SKIP_MODEL_NAME_VALIDATION", "1"),
        ("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0"),
        ("POD_IP", "10.0.0.1"),
        ("POD_NAME", "pod"),
        ("POD_NAMESPACE", "ns"),
        ("HF_TOKEN", "hf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
        ("HF_HOME", "/cache"),
        ("VLLM_SIM_LORA_MODULES", r#"[{"name":"a","path":"/a"}]"#),
        ("VLLM_SIM_FAILURE_TYPES", "rate_limit, server_error"),
        ("VLLM_SIM_TIME_TO_FIRST_TOKEN", "1.5ms"),
    ];
    let events = r#"{"enable_kv_cache_events":true}"#;
    let words = ["vllm", "serve", "m", "--kv-events-config", events];
    let config = try_words(&words, &vars).unwrap().config;
    assert_eq!(config.server.api_keys, ["secret"]);
    assert!(
        config.server.routes.dev_mode && config.lora.runtime_updating && config.api.responses_store
    );
    assert_eq!(config.server.timeouts.keep_alive, Duration::from_secs(7));
    let limits = config.api.limits;
    assert_eq!((limits.n, limits.prompts, limits.stop_strings), (3, 4, 5));
    assert!(config.api.skip_model_name_validation);
    assert_eq!(config.kv_events.encoding.hashes, KvEventHashFormat::Bytes(32));
    assert_eq!(config.server.pod.ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(
        config.server.otlp.traces_protocol,
        vllm_sim_observe::otel::OtlpProtocol::HttpProtobuf
    );
    assert_eq!(config.model.tokenizer.hf_token.as_deref(), Some("hf"));
    assert_eq!(config.model.tokenizer.cache_dir.unwrap().to_str(), Some("/cache/hub"));
    assert_eq!((config.lora.modules.len(), config.faults.rates.failures.len()), (1, 2));
    assert_eq!(config.engine.timing.delays.ttft.0, Duration::from_micros(1500));
}

#[test]
fn invalid_value_error_names_its_layer() {
    let error = try_words(&["vllm-sim", "--model", "m"], &[("VLLM_SIM_PORT", "x")]).unwrap_err();
    let text = r#"--port: "x" is not a whole number (from environment VLLM_SIM_PORT)"#;
    assert_eq!(error.to_string(), text);
    let error = try_words(&["vllm", "serve", "m"], &[("VLLM_SERVER_DEV_MODE", "maybe")]);
    assert!(error.unwrap_err().to_string().contains("VLLM_SERVER_DEV_MODE"));
}

#[test]
fn an_unknown_key_is_a_warning_or_an_error() {
    let text = "model: m\nmax-num-seq: 7\n";
    let loaded = with_file(text, &[], &[]);
    assert_eq!(loaded.config.engine.max_num_seqs, 5);
    let [warning] = &loaded.warnings[..] else {
        panic!("one warning was expected: {:?}", loaded.warnings);
    };
    assert!(warning.contains("max-num-seq; did you mean max-num-seqs?"), "{warning}");
    let file = file(text);
    let path = file.path().to_str().unwrap();
    let error = try_words(&["vllm-sim", "--strict-config", "--config", path], &[]).unwrap_err();
    assert!(error.to_string().contains("did you mean max-num-seqs?"));
}

#[test]
fn later_files_override_earlier_ones() {
    let (a, b) = (file("model: a\nport: 1\n"), file("model: b\n"));
    let (a, b) = (a.path().to_str().unwrap(), b.path().to_str().unwrap());
    let config = try_words(&["vllm-sim", "--config", a, "--config", b], &[]).unwrap().config;
    assert_eq!((config.model.name.as_str(), config.server.port), ("b", 1));
    let config = try_words(&["vllm-sim", "--config", b, "--config", a], &[]).unwrap().config;
    assert_eq!(config.model.name, "a");
}

#[test]
fn bad_files_are_refused_by_name() {
    for (text, why) in [("- a\n- b\n", "a mapping of flag names"), ("a: [\n", "not YAML")] {
        let file = file(text);
        let path = file.path().to_str().unwrap();
        let error = try_words(&["vllm-sim", "--config", path], &[]).unwrap_err().to_string();
        assert!(error.starts_with(path) && error.contains(why), "{error}");
    }
    let error = try_words(&["vllm-sim", "--config", "/does/not/exist.yaml"], &[]).unwrap_err();
    assert!(error.to_string().starts_with("--config /does/not/exist.yaml: "));
    assert!(with_file("", &["--model", "m"], &[]).warnings.is_empty());
}

#[test]
fn a_file_may_spell_keys_with_underscores_and_hold_vllms_flags() {
    let text = "model_tag: m\nmax_num_seqs: 9\ntensor_parallel_size: 2\nenable_eplb: true\n\
                kv_transfer_config:\n  kv_connector: NixlConnector\n  kv_role: kv_both\n\
                v: 5\n";
    let loaded = with_file(text, &[], &[]);
    assert_eq!((loaded.config.model.name.as_str(), loaded.config.engine.max_num_seqs), ("m", 9));
    assert_eq!(loaded.ignored, ["--enable-eplb"]);
    let transfer = loaded.config.kv_transfer.unwrap();
    assert_eq!(transfer.connector, Some(KvConnector::Nixl));
    assert!(transfer.producer && transfer.consumer);
}

#[test]
fn a_file_may_choose_the_mode_of_the_plain_command() {
    for name in ["cli-mode", "door"] {
        let config = with_file(&format!("model: m\n{name}: vllm\n"), &[], &[]).config;
        assert_eq!(config.engine.max_num_seqs, 256, "{name}");
    }
    let variable = [("VLLM_SIM_DOOR", "vllm")];
    let config = with_file("model: m\n", &[], &variable).config;
    assert_eq!(config.engine.max_num_seqs, 256);
}

#[test]
fn llmd_latency_profile_is_in_microseconds() {
    let text = "model: m\nlatency-calculator: per-token\nprefill-overhead: 30ms\n\
                prefill-time-per-token: 250us\nkv-cache-transfer-time-per-token: 3us\n\
                time-factor-under-load: 2.0\nmax-num-seqs: 16\n";
    let delays = with_file(text, &[], &[]).config.engine.timing.delays;
    assert_eq!(delays.prefill_per_token, Duration::from_micros(250));
    assert_eq!(delays.kv_transfer_per_token, Duration::from_micros(3));
}

#[test]
fn the_addresses_that_kubernetes_gives_services_are_no_ports() {
    let vars =
        [("VLLM_SIM_PORT", "tcp://10.0.0.7:8000"), ("VLLM_SIM_GRPC_PORT", "tcp://10.0.0.8:9000")];
    let loaded = try_words(&["vllm-sim", "--model", "m"], &vars).unwrap();
    assert_eq!((loaded.config.server.port, loaded.config.server.grpc_port), (8000, None));
    assert_eq!(loaded.warnings.len(), 2);
}

#[test]
fn empty_env_variable_is_ignored() {
    let vars = [("SIM_MODEL", ""), ("VLLM_API_KEY", "a,b"), ("VLLM_LOGGING_LEVEL", "WARNING")];
    let config = try_words(&["vllm-sim", "--model", "m"], &vars).unwrap().config;
    assert_eq!((config.model.name.as_str(), config.server.api_keys), ("m", vec!["a,b".to_owned()]));
    assert_eq!(config.server.log.level, vllm_sim_config::LogLevel::Warn);
}
