//! `vllm-sim plan` as it is typed, against `vllm-sim sweep` over the same deployments.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::Path;

use serde_json::Value;

use super::replay_command::{printed, vllm_sim};

/// Llama 8B on two GPUs of different speed, at a rate that one of neither serves.
const WORK: &str = "--model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 1 \
                    --input-tokens 1500 --output-tokens 60 --request-count 300 --request-rate 40";
const BOUNDS: &str = "--slo-ttft-ms 400 --slo-itl-ms 30";

fn json(dir: &Path, words: &str) -> Value {
    serde_json::from_str(&printed(dir, &format!("{words} --report-json -"))).unwrap()
}

/// Returns the output of a plan without an answer.
fn unanswered(dir: &Path, words: &str) -> String {
    let output = vllm_sim(dir, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}: {errors}");
    assert!(errors.contains("no deployment meets the bounds"), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn plan_searches_tensor_parallel_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let asked = "--gpu H100 --input-tokens 2000 --output-tokens 300 --request-count 300 \
                 --request-rate 20 --slo-ttft-ms 500";
    let model = "plan --model meta-llama/Llama-3.1-70B-Instruct";
    let plan = json(dir.path(), &format!("{model} {asked}"));
    let named = json(dir.path(), &format!("{model} {asked} --vary tensor-parallel-size=1,2,4,8"));
    let together = plan["points"].as_array().unwrap().iter();
    let together: Vec<&Value> = together.filter(|it| it["disaggregated"] == false).collect();
    assert_eq!(together, named["points"].as_array().unwrap().iter().collect::<Vec<_>>());
    let best = &plan["points"][plan["order"][0].as_u64().unwrap() as usize];
    let size: u32 = best["flags"]["tensor-parallel-size"].as_str().unwrap().parse().unwrap();
    assert!(size > 1, "70B does not fit on one H100: {best}");
    // Its 71 heads are divided by 1 alone.
    let plan =
        json(dir.path(), &format!("plan --model tiiuae/falcon-7b {asked} --max-model-len 2400"));
    let points = plan["points"].as_array().unwrap();
    assert!(points.iter().all(|it| it["flags"]["tensor-parallel-size"] == "1"));
    // A size that is named is the only one.
    let plan = json(dir.path(), &format!("{model} {asked} -tp 4"));
    assert_eq!(plan["points"].as_array().unwrap().len(), 1);
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
    let grid = format!("--grid gpu=H100,L40S --grid num-workers={}", workers.join(","));
    let sweep = json(dir.path(), &format!("sweep {WORK} {BOUNDS} {grid}"));
    let mut cheapest: Option<(f64, &str, u64)> = None;
    for point in sweep["points"].as_array().unwrap() {
        if point["summary"]["slo_attainment"].as_f64().unwrap() < 0.95 {
            continue;
        }
        let gpu = point["flags"]["gpu"].as_str().unwrap();
        let workers: u64 = point["flags"]["num-workers"].as_str().unwrap().parse().unwrap();
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
    holds_for_whole_runs(&plan, &sweep);
    // One worker would not do, so that the search had something to find.
    assert!(planned.2 > 1, "{planned:?}");
    assert!(plan["outlook"]["most_traffic"].as_f64().unwrap() >= 1.0);
    let threaded = json(dir.path(), &format!("{words} --threads 3"));
    assert!(plan["points"] == threaded["points"], "threads change the plan");

    let values = format!("{words} --helm-values values.yaml --html plan.html");
    let table = printed(dir.path(), &values);
    assert!(table.contains("credits/h") && table.contains("prices of 2026-11-01"), "{table}");
    assert!(table.contains("times vllm serve meta-llama/Llama-3.1-8B-Instruct"), "{table}");
    // vLLM has no such flag.
    assert!(!table.contains("Instruct --gpu=L40S\n"), "{table}");
    let values = std::fs::read_to_string(dir.path().join("values.yaml")).unwrap();
    let values: Value = serde_json::from_str(values.split_once('\n').unwrap().1).unwrap();
    assert_eq!(values["replicaCount"].as_u64(), Some(planned.2));
    let page = std::fs::read_to_string(dir.path().join("plan.html")).unwrap();
    assert_eq!(page.matches("<svg viewBox").count(), 2);
}

/// A run that ended early is one that does not suffice in the end; each other one is what it was.
fn holds_for_whole_runs(plan: &Value, sweep: &Value) {
    let mut stopped = 0;
    for point in plan["points"].as_array().unwrap() {
        for trial in point["trials"].as_array().unwrap() {
            let mut same = sweep["points"].as_array().unwrap().iter().filter(|whole| {
                let workers = trial["workers"].to_string();
                let flags = &whole["flags"];
                flags["num-workers"] == workers && flags["gpu"] == point["flags"]["gpu"]
            });
            let whole = &same.next().unwrap()["summary"];
            if trial["stopped"] == true {
                stopped += 1;
                assert!(whole["slo_attainment"].as_f64().unwrap() < 0.95, "{trial}");
                assert!(trial["attainment"].is_null(), "{trial}");
                let told = trial["missed"].to_string();
                assert!(told.contains("stopped after 16 requests"), "{told}");
            } else {
                assert_eq!(trial["attainment"], whole["slo_attainment"]);
                assert_eq!(trial["summary"]["duration_ms"], whole["duration_ms"]);
            }
        }
    }
    assert!(stopped > 0, "{plan}");
}

#[test]
fn helm_values_describe_the_planned_deployment() {
    let dir = tempfile::tempdir().unwrap();
    let file = "max-num-seqs: 64\nmax-model-len: 4096\n";
    std::fs::write(dir.path().join("engine.yaml"), file).unwrap();
    let values = |words: &str| -> (String, Value) {
        let words = format!("plan {WORK} {BOUNDS} --gpu H100 {words} --helm-values values.yaml");
        let table = printed(dir.path(), &words);
        let text = std::fs::read_to_string(dir.path().join("values.yaml")).unwrap();
        let (about, values) = text.split_once('\n').unwrap();
        let shown = format!("{about}\n{table}");
        (shown, serde_json::from_str(values).unwrap())
    };
    let (shown, plain) = values("--config engine.yaml --vary router=kv_router");
    let config = &plain["config"];
    assert_eq!(config["cliMode"], "vllm");
    assert_eq!((&config["max-num-seqs"], &config["max-model-len"]), (&64.into(), &4096.into()));
    assert!(config.get("config").is_none(), "{plain:#}");
    assert!(!shown.contains("engine.yaml\n"), "{shown}");
    // Both the values and the table say who stands in front.
    assert_eq!(shown.matches("router: --router=kv_router: Dynamo's KV router").count(), 2);

    let (shown, split) = values("--num-prefill-workers 1 --num-decode-workers 2");
    let groups = split["replicaCount"].as_u64().unwrap() / 2;
    assert!(groups >= 1, "{split:#}");
    assert_eq!(split["disaggregation"]["enabled"], true);
    assert_eq!(split["disaggregation"]["prefill"]["replicaCount"], groups);
    assert_eq!(split["config"]["kv-transfer-config"]["kv_connector"], "NixlConnector");
    assert!(shown.contains(" for decode vllm serve meta-llama/"), "{shown}");
}

#[test]
fn ranks_that_share_experts_are_one_worker() {
    let dir = tempfile::tempdir().unwrap();
    let work = "--model Qwen/Qwen3-30B-A3B --gpu H100 --input-tokens 500 --output-tokens 30 \
                --request-count 60 --request-rate 10 --slo-ttft-ms 900 --data-parallel-size 2 \
                --enable-expert-parallel";
    let words = format!("plan {work} --max-gpus 8 --helm-values values.yaml");
    let plan = json(dir.path(), &words);
    let found = &plan["points"][0]["found"];
    let (workers, gpus) = (found["workers"].as_u64().unwrap(), found["gpus"].as_u64().unwrap());
    assert_eq!(gpus, 2 * workers);
    let trials = plan["points"][0]["trials"].as_array().unwrap();
    assert!(trials.iter().all(|trial| trial["gpus"].as_u64().unwrap() % 2 == 0));
    let deploy = plan["deploy"].as_str().unwrap();
    assert!(deploy.contains("--data-parallel-size=2"), "{deploy}");
    let values = std::fs::read_to_string(dir.path().join("values.yaml")).unwrap();
    let values: Value = serde_json::from_str(values.split_once('\n').unwrap().1).unwrap();
    assert_eq!(values["dataParallel"], serde_json::json!({"mode": "onePort", "size": 2}));
    assert_eq!(values["replicaCount"].as_u64(), Some(workers));
    // A worker of a replay is that, too.
    let report = json(dir.path(), &format!("replay {} --num-workers 2", work));
    let summary = &report["summary"];
    let seconds = summary["decode_worker_seconds"].as_f64().unwrap();
    assert!((seconds / summary["duration_ms"].as_f64().unwrap() * 1e3 - 4.0).abs() < 1e-6);
    let scaled = format!("replay {work} --scale 5=2");
    let output = vllm_sim(dir.path(), &scaled);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("2 that share experts"), "{errors}");
}

#[test]
fn sharded_sweep_equals_whole_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let engine = "--model meta-llama/Llama-3.1-8B-Instruct -tp 1 --input-tokens 300 \
                  --output-tokens 20 --request-count 60 --request-rate 20 --slo-ttft-ms 200";
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    for tool in [
        format!("sweep {engine} --grid gpu=H100,L40S --grid max-num-seqs=4,16,64"),
        format!("plan {engine} --vary gpu=H100,L40S --vary max-num-seqs=4,16,64 --max-gpus 6"),
    ] {
        let whole = printed(dir.path(), &format!("{tool} --report-json whole.json --html a.html"));
        for part in 1..=4 {
            printed(dir.path(), &format!("{tool} --shard {part}/4 --report-json part{part}.json"));
        }
        let merge = "--merge part1.json,part2.json --merge part3.json,part4.json";
        let outputs = "--report-json whole.json --html a.html";
        let (json, page) = (read("whole.json"), read("a.html"));
        let merged = printed(dir.path(), &format!("{tool} {merge} {outputs}"));
        assert_eq!(merged, whole);
        assert!(read("whole.json") == json && read("a.html") == page, "{tool}");
        for (words, told) in [
            ("--merge part1.json,part2.json", "2 of 6 points are in none"),
            ("--merge part1.json --gpu B200", "was written by another command"),
            ("--shard 5/4 --report-json x", "must be K/N with K from 1 to N"),
            ("--shard 1/4", "--shard needs --report-json FILE"),
        ] {
            let output = vllm_sim(dir.path(), &format!("{tool} {words}"));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && errors.contains(told), "{words}: {errors}");
        }
    }
}

