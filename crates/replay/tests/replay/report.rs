//! Tests reports of replays: summaries, tables, rows and comparisons.

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use vllm_sim_engine::SimTime;
use vllm_sim_replay::load::{self, WorkloadFormat};
use vllm_sim_replay::outcome::{
    AdmissionOutcome, PoolRole, ReplaySink, RequestOutcome, RequestOutcomeFacts, RequestStatus,
    WorkerSample,
};
use vllm_sim_replay::report::{
    KeptRequestRecords, LatencySlo, PerUserRateSamples, ReplayReport, ReplayReportGroup,
    ReplayRunTotals, ReportCollector, ReportOptions, RequestRowWriter, RowFileFormat,
    compare_report_groups,
};

fn at(ms: u64) -> SimTime {
    SimTime::from_millis(ms)
}

/// Reports a request that arrived at `arrival` and received its tokens at `tokens`, all in ms.
fn end(
    sink: &mut dyn ReplaySink,
    number: u64,
    arrival: u64,
    tokens: &[u64],
    status: RequestStatus,
) {
    let admissions = [AdmissionOutcome {
        at: at(arrival),
        reused: 16,
        host: None,
        again: false,
        pool: PoolRole::Serving,
    }];
    sink.on_request_finished(&RequestOutcome {
        facts: RequestOutcomeFacts {
            session: number,
            number,
            arrival: at(arrival),
            ended: at(tokens.last().copied().unwrap_or(arrival)),
            status,
            input: 64,
            requested: tokens.len() as u32,
            output: tokens.len() as u32,
            first: tokens.first().map(|ms| at(*ms)),
            second: tokens.get(1).map(|ms| at(*ms)),
            last: tokens.last().map(|ms| at(*ms)),
            worker: Some(number as u32 % 2),
            ..RequestOutcomeFacts::default()
        },
        admissions: &admissions,
        error: (status == RequestStatus::Failed).then_some("went, \"away\""),
        ..RequestOutcome::default()
    });
    for pair in tokens.windows(2) {
        sink.on_token_gaps((pair[1] - pair[0]) * 1_000_000, 1);
    }
}

fn facts(requests: u64) -> ReplayRunTotals {
    ReplayRunTotals {
        prefill_tokens: None,
        requests,
        prefill_worker_seconds: 0.0,
        decode_worker_seconds: None,
        workers: 2,
        gpus: (0, 4),
    }
}

fn run(slo: LatencySlo) -> ReplayReport {
    let mut collector = ReportCollector::new(ReportOptions { slo, ..ReportOptions::default() });
    end(&mut collector, 1, 100, &[150, 160, 180], RequestStatus::Completed);
    end(&mut collector, 0, 0, &[20, 30, 50, 90], RequestStatus::Completed);
    end(&mut collector, 2, 120, &[], RequestStatus::Rejected);
    end(&mut collector, 3, 130, &[140], RequestStatus::Failed);
    for i in 0..5000 {
        collector.on_worker_sample(&WorkerSample {
            at: at(i),
            worker: (i % 2) as u32,
            pool: PoolRole::Serving,
            running: 3,
            waiting: (i / 2 % 2) as u32,
            kv_usage: 0.5,
            kv_blocks: 100,
            preemptions: i,
        });
    }
    collector.into_report(&facts(5))
}

#[test]
fn report_totals_match_outcomes() {
    let report = run(LatencySlo { ttft_ms: Some(30.0), ..LatencySlo::default() });
    for (key, value) in [
        ("num_requests", 5.0),
        ("completed_requests", 2.0),
        ("rejected_requests", 1.0),
        ("failed_requests", 1.0),
        ("incomplete_requests", 1.0),
        ("total_input_tokens", 128.0),
        ("total_output_tokens", 7.0),
        ("duration_ms", 180.0),
        ("mean_ttft_ms", 35.0),
        ("median_ttft_ms", 50.0),
        ("mean_e2e_latency_ms", 85.0),
        ("mean_itl_ms", 20.0),
        ("max_itl_ms", 40.0),
        ("p99_tpot_ms", 70.0 / 3.0),
        ("prefix_cache_reused_ratio", 0.25),
        ("committed_prefill_tokens", 96.0),
        ("goodput_completed_requests", 1.0),
        ("slo_attainment", 0.2),
        ("decode_worker_seconds", 0.36),
        ("gpu_hours", 0.36 * 4.0 / 3600.0),
    ] {
        let found = report.summary[key].as_f64().expect(key);
        assert!((found - value).abs() < 1e-9, "{key}: {found}, not {value}");
    }
    let arrivals: Vec<f64> = report.request_records().map(|r| r.arrival_time_ms).collect();
    assert_eq!(arrivals, [0.0, 100.0, 120.0, 130.0]);
    let track = &report.timeline.tracks[0];
    assert!(track.points.len() <= 1024, "bounded: {}", track.points.len());
    assert!((track.points[9].waiting - 0.5).abs() < 0.26, "averages");
    assert_eq!(report.curves[0].1.last(), Some(&50.0));
}

