//! Settings without effect, values that fail later, and what is refused at start.

use super::try_words;

fn warned(words: &[&str]) -> String {
    try_words(&[&["vllm-sim"], words].concat(), &[]).unwrap().warnings.join("\n")
}

fn refused(words: &[&str]) -> String {
    try_words(&[&["vllm-sim"], words].concat(), &[]).unwrap_err().to_string()
}

/// Flags that act only with another setting, and the flag that they need.
const REQUIREMENTS: &[(&[&str], &str)] = &[
    (&["--reasoning-ratio", "0.5"], "no --reasoning-parser"),
    (&["--lora-load-time", "5s"], "--enable-lora"),
    (&["--max-cpu-loras", "4"], "--enable-lora"),
    (&["--allow-runtime-lora-updating"], "--enable-lora"),
    (&["--strict-replies"], "--replies"),
    (&["--ready-check-idle-timeout", "5s"], "--preview readiness"),
    (&["--fingerprint-value", "x"], "--fingerprint-mode"),
    (&["--request-history-bodies"], "--request-history is 0"),
    (&["--kv-event-topic", "x"], "no KV events are published"),
    (&["--event-batch-size", "4"], "no KV events are published"),
    (&["--num-labels", "5", "--runner", "pooling", "--convert", "embed"], "--convert classify"),
    (&["--kv-cache-metrics-sample", "0.5"], "--kv-cache-metrics"),
    (&["--max-log-len", "9"], "--enable-log-requests"),
    (&["--otlp-traces-protocol", "grpc"], "--otlp-traces-endpoint"),
    (&["--allow-credentials"], "--allowed-origins"),
    (&["--allowed-methods", "[\"GET\"]"], "--allowed-origins"),
    (&["--dataset-in-memory"], "--dataset-path"),
    (&["--data-parallel-address", "10.0.0.1"], "--headless"),
    (&["--data-parallel-supervisor-port", "9300"], "--data-parallel-multi-port-external-lb"),
    (&["--time-to-generate-image", "1s"], "--omni"),
    (&["--enforce-eager"], "--gpu"),
    (&["--ssl-cert-reqs", "2"], "it speaks plain HTTP"),
    (&["--enable-ssl-refresh"], "--ssl-certfile"),
];

#[test]
fn a_flag_that_needs_another_setting_is_named() {
    for (words, reason) in REQUIREMENTS {
        let text = warned(&[&["serve", "m"], *words].concat());
        let named = format!("{}: no effect because", words[0]);
        let line = text.lines().find(|line| line.contains(&named));
        assert!(line.is_some_and(|line| line.contains(reason)), "{words:?}: {text}");
    }
    for words in [
        &["--reasoning-ratio", "0.5", "--reasoning-parser", "deepseek_r1"][..],
        &["--enable-lora", "--max-cpu-loras", "4", "--lora-load-time", "5s"],
        &["--no-strict-replies", "--no-request-history-bodies"],
        &["--fingerprint-value", "x", "--fingerprint-mode", "custom"],
        &["--allow-credentials", "--allowed-origins", "[\"*\"]"],
    ] {
        assert_eq!(warned(&[&["serve", "m"], words].concat()), "", "{words:?}");
    }
    assert_eq!(warned(&["sglang", "--model-path", "m"]), "");
    let text = warned(&["--model", "m", "--zmq-endpoint", "tcp://127.0.0.1:5999"]);
    assert!(text.contains("--zmq-endpoint: no effect because no KV events"), "{text}");
}

