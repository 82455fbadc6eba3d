//! Compares whole texts with those of recorded servers.

use std::fmt::Write as _;

use super::*;

/// Returns the text without numbers, folded as in `tests/fixtures/metrics/derive.py`.
fn folded(families: &[Family]) -> String {
    let mut out = String::new();
    let mut last_help = "";
    for f in families {
        let help = if f.help == last_help { "^" } else { &f.help };
        last_help = &f.help;
        let _ = write!(out, "{} {} {help}", f.kind, f.name);
        let mut open = String::new();
        for s in &f.samples {
            let mask = f.name == "python_info";
            let labels: Vec<String> = s
                .labels
                .iter()
                .map(|(n, v)| {
                    let v = if mask || n == "le" { "*" } else { v.as_str() };
                    format!("{n}=\"{v}\"")
                })
                .collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let series = format!("{}{labels}", s.suffix);
            if series != open || s.suffix != "_bucket" {
                let _ = write!(out, "\n  {series}");
            }
            if let Some((_, le)) = s.labels.iter().find(|(n, _)| n == "le") {
                let _ = write!(out, " {le}");
            }
            open = series;
        }
        out.push('\n');
    }
    out
}

/// Ignores the empty adapter series, which vLLM exposes from its first step on.
fn assert_recorded(metrics: &Metrics, recorded: &str) {
    let ours = folded(&families(metrics));
    let adapters = |line: &&str| line.contains("lora_");
    let ours: Vec<_> = ours.lines().filter(|line| !adapters(line)).collect();
    let recorded: Vec<_> = recorded.lines().filter(|line| !adapters(line)).collect();
    let differing = ours.iter().zip(&recorded).find(|(a, b)| a != b);
    assert_eq!(differing, None);
    assert_eq!(ours.len(), recorded.len());
}

#[test]
fn a_server_with_adapters_and_tools_shows_what_vllm_shows() {
    let m = metrics(config_a());
    get_models(&m);
    assert_recorded(&m, include_str!("../../../../../tests/fixtures/metrics/A.txt"));
}

#[test]
fn a_server_with_residency_metrics_shows_what_vllm_shows() {
    let recorded = include_str!("../../../../../tests/fixtures/metrics/B.txt");
    assert_recorded(&metrics(config_b()), recorded);
}

#[test]
fn a_server_that_speculates_shows_what_vllm_shows() {
    let m = metrics(config_c());
    get_models(&m);
    assert_recorded(&m, include_str!("../../../../../tests/fixtures/metrics/C.txt"));
}

#[test]
fn a_server_with_two_ranks_shows_what_vllm_shows() {
    let m = metrics(config_d());
    get_models(&m);
    assert_recorded(&m, include_str!("../../../../../tests/fixtures/metrics/D.txt"));
}

#[test]
fn families_of_operations_are_last_and_appear_on_first_use() {
    let m = metrics(config_a());
    get_models(&m);
    m.operation_started(AdminOperation::SleepMode("sleep"));
    m.operation_ended(AdminOperation::SleepMode("sleep"), 0.5);
    let ours: Vec<_> = families(&m).iter().map(|f| format!("{} {}", f.kind, f.name)).collect();
    let recorded = include_str!("../../../../../tests/fixtures/metrics/A-after-sleep.families.txt");
    assert_eq!(ours, recorded.lines().collect::<Vec<_>>());
    let shown = text(&m);
    assert!(shown.ends_with("vllm:sleep_mode_operations_in_flight{operation=\"sleep\"} 0.0\n"));
    assert!(
        shown.contains("vllm:sleep_mode_operation_duration_seconds_sum{operation=\"sleep\"} 0.5\n")
    );
}

#[test]
fn help_texts_have_nothing_to_escape() {
    let mut settings = MetricsSettings { compat: MetricsCompat::Sglang, ..Default::default() };
    let sglang = create_own_metrics(&mut settings).expect("metrics of SGLang");
    for family in FAMILIES.iter().chain(sglang.vecs().iter().map(|vec| vec.family)) {
        let help = family.help_text(&MetricsSettings::default());
        assert!(!help.contains(['\\', '\n']), "{}", family.name);
    }
}
