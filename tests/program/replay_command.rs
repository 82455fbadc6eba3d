//! `vllm-sim replay` and `vllm-sim sweep` as they are typed.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(super) fn vllm_sim(dir: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.current_dir(dir).args(words.split_whitespace());
    command.output().unwrap()
}

/// What it printed; it must have gone well.
pub(super) fn printed(dir: &Path, words: &str) -> String {
    let output = vllm_sim(dir, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn complaint(dir: &Path, words: &str) -> String {
    let output = vllm_sim(dir, words);
    assert!(!output.status.success(), "{words}");
    String::from_utf8(output.stderr).unwrap()
}

const SMALL: &str = "--input-tokens 200 --output-tokens uniform:5:20 --request-count 60";

#[test]
fn replay_output_is_deterministic() {
    let dir = tempfile::tempdir().unwrap();
    for more in [
        "--request-rate 30 --num-workers 3 --router kv_router --shared-prefix-ratio 0.5 \
         --num-prefix-groups 4",
        "--replay-concurrency 8 --num-workers 2 --router llm-d --turns-per-session 2",
        "--request-rate 50 --gpu H100 --model meta-llama/Llama-3.1-8B-Instruct --router random \
         --num-workers 2",
    ] {
        let words = format!("replay {SMALL} {more} --report-json -");
        let (a, b) = (printed(dir.path(), &words), printed(dir.path(), &words));
        assert_eq!(a, b);
        let report: Value = serde_json::from_str(&a).unwrap();
        assert_eq!(report["summary"]["rejected_requests"], 0);
    }
}

#[test]
fn a_prompt_beyond_the_models_limit_is_a_rejected_request() {
    let dir = tempfile::tempdir().unwrap();
    let row = |at: u32, tokens: u32| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 10, \"hash_ids\": [{at}, 1, 2]}}\n"
        )
    };
    let rows = [row(0, 500), row(10, 1500), row(20, 500)].concat();
    std::fs::write(dir.path().join("m.jsonl"), rows).unwrap();
    for workers in ["--num-workers 1", "--num-prefill-workers 1 --num-decode-workers 1"] {
        let words = format!("replay m.jsonl {workers} --max-model-len 1200 --report-json -");
        let report: Value = serde_json::from_str(&printed(dir.path(), &words)).unwrap();
        let summary = |key: &str| report["summary"][key].as_f64().unwrap();
        let counts = ["completed_requests", "rejected_requests", "num_ttft_samples"].map(summary);
        assert_eq!(counts, [2.0, 1.0, 2.0], "{workers}");
        assert_eq!(summary("total_input_tokens"), 1000.0, "{workers}");
        let status = report["per_request"][1]["terminal_status"].as_str();
        assert_eq!(status, Some("rejected"), "{workers}");
        let output = vllm_sim(dir.path(), &words.replace("1200", "100"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("no request was completed"), "{errors}");
    }
}

/// A search describes many deployments, and says so once.
#[test]
fn default_step_times_are_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let work = "--input-tokens 8 --output-tokens 4 --request-count 2 --request-rate 3";
    let words = "step times are the polynomial of Dynamo's mocker, whatever the model";
    let said = |command: &str| {
        let output = vllm_sim(dir.path(), command);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command}: {errors}");
        errors.matches(words).count()
    };
    for (command, times) in [
        (format!("replay {work} --model demo"), 1),
        (format!("sweep {work} --grid num-workers=1,2"), 1),
        (format!("replay {work} --time-to-first-token 5ms"), 0),
        (format!("replay {work} --extra-engine-args {{}}"), 0),
        (format!("replay {work} --model meta-llama/Llama-3.1-8B-Instruct --gpu H100"), 0),
    ] {
        assert_eq!(said(&command), times, "{command}");
    }
}

/// Who waits is told how far it is, and who has waited enough gets what there is.
#[test]
fn interrupted_replay_prints_partial_report() {
    for (tool, told, left) in [
        ("replay", "of 100000000 requests", "Request Latency (ms)"),
        (
            "sweep --grid request-count=5,100000000",
            "sweep: 1 of 2 points",
            "request-count=100000000: interrupted before its end",
        ),
    ] {
        let words =
            "--input-tokens 200 --output-tokens 8 --request-count 100000000 --request-rate 40";
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
        command.args(tool.split(' ')).args(words.split(' '));
        command.arg("--no-per-request");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().unwrap();
        let mut errors = BufReader::new(running.stderr.take().unwrap()).lines();
        let mut lines = errors.by_ref().map(Result::unwrap);
        let first = lines.find(|line| !line.contains("WARN")).unwrap();
        assert!(first.contains(told), "{first}");
        let pid = running.id().to_string();
        Command::new("kill").args(["-INT", &pid]).status().unwrap();
        let output = running.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        let table = String::from_utf8(output.stdout).unwrap();
        assert!(table.contains(left), "{table}");
        assert!(errors.any(|line| line.unwrap().contains("interrupted")));
    }
}