#[test]
fn kv_events_that_stay_off_are_warned_about() {
    let off = "KV cache events are disabled, but the scheduler is configured to publish them.";
    let uncached = "KV cache events are on, but prefix caching is not enabled.";
    let on = r#"{"enable_kv_cache_events":true,"publisher":"zmq"}"#;
    for (words, told) in [
        (&["serve", "m", "--kv-events-config", r#"{"publisher":"zmq"}"#][..], off),
        (&["serve", "m", "--no-enable-prefix-caching", "--kv-events-config", on], uncached),
        (&["--model", "m", "--kv-events-config", on], uncached),
        (
            &["sglang", "--model-path", "m", "--disable-radix-cache", "--kv-events-config", on],
            "--kv-events-config: no effect because the radix cache is disabled",
        ),
    ] {
        let text = warned(words);
        assert!(text.contains(told), "{words:?}: {text}");
    }
    assert_eq!(warned(&["serve", "m", "--kv-events-config", on]), "");
}

#[test]
fn values_that_fail_later_are_warned_about() {
    for (words, told) in [
        (&["--chat-template", "{{ bad"][..], "--chat-template does not compile: "),
        (&["--chat-template", "{% for %}"], "gets HTTP 400"),
        (
            &["--override-generation-config", r#"{"temperature":-5}"#],
            "--override-generation-config.temperature: -5 is not a number of at least 0",
        ),
        (
            &["--override-generation-config", r#"{"max_new_tokens":"abc"}"#],
            r#"max_new_tokens: "abc" is not a whole number of at least 1"#,
        ),
        (
            &["--override-generation-config", r#"{"top_pp":0.5}"#],
            "--override-generation-config.top_pp: no effect because",
        ),
        (&["--generation-config", "nosuch"], "--generation-config nosuch: no effect because"),
        (&["--limit-mm-per-prompt", r#"{"nosuch":1}"#], "only image, audio and video"),
    ] {
        let text = warned(&[&["serve", "m"], words].concat());
        assert!(text.contains(told), "{words:?}: {text}");
    }
    let good = r#"{"temperature":0.5,"top_p":1,"top_k":-1,"max_new_tokens":5}"#;
    assert_eq!(warned(&["serve", "m", "--override-generation-config", good]), "");
    assert_eq!(warned(&["serve", "m", "--chat-template", "{{ messages }}"]), "");
}

#[test]
fn values_that_cannot_be_honoured_are_refused() {
    let transfer =
        |more: &str| format!(r#"{{"kv_connector":"NixlConnector","kv_role":"kv_both",{more}}}"#);
    for (words, told) in [
        (
            ["--kv-transfer-config", &transfer(r#""kv_load_failure_polcy":"recompute""#)],
            "unknown key in --kv-transfer-config: kv_load_failure_polcy; did you mean \
             kv_load_failure_policy?",
        ),
        (
            ["--kv-transfer-config", &transfer(r#""kv_rank":0"#)],
            "unknown key in --kv-transfer-config: kv_rank",
        ),
        (
            ["--kv-transfer-config", &transfer(r#""kv_buffer_size":"abc""#)],
            r#"--kv-transfer-config.kv_buffer_size: "\"abc\"" is not a number"#,
        ),
        (["--kv-transfer-config", &transfer(r#""kv_port":"x""#)], "--kv-transfer-config.kv_port"),
        (
            ["--lora-modules", r#"{"name":"a"}"#],
            r#"Invalid fields for --lora-modules: {"name":"a"} - the field "path" is missing"#,
        ),
        (
            ["--lora-modules", r#"{"name":"a","path":"/tmp","nosuch":1}"#],
            r#"unknown field "nosuch""#,
        ),
        (["--limit-mm-per-prompt", r#"{"image":-1}"#], "is not a whole number of at least 0"),
        (["--ssl-ca-certs", "/nosuch"], "no such file (--ssl-ca-certs is \"/nosuch\""),
        (
            ["--kv-events-config", r#"{"endpoint":"tcp://*:99999"}"#],
            "is not an endpoint with a port of at most 65535",
        ),
    ] {
        let text = refused(&[&["serve", "m"], &words[..]].concat());
        assert!(text.contains(told), "{words:?}: {text}");
    }
    let older = ["--vllm-version", "0.31", "--kv-transfer-config", &transfer(r#""kv_rank":0"#)];
    try_words(&[&["vllm-sim", "serve", "m"], &older[..]].concat(), &[]).unwrap();
    let lenient = ["--model", "m", "--kv-transfer-config", &transfer(r#""nosuch":1"#)];
    assert!(warned(&lenient).contains("unknown key in --kv-transfer-config: nosuch"));
}

#[test]
fn errors_of_sglangs_command_line_name_its_flags() {
    for (words, told) in [
        (&["--max-loras-per-batch", "0"][..], "--max-loras-per-batch is"),
        (&["--mem-fraction-static", "1.5"], "--mem-fraction-static"),
        (&["--context-length", "0"], "--context-length is"),
        (&["--chunked-prefill-size", "x"], "--chunked-prefill-size: \"x\""),
    ] {
        let text = refused(&[&["sglang", "--model-path", "m"], words].concat());
        assert!(text.contains(told), "{words:?}: {text}");
    }
    assert_eq!(warned(&["sglang", "--model-path", "m", "--chunked-prefill-size", "0"]), "");
    let text = refused(&["sglang", "--port", "18110"]);
    assert_eq!(text, "the following arguments are required: --model-path/--model");
}
