//! Wrong usage of every command: what is refused, what is suggested, and with which exit code.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::Path;
use std::process::Command;

/// Exit code, standard output, standard error.
fn run(dir: &Path, words: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let output = command.current_dir(dir).args(words.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

const WORK: &str = "--input-tokens 20 --output-tokens 4 --request-count 6 --arrival-interval-ms 0";

#[test]
fn flags_that_a_tool_does_not_use_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("dp.yaml"), "data-parallel-size: 4\n").unwrap();
    std::fs::write(dir.path().join("port.yaml"), "model: m\nport: 8001\n").unwrap();
    for (flags, told) in [
        ("--replicas 4", "--replicas is 4 (from command line), but must be 1 here"),
        ("--data-parallel-size 4", "--data-parallel-size is 4 (from command line)"),
        ("--config dp.yaml", "--data-parallel-size is 4 (from file dp.yaml)"),
        ("-dp 4", "--data-parallel-size is 4"),
        ("--num-worker 4", "did you mean --num-workers?"),
        ("--port 8000", "--port: no effect here"),
        ("--port 1 --trust-remote-code", "--port, --trust-remote-code: no effect here"),
        ("--is-decode-worker", "--is-decode-worker: no effect here"),
    ] {
        for tool in ["replay", "sweep --grid max-num-seqs=1,2"] {
            let words = format!("{tool} {WORK} {flags}");
            let (code, _, errors) = run(dir.path(), &words);
            assert_eq!(code, 2, "{words}: {errors}");
            assert!(errors.contains(told), "{words}: {errors}");
        }
        let words = format!("calibrate --data x.json --gpu H100 {flags}");
        let (code, _, errors) = run(dir.path(), &words);
        assert_eq!(code, 2, "{words}: {errors}");
        let words = format!("validate --runs . {flags}");
        let (code, _, errors) = run(dir.path(), &words);
        assert_eq!(code, 2, "{words}: {errors}");
    }
    // A file may be the server's own; ranks that share experts are one worker.
    for flags in [
        "--config port.yaml",
        "--replicas 1",
        "--data-parallel-size 2 --enable-expert-parallel",
        "--model Qwen/Qwen3-30B-A3B --gpu H100 -dp 2",
        "--model Qwen/Qwen3-30B-A3B --gpu H100 -dp 2 --num-prefill-workers 1 --num-decode-workers 1",
        "--num_workers 2 -tp 2",
    ] {
        let (code, _, errors) = run(dir.path(), &format!("replay {WORK} {flags}"));
        assert_eq!(code, 0, "{flags}: {errors}");
    }
}

/// A trace has its own requests, so a flag of synthetic ones would change nothing.
#[test]
fn flags_of_synthetic_requests_are_refused_with_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let trace = "arrival_s,prompt_tokens,output_tokens\n0,64,8\n1,64,8\n";
    std::fs::write(dir.path().join("t.csv"), trace).unwrap();
    for flag in [
        "--input-tokens 9",
        "--output-tokens 128",
        "--turns-per-session 1",
        "--turn-tokens 8",
        "--shared-prefix-ratio 0.5",
        "--num-prefix-groups 2",
        "--inter-turn-delay-ms 3",
        "--inter-turn-delay-varies",
    ] {
        let name = flag.split(' ').next().unwrap();
        for words in [
            format!("replay t.csv {flag}"),
            format!("plan t.csv --slo-e2e-ms 200 {flag}"),
            format!("sweep t.csv --grid max-num-seqs=1,2 {flag}"),
        ] {
            let (code, _, errors) = run(dir.path(), &words);
            assert_eq!(code, 2, "{words}: {errors}");
            assert!(errors.contains("cannot be used with"), "{words}: {errors}");
            assert!(errors.contains(name), "{words}: {errors}");
        }
    }
    let words = "sweep t.csv --grid output-tokens=5,500";
    let (code, _, errors) = run(dir.path(), words);
    assert_eq!((code, errors.contains("cannot be used with")), (2, true), "{errors}");
    let (code, _, errors) = run(dir.path(), "replay t.csv");
    assert_eq!(code, 0, "{errors}");
}

#[test]
fn split_pools_refuse_a_number_of_other_workers() {
    let dir = tempfile::tempdir().unwrap();
    let pools = "--num-prefill-workers 1 --num-decode-workers 1";
    for words in [
        format!("replay {WORK} {pools} --num-workers 3"),
        format!("sweep {WORK} {pools} --grid num-workers=1,2"),
    ] {
        let (code, _, errors) = run(dir.path(), &words);
        assert_eq!(code, 2, "{words}: {errors}");
        for told in ["cannot be used with", "--num-workers", "--num-prefill-workers"] {
            assert!(errors.contains(told), "{words}: no {told} in {errors}");
        }
    }
}

