//! Tests the readers of load generators' results.

use vllm_sim_replay::load::{BenchRun, MeasuredRequest, OfferedLoad};

use super::*;

#[test]
fn vllm_bench_results_give_runs_and_workload() {
    let text = r#"{"date":"x","request_rate":4.0,"burstiness":0.5,"max_concurrency":null,"num_prompts":3,"completed":2,
        "request_throughput":3.9,"total_input_tokens":30,"total_output_tokens":7,"mean_ttft_ms":1.0,
        "input_lens":[10,20,5],"output_lens":[3,4,0],"ttfts":[0.1,0.2,0.0],"itls":[[0.01,0.02],[0.1,0.1,0.1],[]]}"#;
    let (_dir, path) = file("t", text);
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("is a result");
    assert_eq!(runs.len(), 1);
    assert_eq!(
        runs[0].load,
        OfferedLoad::Drawn(ArrivalProcess::Gamma { rate: 4.0, burstiness: 0.5 })
    );
    let close = |found: Option<f64>, value: f64| {
        assert!((found.expect("is known") - value).abs() < 1e-9, "{found:?} {value}");
    };
    close(runs[0].stats.ttft_mean, 150.0);
    close(runs[0].stats.itl_mean, (15.0 + 100.0) / 2.0);
    close(runs[0].stats.e2e_mean, (130.0 + 500.0) / 2.0);
    let turns: Vec<(u32, u32)> =
        auto(text).iter().map(|s| (s.turns[0].output, s.turns.len() as u32)).collect();
    assert_eq!(turns, [(3, 1), (4, 1)]);
    let closed = r#"{"request_rate":"inf","max_concurrency":8,"completed":4,"total_input_tokens":40,
        "total_output_tokens":20,"mean_ttft_ms":10.5,"p99_ttft_ms":20,"mean_tpot_ms":3}"#;
    let (_dir, path) = file("t", closed);
    let run = load::read_bench_runs(&path, WorkloadFormat::VllmBench).expect("is a result");
    assert_eq!(run[0].load, OfferedLoad::Closed(8));
    assert_eq!((run[0].requests[3].input, run[0].requests[3].output), (10, 5));
    close(run[0].stats.ttft_p99, 20.0);
    let source =
        load::open_workload_files(&[path], &WorkloadReadOptions::default()).expect("is a workload");
    assert_eq!(source.facts().recorded_concurrency, Some(8));
}

#[test]
fn reports_of_guidellm_and_inference_perf_are_read() {
    let guidellm = r#"{"metadata":{},"benchmarks":[{"config":{"strategy":{"type_":"strategy","kind":"concurrent","streams":4}},
        "requests":{"errored":[],"successful":[
        {"prompt_tokens":10,"output_tokens":3,"info":{"timings":{"request_start":100.0,"first_token_iteration":100.25,"request_end":101.0}}},
        {"prompt_tokens":12,"output_tokens":5,"request_start_time":100.5,"request_end_time":101.5,"time_to_first_token_ms":125.0}]}}]}"#;
    let (_dir, path) = file("t", guidellm);
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("is a report");
    assert_eq!(runs[0].load, OfferedLoad::Closed(4));
    let seen: Vec<_> = runs[0]
        .requests
        .iter()
        .map(|r| (r.at_ms, r.input, r.output, r.ttft_ms, r.e2e_ms))
        .collect();
    assert_eq!(
        seen,
        [
            (Some(0.0), 10, 3, Some(250.0), Some(1000.0)),
            (Some(500.0), 12, 5, Some(125.0), Some(1000.0))
        ]
    );
    let perf = r#"[{"start_time":5.0,"end_time":6.0,"request":"{\"max_tokens\":9,\"ignore_eos\":true}","info":{"input_tokens":7,"output_tokens":6,"output_token_times":[5.5,6.0]},"error":null},
        {"start_time":5.5,"end_time":6.0,"info":{"input_tokens":7,"output_tokens":0},"error":{"error_type":"x"}}]"#;
    let (_dir, path) = file("t", perf);
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("is a report");
    assert_eq!(runs[0].requests.len(), 1);
    assert_eq!(runs[0].requests[0].output, 9, "what was asked, not what was re-counted");
    assert_eq!(runs[0].requests[0].ttft_ms, Some(500.0));
    let stage = r#"{"load_summary":{"count":10,"requested_rate":5.0,"achieved_rate":4.0},
        "successes":{"count":10,"latency":{"request_latency":{"mean":1.1,"p99":2.0},"time_to_first_token":{"mean":0.1}},
        "prompt_len":{"mean":100.2},"output_len":{"mean":11}},"failures":{}}"#;
    let (_dir, path) = file("t", stage);
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("is a stage");
    assert_eq!(runs[0].rates, Some((5.0, 4.0)));
    assert_eq!(runs[0].send_times_ms(1)[9], 1800.0);
    let itl = runs[0].stats.itl_mean.expect("is known");
    assert!((itl - 100.0).abs() < 1e-9, "{itl}");
}

