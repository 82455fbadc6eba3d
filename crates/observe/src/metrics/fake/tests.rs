use super::super::{Metrics, Settings};
use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn settings(json: &str) -> Settings {
    Settings {
        model_name: "m".to_owned(),
        fake: Some((Fake::parse(json).unwrap(), Duration::from_millis(100))),
        lora: Some(1),
        runtime_series: false,
        legacy: true,
        clock: || 1000.0,
        ..Settings::default()
    }
}

fn server(json: &str) -> Arc<Metrics> {
    Metrics::new(settings(json)).unwrap()
}

fn text(metrics: &Metrics, now: f64) -> String {
    let mut out = String::new();
    metrics.encode(&mut out, now);
    out
}

/// The number of the series that starts so.
fn value(text: &str, start: &str) -> String {
    let start = format!("vllm:{start}");
    let line = text.lines().find(|l| l.starts_with(&start));
    line.and_then(|l| l.rsplit(' ').next())
        .unwrap_or("-")
        .to_owned()
}

fn error(json: &str) -> String {
    let fake = Fake::parse(json);
    let checked = fake.and_then(|f| f.check(&Buckets::default()));
    checked.expect_err(json).to_string()
}

#[test]
fn what_is_wrong_is_said_in_upstreams_words() {
    for (json, message) in [
        (
            r#"{"running-requests":-1}"#,
            "fake metrics request counters cannot be negative",
        ),
        (
            r#"{"waiting-requests":-1}"#,
            "fake metrics request counters cannot be negative",
        ),
        (
            r#"{"kv-cache-usage":1.1}"#,
            "fake metrics KV cache usage must be between 0 and 1",
        ),
        (
            r#"{"kv-cache-usage":"ramp:0:2:1s"}"#,
            "fake metrics KV cache usage start and end must be between 0 and 1",
        ),
        (
            r#"{"running-requests":"foo:0:2:1s"}"#,
            "invalid fake metrics generation function foo, must be one of the following: \
             oscillate, ramp, rampreset, squarewave",
        ),
        (
            r#"{"running-requests":"ramp:0:2"}"#,
            "unknown format in fake metric generation function: \
             need func:start:end:period in fake metric generation function",
        ),
        (
            r#"{"running-requests":"ramp:x:2:1s"}"#,
            "unknown format in fake metric generation function: \
             strconv.ParseFloat: parsing \"x\": invalid syntax",
        ),
        (
            r#"{"running-requests":"ramp:0:2:1q"}"#,
            "unknown format in fake metric generation function: \
             time: unknown unit \"q\" in duration \"1q\"",
        ),
        (
            r#"{"running-requests":"ramp:0:2:0s"}"#,
            "invalid fake metrics generation parameter: period must be positive",
        ),
        (
            r#"{"running-requests":"ramp:-1:2:1s"}"#,
            "invalid fake metrics generation parameter: start and end must not be negative",
        ),
        (
            r#"{"ttft-buckets-values":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}"#,
            "fake time-to-first-token array is too long",
        ),
        (
            r#"{"tpot-buckets-values":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}"#,
            "fake time-per-output-token array is too long",
        ),
        (
            r#"{"ttft-buckets-values":[-1]}"#,
            "time-to-first-token fake metrics should contain only non-negative values",
        ),
        (
            r#"{"tpot-buckets-values":[-1]}"#,
            "time-per-output-token fake metrics should contain only non-negative values",
        ),
        (
            r#"{"e2erl-buckets-values":[1,-1]}"#,
            "fake metrics e2erl-buckets-values cannot contain negative values",
        ),
        (
            r#"{"prefix-cache-hits":-1,"prefix-cache-queries":1}"#,
            "fake metrics prefix-cache-hits cannot be negative",
        ),
        (
            r#"{"prefix-cache-hits":1}"#,
            "fake metrics prefix-cache-hits and prefix-cache-queries must be specified together",
        ),
        (
            r#"{"prefix-cache-hits":2,"prefix-cache-queries":1}"#,
            "fake metrics prefix-cache-hits cannot exceed prefix-cache-queries",
        ),
        (
            r#"{"request-success-total":{"stop":-2}}"#,
            "fake metrics request-success-total.stop cannot be negative, got -2",
        ),
        (
            r#"{"request-success-total":{"bored":1}}"#,
            "invalid finish reason in request-success-total: bored (valid reasons: \
             [stop length tool_calls remote_decode cache_threshold])",
        ),
    ] {
        assert_eq!(error(json), message);
    }
}

