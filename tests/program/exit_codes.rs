//! The exit code of every command: 1 when it failed or has no answer, 2 when it was called wrongly.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

fn run(dir: &Path, words: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let command = command.current_dir(dir).stdin(Stdio::null());
    let output = command.args(words.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

const LLAMA: &str = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100";
const LARGE: &str = "--model meta-llama/Llama-3.1-70B-Instruct --gpu H100";
const WORK: &str = "--input-tokens 20 --output-tokens 4 --request-count 6 --request-rate 9";

/// The file is named, and the flag that names it.
#[test]
fn a_missing_file_is_a_wrong_command_line() {
    let dir = tempfile::tempdir().unwrap();
    for (words, named) in [
        ("serve demo --config nofile", "--config nofile"),
        ("serve demo --scenario nofile", "--scenario nofile"),
        ("serve demo --replies nofile", "--replies nofile"),
        ("serve demo --tokenizer ./nofolder", "./nofolder"),
        ("serve demo --tokenizer /nofolder", "/nofolder"),
        ("replay nofile", "nofile"),
        ("sweep nofile --grid max-num-seqs=1,2", "nofile"),
        ("plan nofile --slo-ttft-ms 5", "error: nofile"),
        ("bench nofile --target http://127.0.0.1:9", "nofile"),
        ("validate --runs nofolder", "nofolder"),
        ("replay --workers nofile --input-tokens 5", "--workers: nofile"),
        ("replay --compare a.json b.json", "--compare: a.json"),
        ("replay --router-config nofile --input-tokens 5", "--router-config: nofile"),
        ("replay --input-tokens histogram:nofile", "nofile"),
    ] {
        let (code, _, errors) = run(dir.path(), words);
        assert_eq!(code, 2, "{words}: {errors}");
        assert!(errors.contains(named), "{words}: {errors}");
    }
    let words = format!("calibrate --data nofile {LLAMA}");
    let (code, _, errors) = run(dir.path(), &words);
    assert_eq!(code, 2, "{errors}");
    let words = format!("plan {WORK} {LLAMA} --slo-ttft-ms 5 --prices nofile");
    let (code, _, errors) = run(dir.path(), &words);
    assert_eq!(code, 2, "{errors}");
    for tool in ["serve demo", "replay", "plan", "sweep", "validate", "calibrate", "explain demo"] {
        let (code, _, errors) = run(dir.path(), &format!("{tool} --no-such-flag 1"));
        assert_eq!(code, 2, "{tool}: {errors}");
    }
}

#[test]
fn unmet_requests_are_failures_and_not_usage_errors() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let unserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = unserved.local_addr().unwrap().port();
    drop(unserved);
    for (words, printed, told) in [
        (format!("serve demo --host 127.0.0.1 --port {port}"), "", "cannot listen"),
        (
            format!("plan {WORK} {LLAMA} -tp 1 --slo-ttft-ms 0.001"),
            "only one tensor-parallel size was tried",
            "no deployment meets the bounds",
        ),
        (
            format!("plan {WORK} {LARGE} -tp 1 --slo-ttft-ms 500"),
            "a tensor-parallel size for which the model does not fit",
            "no deployment meets the bounds",
        ),
        (
            "replay --input-tokens 5 --request-count 0 --request-rate 1".to_owned(),
            "0.00",
            "no request was completed",
        ),
        (format!("bench --target http://127.0.0.1:{closed} {WORK} --target-model m"), "", ""),
    ] {
        let (code, out, errors) = run(dir.path(), &words);
        assert_eq!(code, 1, "{words}: {out}{errors}");
        assert!(out.contains(printed) && errors.contains(told), "{words}: {out}{errors}");
    }
}

/// vLLM's `verify_with_parallel_config`: 32 heads do not go into 3 parts.
#[test]
fn indivisible_attention_heads_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let words = "must be divisible by tensor parallel size (3)";
    for tool in [
        "serve meta-llama/Llama-3.1-8B-Instruct --gpu H100 --tensor-parallel-size 3 --port 0"
            .to_owned(),
        format!("explain {LLAMA} --tensor-parallel-size 3"),
        format!("replay {WORK} {LLAMA} --tensor-parallel-size 3"),
        format!("sweep {WORK} {LLAMA} --grid tensor-parallel-size=1,3"),
        format!("plan {WORK} {LLAMA} --slo-ttft-ms 500 --vary tensor-parallel-size=1,3"),
    ] {
        let (code, _, errors) = run(dir.path(), &tool);
        assert_eq!(code, 2, "{tool}: {errors}");
        assert!(errors.contains(words), "{tool}: {errors}");
    }
}