#[test]
fn multi_token_steps_raise_per_user_rate() {
    let rate = |tokens: &[u64], user_rate| {
        let mut collector =
            ReportCollector::new(ReportOptions { user_rate, ..ReportOptions::default() });
        end(&mut collector, 0, 0, tokens, RequestStatus::Completed);
        collector.into_report(&facts(1)).summary_number("mean_output_token_throughput_per_user")
    };
    let (slow, fast) = ([10, 20, 30, 40, 50], [10, 20, 20, 30, 30]);
    let per_request = [&slow, &fast].map(|tokens| rate(tokens, PerUserRateSamples::PerRequest));
    assert_eq!(per_request, [100.0, 200.0]);
    let per_gap = [&slow, &fast].map(|tokens| rate(tokens, PerUserRateSamples::PerGap));
    assert_eq!(per_gap, [100.0, 100.0]);
}

#[test]
fn report_has_dynamo_keys() {
    let json = serde_json::to_value(run(LatencySlo::default())).expect("is JSON");
    let peers = include_str!("../../../../tests/golden/report_keys.json");
    let peers: Value = serde_json::from_str(peers).expect("is JSON");
    for part in ["summary", "per_request"] {
        let ours = match part {
            "summary" => &json[part],
            _ => &json[part][0],
        };
        for key in peers[part].as_array().expect("is a list") {
            let key = key.as_str().expect("is a name");
            assert!(ours.get(key).is_some(), "{part} lacks {key}");
        }
    }
    assert_eq!(json["coverage"]["per_request_records"], json!(4));
    assert!(json["summary"].get("goodput_completed_requests").is_none());
}

#[test]
fn table_has_expected_rows() {
    let report = run(LatencySlo { e2e_ms: Some(1000.0), ..LatencySlo::default() });
    let table = report.render_report_table();
    for line in [
        "│ Time to First Token (ms)                           │ 35.00 │ 20.00 │ 50.00 │ 50.00 │ 50.00 │ 50.00 │ 50.00 │ 15.00 │",
        "│ Inter Token Latency (ms)                           │ 19.17 │ 15.00 │ 23.33 │",
        "│ Output Token Throughput Per User (tokens/sec/user) │ 54.76 │ 42.86 │ 66.67 │",
        "│ Single gaps between tokens (ms)                    │ 20.00 │ 10.00 │ 40.00 │",
        "vllm-sim | LLM Metrics\n",
        "│ Request Count (requests)                           │  2.00 │   N/A │   N/A │   N/A │   N/A │   N/A │   N/A │   N/A │",
        "Prefix cache reused ratio: 0.2500",
        "Goodput (requests/sec): 11.11",
        "Rejected requests: 1",
    ] {
        assert!(table.contains(line), "{line}\nis not in\n{table}");
    }
}

/// Writer with a shared buffer.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panicked").write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        let bytes = self.0.lock().expect("nobody panicked").clone();
        String::from_utf8(bytes).expect("is text")
    }
}

