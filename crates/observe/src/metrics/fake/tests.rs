use super::super::tests::TestEngine;
use super::super::{Metrics, MetricsSettings, UnixClock};
use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn fake(json: &str) -> FakeMetrics {
    serde_json::from_str(json).unwrap()
}

fn settings(json: &str) -> MetricsSettings {
    MetricsSettings {
        model_name: "m".to_owned(),
        max_model_len: 1024,
        engines: vec!["0".to_owned()],
        engine_stats: true,
        fake: Some((fake(json), Duration::from_millis(100))),
        lora: Some(1),
        legacy: true,
        clock: UnixClock(|| 1000.0),
        ..MetricsSettings::default()
    }
}

fn server(json: &str) -> Arc<Metrics> {
    Metrics::new(settings(json))
}

fn text(metrics: &Metrics, now: f64) -> String {
    let mut out = String::new();
    metrics.encode_page(&mut out, now);
    out
}

fn value(text: &str, start: &str) -> String {
    let start = format!("vllm:{start}");
    let line = text.lines().find(|l| l.starts_with(&start));
    line.and_then(|l| l.rsplit(' ').next()).unwrap_or("-").to_owned()
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
            "loras":[{"running":"lora1,lora2","waiting":"lora3","timestamp":1257894567},
                     {"running":"lora1","timestamp":1257894569}]}"#,
    );
    let before = text(&metrics, 1000.0);
    let mut engine = TestEngine::new(&metrics, 0);
    engine.schedule(250, 0, 0);
    engine.tokens(500, 1, 0);
    engine.tokens(600, 4, 100);
    engine.stats(1, 2, 3);
    let after = text(&metrics, 1001.0);

    for (series, expected) in [
        ("num_requests_running{", "10.0"),
        ("num_requests_waiting{", "30.0"),
        (r#"num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"}"#, "30.0"),
        ("kv_cache_usage_perc{", "0.4"),
        ("gpu_cache_usage_perc{", "0.4"),
        (r#"time_to_first_token_seconds_bucket{engine="0",le="0.005","#, "3.0"),
        ("time_to_first_token_seconds_count{", "6.0"),
        ("inter_token_latency_seconds_count{", "6.0"),
        ("time_per_output_token_seconds_count{", "6.0"),
        ("prompt_tokens_total{", "200.0"),
        ("generation_tokens_total{", "67890.0"),
        ("prefix_cache_hits_total{", "750.0"),
        ("prefix_cache_queries_total{", "2000.0"),
        ("gpu_prefix_cache_hit_rate{", "0.375"),
        (r#"request_success_total{engine="0",finished_reason="stop""#, "20.0"),
        (r#"request_success_total{engine="0",finished_reason="tool_calls""#, "0.0"),
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
    // Series that cannot be faked stay real.
    assert_eq!(value(&after, "prompt_tokens_by_source_total{"), "100.0");
}

#[test]
fn an_update_changes_what_it_names_and_clears_what_is_empty() {
    let metrics = server(
        r#"{"running-requests":1,"kv-cache-usage":0.5,"ttft-buckets-values":[4],
            "total-prompt-tokens":9,"request-success-total":{"stop":1,"length":2}}"#,
    );
    let update = |json| metrics.update_fake_metrics(&fake(json));
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
        value(&shown, r#"request_success_total{engine="0",finished_reason="length""#),
        "0.0"
    );
}

#[test]
fn a_moving_value_starts_when_it_is_set() {
    static NOW: AtomicU64 = AtomicU64::new(1000);
    let mut s = settings(r#"{"running-requests":"ramp:0:10:10s","waiting-requests":7}"#);
    s.clock = UnixClock(|| NOW.load(Ordering::Relaxed) as f64);
    let metrics = Metrics::new(s);
    assert_eq!(value(&text(&metrics, 1003.55), "num_requests_running{"), "3.0");
    NOW.store(1100, Ordering::Relaxed);
    let update = fake(r#"{"waiting-requests":"squarewave:1:2:4s"}"#);
    metrics.update_fake_metrics(&update).unwrap();
    let shown = text(&metrics, 1102.0);
    assert_eq!(value(&shown, "num_requests_running{"), "10.0");
    assert_eq!(value(&shown, "num_requests_waiting{"), "2.0");
}

#[test]
fn real_metrics_cannot_be_updated() {
    let mut s = settings("{}");
    s.fake = None;
    let metrics = Metrics::new(s);
    let refused = metrics.update_fake_metrics(&FakeMetrics::default());
    assert_eq!(refused, Err(FakeMetricsDisabled));
}
