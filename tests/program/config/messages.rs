//! Every message of llm-d-inference-sim's validation, and ours beside them.

use super::{refusal, serve, try_words};

/// Words, and what the refusal says.
const MESSAGES: &[(&[&str], &str)] = &[
    (&["--model", ""], "model parameter is empty"),
    (&["--mode", "hello"], "invalid mode 'hello'"),
    (&["--port", "-50"], "invalid port"),
    (&["--port", "65536"], "invalid port"),
    (&["--inter-token-latency", "-1s"], "inter token latency cannot be negative"),
    (
        &["--inter-token-latency", "1000ms", "--inter-token-latency-std-dev", "-1s"],
        "inter token latency standard deviation cannot be negative",
    ),
    (
        &["--inter-token-latency", "1000ms", "--inter-token-latency-std-dev", "301ms"],
        "inter token latency standard deviation cannot be more than 30% of inter token latency",
    ),
    (&["--time-to-first-token", "-1"], "time to first token cannot be negative"),
    (
        &["--time-to-first-token-std-dev", "10ms", "--time-to-first-token-std-dev", "-1ms"],
        "time to first token standard deviation cannot be negative",
    ),
    (
        &["--time-to-first-token", "2000", "--time-to-first-token-std-dev", "3000ms"],
        "time to first token standard deviation cannot be more than 30% of time to first token",
    ),
    (&["--time-to-generate-image", "-1ms"], "time to generate image cannot be negative"),
    (
        &["--time-to-generate-image-std-dev", "-1ms"],
        "time to generate image standard deviation cannot be negative",
    ),
    (
        &["--time-to-generate-image", "1s", "--time-to-generate-image-std-dev", "500ms"],
        "time to generate image standard deviation cannot be more than 30%",
    ),
    (&["--kv-cache-transfer-latency", "-1ms"], "kv-cache transfer time cannot be negative"),
    (
        &["--kv-cache-transfer-latency-std-dev", "-35ms"],
        "kv-cache transfer time standard deviation cannot be negative",
    ),
    (
        &["--kv-cache-transfer-latency", "70ms", "--kv-cache-transfer-latency-std-dev", "35ms"],
        "kv-cache transfer standard deviation cannot be more than 30% of kv-cache transfer",
    ),
    (&["--prefill-overhead", "-1ms"], "prefill overhead cannot be negative"),
    (&["--prefill-time-per-token", "-1ms"], "prefill time per token cannot be negative"),
    (&["--prefill-time-std-dev", "-1ms"], "prefill time standard deviation cannot be negative"),
    (
        &["--kv-cache-transfer-time-per-token", "-1ms"],
        "kv-cache transfer time per token cannot be negative",
    ),
    (
        &["--kv-cache-transfer-time-std-dev", "-1ms"],
        "kv-cache transfer time standard deviation cannot be negative",
    ),
    (
        &["--time-to-first-token", "20h", "--latency-factor", "100"],
        "time-to-first-token times 100 (latency-factor and time-factor-under-load, divided by \
         speedup-ratio) is longer than 24h0m0s (--time-to-first-token is \"20h\"",
    ),
    (
        &["--inter-token-latency", "1h", "--time-factor-under-load", "25"],
        "inter-token-latency times 25 (",
    ),
    (
        &["--kv-cache-transfer-latency", "25m", "--speedup-ratio", "0.01"],
        "kv-cache-transfer-latency times 100 (",
    ),
    (&["--time-factor-under-load", "0"], "time factor under load cannot be less than 1.0"),
    (&["--max-loras", "0"], "max LoRAs cannot be less than 1"),
    (&["--max-loras", "15", "--max-cpu-loras", "5"], "max CPU LoRAs cannot be less than max LoRAs"),
    (&["--lora-modules", r#"{"path":"/p"}"#], "empty LoRA name"),
    (
        &["--lora-modules", r#"{"name":"a","path":"/p","base_model_name":"other"}"#],
        "unknown base model 'other' for LoRA 'a'",
    ),
    (&["--max-model-len", "0"], "max model len cannot be less than 1"),
    (&["--max-num-seqs", "0"], "max num seqs cannot be less than 1"),
    (&["--max-num-seqs", "-1"], "max num seqs cannot be less than 1"),
    (&["--max-waiting-queue-length", "-1"], "max waiting queue size cannot be less than 0"),
    (
        &["--max-tool-call-integer-param", "-10"],
        "MaxToolCallIntegerParam cannot be less than MinToolCallIntegerParam",
    ),
    (
        &["--max-tool-call-number-param", "-10"],
        "MaxToolCallNumberParam cannot be less than MinToolCallNumberParam",
    ),
    (
        &["--max-tool-call-array-param-length", "-10"],
        "MaxToolCallArrayParamLength cannot be less than MinToolCallArrayParamLength",
    ),
    (
        &["--min-tool-call-array-param-length", "-1"],
        "MinToolCallArrayParamLength cannot be negative",
    ),
    (
        &["--tool-call-not-required-param-probability", "-10"],
        "ToolCallNotRequiredParamProbability should be between 0 and 100",
    ),
    (
        &["--object-tool-call-not-required-field-probability", "1210"],
        "ObjectToolCallNotRequiredParamProbability should be between 0 and 100",
    ),
    (
        &["--tool-call-extra-call-probability", "101"],
        "ToolCallExtraCallProbability should be between 0 and 100",
    ),
    (
        &["--block-size", "35"],
        "token block size should be one of the following: 8, 16, 32, 64, 128",
    ),
    (&["--kv-cache-size", "-35"], "KV cache size cannot be negative"),
    (&["--event-batch-size", "-35"], "event batch size cannot less than 1"),
    (
        &["--kv-events-replay-endpoint", "tcp://*:6000", "--kv-events-replay-queue-size", "0"],
        "kv-events-replay-queue-size cannot be less than 1",
    ),
    (
        &["--kv-events-replay-endpoint", "tcp://*:5558", "--data-parallel-size", "2"],
        "zmq-endpoint (tcp://127.0.0.1:5557) and kv-events-replay-endpoint (tcp://*:5558) ports collide",
    ),
    (&["--failure-injection-rate", "150"], "failure injection rate should be between 0 and 100"),
    (&["--failure-injection-rate", "-10"], "failure injection rate should be between 0 and 100"),
    (&["--image-emission-rate", "101"], "image emission rate should be between 0 and 100"),
    (&["--failure-types", "x"], "invalid failure type 'x'"),
    (&["--data-parallel-size", "15"], "data parallel size must be between 1 and 8"),
    (&["--data-parallel-rank", "15"], "data parallel rank must be between 0 and 7"),
    (&["--ssl-certfile", "c.pem"], "both ssl-certfile and ssl-keyfile must be provided together"),
    (
        &["--ssl-certfile", "c", "--ssl-keyfile", "k", "--self-signed-certs"],
        "cannot use both self-signed-certs and explicit ssl-certfile/ssl-keyfile",
    ),
    (
        &["--dataset-url", "https://example.com/x"],
        "dataset-path is required when dataset-url is set",
    ),
    (&["--replay-timing"], "dataset-path is required when replay-timing is set"),
    (
        &["--dataset-path", "p", "--dataset-sha256", "abc"],
        "dataset-sha256 must be 64 hex digits, got \"abc\"",
    ),
    (
        &["--dataset-path", "p", "--replay-timing", "--scheduler", "vllm"],
        "--replay-timing releases each token at its recorded time, so it needs --scheduler pool",
    ),
    (&["--dataset-path", "p", "--mode", "echo"], "dataset cannot be defined in echo mode"),
    (&["--latency-calculator", "hello"], "unknown latency-calculator"),
    (
        &["--global-cache-hit-threshold", "1.1"],
        "global cache hit threshold must be between in range [0, 1]",
    ),
    (&["--default-embedding-dimensions", "0"], "default embedding dimensions must be at least 1"),
    (
        &["--max-request-body-size-mb", "513"],
        "max-request-body-size-mb must be between 1 MB and 512 MB",
    ),
    // Ours: the field, what was given, what is allowed.
    (&["--port", "many"], r#"--port: "many" is not a whole number (from command line)"#),
    (
        &["--scheduler", "vlm"],
        r#"--scheduler: "vlm" is not one of pool, vllm, sglang; did you mean vllm?"#,
    ),
    (&["--log-http=perhaps"], "is not true or false"),
    (&["--inter-token-latency", "5 minutes"], "is not a duration such as 1.5s"),
    (
        &["--time-to-first-token", "25h"],
        r#"--time-to-first-token: "25h" is not a duration of at most 24h (from command line)"#,
    ),
    (
        &["--lora-load-time", "99999999999h"],
        r#"--lora-load-time: "99999999999h" is not a duration of at most 24h (from command line)"#,
    ),
    (&["--watermark", "nan"], "is not a number"),
    (&["--port"], "--port needs a value"),
    (&["--lora-modules", "a"], "is not name=path, or JSON"),
    (&["--lora-modules", "a=/1", "a=/2"], "two LoRA modules have the name 'a'"),
    (&["--fingerprint-mode", "custom"], "requires --fingerprint-value"),
    (&["--tool-call-parser", "hermit"], "did you mean hermes?"),
    (
        &["--tool-call-parser", "hermit"],
        "invalid tool call parser: hermit (chose from { apertus,beam,",
    ),
    (
        &["--reasoning-parser", "deepseek-r1"],
        "invalid reasoning parser: deepseek-r1 (chose from { beam,",
    ),
    (&["--reasoning-ratio", "2"], "reasoning-ratio must be between 0 and 1"),
    (
        &["--enable-per-request-metrics", "--disable-log-stats"],
        "--enable-per-request-metrics requires engine statistics logging",
    ),
    (&["--data-parallel-external-lb", "--data-parallel-hybrid-lb"], "cannot be used together"),
    (
        &["--scheduler", "pool", "--latency-profile", "x.npz"],
        "the pool scheduler uses fixed delays instead of step times",
    ),
    (&["--gpu", "h100"], "--gpu needs the model's config.json"),
    (&["--latency-model", "roofline"], "requires --gpu"),
    (
        &["--max-num-batched-tokens", "4"],
        "max_num_batched_tokens (4) must be greater than or equal to max_num_seqs (5).",
    ),
    (
        &["--kv-events-config", r#"{"endpont":"x"}"#],
        "unknown key in --kv-events-config: endpont; did you mean endpoint?",
    ),
    (&["--kv-events-config", "{"], "is not JSON"),
    (&["--kv-transfer-config.kv_role", "both"], "is not one of kv_producer, kv_consumer, kv_both"),
    (
        &["--speculative-config", r#"{"method":"ngram"}"#],
        "num_speculative_tokens must be provided with speculative model unless",
    ),
    (
        &[
            "--speculative-config",
            r#"{"method":"mtp","num_speculative_tokens":2,"synthetic_acceptance_length":2}"#,
        ],
        "are only valid with rejection_sample_method='synthetic'.",
    ),
    (
        &[
            "--speculative-config",
            r#"{"method":"mtp","num_speculative_tokens":2,"rejection_sample_method":"synthetic"}"#,
        ],
        "requires exactly one of synthetic_acceptance_rates or synthetic_acceptance_length.",
    ),
    (
        &[
            "--speculative-config",
            r#"{"method":"mtp","num_speculative_tokens":2,"rejection_sample_method":"synthetic","synthetic_acceptance_rates":[0.5,0.6]}"#,
        ],
        "synthetic_acceptance_rates must be non-increasing, got [0.5,0.6].",
    ),
    (
        &[
            "--speculative-config",
            r#"{"method":"mtp","num_speculative_tokens":2,"rejection_sample_method":"synthetic","synthetic_acceptance_length":3.5}"#,
        ],
        "synthetic_acceptance_length must be in [1, 3], got 3.5.",
    ),
    (
        &[
            "--speculative-config",
            r#"{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_min":4,"prompt_lookup_max":3}"#,
        ],
        "prompt_lookup_min=4 must be <= prompt_lookup_max=3",
    ),
    (
        &["--spec-method", "ngram", "--speculative-config", r#"{"method":"ngram"}"#],
        "--spec-method and --speculative-config['method'] are mutually exclusive",
    ),
    (&["--port", "65530", "--data-parallel-size", "8"], "invalid port: 8 ranks"),
];

#[test]
fn config_errors_match_upstream_text() {
    for (words, message) in MESSAGES {
        let text = refusal(words);
        assert!(text.contains(message), "{words:?}: {text}");
    }
}

/// Fake metrics, and what the refusal says.
const FAKE: &[(&str, &str)] = &[
    (r#"{"running-requests":-10}"#, "fake metrics request counters cannot be negative"),
    (r#"{"running-requests":"foo:0:8:10s"}"#, "invalid fake metrics generation function foo"),
    (
        r#"{"waiting-requests":"squarewave:0:8:170"}"#,
        "unknown format in fake metric generation function: time: missing unit in duration",
    ),
    (
        r#"{"waiting-requests":"squarewave:0:8:0s"}"#,
        "invalid fake metrics generation parameter: period must be positive",
    ),
    (
        r#"{"waiting-requests":"rampreset:0:8"}"#,
        "need func:start:end:period in fake metric generation function",
    ),
    (r#"{"kv-cache-usage":40}"#, "fake metrics KV cache usage must be between 0 and 1"),
    (
        r#"{"kv-cache-usage":"ramp:0:-8:10s"}"#,
        "invalid fake metrics generation parameter: start and end must not be negative",
    ),
    (
        r#"{"kv-cache-usage":"ramp:0:5:10s"}"#,
        "fake metrics KV cache usage start and end must be between 0 and 1",
    ),
    (
        r#"{"ttft-buckets-values":[1,2,-10,1]}"#,
        "time-to-first-token fake metrics should contain only non-negative values",
    ),
    (
        r#"{"tpot-buckets-values":[-1]}"#,
        "time-per-output-token fake metrics should contain only non-negative values",
    ),
    (
        r#"{"ttft-buckets-values":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}"#,
        "fake time-to-first-token array is too long",
    ),
    (
        r#"{"tpot-buckets-values":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}"#,
        "fake time-per-output-token array is too long",
    ),
    (
        r#"{"request-max-generation-tokens":[1,-1,2]}"#,
        "fake metrics request-max-generation-tokens cannot contain negative values",
    ),
    (
        r#"{"e2erl-buckets-values":[-1]}"#,
        "fake metrics e2erl-buckets-values cannot contain negative values",
    ),
    (
        r#"{"prefix-cache-hits":-5,"prefix-cache-queries":10}"#,
        "fake metrics prefix-cache-hits cannot be negative",
    ),
    (
        r#"{"prefix-cache-hits":0,"prefix-cache-queries":-1}"#,
        "fake metrics prefix-cache-queries cannot be negative",
    ),
    (
        r#"{"prefix-cache-hits":100}"#,
        "fake metrics prefix-cache-hits and prefix-cache-queries must be specified together",
    ),
    (
        r#"{"prefix-cache-hits":100,"prefix-cache-queries":50}"#,
        "fake metrics prefix-cache-hits cannot exceed prefix-cache-queries",
    ),
    (
        r#"{"request-success-total":{"finished":1}}"#,
        "invalid finish reason in request-success-total",
    ),
    ("[1]", "is not a JSON object"),
    (r#"{"running-requests":[]}"#, "fake metrics running-requests must be a number or a function"),
    (r#"{"ttft-buckets-values":[1.5]}"#, "must be an array of counts, not of 1.5"),
    (r#"{"request-success-total":{"stop":-2}}"#, "request-success-total.stop cannot be negative"),
    (r#"{"loras":[7]}"#, "fake metrics loras must be a list of"),
    (r#"{"loras":[{"running":7}]}"#, "fake metrics loras must be a list of"),
    (r#"{"loras":["{\"timestamp\":\"now\"}"]}"#, "fake metrics loras must be a list of"),
];

#[test]
fn fake_metrics_errors_match_llmd_text() {
    for (json, message) in FAKE {
        let text = refusal(&["--fake-metrics", json]);
        assert!(text.contains(message), "{json}: {text}");
    }
    let text = refusal(&["--fake-metrics", "{}", "--fake-metrics-refresh-interval", "-20s"]);
    assert!(text.contains("fake metrics refresh interval must be positive"), "{text}");
}

#[test]
fn vllms_command_line_refuses_in_vllms_words() {
    for (words, message) in [
        (
            &["--enable-auto-tool-choice"][..],
            "--enable-auto-tool-choice requires --tool-call-parser",
        ),
        (&["--enable-log-outputs"], "--enable-log-outputs requires --enable-log-requests"),
        (
            &["--kv-transfer-config", r#"{"kv_connector":"NixlConnector"}"#],
            "Please specify kv_role when kv_connector is set",
        ),
        (&["--data-parallel-rank", "2", "-dp", "2"], "data parallel rank must be between 0 and 1"),
        (&["again"], r#"unexpected word "again""#),
    ] {
        let words = [&["vllm-sim", "serve", "m"], words].concat();
        let text = try_words(&words, &[]).unwrap_err().to_string();
        assert!(text.contains(message), "{words:?}: {text}");
    }
}

#[test]
fn vllms_command_line_allows_what_only_llm_d_forbids() {
    assert_eq!(serve(&["--block-size", "256"]).engine.block_size, 256);
    assert_eq!(serve(&["--port", "0"]).server.port, 0);
    assert_eq!(serve(&["-dp", "16"]).engine.parallel.data, 16);
}

#[test]
fn an_unknown_flag_suggests_the_nearest_one() {
    for (typed, text) in [
        ("--max-num-seq-s", "unknown flag --max-num-seq-s; did you mean --max-num-seqs?"),
        (
            "--inter-token-latancy=5",
            "unknown flag --inter-token-latancy; did you mean --inter-token-latency?",
        ),
        ("--enforce-eagre", "unknown flag --enforce-eagre; did you mean --enforce-eager?"),
        ("--zzzzzzzzzz", "unknown flag --zzzzzzzzzz"),
        ("-x", "unknown flag -x"),
    ] {
        let refused = refusal(&[typed, "5"]);
        assert!(refused.starts_with(text), "{refused}");
    }
}

/// vLLM's `_verify_quantization` and `AttentionBackendEnum`; llm-d ignores the flags.
#[test]
fn names_that_vllm_does_not_know_are_refused() {
    for (flag, name, told) in [
        ("--quantization", "fp-8", "Unknown quantization method: fp-8. Must be one of ['awq', "),
        ("--quantization", "bitsandbytes", "Unknown quantization method: bitsandbytes"),
        (
            "--attention-backend",
            "NoSuch",
            "Unknown attention backend: 'NOSUCH'. Valid options are: FLASH_ATTN, ",
        ),
        ("--all2all-backend", "deepep_low_latencz", "did you mean deepep_low_latency?"),
        ("--all2all-backend", "passthrough", "one of naive, pplx, "),
    ] {
        let error = try_words(&["vllm-sim", "serve", "m", flag, name], &[]).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
        let llmd = try_words(&["vllm-sim", "--model", "m", flag, name], &[]);
        assert!(llmd.is_ok(), "{flag} {name}");
    }
    for words in [
        &["--quantization", "FP8", "--attention-backend", "auto"][..],
        &["--quantization", "bitsandbytes", "--vllm-version", "0.26"],
        &["--attention-backend", "flash_attn", "--all2all-backend", "naive"],
    ] {
        serve(words);
    }
    assert_eq!(serve(&["--quantization", "FP8"]).engine.quantization.as_deref(), Some("fp8"));
    let loaded = try_words(&["vllm-sim", "serve", "m", "-q", "torchao"], &[]).unwrap();
    let told = "--quantization torchao: no effect";
    assert!(loaded.warnings.iter().any(|text| text.contains(told)), "{:?}", loaded.warnings);
}