#[test]
fn the_mockers_engine_arguments_give_the_mockers_report() {
    let dir = tempfile::tempdir().unwrap();
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dynamo/01-basic-closed");
    std::fs::write(dir.path().join("engine.json"), r#"{"block_size": 64}"#).unwrap();
    // Rates per user are of requests here, and of single gaps in Dynamo's report.
    let report = |words: &str| {
        let mut report: Value = serde_json::from_str(&printed(dir.path(), words)).unwrap();
        let summary = report["summary"].as_object_mut().unwrap();
        summary.retain(|key, _| !key.ends_with("throughput_per_user"));
        // The command lines differ.
        report.as_object_mut().unwrap().remove("run");
        report
    };
    let ours = report(
        "replay --input-tokens 512 --output-tokens 64 --request-count 20 --replay-concurrency 4 \
         --extra-engine-args engine.json --report-json -",
    );
    let theirs = report(&format!("replay --dynamo-run {} --report-json -", run.display()));
    assert!(ours == theirs, "the reports differ");
}

#[test]
fn reports_are_written_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    for (name, workers) in [("a", 1), ("b", 2)] {
        let words = format!(
            "replay {SMALL} --request-rate 30 --num-workers {workers} --report-json {name}.json \
             --per-request {name}.csv --html {name}.html --slo-ttft-ms 100 --no-per-request"
        );
        let table = printed(dir.path(), &words);
        assert!(table.contains("Time to First Token"), "{table}");
        let rows = std::fs::read_to_string(dir.path().join(format!("{name}.csv"))).unwrap();
        assert_eq!(rows.lines().count(), 61);
        let page = std::fs::read_to_string(dir.path().join(format!("{name}.html"))).unwrap();
        assert!(page.contains("data-name=\"bound\""));
        let command =
            format!("vllm-sim {}", words.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(page.contains(&command), "the page does not say {command}");
    }
    let compared = printed(dir.path(), "replay --compare a.json b.json");
    assert!(compared.contains("TTFT p99"), "{compared}");
}

/// Returns a report without the line of its command, in which the number of threads differs.
fn without_command(report: &str) -> String {
    let lines = report.lines();
    let kept: Vec<&str> = lines.filter(|line| !line.starts_with("    \"command\": ")).collect();
    assert!(kept.len() < report.lines().count(), "{report}");
    kept.join("\n")
}

#[test]
fn replay_is_independent_of_thread_count() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!(
        "replay {SMALL} --request-rate 40 --num-workers 5 --router round_robin --report-json -"
    );
    let all = without_command(&printed(dir.path(), &words));
    for threads in [1, 2, 8] {
        let report = printed(dir.path(), &format!("{words} --threads {threads}"));
        assert_eq!(all, without_command(&report));
    }
    let priced = words.replace("--report-json -", "--gpu-hour-price 3600");
    let table = printed(dir.path(), &priced);
    assert!(table.contains("Cost: "), "{table}");
    assert!(!table.to_lowercase().contains("wall time"), "{table}");
}

#[test]
fn sweep_is_independent_of_thread_count() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!(
        "sweep {SMALL} --request-rate 40 --grid num-workers=1,2 --grid router=round_robin,kv_router \
         --grid max-num-seqs=4,64 --slo-ttft-ms 60 --report-json - --threads"
    );
    let one = printed(dir.path(), &format!("{words} 1"));
    let three = printed(dir.path(), &format!("{words} 3"));
    assert_eq!(without_command(&one), without_command(&three));
    let sweep: Value = serde_json::from_str(&one).unwrap();
    let points = sweep["points"].as_array().unwrap();
    assert_eq!(points.len(), 8);
    assert_eq!(points[7]["gpus"], 2.0);
    let per_gpu = |at: usize| points[at]["goodput_per_gpu_rps"].as_f64().unwrap();
    let best = sweep["best"].as_u64().unwrap() as usize;
    let attained = |at: usize| points[at]["summary"]["slo_attainment"].as_f64().unwrap();
    assert!(attained(best) >= 0.95);
    let mut good = (0..8).filter(|at| attained(*at) >= 0.95);
    assert!(good.all(|at| per_gpu(at) <= per_gpu(best)));
    let table =
        printed(dir.path(), &format!("{words} 1 --html s.html").replace("--report-json - ", ""));
    assert_eq!(table.lines().count(), 11, "{table}");
    assert!(table.contains(": a p99 needs 100"), "{table}");
    let page = std::fs::read_to_string(dir.path().join("s.html")).unwrap();
    assert_eq!(page.matches("class=\"fill").count(), 8, "a bar for each point");
    assert!(page.contains("vllm-sim sweep --input-tokens 200"));
}

