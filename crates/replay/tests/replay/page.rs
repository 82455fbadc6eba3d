//! Tests the HTML page of a replay. `PAGE_OUT=dir cargo test --test page` keeps the pages.

use std::time::Duration;

use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;
use vllm_sim_replay::html::{escape_html, render_report_page};
use vllm_sim_replay::report::{
    KeptRequestRecords, LatencySlo, ReplayReport, ReplayRunTotals, ReportCollector, ReportOptions,
    RequestPhase,
};
use vllm_sim_replay::synth::{ArrivalProcess, SyntheticWorkload, TokenLengthDistribution};
use vllm_sim_replay::{PoolSpec, ReplaySettings, RouterConfig, run_replay};

/// Runs a workload with queues and preemptions.
fn report(sessions: u64, workers: u32) -> ReplayReport {
    let engine = VllmSchedulerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(60),
            decode: Duration::from_millis(12),
        },
        num_gpu_blocks: 2000,
        max_num_seqs: 48,
        ..VllmSchedulerConfig::default()
    };
    let settings = ReplaySettings {
        seed: 1,
        sample_every: Some(Duration::from_millis(100)),
        ..ReplaySettings::new(PoolSpec::new(
            SchedulerSpec::Vllm(Box::new(engine)),
            workers,
            RouterConfig::RoundRobin,
        ))
    };
    let mut source = SyntheticWorkload {
        sessions,
        input: "lognormal:700:500".parse().expect("is known"),
        output: TokenLengthDistribution::Uniform(50, 300),
        arrivals: ArrivalProcess::Gamma { rate: 30.0, burstiness: 0.4 },
        shared_prefix_ratio: 0.3,
        prefix_groups: 8,
        ..SyntheticWorkload::default()
    }
    .into_source()
    .expect("makes sense");
    let mut collector = ReportCollector::new(ReportOptions {
        slo: LatencySlo { ttft_ms: Some(500.0), ..LatencySlo::default() },
        records: KeptRequestRecords::None,
        drawn_requests: 2000,
        ..ReportOptions::default()
    });
    let totals = run_replay(&settings, &mut source, &mut collector).expect("is played");
    collector.into_report(&ReplayRunTotals {
        prefill_tokens: None,
        requests: totals.requests,
        prefill_worker_seconds: 0.0,
        decode_worker_seconds: Some(totals.worker_seconds),
        workers,
        gpus: (0, 1),
    })
}

fn keep(name: &str, html: &str) {
    if let Ok(dir) = std::env::var("PAGE_OUT") {
        std::fs::write(format!("{dir}/{name}.html"), html).expect("is written");
    }
}

/// Checks that every element is closed, in order.
fn balanced(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let script = html.find("<script>").expect("there is one");
    let rest = html[..script].split('<').skip(1);
    for tag in rest.filter(|tag| !tag.starts_with('!')) {
        let name: &str = tag.split([' ', '>', '/']).find(|part| !part.is_empty()).unwrap_or("");
        let head = tag.split('>').next().unwrap_or("");
        if let Some(closed) = tag.strip_prefix('/') {
            let closed = closed.split('>').next().unwrap_or("");
            assert_eq!(open.pop(), Some(closed), "closed at {head:?}");
        } else if !head.ends_with('/') && !["meta", "link"].contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, ["html", "body"], "what is still open before the script");
}

#[test]
fn a_page_is_self_contained_and_shows_the_run() {
    let report = report(600, 4);
    let about = [("model".to_owned(), "a <b> & \"c\"".to_owned())];
    let html = render_report_page(&report, "Four workers <1>", &about, "vllm-sim replay");
    keep("four", &html);
    balanced(&html);
    for outside in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside} leads outside");
    }
    assert!(html.contains("<title>Four workers &lt;1&gt;</title>"));
    assert!(html.contains(&escape_html("a <b> & \"c\"")));
    for part in ["Time to first token", "KV cache in use", "Preemptions", "Workers", "Goodput"] {
        assert!(html.contains(part), "{part} is missing");
    }
    // Four distributions, good requests, prefix reuse, four timelines, three heat maps.
    assert_eq!(html.matches("<svg").count(), 13);
    let spans = &report.spans.kept;
    assert_eq!((spans.len(), report.spans.one_of), (600, 1));
    assert!(html.contains("All 600 requests") && html.contains("[\"worker 3\","));
    for (name, phase) in RequestPhase::NAMED_REQUEST_PHASES {
        let seen = spans.iter().any(|span| span.phases.iter().any(|(_, p)| *p == phase));
        assert_eq!(seen, phase != RequestPhase::Transfer, "{name}");
    }
    for span in spans {
        assert!(span.phases.is_sorted_by_key(|(at, _)| *at), "{span:?}");
        assert!(span.phases.iter().all(|(at, _)| *at <= span.end), "{span:?}");
    }
    assert!(html.contains("Good requests") && html.contains("ITL of a request (its mean gap)"));
    assert!(!html.contains("NaN") && !html.contains(">inf"));
    assert_eq!(html, render_report_page(&report, "Four workers <1>", &about, "vllm-sim replay"));
}

#[test]
fn a_page_of_one_worker_or_of_nothing_is_a_page_too() {
    for (name, sessions) in [("one", 40), ("none", 0)] {
        let html = render_report_page(&report(sessions, 1), name, &[], "vllm-sim replay");
        keep(name, &html);
        balanced(&html);
        assert!(!html.contains("NaN"), "{name}");
    }
}

#[test]
fn many_workers_fit_on_a_page() {
    let html = render_report_page(&report(3000, 40), "Forty workers", &[], "vllm-sim replay");
    keep("forty", &html);
    assert!(html.contains("One in 2 of the 3000 requests"));
    balanced(&html);
    assert!(html.len() < 1 << 20, "{} bytes", html.len());
}