#[test]
fn records_of_aiperf_are_read() {
    let path = result("aiperf-0.13.0.jsonl");
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("are records");
    assert_eq!((runs.len(), runs[0].load), (1, OfferedLoad::Times));
    // Warm-up, failed and cancelled requests are skipped.
    assert_eq!(measured(&runs[0]), [(553, 32, 1_825, 24_580), (512, 32, 2_014, 25_010)]);
    assert_eq!(runs[0].send_times_ms(1), [0.0, 250.0]);
    let text = std::fs::read_to_string(&path).expect("can be read");
    let (_dir, path) = file("t", &text.replace("\"ms\"", "\"weeks\""));
    let error = load::read_bench_runs(&path, WorkloadFormat::Auto).expect_err("is no unit");
    assert!(
        error
            .to_string()
            .ends_with("metrics.time_to_first_token.unit is \"weeks\", must be ns, us, ms or s"),
        "{error}"
    );
}

#[test]
fn points_of_inferencex_are_closed_loops_of_one_deployment() {
    let point = |tp: u32, places: u32| {
        format!(
            r#"{{"system":"h100_sxm","model":"m","precision":"fp8","vllm":"0.19.0","isl":1000,"osl":100,"concurrency":{places},"tp":{tp},"pp":1,"attention_dp":1,"ttft_ms":50.0,"tpot_ms":12.5}}"#
        )
    };
    let (_dir, path) = file("t", &[point(2, 4), point(2, 8)].join("\n"));
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("are points");
    assert_eq!(runs[1].load, OfferedLoad::Closed(8));
    assert_eq!(runs[1].requests.len(), 40);
    assert_eq!(runs[1].stats.itl_mean, Some(12.5));
    assert_eq!(runs[1].stats.ttft_mean, None);
    let mut lengths = runs[1].requests.iter().map(|r| (r.input, r.output));
    assert!(lengths.all(|(i, o)| (800..=1000).contains(&i) && (80..=100).contains(&o)));
    let (_dir, path) = file("t", &[point(2, 4), point(4, 8)].join("\n"));
    let error =
        load::read_bench_runs(&path, WorkloadFormat::Auto).expect_err("are two deployments");
    assert!(
        error
            .to_string()
            .contains(":2: tp is 4, that of the first point 2: keep the points of one deployment"),
        "{error}"
    );
}

fn result(name: &str) -> PathBuf {
    let tests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests"));
    tests.join("fixtures/results").join(name)
}

/// Prompt, output, TTFT and E2E, the times in units of 0.01 ms.
fn measured(run: &BenchRun) -> Vec<(u32, u32, u64, u64)> {
    let hundredths = |ms: Option<f64>| (ms.expect("is known") * 100.0).round() as u64;
    let requests = run.requests.iter();
    requests.map(|r| (r.input, r.output, hundredths(r.ttft_ms), hundredths(r.e2e_ms))).collect()
}