/// Sessions that do not fit on the GPU together: with and without the memory of the host, with and
/// without drafts.
#[test]
fn a_sweep_compares_tiers_and_drafts() {
    let dir = tempfile::tempdir().unwrap();
    let words = "sweep --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --max-model-len 8192 \
        --num-gpu-blocks-override 1000 --input-tokens 2000 --turn-tokens 500 \
        --turns-per-session 4 --output-tokens 50 --inter-turn-delay-ms 3000 --request-count 12 \
        --replay-concurrency 12 --grid kv-offloading-size=none,64 --grid \
        speculative-config=none,{\"method\":\"mtp\",\"num_speculative_tokens\":2} --report-json -";
    let sweep: Value = serde_json::from_str(&printed(dir.path(), words)).unwrap();
    let of = |at: usize, key: &str| sweep["points"][at]["summary"][key].as_f64().unwrap();
    let reused = |at| of(at, "prefix_cache_reused_ratio");
    assert!(reused(2) > reused(0) + 0.2, "{} {}", reused(0), reused(2));
    assert!(of(2, "mean_ttft_ms") < of(0, "mean_ttft_ms"));
    for tier in [0, 2] {
        assert!(of(tier + 1, "mean_itl_ms") < of(tier, "mean_itl_ms"));
    }
    let table = printed(dir.path(), &words.replace("--report-json -", "--html s.html"));
    assert!(table.contains("reused"), "{table}");
    let page = std::fs::read_to_string(dir.path().join("s.html")).unwrap();
    assert!(page.contains("kv-offloading-size 64, speculative-config none"));
}

#[test]
fn workers_of_a_file_differ() {
    let dir = tempfile::tempdir().unwrap();
    let list = "- count: 2\n  flags: {max-num-seqs: 2}\n- flags: {max-num-seqs: 64}\n";
    std::fs::write(dir.path().join("w.yaml"), list).unwrap();
    let words = format!("replay {SMALL} --replay-concurrency 30 --workers w.yaml --report-json -");
    let report: Value = serde_json::from_str(&printed(dir.path(), &words)).unwrap();
    let mean = |worker: u64| {
        let of: Vec<f64> = report["per_request"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|r| r["decode_worker_idx"] == worker)
            .map(|r| r["ttft_ms"].as_f64().unwrap())
            .collect();
        of.iter().sum::<f64>() / of.len() as f64
    };
    assert!(mean(2) < mean(0) && mean(2) < mean(1));
}

#[test]
fn invalid_options_are_named_in_error() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.jsonl"), "{\"hash_ids\": [1], \"input_length\": 9}\n")
        .unwrap();
    for (words, told) in [
        ("replay", "no workload: give trace files"),
        ("replay --input-tokens 10 --request-count 2", "--replay-concurrency"),
        ("replay --input-tokens x --request-count 2", "input-tokens"),
        ("replay --nmu-workers 2", "--nmu-workers"),
        ("replay t.jsonl", "t.jsonl:1"),
        ("replay missing.jsonl", "missing.jsonl"),
        ("replay --num-workers 0", "num-workers"),
        ("replay --extra-engine-args {\"blok\":1} --input-tokens 9", "blok"),
        ("replay --router kv_router --router-config {\"temprature\":1}", "temprature"),
        ("replay --scale 5:3", "--scale"),
        ("sweep --grid x", "--grid"),
        ("sweep --input-tokens 9 --grid max-num-seqs=0,1", "max-num-seqs=0"),
    ] {
        let text = complaint(dir.path(), words);
        assert!(text.contains(told), "{words}: {text}");
        assert!(!text.contains("panicked"), "{words}: {text}");
    }
}

#[test]
fn help_lists_all_flags() {
    let dir = tempfile::tempdir().unwrap();
    for (words, flag) in [("replay --help", "--replay-concurrency"), ("sweep --help", "--grid")] {
        assert!(printed(dir.path(), words).contains(flag));
    }
}