/// The value of `--no-per-request` follows `=`, so the next word is a flag of its own.
#[test]
fn no_per_request_leaves_the_next_word() {
    let dir = tempfile::tempdir().unwrap();
    for rest in ["--report-json -", "--max-num-seqs=4 --report-json -", "--model m --report-json -"]
    {
        for switch in ["--no-per-request", "--no-per-request=true"] {
            let (code, text, errors) = run(dir.path(), &format!("replay {switch} {WORK} {rest}"));
            assert_eq!(code, 0, "{switch} {rest}: {errors}");
            let (_, after, _) = run(dir.path(), &format!("replay {WORK} {switch} {rest}"));
            let report = |text: &str| -> serde_json::Value {
                let mut report: serde_json::Value = serde_json::from_str(text).unwrap();
                report.as_object_mut().unwrap().remove("run");
                report
            };
            assert_eq!(report(&text), report(&after), "{switch} {rest}");
            assert_eq!(report(&text)["per_request"].as_array().map(Vec::len), Some(0));
        }
    }
}

#[test]
fn router_flags_without_effect_are_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let flags = "--router-config {} --router-queue-policy fcfs --kv-event-lag-ms 5";
    let told = "--router-config, --kv-event-lag-ms, --router-queue-policy: no effect with --router";
    for (router, expected) in [("round_robin", 1), ("kv_router", 0)] {
        let words = format!("replay {WORK} --num-workers 2 --router {router} {flags}");
        let (code, _, errors) = run(dir.path(), &words);
        assert_eq!((code, errors.matches(told).count()), (0, expected), "{errors}");
    }
}

#[test]
fn replay_modes_reject_each_others_flags() {
    let dir = tempfile::tempdir().unwrap();
    for (words, told) in [
        ("--target http://127.0.0.1:9 --num-workers 2", "cannot be used with"),
        ("--target http://127.0.0.1:9 -tp 2", "-tp: no effect with --target"),
        ("--compare a.json b.json --report-json c.json", "cannot be used with"),
        ("--compare a.json b.json --max-num-seqs 4", "--max-num-seqs: no effect with --compare"),
        ("--dynamo-run d --router random", "cannot be used with"),
    ] {
        let (code, _, errors) = run(dir.path(), &format!("replay {words}"));
        assert_eq!(code, 2, "{words}: {errors}");
        assert!(errors.contains(told), "{words}: {errors}");
    }
}

#[test]
fn every_command_has_help_and_version() {
    let dir = tempfile::tempdir().unwrap();
    let (_, version, _) = run(dir.path(), "--version");
    for command in [
        "",
        "serve",
        "launch",
        "launch render",
        "config",
        "config serve",
        "version",
        "help",
        "replay",
        "bench",
        "calibrate",
        "dataset",
        "dataset build",
        "dataset inspect",
        "record",
        "validate",
        "explain",
        "sweep",
        "plan",
        "gateway",
        "gateway score",
        "completions",
        "healthcheck",
        "man",
    ] {
        for word in ["--help", "-h"] {
            let words = format!("{command} {word}");
            let (code, help, errors) = run(dir.path(), &words);
            assert_eq!((code, errors.as_str()), (0, ""), "{words}");
            assert!(help.contains("Usage:"), "{words}: {help}");
        }
        for word in ["--version", "-V"] {
            let words = format!("{command} {word}");
            let (code, shown, errors) = run(dir.path(), &words);
            assert_eq!((code, errors.as_str()), (0, ""), "{words}");
            assert_eq!(shown, version, "{words}");
        }
    }
    let (code, help, _) = run(dir.path(), "help replay");
    assert_eq!((code, help.contains("--replay-concurrency")), (0, true));
    let (_, help, _) = run(dir.path(), "launch --help");
    assert!(help.contains("vllm-sim launch render [MODEL]"), "{help}");
}

