//! `vllm-sim plan` as it is typed, against `vllm-sim sweep` over the same deployments.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be unwrapped is a failure"
)]

use std::path::Path;

use serde_json::Value;

use super::replay_command::{printed, vllm_sim};

/// Llama 8B on two GPUs of different speed, at a rate that one of neither serves.
const WORK: &str = "--model meta-llama/Llama-3.1-8B-Instruct --input-tokens 1500 \
                    --output-tokens 60 --request-count 300 --request-rate 40";
const BOUNDS: &str = "--slo-ttft-ms 400 --slo-itl-ms 30";

fn json(dir: &Path, words: &str) -> Value {
    serde_json::from_str(&printed(dir, &format!("{words} --report-json -"))).unwrap()
}

#[test]
fn the_plan_is_the_cheapest_of_an_exhaustive_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let prices = "date: 2026-11-01\ncurrency: credits\ngpu_hour: {H100: 3, L40S: 0.8}\n";
    std::fs::write(dir.path().join("prices.yaml"), prices).unwrap();
    let words =
        format!("plan {WORK} {BOUNDS} --vary gpu=H100,L40S --prices prices.yaml --max-gpus 10");
    let plan = json(dir.path(), &words);
    assert_eq!(plan["schema"], "vllm-sim/plan/1");

    let workers: Vec<String> = (1..=10).map(|n| n.to_string()).collect();
    let grid = format!(
        "--grid gpu=H100,L40S --grid num-workers={}",
        workers.join(",")
    );
    let sweep = json(dir.path(), &format!("sweep {WORK} {BOUNDS} {grid}"));
    let mut cheapest: Option<(f64, &str, u64)> = None;
    for point in sweep["points"].as_array().unwrap() {
        if point["summary"]["slo_attainment"].as_f64().unwrap() < 0.95 {
            continue;
        }
        let gpu = point["flags"]["gpu"].as_str().unwrap();
        let workers: u64 = point["flags"]["num-workers"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let cost = workers as f64 * if gpu == "H100" { 3.0 } else { 0.8 };
        if cheapest.is_none_or(|(least, _, _)| cost < least) {
            cheapest = Some((cost, gpu, workers));
        }
    }
    let best = &plan["points"][plan["order"][0].as_u64().unwrap() as usize];
    let found = &best["found"];
    let planned = (
        found["cost_per_hour"].as_f64().unwrap(),
        best["flags"]["gpu"].as_str().unwrap(),
        found["workers"].as_u64().unwrap(),
    );
    assert_eq!(Some(planned), cheapest);
    // One worker would not do, so that the search had something to find.
    assert!(planned.2 > 1, "{planned:?}");
    assert!(plan["outlook"]["most_traffic"].as_f64().unwrap() >= 1.0);
    let threaded = json(dir.path(), &format!("{words} --threads 3"));
    assert!(
        plan["points"] == threaded["points"],
        "threads change the plan"
    );

    let values = format!("{words} --helm-values values.yaml --html plan.html");
    let table = printed(dir.path(), &values);
    assert!(
        table.contains("credits/h") && table.contains("prices of 2026-11-01"),
        "{table}"
    );
    assert!(
        table.contains("times vllm serve meta-llama/Llama-3.1-8B-Instruct"),
        "{table}"
    );
    // vLLM has no such flag.
    assert!(!table.contains("Instruct --gpu=L40S\n"), "{table}");
    let values = std::fs::read_to_string(dir.path().join("values.yaml")).unwrap();
    let values: Value = serde_json::from_str(values.split_once('\n').unwrap().1).unwrap();
    assert_eq!(values["replicaCount"].as_u64(), Some(planned.2));
    let page = std::fs::read_to_string(dir.path().join("plan.html")).unwrap();
    assert_eq!(page.matches("<svg viewBox").count(), 2);
}

#[test]
fn what_cannot_be_had_is_told_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let hopeless = format!("plan {WORK} --gpu H100 --slo-ttft-ms 1 --max-gpus 3");
    let table = printed(dir.path(), &hopeless);
    let none = "no deployment of up to 3 GPUs makes 95 % of the requests good";
    assert!(table.contains(none), "{table}");
    assert!(
        table.contains("with 3 GPUs 0.0 % of the requests are good (TTFT p99"),
        "{table}"
    );
    let large = "plan --model meta-llama/Llama-3.1-70B-Instruct --gpu H100 --input-tokens 9 \
                 --request-count 3 --request-rate 1 --slo-ttft-ms 900 \
                 --vary tensor-parallel-size=1,4 --max-gpus 3";
    let table = printed(dir.path(), large);
    assert!(
        table.contains("one worker takes 4 GPUs, --max-gpus is 3"),
        "{table}"
    );
}

#[test]
fn a_fixed_fleet_has_a_highest_traffic() {
    let dir = tempfile::tempdir().unwrap();
    let plan = json(
        dir.path(),
        &format!("plan {WORK} {BOUNDS} --gpu H100 --fixed-workers 2"),
    );
    let found = &plan["points"][0]["found"];
    let (traffic, good) = (&found["traffic"], &found["attainment"]);
    assert!(good.as_f64().unwrap() >= 0.95);
    let above = plan["points"][0]["trials"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|trial| trial["traffic"].as_f64().unwrap() > traffic.as_f64().unwrap());
    let nearest = above
        .map(|trial| trial["traffic"].as_f64().unwrap())
        .fold(f64::INFINITY, f64::min);
    assert!(nearest / traffic.as_f64().unwrap() <= 1.01, "{found}");
}

#[test]
fn wrong_questions_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("p.yaml"),
        "date: x\ncurrency: y\ngpu_hour: {A100: 1}\n",
    )
    .unwrap();
    for (words, told) in [
        ("", "--slo-ttft-ms, --slo-itl-ms or --slo-e2e-ms"),
        ("--slo-ttft-ms 9 --attainment 1.5", "--attainment is 1.5"),
        (
            "--slo-ttft-ms 9 --num-workers 3",
            "--num-workers: that is what is looked for",
        ),
        (
            "--slo-ttft-ms 9 --vary num-workers=1,2",
            "--vary num-workers",
        ),
        ("--slo-ttft-ms 9 --scale 0=1", "--scale has no meaning"),
        (
            "--slo-ttft-ms 9 --gpu H100 --prices p.yaml",
            "no gpu_hour of \"H100\", only of A100",
        ),
        ("--slo-ttft-ms 9 --prices p.yaml", "--prices needs --gpu"),
        ("--slo-ttft-ms 9 --max-gpus 0", "--max-gpus"),
    ] {
        let output = vllm_sim(dir.path(), &format!("plan {WORK} {words}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {errors}");
        assert!(errors.contains(told), "{words}: {errors}");
    }
}