#[test]
fn command_lines_of_dynamo_are_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let args = "--extra-engine-args {\"block_size\":512} --report-json -";
    for words in [
        "--input-tokens 5000 --output-tokens 5 --request-count 20 --arrival-interval-ms 1.0 \
         --num-workers 1 --replay-mode offline --replay-concurrency 10",
        "--input-tokens 5000 --output-tokens 5 --request-count 10 --turns-per-session 3 \
         --shared-prefix-ratio 0.5 --num-prefix-groups 8 --inter-turn-delay-ms 250 \
         --replay-mode offline --replay-concurrency 4 --router-mode kv_router",
    ] {
        let report: Value =
            serde_json::from_str(&printed(dir.path(), &format!("replay {words} {args}"))).unwrap();
        let all = report["summary"]["num_requests"].as_u64();
        assert!(all >= Some(20), "{words}: {all:?}");
        assert_eq!(report["summary"]["completed_requests"].as_u64(), all);
    }
}

/// The model fits on one GPU in neither pool.
#[test]
fn pd_pools_have_own_tensor_parallel_size() {
    let dir = tempfile::tempdir().unwrap();
    let words = |prefill: u32, decode: u32| {
        format!(
            "replay --input-tokens 1000 --output-tokens 16 --request-count 10 --request-rate 2 \
             --model meta-llama/Llama-3.1-70B-Instruct --gpu H100 --num-prefill-workers 1 \
             --num-decode-workers 1 --pool-flags \
             {{\"prefill\":{{\"tensor-parallel-size\":{prefill}}},\"decode\":{{\"tensor-parallel-size\":{decode}}}}} \
             --report-json -"
        )
    };
    let number = |prefill, decode, key: &str| {
        let report = printed(dir.path(), &words(prefill, decode));
        let report: Value = serde_json::from_str(&report).unwrap();
        report["summary"][key].as_f64().unwrap()
    };
    let ttft = |prefill, decode| number(prefill, decode, "mean_ttft_ms");
    let itl = |prefill, decode| number(prefill, decode, "mean_itl_ms");
    assert!(ttft(8, 4) < ttft(4, 4));
    assert!(itl(4, 8) < itl(4, 4));
}

/// Without `--kv-bytes-per-token`, the size is that of the model's KV cache: 320 KiB per token.
#[test]
fn kv_transfers_of_known_models_take_time() {
    let dir = tempfile::tempdir().unwrap();
    let ttft = |flags: &str| {
        let report = printed(
            dir.path(),
            &format!(
                "replay --input-tokens 1000 --output-tokens 2 --request-count 5 --request-rate 1 \
                 --model meta-llama/Llama-3.1-70B-Instruct --gpu H100 -tp 4 --num-prefill-workers 1 \
                 --num-decode-workers 1 --report-json - {flags}"
            ),
        );
        let report: Value = serde_json::from_str(&report).unwrap();
        report["summary"]["mean_ttft_ms"].as_f64().unwrap()
    };
    let known = ttft("");
    for same in ["--kv-transfer-bandwidth 10", "--kv-bytes-per-token 327680"] {
        assert_eq!(known, ttft(same), "{same}");
    }
    let took = known - ttft("--kv-transfer-bandwidth 0");
    assert!((32.0..34.0).contains(&took), "{took} ms");
}

