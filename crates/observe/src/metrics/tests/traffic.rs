//! Tests which series each call updates.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use vllm_sim_engine::{BlockKey, PlannedKvBlocks};

#[test]
fn several_servers_show_no_queues_before_the_first_step() {
    let m = metrics(config_d());
    TestEngine::new(&m, 1).stats(1, 2, 3);
    let reasons = series(&m, &["num_requests_running", "num_requests_waiting_by_reason"]);
    assert_eq!(
        reasons,
        [
            "num_requests_running{} 1",
            "num_requests_waiting_by_reason{capacity} 2",
            "num_requests_waiting_by_reason{deferred} 3",
        ]
    );
}

fn request(m: &Metrics) {
    let mut engine = TestEngine::new(m, 0);
    engine.schedule(250, 64, 16);
    engine.stats(1, 2, 3);
    engine.step(20, 1);
    engine.tokens(750, 1, 0);
    engine.tokens(1000, 4, 125);
    engine.event(1000, &SchedulerEvent::Preempted { id: SeqId(1) });
    engine.end(SequenceEndReason::Finished);
    m.on_request_rejected(RejectionReason::QueuedTokens);
    m.engine_metrics(0).on_mm_cache_lookup(3, 1);
    m.engine_metrics(0).set_sleep_state(SleepState::DiscardAll);
}

#[test]
fn a_request_changes_the_metrics_that_it_changes_in_vllm() {
    let m = metrics(base());
    request(&m);
    let all = [
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "engine_sleep_state",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "external_prefix_cache_queries_total",
        "external_prefix_cache_hits_total",
        "mm_cache_queries_total",
        "num_preemptions_total",
        "prompt_tokens_total",
        "prompt_tokens_by_source_total",
        "prompt_tokens_cached_total",
        "prompt_tokens_cached_by_source_total",
        "generation_tokens_total",
        "request_success_total",
        "admission_rejections_total",
    ];
    let expected = "\
num_requests_running{} 1
num_requests_waiting{} 5
num_requests_waiting_by_reason{capacity} 2
num_requests_waiting_by_reason{deferred} 3
engine_sleep_state{awake} 0
engine_sleep_state{weights_offloaded} 0
engine_sleep_state{discard_all} 1
kv_cache_usage_perc{} 0.5
prefix_cache_queries_total{} 100
prefix_cache_hits_total{} 64
external_prefix_cache_queries_total{} 36
external_prefix_cache_hits_total{} 16
mm_cache_queries_total{} 3
num_preemptions_total{} 1
prompt_tokens_total{} 100
prompt_tokens_by_source_total{local_compute} 20
prompt_tokens_by_source_total{local_cache_hit} 64
prompt_tokens_by_source_total{external_kv_transfer} 16
prompt_tokens_cached_total{} 80
prompt_tokens_cached_by_source_total{device} 64
prompt_tokens_cached_by_source_total{host} 0
prompt_tokens_cached_by_source_total{p2p} 0
prompt_tokens_cached_by_source_total{disk} 0
prompt_tokens_cached_by_source_total{external_unspecified} 16
generation_tokens_total{} 5
request_success_total{stop} 0
request_success_total{length} 1
request_success_total{abort} 0
request_success_total{error} 0
request_success_total{repetition} 0
admission_rejections_total{max_num_queued_reqs} 0
admission_rejections_total{max_num_queued_tokens} 1";
    assert_eq!(series(&m, &all), expected.lines().collect::<Vec<_>>());
}

#[test]
fn a_request_is_observed_as_in_vllm() {
    let m = metrics(base());
    request(&m);
    let all = [
        "request_prompt_tokens",
        "request_generation_tokens",
        "iteration_tokens_total",
        "request_max_num_generation_tokens",
        "request_params_n",
        "request_params_max_tokens",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "request_queue_time_seconds",
        "request_num_preemptions",
        "request_prefill_kv_computed_tokens",
    ];
    let expected = "\
request_prompt_tokens_count{} 1
request_prompt_tokens_sum{} 100
request_generation_tokens_count{} 1
request_generation_tokens_sum{} 5
iteration_tokens_total_count{} 1
iteration_tokens_total_sum{} 21
request_max_num_generation_tokens_count{} 1
request_max_num_generation_tokens_sum{} 5
request_params_n_count{} 1
request_params_n_sum{} 2
request_params_max_tokens_count{} 1
request_params_max_tokens_sum{} 16
time_to_first_token_seconds_count{} 1
time_to_first_token_seconds_sum{} 0.75
inter_token_latency_seconds_count{} 1
inter_token_latency_seconds_sum{} 0.125
request_time_per_output_token_seconds_count{} 1
request_time_per_output_token_seconds_sum{} 0.0625
request_queue_time_seconds_count{} 1
request_queue_time_seconds_sum{} 0.25
request_num_preemptions_count{} 1
request_num_preemptions_sum{} 0
request_prefill_kv_computed_tokens_count{} 1
request_prefill_kv_computed_tokens_sum{} 20";
    assert_eq!(series(&m, &all), expected.lines().collect::<Vec<_>>());
}