#[test]
fn parts_made_with_other_contents_of_a_file_are_not_merged() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let trace = |rows: u32| {
        let rows = (0..rows).map(|n| format!("{n},{},20\n", 200 + n));
        format!("arrival_s,prompt_tokens,output_tokens\n{}", rows.collect::<String>())
    };
    write("trace.csv", &trace(50));
    write("c.yaml", "max-num-seqs: 8\n");
    let tool = "plan trace.csv --config=c.yaml --model meta-llama/Llama-3.1-8B-Instruct \
                --vary gpu=H100,L40S -tp 1 --slo-ttft-ms 900 --max-gpus 4";
    for part in 1..=2 {
        printed(dir.path(), &format!("{tool} --shard {part}/2 --report-json part{part}.json"));
    }
    let merge = format!("{tool} --merge part1.json,part2.json");
    printed(dir.path(), &merge);
    for (name, other) in [("trace.csv", trace(20)), ("c.yaml", "max-num-seqs: 9\n".to_owned())] {
        let before = std::fs::read_to_string(dir.path().join(name)).unwrap();
        write(name, &other);
        let output = vllm_sim(dir.path(), &merge);
        let errors = String::from_utf8_lossy(&output.stderr);
        let told = format!("--merge: part1.json was made with another content of {name}");
        assert!(!output.status.success() && errors.contains(&told), "{errors}");
        write(name, &before);
    }
}