#[test]
fn invalid_usage_exits_with_2_and_suggests() {
    let dir = tempfile::tempdir().unwrap();
    for (words, told) in [
        ("relpay", "did you mean replay?"),
        ("launch", "launch needs the part of the API"),
        ("launch rendre", "did you mean launch render?"),
        ("serve m --prot 1", "did you mean --port?"),
        ("serve Qwen/Qwen3-8B --port 0 --gpu h1000", "--gpu \"h1000\" is not known"),
        ("replay", "no workload: give trace files"),
        ("replay --nmu-workers 2", "did you mean --num-workers?"),
        ("replay --scale 5:3", "--scale"),
        ("replay --lose-workers 5=0", "--lose-workers"),
        (
            "replay --input-tokens 9 --request-count 1 --request-rate 1 --gpu-hour-price 0",
            "--gpu-hour-price",
        ),
        ("replay --target http://127.0.0.1:1 --gpu-hour-price 2", "--gpu-hour-price: no effect"),
        (
            "replay --num-prefill-workers 1 --num-decode-workers 1 --lose-workers 5=1",
            "--lose-workers is not modelled",
        ),
        (
            "replay --autoscale-max 3 --autoscale-policy wva --autoscale-target-queue 2",
            "--autoscale-target-queue cannot be used with",
        ),
        ("replay --autoscale-target-queue 3 --input-tokens 9 --request-count 1", "--autoscale-max"),
        (
            "replay --autoscale-max 4 --autoscale-target-queue 3 --num-workers 8",
            "--num-workers is 8, must be at most --autoscale-max (4)",
        ),
        (
            "replay --autoscale-max 3 --autoscale-target-kv-usage 80",
            "--autoscale-target-kv-usage is 80, must be a fraction",
        ),
        ("replay --input-tokens 9 --request-count 2 --router kv_ruoter", "kv_router"),
        (
            "replay --input-tokens 9 --request-count 2 --arrival-interval-ms 1e30",
            "must be a number from 0 to 1000000000",
        ),
        (
            "replay --input-tokens uniform:0:0 --request-count 2 --request-rate 1",
            "--input-tokens is 0, must be at least 1",
        ),
        ("bench", "--target URL is needed"),
        (
            "replay --num-prefill-workers 1 --num-decode-workers 1 --pool-flags \
             {\"prefill\":{\"model\":\"m\"}}",
            "--pool-flags: model: both pools serve one model; name it with --model",
        ),
        ("sweep --grid x --input-tokens 9", "must be NAME=VALUE"),
        ("sweep --grid a=1,4 --grid a=8 --input-tokens 9", "--grid a is given twice"),
        ("sweep", "--grid"),
        ("calibrate", "--data FILE"),
        ("calibrate --data x --hold-uot a", "did you mean --hold-out?"),
        ("calibrate --data x --threads 0", "--threads is"),
        ("calibrate --data x --scheduler sglang", "--scheduler must be vllm"),
        ("calibrate --data x --speedup-ratio 5", "--speedup-ratio is 5, must be 1"),
        ("validate", "--runs"),
        ("validate --runs . --otu x", "'--out'"),
        ("explain m --gup h100", "did you mean --gpu?"),
        ("record", "--upstream"),
        ("record --upstraem http://x", "'--upstream'"),
        ("dataset build --modle m", "'--model'"),
        ("dataset inspect", "FILE"),
        ("completions", "needs the name of a shell"),
        ("completions bsah", "did you mean bash?"),
        ("man nothing", "man takes the name of a command"),
    ] {
        let (code, _, errors) = run(dir.path(), words);
        assert_eq!(code, 2, "{words}: {errors}");
        assert!(errors.contains(told), "{words}: {errors}");
        let named = errors.lines().any(|line| line.starts_with("error: "));
        assert!(named, "{words}: {errors}");
    }
    // What is no matter of words exits with 1; files that are not there are (`exit_codes.rs`).
    std::fs::write(dir.path().join("broken.jsonl"), "garbage\n").unwrap();
    let words = "replay broken.jsonl --format mooncake";
    assert_eq!(run(dir.path(), words).0, 1, "{words}");
}

#[test]
fn two_reports_are_compared_on_a_page() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let (code, table, errors) =
            run(dir.path(), &format!("replay {WORK} --report-json {name}.json"));
        assert_eq!(code, 0, "{errors}");
        assert!(table.contains("vllm-sim | LLM Metrics"), "{table}");
        assert!(table.contains("│     p50 │") || table.contains(" p50 "), "{table}");
    }
    let (code, table, errors) = run(dir.path(), "replay --compare a.json b.json --html c.html");
    assert_eq!(code, 0, "{errors}");
    let page = std::fs::read_to_string(dir.path().join("c.html")).unwrap();
    assert!(page.contains(">TTFT p99 (ms)</th>"), "{page}");
    assert!(table.contains("TTFT p99") && page.contains(">a.json</th>"));
}