#[test]
fn a_report_that_guidellm_wrote_is_read() {
    let path = result("guidellm-0.8.1.json");
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("is a report");
    assert_eq!(runs[0].load, OfferedLoad::Closed(3));
    assert_eq!(runs[1].load, OfferedLoad::Times);
    let mut first = measured(&runs[0]);
    first.sort_unstable();
    assert_eq!(
        first,
        [
            (25, 17, 2358, 13292),
            (26, 11, 3275, 10797),
            (28, 15, 2202, 11829),
            (32, 10, 3186, 10255),
            (32, 13, 1221, 10449),
        ]
    );
    let lengths: Vec<_> = runs[1].requests.iter().map(|r| (r.input, r.output)).collect();
    assert_eq!(lengths.len(), 3);
    assert!(lengths.iter().all(|(_, output)| *output == 16), "{lengths:?}");
    let source =
        load::open_workload_files(&[path], &WorkloadReadOptions::default()).expect("is a workload");
    assert_eq!(all(source).len(), 8);
}

#[test]
fn sampled_replay_report_is_rejected() {
    let text = fs::read_to_string(result("guidellm-0.8.1.json")).expect("is there");
    let sampled = text.replacen("\"successful\":5,", "\"successful\":5000,", 1);
    let (_dir, path) = file("t", &sampled);
    let error = load::read_bench_runs(&path, WorkloadFormat::Auto).expect_err("is a sample");
    assert!(error.to_string().contains("requests.successful holds 5 of 5000"), "{error}");
}

#[test]
fn reports_of_inference_perf_are_read() {
    let read = |name: &str| load::read_bench_runs(&result(name), WorkloadFormat::Auto);
    let runs = read("inference-perf-0.7.0-requests.json").expect("are requests");
    assert_eq!(
        measured(&runs[0]),
        [
            // Output tokens as counted by the server; the client counted 42, 36, 60, 24, 14 and 35.
            (64, 14, 10345, 16097),
            (29, 19, 914, 13182),
            (38, 22, 962, 15209),
            (31, 22, 936, 15198),
            (106, 11, 936, 7790),
            (93, 21, 938, 14559),
        ]
    );
    assert_eq!(runs[0].load, OfferedLoad::Times);
    let stage = &read("inference-perf-0.7.0-stage.json").expect("is a stage")[0];
    let spread = |of: fn(&MeasuredRequest) -> u32| {
        let values = stage.requests.iter().map(of);
        let (least, most) = (values.clone().min(), values.clone().max());
        (values.len(), least, most, values.sum::<u32>())
    };
    let (count, least, most, sum) = spread(|r| r.input);
    assert_eq!(count, 18);
    assert!(least < Some(26) && most > Some(150), "{least:?} {most:?}");
    assert!(sum.abs_diff(961) <= 9, "{sum}");
    let (_, least, most, sum) = spread(|r| r.output);
    assert!(least < Some(13) && most == Some(22), "{least:?} {most:?}");
    assert!(sum.abs_diff(311) <= 9, "{sum}");
    // E2E without TTFT, divided by 16.3 gaps; the report divides by re-tokenised counts and has 3.8
    // ms.
    let itl = stage.stats.itl_mean.expect("is known");
    assert!((itl - 6.94).abs() < 0.05, "{itl}");
    let error = read("inference-perf-0.7.0-summary.json").expect_err("is no stage");
    assert!(error.to_string().contains("summary of all stages"), "{error}");
}

#[test]
fn rows_of_requests_share_prefixes() {
    let text = "arrival_s,prompt_tokens,cached_tokens,output_tokens,ttft_ms,e2e_ms,prefix_id\n\
                10,100,64,5,20,30,a\n11,100,64,5,,,a\n10.5,100,64,5,20,30,b\n";
    let sessions = auto(text);
    let first = |i: usize| match &sessions[i].turns[0].prompt {
        TurnPrompt::Whole(runs) => runs[0],
        TurnPrompt::Grown(_) => unreachable!("they are whole"),
    };
    assert_eq!(first(0).len, 64);
    assert_eq!(first(0), first(2));
    assert_ne!(first(0), first(1));
    assert_eq!(sessions[2].start, SimTime::from_millis(1000));
}