#[test]
fn growing_queue_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    // Nobody minds waiting, so that only the queue tells.
    let words = format!("plan {WORK} --slo-e2e-ms 1000000 --gpu L40S --fixed-workers 1");
    let plan = json(dir.path(), &words);
    let point = &plan["points"][0];
    let most = point["found"]["traffic"].as_f64().unwrap();
    assert!(most < 4.0, "{most}");
    let missed = point["trials"].as_array().unwrap().iter();
    let missed: Vec<_> = missed.filter_map(|t| t["missed"][0].as_str()).collect();
    assert!(missed.iter().any(|why| why.contains("the queue grows")), "{missed:?}");
}

#[test]
fn percentiles_costs_and_texts_are_parsed() {
    let dir = tempfile::tempdir().unwrap();
    let prices = "date: 2026-11-01\ncurrency: credits\ngpu_hour: {H100: 3}\n";
    std::fs::write(dir.path().join("prices.yaml"), prices).unwrap();
    let words = "plan --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 -tp 1 --prices prices.yaml \
                 --request-count 200 --max-gpus 8";
    let plan = |more: &[&str]| -> Value {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_vllm-sim"))
            .current_dir(dir.path())
            .args(words.split_whitespace())
            .args(["--workload", "30 req/s of 1.5k/60", "--report-json", "-"])
            .args(more)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"))
    };
    let loose = plan(&["--bound", "ttft-p50=2000"]);
    let strict = plan(&["--bound", "ttft-p50=2000", "--bound", "ttft-p99=150"]);
    let cost = |plan: &Value| plan["points"][0]["found"]["cost_per_hour"].as_f64();
    assert!(cost(&strict).unwrap() > cost(&loose).unwrap(), "{strict:#}");
    assert_eq!(strict["points"][0]["found"]["summary"]["total_input_tokens"], 300_000);
    let known = &strict["points"][0]["evidence"];
    assert!(known["errors"].as_str().unwrap().contains("ITL"), "{known}");
    let poor = plan(&["--bound", "ttft-p99=150", "--max-cost", "2"]);
    let why = poor["points"][0]["error"].as_str().unwrap();
    assert_eq!(why, "one worker costs 3.00, --max-cost is 2");
}