#[test]
fn help_of_format_lists_its_values() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, errors) = run(dir.path(), "replay --help");
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains("[possible values: auto, mooncake, "), "{out}");
}

#[test]
fn a_plan_without_step_times_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let asked = format!("plan {WORK} --model meta-llama/Llama-3.1-8B-Instruct --slo-ttft-ms 5000");
    let (code, out, errors) = run(dir.path(), &asked);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert!(errors.contains("a plan needs step times: name the GPU with --gpu"), "{errors}");
    let (code, _, errors) = run(dir.path(), &format!("{asked} --time-to-first-token 100ms"));
    assert_eq!(code, 0, "{errors}");
}

#[test]
fn a_plan_reports_what_it_counts_and_reads_the_workload_first() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("plan {WORK} {LLAMA} --slo-ttft-ms 5000 --vary gpu=H100,L40S");
    let (code, out, errors) = run(dir.path(), &words);
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains("no prices were given") && !out.contains("cheapest"), "{out}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.arg("plan").args(LARGE.split_whitespace());
    command.args(["--workload", "20 req/s of 2000 in / 300 out", "--slo-ttft-ms", "500"]);
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.starts_with("error: --workload"), "{errors}");
}

/// The check runs in every mode, also with an explicit cache size.
#[test]
fn a_model_that_does_not_fit_its_gpu_is_refused_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let roofline = format!("{LARGE} --latency-model roofline");
    let work = format!("{WORK} {roofline}");
    for words in [
        format!("{roofline} --host 127.0.0.1"),
        format!("{roofline} --host 127.0.0.1 --kv-cache-size 100"),
        format!("serve {LARGE} --host 127.0.0.1 --port 0 --num-gpu-blocks-override 1000"),
        format!("serve {LARGE} --host 127.0.0.1 --port 0 --kv-cache-memory-bytes 40G"),
        format!("explain {LARGE} --num-gpu-blocks-override 1000"),
        format!("replay {work} --num-gpu-blocks-override 1000"),
    ] {
        let (code, out, errors) = run(dir.path(), &words);
        assert_eq!(code, 1, "{words}: {out}{errors}");
        assert!(errors.contains("the weights alone take 141.1 GB"), "{words}: {errors}");
    }
    // Weights offloaded to the CPU need no GPU memory.
    let words = format!("explain {LARGE} --cpu-offload-gb 90 --max-model-len 4096");
    let (code, out, errors) = run(dir.path(), &words);
    assert_eq!(code, 0, "{out}{errors}");
}

#[test]
fn missing_arguments_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (words, told) in [
        ("explain", "which model? Name one, such as `vllm-sim explain"),
        ("explain --latency-model polynomial", "which model?"),
        ("dataset build --model demo", "Give --local-path FILE, or --hf-repo NAME"),
        (
            "dataset build --model demo --local-path nofile",
            "--local-path nofile: no such file or folder",
        ),
    ] {
        let (code, out, errors) = run(dir.path(), words);
        assert_eq!(code, 2, "{words}: {out}{errors}");
        assert!(errors.contains(told), "{words}: {errors}");
    }
}

#[test]
fn replay_missing_requirement_fails() {
    let dir = tempfile::tempdir().unwrap();
    let replay = |more: &str| run(dir.path(), &format!("replay {WORK} {LLAMA} {more}"));
    let (code, out, errors) = replay("--require p99_ttft_ms<=5000 --require completed_requests>=6");
    assert_eq!(code, 0, "{out}{errors}");
    let (code, out, errors) = replay("--require p99_ttft_ms<=1 --require nothing>=1");
    assert_eq!(code, 1, "{errors}");
    assert!(out.contains("Time to First Token"), "{out}");
    for told in ["--require missed: p99_ttft_ms<=1 (it is ", "nothing>=1 (it is unknown)"] {
        assert!(errors.contains(told), "no {told:?} in {errors}");
    }
    for words in
        ["replay --require p99_ttft_ms", "bench --target http://127.0.0.1:9 --require a>=b"]
    {
        let (code, _, errors) = run(dir.path(), &format!("{words} {WORK}"));
        assert_eq!(code, 2, "{words}: {errors}");
        assert!(errors.contains("--require"), "{errors}");
    }
}

#[test]
fn a_full_standard_output_is_a_failure_that_is_named() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let output = command.args(["explain", "--list"]).stdout(full).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("standard output: No space left"), "{errors}");
}