/// The tools simulate the same transfers of the same pools, and say how long these take.
#[test]
fn reports_of_split_pools_name_the_time_of_kv_transfers() {
    let dir = tempfile::tempdir().unwrap();
    let work = "--input-tokens 100 --output-tokens 2 --request-count 5 --request-rate 1";
    let llama = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100";
    let pools = "--num-prefill-workers 1 --num-decode-workers 1";
    let tools = [
        "replay".to_owned(),
        "sweep --grid max-num-seqs=64".to_owned(),
        "plan --slo-ttft-ms 5000".to_owned(),
    ];
    let usual = "KV transfers take 13.107 us per prompt token (--kv-transfer-bandwidth 10)";
    for tool in &tools {
        for (flags, told) in [
            (llama.to_owned(), usual),
            (
                format!("{llama} --kv-transfer-bandwidth 0"),
                "KV transfers take no time (--kv-transfer-bandwidth 0)",
            ),
            (format!("{llama} --kv-cache-transfer-latency 5ms"), "KV transfers take 5 ms"),
            (
                "--model demo --latency-model polynomial".to_owned(),
                "KV transfers take no time, because the KV cache size of a token is unknown \
                 (--kv-transfer-bandwidth 10)",
            ),
            (
                "--model demo --scheduler pool --time-to-first-token 5ms".to_owned(),
                "KV transfers take no time\n",
            ),
            (
                format!("{llama} --pool-flags {{\"decode\":{{\"kv_transfer_bandwidth\":20}}}}"),
                "KV transfers take 6.554 us per prompt token\n",
            ),
        ] {
            let text = printed(dir.path(), &format!("{tool} {work} {pools} {flags}")) + "\n";
            assert_eq!(text.matches(told).count(), 1, "{tool} {flags}: no {told:?} in {text}");
        }
        let text = printed(dir.path(), &format!("{tool} {work} {llama} -tp 1"));
        assert!(!text.contains("KV transfers"), "{text}");
    }
    let ttft = |more: &str| {
        let words = format!("replay {work} {pools} {llama} --report-json - {more}");
        let report: Value = serde_json::from_str(&printed(dir.path(), &words)).unwrap();
        assert!(report["run"]["kv_transfers"].is_string(), "{}", report["run"]);
        report["summary"]["mean_ttft_ms"].as_f64().unwrap()
    };
    // 128 KiB a token at 10 GB/s. SGLang sends whole pages of 16 tokens.
    for (scheduler, tokens) in [("--scheduler vllm", 100.0), ("--scheduler sglang", 112.0)] {
        let took = ttft(scheduler) - ttft(&format!("{scheduler} --kv-transfer-bandwidth 0"));
        assert!((took / (tokens * 0.013107) - 1.0).abs() < 0.05, "{scheduler}: {took} ms");
    }
}

#[test]
fn generation_config_changes_step_times() {
    let dir = tempfile::tempdir().unwrap();
    let replayed = |more: &str| {
        let words = format!(
            "replay {SMALL} --request-rate 30 --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 \
             --report-json - {more}"
        );
        let report: Value = serde_json::from_str(&printed(dir.path(), &words)).unwrap();
        report["summary"]["mean_itl_ms"].as_f64().unwrap()
    };
    // The model's generation config truncates the vocabulary.
    let cut = replayed("");
    assert!(replayed("--generation-config vllm") < cut);
    let text = "{\"temperature\": 0.6, \"top_p\": 0.9}";
    std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
    assert_eq!(replayed("--generation-config ./"), cut);
}

/// Rows without output are failed requests of the recording.
#[test]
fn rows_that_are_left_out_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let rows =
        "Timestamp,Model,Request tokens,Response tokens\n1,m,5,2\n2,m,7,0\n3,m,0,4\n4,m,6,3\n";
    std::fs::write(dir.path().join("burst.csv"), rows).unwrap();
    let output = vllm_sim(dir.path(), "replay burst.csv --report-json -");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("2 rows of the trace have no prompt or no output"), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["summary"]["completed_requests"], 2);
    assert_eq!(report["summary"]["left_out_rows"], 2);
}

/// A row of a CSV file is a request of its own, so sessions and their cached tokens are lost.
#[test]
fn columns_that_a_workload_lacks_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let words = "--input-tokens 400 --turn-tokens 100 --turns-per-session 3 --request-count 5 \
                 --request-rate 5 --model demo --latency-model polynomial";
    printed(dir.path(), &format!("replay {words} --per-request s.csv"));
    let replayed = |file: &str| {
        let output = vllm_sim(dir.path(), &format!("replay {file} --report-json - --model demo"));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        (serde_json::from_slice::<Value>(&output.stdout).unwrap(), errors)
    };
    let (report, errors) = replayed("s.csv");
    let columns = report["summary"]["unused_columns"].as_str().unwrap();
    for name in ["session_id", "turn", "reused_input_tokens"] {
        assert!(columns.split(", ").any(|column| column == name), "no {name} in {columns}");
    }
    let told = format!("{columns}: columns of the trace that are not used");
    assert_eq!(errors.matches(&told).count(), 1, "{errors}");
    // Requests without sessions lose nothing.
    printed(dir.path(), &format!("replay {SMALL} --request-rate 9 --per-request p.csv"));
    let (report, errors) = replayed("p.csv");
    assert!(report["summary"].get("unused_columns").is_none(), "{report}");
    assert!(!errors.contains("not used"), "{errors}");
    printed(dir.path(), &format!("replay {words} --per-request s.jsonl"));
    let errors = complaint(dir.path(), "replay s.jsonl --model demo");
    let told = "has results of `replay --per-request`, which are not a workload in JSON";
    assert!(errors.contains(told), "{errors}");
}