#[test]
fn seeded_runs_have_confidence_intervals() {
    let dir = tempfile::tempdir().unwrap();
    for (name, seqs) in [("a", 1), ("b", 8)] {
        for seed in 1..=3 {
            let work = "--input-tokens uniform:20:90 --output-tokens 4 --request-count 30 \
                        --request-rate 40";
            let words = format!(
                "replay {work} --arrival-seed {seed} --workload-seed {seed} --max-num-seqs {seqs} \
                 --report-json {name}{seed}.json"
            );
            assert_eq!(run(dir.path(), &words).0, 0, "{words}");
        }
    }
    let groups = "a1.json,a2.json,a3.json b1.json,b2.json,b3.json a1.json,a2.json";
    let (code, table, errors) =
        run(dir.path(), &format!("replay --compare {groups} --html c.html"));
    assert_eq!(code, 0, "{errors}");
    let line = |start: &str| table.lines().find(|line| line.contains(start)).unwrap();
    assert_eq!(line("Metric").matches("± 95 %").count(), 2, "{table}");
    // One request at a time makes others wait, and the same runs do not differ from themselves.
    assert!(line("TTFT mean").contains(" better "), "{table}");
    assert!(line("TTFT mean").trim_end().ends_with("= │"), "{table}");
    let page = std::fs::read_to_string(dir.path().join("c.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 3, "{page}");
    assert!(page.contains("interval of the difference") && page.contains("--compare a1.json"));
}

#[test]
fn sweep_marks_no_best_if_none_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("sweep {WORK} --grid max-num-seqs=1,2 --slo-ttft-ms 0.0001");
    let (code, table, errors) = run(dir.path(), &words);
    assert_eq!(code, 0, "{errors}");
    assert!(!table.contains('*'), "{table}");
    assert!(table.contains("\nno point has a good request, so none is the best\n"), "{table}");
    let (_, json, _) = run(dir.path(), &format!("{words} --report-json -"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["best"].is_null(), "{json}");
}

#[test]
fn sweep_skips_points_that_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!(
        "sweep {WORK} --model meta-llama/Llama-3.1-70B-Instruct --gpu H100 \
         --grid tensor-parallel-size=1,4 --html s.html"
    );
    let (code, table, errors) = run(dir.path(), &words);
    assert_eq!(code, 0, "{errors}");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].starts_with("1 ") && lines[1].contains('–'), "{table}");
    assert!(lines[2].starts_with("4 ") && lines[2].ends_with('*'), "{table}");
    let why = "tensor-parallel-size=1: meta-llama/Llama-3.1-70B-Instruct does not fit on 1 x ";
    assert!(lines[4].starts_with(why), "{table}");
    let page = std::fs::read_to_string(dir.path().join("s.html")).unwrap();
    assert!(page.contains("does not fit on 1 x"), "{page}");
    let none = words.replace("=1,4", "=1");
    let (code, _, errors) = run(dir.path(), &none);
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("no point of the grid fits"), "{errors}");
}

#[test]
fn explain_shows_where_the_memory_goes_and_what_drafts_do() {
    let dir = tempfile::tempdir().unwrap();
    let of = |more: &str| {
        let words = format!("explain meta-llama/Llama-3.1-8B-Instruct --gpu h100 {more}");
        let (code, text, errors) = run(dir.path(), &words);
        assert_eq!(code, 0, "{errors}");
        text
    };
    let plain = of("");
    for part in
        ["Memory of each GPU (GB)", "weights                      16.06   config.json", "the rest"]
    {
        assert!(plain.contains(part), "no {part:?} in\n{plain}");
    }
    assert!(!plain.contains("draft model"), "{plain}");
    let typed = of("--kv-cache-memory-bytes 10737418240 --max-model-len 32768");
    assert!(typed.contains("10.74 GB of cache are 5120 blocks"), "{typed}");
    assert!(typed.contains("--kv-cache-memory-bytes, regardless of free memory"), "{typed}");
    // The line of the memory and the table have the same weights, of both kinds of models.
    let weights = |text: &str| {
        let of_line = |start: &str, word: usize| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().nth(word).unwrap().parse::<f64>().unwrap()
        };
        assert_eq!(of_line("Memory  ", 1), of_line("weights  ", 1), "{text}");
        of_line("weights  ", 1)
    };
    assert_eq!([weights(&plain), weights(&of("--cpu-offload-gb 4"))], [16.06, 11.77]);
    assert!(!of("-dp 2").contains("run in lockstep"));
    let words = "explain Qwen/Qwen3-30B-A3B --gpu h100 -dp 2";
    let (_, experts, _) = run(dir.path(), words);
    assert!(
        experts.contains("Ranks       run in lockstep because the model has experts"),
        "{experts}"
    );
    assert_eq!(weights(&experts), 32.05);
    for part in ["One decode step on every rank, context", "One prompt alone, nothing cached"] {
        assert!(experts.contains(part), "no {part:?} in\n{experts}");
    }
    let (_, alone, _) = run(dir.path(), &format!("{words} --data-parallel-size-local 1"));
    assert!(alone.contains("One prompt on every rank, nothing cached"), "{alone}");
    assert!(
        alone.contains("Qwen3-30B-A3B") && !alone.contains("Ranks       run in lockstep"),
        "{alone}"
    );
    let drafting = of("--spec-method eagle3 --spec-model d --spec-tokens 2 --enable-lora");
    for part in ["Drafts      2 per step", "making them takes 1.", "draft model", "adapters"] {
        assert!(drafting.contains(part), "no {part:?} in\n{drafting}");
    }
    let alone = |text: &str| -> f64 {
        let lines = text.lines().skip_while(|line| !line.starts_with("One decode step"));
        let mut lines = lines.skip_while(|line| !line.starts_with("step "));
        let step = lines.next().and_then(|line| line.split_whitespace().nth(1));
        step.unwrap().parse().unwrap()
    };
    // 4 GiB at 52 GB/s are 82.6 ms in every step.
    let offloaded = of("--cpu-offload-gb 4");
    let slower = alone(&offloaded) - alone(&plain);
    assert!((slower - 82.6).abs() < 0.1, "{slower}");
    let part = offloaded.lines().find(|line| line.starts_with("  host weights"));
    assert!(part.unwrap().contains(" 82.60 "), "{offloaded}");
    assert!(!plain.contains("host weights"), "{plain}");
}