#[test]
fn evictions_are_observed_with_the_gaps_between_accesses() {
    let m = metrics(MetricsSettings { kv_cache_metrics: true, ..base() });
    let mut observer = KvBlockLifetimeObserver::new(m.engine_metrics(0), 1.0);
    let mut record = TestEngine::new(&m, 0).record;
    let keys = vec![BlockKey(7)];
    let plan = Arc::new(PlannedKvBlocks { keys, block_size: 16, ..PlannedKvBlocks::default() });
    let at = SimTime::from_millis;
    let stored = SchedulerEvent::Stored { plan: plan.clone(), from: 0, to: 1 };
    observer.on_engine_event(at(0), &stored);
    record.plan = Some(plan);
    let hit = SchedulerEvent::Scheduled { id: SeqId(1), cached: 16, external: 0 };
    for ms in [250, 750, 1000] {
        observer.on_sequence_event(at(ms), &hit, &record, SimTime::ZERO);
    }
    observer
        .on_engine_event(at(2000), &SchedulerEvent::Removed { keys: vec![(BlockKey(7), None)] });
    let names = [
        "kv_block_lifetime_seconds",
        "kv_block_idle_before_evict_seconds",
        "kv_block_reuse_gap_seconds",
    ];
    assert_eq!(
        series(&m, &names),
        [
            "kv_block_lifetime_seconds_count{} 1",
            "kv_block_lifetime_seconds_sum{} 2",
            "kv_block_idle_before_evict_seconds_count{} 1",
            "kv_block_idle_before_evict_seconds_sum{} 1",
            "kv_block_reuse_gap_seconds_count{} 2",
            "kv_block_reuse_gap_seconds_sum{} 0.75",
        ]
    );
}

#[test]
fn invocations_of_the_tool_parser_count_by_mode_outcome_and_request() {
    let m = metrics(MetricsSettings { tool_parser: true, ..base() });
    for _ in 0..2 {
        m.on_tool_parser_invocation(ToolParserMode::NonStreaming, true, ToolParserApi::Responses);
    }
    let tools = series(&m, &["tool_call_parser_invocations_total"]);
    let counted: Vec<&str> =
        tools.iter().map(String::as_str).filter(|s| s.ends_with(" 2")).collect();
    let expected = "tool_call_parser_invocations_total{non_streaming,tool_call,responses} 2";
    assert_eq!((tools.len(), counted), (12, vec![expected]));
}

#[test]
fn reasons_that_only_one_project_has_follow_the_project() {
    let shown = |compat| {
        let m = metrics(MetricsSettings { compat, ..base() });
        for (end, planned) in [
            (SequenceEndReason::Finished, PlannedFinishReason::ToolCalls),
            (SequenceEndReason::Finished, PlannedFinishReason::RemoteDecode),
            (SequenceEndReason::Threshold, PlannedFinishReason::Stop),
        ] {
            let mut engine = TestEngine::new(&m, 0);
            engine.record.finish = planned;
            engine.end(end);
        }
        let all = series(&m, &["request_success_total"]);
        all.into_iter().filter(|s| !s.ends_with(" 0")).collect::<Vec<_>>()
    };
    assert_eq!(
        shown(MetricsCompat::Vllm),
        [
            "request_success_total{stop} 1",
            "request_success_total{length} 1",
            "request_success_total{cache_threshold} 1",
        ]
    );
    assert_eq!(
        shown(MetricsCompat::Llmd),
        [
            "request_success_total{tool_calls,tool_calls} 1",
            "request_success_total{remote_decode,remote_decode} 1",
            "request_success_total{cache_threshold,cache_threshold} 1",
        ]
    );
}