#[test]
fn impossible_slo_is_reported_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let too_few = format!("plan {WORK} --gpu H100 --slo-ttft-ms 100 --max-gpus 1");
    let table = unanswered(dir.path(), &too_few);
    let none = "no deployment of up to 1 GPUs makes 95 % of the requests good";
    assert!(table.contains(none), "{table}");
    assert!(table.contains("with 1 GPUs 1.3 % of the requests are good (TTFT p99"), "{table}");
    let large = "plan --model meta-llama/Llama-3.1-70B-Instruct --gpu H100 --input-tokens 9 \
                 --request-count 3 --request-rate 1 --slo-ttft-ms 900 \
                 --vary tensor-parallel-size=1,4 --max-gpus 3";
    let table = unanswered(dir.path(), large);
    assert!(table.contains("one worker takes 4 GPUs, --max-gpus is 3"), "{table}");
}

#[test]
fn requests_that_the_context_refuses_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let work = "-tp 1 --output-tokens 20 --request-count 20 --request-rate 1 --slo-ttft-ms 9000 \
                --max-gpus 4";
    let llama = format!("plan --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 {work}");
    // The model's own context holds these prompts.
    let whole = printed(dir.path(), &format!("{llama} --input-tokens 40000"));
    assert!(whole.starts_with("Answer: 2 H100"), "{whole}");
    let short = format!("{llama} --max-model-len 32768");
    let none = unanswered(dir.path(), &format!("{short} --input-tokens 40000"));
    let why = "not simulated: the context of 32768 tokens refuses 20 of 20 requests";
    assert!(none.contains(why), "{none}");
    let some = unanswered(dir.path(), &format!("{short} --input-tokens uniform:20000:45000"));
    let why = "are good; the context of 32768 tokens refuses 10 of 20 requests";
    assert!(some.contains(why), "{some}");
    let half = format!("{short} --input-tokens uniform:20000:45000 --attainment 0.4");
    let half = printed(dir.path(), &half);
    let told = "10 of 20 requests are rejected; prompts must be shorter than the context of 32768";
    assert!(half.contains(told), "{half}");
    let old = llama.replace("3.1-8B-Instruct", "2-7b-chat-hf");
    let old = unanswered(dir.path(), &format!("{old} --input-tokens 8000"));
    assert!(old.contains("the context of 4096 tokens refuses 20 of 20 requests"), "{old}");
}