/// Returns what bash offers behind a command line whose last word is incomplete.
fn completed(script: &std::path::Path, words: &[&str]) -> Vec<String> {
    let (last, before) = words.split_last().expect("a word");
    let previous = before.last().expect("the program");
    let ask = format!(
        "source {script:?}; COMP_WORDS=({words}); COMP_CWORD={at}; _vllm__sim vllm-sim {last:?} \
         {previous}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words = words.iter().map(|word| format!("{word:?} ")).collect::<String>(),
        at = before.len(),
    );
    let shell = std::process::Command::new("bash").args(["-c", &ask]).output();
    let output = shell.expect("bash is installed");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completion_works_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let (code, script, _) = run(dir.path(), "completions bash");
    assert_eq!(code, 0);
    let path = dir.path().join("completions.bash");
    std::fs::write(&path, script).unwrap();
    for (words, offered) in [
        (&["vllm-sim", "rep"][..], "replay"),
        (&["vllm-sim", "--max-num-se"], "--max-num-seqs"),
        (&["vllm-sim", "serve", "demo", "--max-num-se"], "--max-num-seqs"),
        (&["vllm-sim", "serve", "llama-3.1-7"], "llama-3.1-70b"),
        (&["vllm-sim", "serve", "demo", "--gpu", "H10"], "H100-SXM-80GB"),
        (&["vllm-sim", "replay", "--rou"], "--router"),
        (&["vllm-sim", "plan", "--slo-t"], "--slo-ttft-ms"),
        (&["vllm-sim", "explain", "--gp"], "--gpu"),
        (&["vllm-sim", "gateway", "s"], "score"),
        (&["vllm-sim", "gateway", "score", "--rep"], "--replicas"),
    ] {
        let found = completed(&path, words);
        assert!(found.iter().any(|word| word == offered), "{words:?}: {found:?}");
    }
    let first = completed(&path, &["vllm-sim", ""]);
    assert!(first.contains(&"serve".to_owned()), "{first:?}");
    assert!(first.iter().all(|word| !word.starts_with('-')), "{first:?}");
}

#[test]
fn healthcheck_command_probes_server() {
    let dir = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        for status in ["200 OK", "503 Service Unavailable"] {
            use std::io::{Read, Write};
            let (mut socket, _) = listener.accept().unwrap();
            let mut head = [0; 1024];
            let read = socket.read(&mut head).unwrap();
            assert!(head[..read].starts_with(b"GET /health HTTP/1.1"), "{head:?}");
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            socket.write_all(answer.as_bytes()).unwrap();
        }
    });
    let healthy = run(dir.path(), &format!("healthcheck {url}"));
    assert_eq!((healthy.0, healthy.1.trim()), (0, format!("{url}: healthy").as_str()));
    let (code, _, errors) = run(dir.path(), &format!("healthcheck {url}"));
    assert_eq!((code, errors.contains("returned 503")), (1, true), "{errors}");
    server.join().unwrap();
    let (code, _, errors) = run(dir.path(), &format!("healthcheck {url}"));
    assert_eq!((code, errors.contains("cannot connect")), (1, true), "{errors}");
    let (code, ..) = run(dir.path(), "healthcheck nowhere");
    assert_eq!(code, 2);
}