#[test]
fn deprecated_names_have_the_values_of_the_new_names() {
    let plain = metrics(config_a());
    let old = metrics(MetricsSettings { legacy: true, ..config_a() });
    let names = |m: &Metrics| families(m).into_iter().map(|f| f.name).collect::<Vec<_>>();
    let (new_names, all_names) = (names(&plain), names(&old));
    assert_eq!(all_names[..new_names.len()], new_names);
    assert_eq!(
        all_names[new_names.len()..],
        [
            "vllm:gpu_cache_usage_perc",
            "vllm:gpu_prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hit_rate",
            "vllm:prefix_cache_queries",
            "vllm:prefix_cache_hits",
            "vllm:time_per_output_token_seconds",
            "vllm:max_num_generation_tokens",
        ]
    );
    let mut engine = TestEngine::new(&old, 0);
    engine.schedule(0, 25, 0);
    engine.stats(0, 0, 0);
    engine.tokens(0, 1, 0);
    engine.tokens(500, 1, 500);
    assert_eq!(
        series(
            &old,
            &[
                "gpu_cache_usage_perc",
                "gpu_prefix_cache_hit_rate",
                "gpu_prefix_cache_hits_total",
                "prefix_cache_hits",
                "time_per_output_token_seconds"
            ]
        ),
        [
            "gpu_cache_usage_perc{} 0.5",
            "gpu_prefix_cache_hits_total{} 25",
            "gpu_prefix_cache_hit_rate{} 0.25",
            "prefix_cache_hits{} 25",
            "time_per_output_token_seconds_count{} 1",
            "time_per_output_token_seconds_sum{} 0.5",
        ]
    );
}

#[test]
fn every_series_of_the_success_family_gets_the_second_label() {
    let m = metrics(MetricsSettings { compat: MetricsCompat::Llmd, ..base() });
    let line = "vllm:request_success_total{engine=\"0\",finish_reason=\"stop\",\
                finished_reason=\"stop\",model_name=\"tiny-llama\"} 0.0\n";
    assert!(text(&m).contains(line));
}

#[test]
fn adapters_show_under_the_settings_of_each_project() {
    let m = metrics(config_a());
    let idle = ["lora_requests_info{2,,} 1500000000"];
    assert_eq!(series(&m, &["lora_requests_info"]), idle);
    let mut engine = TestEngine::new(&m, 0);
    engine.record.lora = Some("sql-lora".into());
    engine.schedule(0, 0, 0);
    let shown = series(&m, &["lora_requests_info"]);
    assert_eq!(shown, [idle[0], "lora_requests_info{2,sql-lora,sql-lora} 1500000000"]);

    m.reset_for_restart();
    assert_eq!(series(&m, &["lora_requests_info"]), idle);

    let m = metrics(MetricsSettings { compat: MetricsCompat::Llmd, ..config_a() });
    assert_eq!(series(&m, &["lora_requests_info"]), idle);
}

#[test]
fn scrapes_in_the_middle_of_traffic_add_up() {
    const THREADS: usize = 2;
    const EACH: u32 = 2_000;
    let m = metrics(config_d());
    let done = AtomicBool::new(false);
    let scrapes = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|i| {
                let m = &m;
                scope.spawn(move || {
                    let mut engine = TestEngine::new(m, i);
                    engine.record.lora = Some("a".into());
                    engine.tokens(0, 2, 0);
                    let handler = m.http_metrics().handler_id("/v1/models").unwrap();
                    for n in 0..EACH {
                        engine.tokens(125 * u64::from(n), 2, 125 * u64::from(n));
                        m.http_metrics().observe_request(handler, "GET", 200, 1, 1, 0.5);
                        engine.event(0, &SchedulerEvent::Resumed { id: SeqId(1) });
                        engine.end(SequenceEndReason::Finished);
                    }
                })
            })
            .collect();
        let scraper = scope.spawn(|| {
            let mut scrapes = 0;
            while !done.load(Ordering::Relaxed) || scrapes == 0 {
                families(&m);
                scrapes += 1;
            }
            scrapes
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        scraper.join().unwrap()
    });
    assert!(scrapes > 0);
    let all = (THREADS as u32 * EACH) as f64;
    let total = |name: &str, suffix: &str| -> f64 {
        let families = families(&m);
        let family = families.iter().find(|f| f.name == name).unwrap();
        let samples = family.samples.iter().filter(|s| s.suffix == suffix);
        samples.map(|s| s.value).sum()
    };
    assert_eq!(total("vllm:generation_tokens_total", ""), 2.0 * (all + THREADS as f64));
    assert_eq!(total("vllm:inter_token_latency_seconds", "_count"), all);
    let gaps: f64 = (0..EACH).map(|n| f64::from(n) / 8.0).sum();
    assert_eq!(total("vllm:inter_token_latency_seconds", "_sum"), gaps * THREADS as f64);
    assert_eq!(total("http_requests_total", ""), all);
    assert_eq!(total("http_request_size_bytes", "_sum"), all);
}

#[test]
fn a_page_is_appended_to_the_buffer() {
    let m = metrics(base());
    let mut out = "before\n".to_owned();
    m.encode_page(&mut out, 1.5e9);
    assert!(out.starts_with("before\n# HELP python_gc"));
}