#[test]
fn a_value_of_the_wrong_kind_is_named() {
    assert!(
        error(r#"{"ttft-buckets-values":[1.5]}"#).starts_with("fake metrics ttft-buckets-values:")
    );
    assert!(error(r#"{"kv-cache-usage":[]}"#).starts_with("fake metrics kv-cache-usage:"));
    assert!(error(r#"{"loras":[7]}"#).starts_with("fake metrics loras:"));
    assert!(error("[]").starts_with("fake metrics must be a JSON object"));
    assert!(error("{").starts_with("fake metrics must be a JSON object"));
    let mut none = settings("{}");
    none.fake = Some((Fake::default(), Duration::ZERO));
    let refused = Metrics::new(none).err().map(|e| e.to_string());
    assert_eq!(
        refused.as_deref(),
        Some("fake metrics refresh interval must be positive")
    );
}

#[test]
fn fake_values_are_shown_and_traffic_does_not_move_them() {
    let metrics = server(
        r#"{"running-requests":10,"waiting-requests":30,"kv-cache-usage":0.4,
            "ttft-buckets-values":[1,2,3],"tpot-buckets-values":[0,0,1,2,3],
            "request-prompt-tokens":[10,20,30],"total-generation-tokens":67890,
            "request-generation-tokens":[1],
            "request-success-total":{"stop":20},
            "prefix-cache-hits":750,"prefix-cache-queries":2000,
            "loras":["{\"running\":\"lora1,lora2\",\"waiting\":\"lora3\",\"timestamp\":1257894567}",
                     {"running":"lora1","timestamp":1257894569}]}"#,
    );
    let before = text(&metrics, 1000.0);
    let engine = metrics.engine(0);
    engine.on_first_token(0.5, 100, 0, 0);
    engine.on_tokens(5);
    engine.on_gap(0.1);
    engine.set_gauges(1, 2, 3, 0.9);
    engine.on_scheduled(10, 5, 0, 0);
    engine.set_lora(&[]);
    let after = text(&metrics, 1001.0);

    for (series, expected) in [
        ("num_requests_running{", "10.0"),
        ("num_requests_waiting{", "30.0"),
        (
            r#"num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"}"#,
            "30.0",
        ),
        ("kv_cache_usage_perc{", "0.4"),
        ("gpu_cache_usage_perc{", "0.4"),
        (
            r#"time_to_first_token_seconds_bucket{engine="0",le="0.005","#,
            "3.0",
        ),
        ("time_to_first_token_seconds_count{", "6.0"),
        ("inter_token_latency_seconds_count{", "6.0"),
        ("time_per_output_token_seconds_count{", "6.0"),
        ("prompt_tokens_total{", "200.0"),
        ("generation_tokens_total{", "67890.0"),
        ("prefix_cache_hits_total{", "750.0"),
        ("prefix_cache_queries_total{", "2000.0"),
        ("gpu_prefix_cache_hit_rate{", "0.375"),
        (
            r#"request_success_total{engine="0",finished_reason="stop""#,
            "20.0",
        ),
        (
            r#"request_success_total{engine="0",finished_reason="tool_calls""#,
            "0.0",
        ),
        (
            r#"lora_requests_info{max_lora="1",running_lora_adapters="lora1,lora2",waiting_lora_adapters="lora3"}"#,
            "1.257894567e+09",
        ),
        (
            r#"lora_requests_info{max_lora="1",running_lora_adapters="lora1",waiting_lora_adapters=""}"#,
            "1.257894569e+09",
        ),
    ] {
        assert_eq!(value(&before, series), expected, "{series}");
        assert_eq!(value(&after, series), expected, "{series} after traffic");
    }
    // What cannot be faked stays true.
    assert_eq!(value(&after, "prompt_tokens_by_source_total{"), "100.0");
}

#[test]
fn an_update_changes_what_it_names_and_clears_what_is_empty() {
    let metrics = server(
        r#"{"running-requests":1,"kv-cache-usage":0.5,"ttft-buckets-values":[4],
            "total-prompt-tokens":9,"request-success-total":{"stop":1,"length":2}}"#,
    );
    let update = |json| metrics.update_fake(&Fake::parse(json).unwrap());
    update(
        r#"{"running-requests":null,"kv-cache-usage":0.75,"ttft-buckets-values":[],
            "request-prompt-tokens":[0,3],"request-success-total":{}}"#,
    )
    .unwrap();
    let shown = text(&metrics, 1000.0);
    assert_eq!(value(&shown, "num_requests_running{"), "1.0");
    assert_eq!(value(&shown, "kv_cache_usage_perc{"), "0.75");
    assert_eq!(value(&shown, "time_to_first_token_seconds_count{"), "0.0");
    assert_eq!(value(&shown, "prompt_tokens_total{"), "6.0");
    assert_eq!(
        value(
            &shown,
            r#"request_success_total{engine="0",finished_reason="length""#
        ),
        "0.0"
    );

    let refused = update(r#"{"running-requests":8,"prefix-cache-hits":1}"#);
    assert_eq!(refused, Err(FakeError::HitsWithoutQueries));
    assert_eq!(
        value(&text(&metrics, 1000.0), "num_requests_running{"),
        "1.0"
    );
    let config = serde_json::to_value(metrics.fake().unwrap()).unwrap();
    assert_eq!(config["kv-cache-usage"], 0.75);
    assert_eq!(config["total-prompt-tokens"], 9);
    assert_eq!(config.get("waiting-requests"), None);
}

#[test]
fn a_moving_value_starts_when_it_is_set() {
    static NOW: AtomicU64 = AtomicU64::new(1000);
    let mut s = settings(r#"{"running-requests":"ramp:0:10:10s","waiting-requests":7}"#);
    s.clock = || NOW.load(Ordering::Relaxed) as f64;
    let metrics = Metrics::new(s).unwrap();
    assert_eq!(
        value(&text(&metrics, 1003.55), "num_requests_running{"),
        "3.0"
    );
    NOW.store(1100, Ordering::Relaxed);
    let update = Fake::parse(r#"{"waiting-requests":"squarewave:1:2:4s"}"#).unwrap();
    metrics.update_fake(&update).unwrap();
    let shown = text(&metrics, 1102.0);
    assert_eq!(value(&shown, "num_requests_running{"), "10.0");
    assert_eq!(value(&shown, "num_requests_waiting{"), "2.0");
}

#[test]
fn real_metrics_cannot_be_updated() {
    let mut s = settings("{}");
    s.fake = None;
    let metrics = Metrics::new(s).unwrap();
    assert_eq!(
        metrics.update_fake(&Fake::default()),
        Err(FakeError::RealMetrics)
    );
    assert_eq!(metrics.fake(), None);
}