#[test]
fn a_planned_deployment_starts_on_its_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let llama = "--model meta-llama/Llama-3.1-8B-Instruct --gpu RTX-4090-24GB";
    let work = "--input-tokens 1000 --output-tokens 20 --request-count 20 --request-rate 1";
    let words = format!("{llama} {work} -tp 1 --slo-ttft-ms 2000");
    let output = vllm_sim(dir.path(), &format!("sweep {words} --grid max-num-seqs=4"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("model's max seq len (131072)"), "{errors}");
    let table = printed(dir.path(), &format!("plan {words}"));
    let told = "--max-model-len=auto: the longest context that fits into the KV cache, here 43264";
    assert!(table.contains(told), "{table}");
    let deploy = table.lines().find(|line| line.starts_with("to deploy: ")).unwrap();
    assert!(deploy.contains(" --max-model-len=auto"), "{deploy}");
    printed(dir.path(), &format!("explain {llama} --max-model-len=auto"));
}

#[test]
fn infeasible_candidates_are_not_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let words = "--model meta-llama/Llama-3.1-8B-Instruct -tp 1 --input-tokens uniform:100:4000 \
                 --output-tokens 30 --request-count 300 --request-rate 20 --slo-ttft-ms 60 \
                 --slo-itl-ms 12";
    let plan = unanswered(
        dir.path(),
        &format!("plan {words} --vary gpu=H100,L40S --html plan.html --report-json -"),
    );
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let whys = [
        "not simulated: with any number of workers at most 49.3 % of the requests are good (alone \
         on an idle worker: TTFT above 60 ms for 50.7 %)",
        "not simulated: with any number of workers at most 0.0 % of the requests are good (alone \
         on an idle worker: TTFT above 60 ms for 91.7 %, ITL above 12 ms for 100.0 %)",
    ];
    let page = std::fs::read_to_string(dir.path().join("plan.html")).unwrap();
    for (point, why) in plan["points"].as_array().unwrap().iter().zip(whys) {
        assert_eq!(point["error"], why);
        assert_eq!(point["trials"].as_array().unwrap().len(), 0);
        assert!(page.contains(why), "{page}");
    }
    // With a worker for each request it is what comes of it.
    let sweep = format!("sweep {words} --grid gpu=H100,L40S --num-workers 300");
    let sweep = json(dir.path(), &sweep);
    let good = |at: usize| sweep["points"][at]["summary"]["slo_attainment"].as_f64();
    assert_eq!([good(0), good(1)], [Some(148.0 / 300.0), Some(0.0)]);
}

#[test]
fn fixed_fleet_has_maximum_request_rate() {
    let dir = tempfile::tempdir().unwrap();
    let plan = json(dir.path(), &format!("plan {WORK} {BOUNDS} --gpu H100 --fixed-workers 2"));
    let found = &plan["points"][0]["found"];
    let (traffic, good) = (&found["traffic"], &found["attainment"]);
    assert!(good.as_f64().unwrap() >= 0.95);
    let above = plan["points"][0]["trials"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|trial| trial["traffic"].as_f64().unwrap() > traffic.as_f64().unwrap());
    let nearest =
        above.map(|trial| trial["traffic"].as_f64().unwrap()).fold(f64::INFINITY, f64::min);
    assert!(nearest / traffic.as_f64().unwrap() <= 1.01, "{found}");
    let answer = plan["answer"].as_str().unwrap();
    let share = format!("; serves {:.3} times the traffic", traffic.as_f64().unwrap());
    assert!(answer.contains(&share), "{answer}");
}

#[test]
fn rows_left_out_of_a_trace_are_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";
    let rows = (0..60).map(|n| format!("{n},GPT-4,{},{},9,API log\n", 200 + n, n % 20));
    let text = head.to_owned() + &rows.collect::<String>();
    std::fs::write(dir.path().join("trace.csv"), text).unwrap();
    let engine = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100 -tp 1 --slo-ttft-ms 900";
    for words in [
        format!("plan trace.csv {engine} --max-gpus 4"),
        format!("sweep trace.csv {engine} --grid num-workers=1,2"),
        format!("replay trace.csv {engine}"),
    ] {
        let output = vllm_sim(dir.path(), &words);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        assert_eq!(errors.matches("3 rows of the trace have no prompt").count(), 1, "{errors}");
    }
}