#[test]
fn per_request_rows_can_be_replayed() {
    let shared = Shared::default();
    let mut rows =
        RequestRowWriter::new(Box::new(shared.clone()), RowFileFormat::Csv).expect("is written");
    end(&mut rows, 0, 0, &[20, 30, 50, 90], RequestStatus::Completed);
    end(&mut rows, 1, 7, &[9], RequestStatus::Failed);
    end(&mut rows, 2, 100, &[150, 160, 180], RequestStatus::Completed);
    rows.finish_row_file().expect("is written");
    let text = shared.text();
    assert!(text.contains(",\"went, \"\"away\"\"\"\n"), "{text}");
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = dir.path().join("rows.csv");
    std::fs::write(&path, text).expect("is written");
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("are rows");
    let seen: Vec<_> =
        runs[0].requests.iter().map(|r| (r.at_ms, r.output, r.ttft_ms, r.e2e_ms)).collect();
    assert_eq!(
        seen,
        [(Some(0.0), 4, Some(20.0), Some(90.0)), (Some(100.0), 3, Some(50.0), Some(80.0))]
    );
    let shared = Shared::default();
    let mut rows =
        RequestRowWriter::new(Box::new(shared.clone()), RowFileFormat::Jsonl).expect("is written");
    end(&mut rows, 0, 0, &[20, 30], RequestStatus::Completed);
    rows.finish_row_file().expect("is written");
    let row: Value = serde_json::from_str(&shared.text()).expect("is one line");
    assert_eq!(row["ttft_ms"], json!(20.0));
    assert!(RowFileFormat::from_file_extension("x.txt".as_ref()).is_err());
}

#[test]
fn report_can_be_replayed_as_workload() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = dir.path().join("report.json");
    let mut file = std::fs::File::create(&path).expect("is made");
    let report = run(LatencySlo::default());
    report.write_report_json(&mut file).expect("is written");
    let runs = load::read_bench_runs(&path, WorkloadFormat::Auto).expect("is a report");
    assert_eq!(runs[0].requests.len(), 2, "those that completed");
    assert_eq!(runs[0].stats.ttft_mean, Some(35.0));
}

#[test]
fn comparison_lists_each_metric_change() {
    let report = serde_json::to_value(run(LatencySlo::default())).expect("is JSON");
    let mut other = report.clone();
    other["summary"]["mean_ttft_ms"] = json!(70.0);
    other["summary"]["request_throughput_rps"] = json!(22.222);
    let compare = |other: &Value| {
        let group = |name: &str, report: &Value| ReplayReportGroup {
            name: name.to_owned(),
            reports: vec![report.clone()],
        };
        compare_report_groups(&[group("a.json", &report), group("b.json", other)])
    };
    let table = compare(&other).expect("are reports").render_comparison_table();
    let line = |start: &str| {
        let mut lines = table.lines().filter(|line| line.contains(start));
        let line = lines.next().expect(start);
        line.split('│').map(str::trim).collect::<Vec<_>>().join("|")
    };
    assert_eq!(line("TTFT mean"), "|TTFT mean (ms)|35.00|70.00|+35.00|+100.0|worse|");
    assert!(line("Request throughput").ends_with("|better|"));
    assert_eq!(line("E2E mean"), "|E2E mean (ms)|85.00|85.00|0.00|+0.0|=|");
    let error = compare(&json!({"a": 1})).expect_err("is none");
    assert_eq!(error, "b.json is not a report: it has no summary");
}

#[test]
fn empty_run_reports_zeros() {
    let report = ReportCollector::new(ReportOptions::default()).into_report(&facts(0));
    assert_eq!(report.summary_number("mean_ttft_ms"), 0.0);
    assert_eq!(report.summary_number("request_throughput_rps"), 0.0);
    assert!(report.render_report_table().contains("N/A"));
}

#[test]
fn records_are_omitted_above_request_limit() {
    let of = |requests: u64| {
        let mut collector = ReportCollector::new(ReportOptions {
            records: KeptRequestRecords::Below(3),
            ..ReportOptions::default()
        });
        for n in 0..requests {
            end(&mut collector, n, n, &[n + 5], RequestStatus::Completed);
        }
        let report = collector.into_report(&facts(requests));
        (serde_json::to_value(&report).expect("is JSON"), report.render_report_table())
    };
    let (json, table) = of(2);
    assert_eq!(json["coverage"]["per_request_records"], 2);
    assert!(!table.contains("left out"), "{table}");
    let (json, table) = of(3);
    assert_eq!(json["per_request"], json!([]));
    assert_eq!(json["coverage"]["per_request_left_out_from"], 3);
    assert_eq!(json["summary"]["completed_requests"], 3);
    assert!(table.contains("left out from 3 requests on"), "{table}");
}