#[test]
fn invalid_plan_usage_names_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    let prices = "date: 2026-11-01\ncurrency: y\ngpu_hour: {A100: 1}\n";
    for (name, from, to) in [
        ("p.yaml", "", ""),
        ("date.yaml", "2026-11-01", "2026-13-01"),
        ("gpu.yaml", "A100", "H101"),
    ] {
        std::fs::write(dir.path().join(name), prices.replacen(from, to, 1)).unwrap();
    }
    for (words, told) in [
        ("", "--slo-ttft-ms, --slo-itl-ms or --slo-e2e-ms"),
        ("--bound ttft=5", "must be METRIC-pPERCENT=MS"),
        ("--slo-ttft-ms 9 --max-cost 5", "--prices"),
        ("--slo-ttft-ms 9 --attainment 1.5", "--attainment is 1.5"),
        ("--slo-ttft-ms 9 --num-workers 3", "--num-workers: not allowed, because plan searches"),
        ("--slo-ttft-ms 9 --vary num-workers=1,2", "--vary num-workers"),
        ("--slo-ttft-ms 9 --scale 0=1", "--scale cannot be used with plan"),
        ("--slo-ttft-ms 9 --gpu H100 --prices p.yaml", "no gpu_hour for \"H100\", only for A100"),
        ("--slo-ttft-ms 9 --prices p.yaml", "--prices needs --gpu"),
        ("--slo-ttft-ms 9 --max-gpus 0", "--max-gpus"),
        ("--slo-ttft-ms 9 --prices date.yaml", "date is \"2026-13-01\", must be like 2026-11-01"),
        ("--slo-ttft-ms 9 --prices gpu.yaml", "gpu_hour has \"H101\", which is no GPU"),
        ("--slo-ttft-ms 9 --vary max-gpus=1,2", "--vary max-gpus: its value applies to all"),
        ("--slo-ttft-ms 9 --vary report-json=a,b", "--vary report-json: its value applies to all"),
        ("--slo-ttft-ms 9 --vary max-num-seqs=1,2,1", "--vary max-num-seqs has 1 twice"),
        ("--slo-ttft-ms 9 --lora a,,b", "--lora has an empty name"),
        ("--slo-ttft-ms 9 --lora-share 0.5", "--lora"),
    ] {
        let output = vllm_sim(dir.path(), &format!("plan {WORK} {words}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {errors}");
        assert!(errors.contains(told), "{words}: {errors}");
    }
}

/// Prompts of random tokens are computed; errors recorded with cached prompts do not apply.
#[test]
fn percentile_bound_has_its_own_column() {
    let dir = tempfile::tempdir().unwrap();
    let plan = |gpu: &str| {
        let words = format!(
            "plan --model meta-llama/Llama-3.1-8B-Instruct --gpu {gpu} -tp 1 --request-count 200 \
             --input-tokens 1500 --output-tokens 60 --request-rate 20 --bound ttft-p95=500"
        );
        printed(dir.path(), &words)
    };
    let table = plan("H100");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[2].contains("E2E p99 ms  TTFT p95 ms  tok/s/user"), "{table}");
    assert!(lines[3].contains(" – "), "no request is good or bad: {table}");
    assert!(table.contains("* fewest GPUs with every --bound kept"), "{table}");
    assert!(table.contains("computed prompts, on 2 x H100"), "{table}");
    let table = plan("L40S");
    let none = "evidence: not validated: none was recorded of a dense model with bf16 weights and computed prompts";
    assert!(table.contains(none) && !table.contains("median error"), "{table}");
}

#[test]
fn candidate_missing_slo_too_often_is_not_best() {
    let dir = tempfile::tempdir().unwrap();
    let sweep = |more: &str| {
        let words = format!(
            "sweep --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --input-tokens 2000 \
             --output-tokens 300 --request-rate 20 --request-count 200 --grid num-workers=1,2,4 \
             {more}"
        );
        printed(dir.path(), &words)
    };
    let starred = |table: &str| {
        let line = table.lines().find(|line| line.ends_with("  *"));
        line.map(|line| line.split_whitespace().next().unwrap().to_owned())
    };
    let table = sweep("--slo-ttft-ms 120");
    assert!(table.lines().next().unwrap().contains("good %  good/s"), "{table}");
    assert_eq!(starred(&table).as_deref(), Some("4"), "{table}");
    let table = sweep("--slo-ttft-ms 120 --attainment 0.5");
    assert_eq!(starred(&table).as_deref(), Some("2"), "{table}");
    let table = sweep("--slo-ttft-ms 60");
    assert_eq!(starred(&table), None, "{table}");
    let none = "no point has 95 % of its requests good (--attainment), so none is the best";
    assert!(table.contains(none), "{table}");
}
