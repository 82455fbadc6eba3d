//! Warnings about settings that have no effect with other settings, and about unknown keys.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::Path;
use std::process::{Command, Stdio};

fn run(dir: &Path, words: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let command = command.current_dir(dir).stdin(Stdio::null());
    let output = command.args(words.split_whitespace()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), errors)
}

#[test]
fn every_command_warns_of_ineffective_flags() {
    let dir = tempfile::tempdir().unwrap();
    let llama = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --time-to-first-token 2s";
    let work = "--input-tokens 8 --request-count 2 --request-rate 3";
    for words in [
        format!("config serve {llama}"),
        format!("replay {work} {llama}"),
        format!("sweep {work} {llama} --grid max-num-seqs=1,2"),
        format!("explain {llama}"),
    ] {
        let (code, errors) = run(dir.path(), &words);
        assert_eq!(code, 0, "{words}: {errors}");
        let told = "--time-to-first-token: no effect because a latency model computes the times";
        assert_eq!(errors.matches(told).count(), 1, "{words}: {errors}");
    }
    for (more, told) in [
        ("--failure-types rate_limit", "--failure-types: no effect"),
        (
            "--stream-faults kv_load_failure=0 --stream-fault-rate 50",
            "--stream-faults kv_load_failure: no effect because no prompt is loaded",
        ),
        (
            "--kv-offloading-size 4",
            "--kv-offloading-size has no effect: the KV cache size of a token is unknown",
        ),
    ] {
        let (code, errors) = run(dir.path(), &format!("config serve demo {more}"));
        assert_eq!(code, 0, "{more}: {errors}");
        assert!(errors.contains(told), "{more}: {errors}");
    }
    let loads = "config serve demo --stream-faults kv_load_failure=0 --stream-fault-rate 50 \
        --kv-transfer-config {\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}";
    let (code, errors) = run(dir.path(), loads);
    assert_eq!((code, errors.contains("no effect")), (0, false), "{errors}");
}

#[test]
fn unknown_key_is_named_with_missing_model() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bad.yaml"), "max-num-seqz: 4\n").unwrap();
    let (code, errors) = run(dir.path(), "--config bad.yaml");
    assert_eq!(code, 2, "{errors}");
    for told in ["model parameter is empty", "max-num-seqz; did you mean max-num-seqs?"] {
        assert!(errors.contains(told), "no {told:?} in {errors}");
    }
}

const SYNTHETIC: &str =
    "--input-tokens 20 --output-tokens 4 --request-count 6 --arrival-interval-ms 0";

#[test]
fn workload_and_worker_flags_without_effect_are_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let closed = "--input-tokens 8 --request-count 3 --replay-concurrency 2";
    for (words, told) in [
        (
            format!("{SYNTHETIC} --startup-time 20"),
            "--startup-time: no effect, because no worker starts",
        ),
        (
            format!("{SYNTHETIC} --cold-start"),
            "--cold-start: no effect, because workers start in no",
        ),
        (
            format!("{SYNTHETIC} --turn-tokens 5 --inter-turn-delay-varies"),
            "--turn-tokens, --inter-turn-delay-varies: no effect, because sessions have one turn",
        ),
        (
            format!("{SYNTHETIC} --trace-block-size 16 --format azure"),
            "--format, --trace-block-size: no effect, because the workload is synthetic",
        ),
        (
            format!("{closed} --arrival-interval-ms 5 --arrival-seed 7"),
            "--arrival-interval-ms, --arrival-seed: no effect, because a closed loop",
        ),
    ] {
        let (code, errors) = run(dir.path(), &format!("replay {words}"));
        assert_eq!((code, errors.matches(told).count()), (0, 1), "{words}: {errors}");
    }
    for words in [
        format!("{SYNTHETIC} --startup-time 20 --cold-start"),
        format!("{SYNTHETIC} --turns-per-session 2 --turn-tokens 5 --inter-turn-delay-varies"),
    ] {
        let (code, errors) = run(dir.path(), &format!("replay {words}"));
        assert_eq!((code, errors.contains("no effect")), (0, false), "{words}: {errors}");
    }
}

/// Runs of other programs and comparisons have their own workloads, workers and bounds.
#[test]
fn flags_that_a_described_run_ignores_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let flags = [
        "--request-rate 500",
        "--slo-ttft-ms 1",
        "--max-sim-time-seconds 1",
        "--request-count 3",
        "--replay-concurrency 1",
        "--arrival-speedup-ratio 10",
        "--workload-seed 3",
        "--trace-block-size 16",
        "--format azure",
        "--input-tokens 9",
        "--lora a",
        "--scale 1=5",
        "--target-timeout 3",
        "--sample-interval-ms 5",
    ];
    for mode in ["--dynamo-run d", "--aisimulate f.yaml", "--compare a.json b.json"] {
        let (run_flag, _) = mode.split_once(' ').unwrap();
        for flag in flags {
            let words = format!("replay {mode} {flag}");
            let (code, errors) = run(dir.path(), &words);
            assert_eq!(code, 2, "{words}: {errors}");
            let (name, _) = flag.split_once(' ').unwrap();
            assert!(errors.contains("cannot be used with"), "{words}: {errors}");
            for named in [run_flag, name] {
                assert!(errors.contains(named), "{words}: no {named} in {errors}");
            }
            assert!(!errors.contains("--num-workers"), "{words}: {errors}");
        }
    }
    for mode in ["--dynamo-run d", "--aisimulate f.yaml"] {
        let words = format!("replay trace.jsonl {mode}");
        let (code, errors) = run(dir.path(), &words);
        assert_eq!(code, 2, "{words}: {errors}");
        assert!(errors.contains("[TRACE]..."), "{words}: {errors}");
    }
}

/// Schedulers that ignore priorities, slots of adapters or a connector say so.
#[test]
fn settings_that_a_scheduler_ignores_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let nixl = "--kv-transfer-config {\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}";
    let adapters = "--enable-lora --max-loras 1 --max-cpu-loras 2";
    let all = format!("--scheduling-policy priority {adapters} {nixl}");
    let priority = "--scheduling-policy: no effect because only --scheduler vllm has priorities";
    for (words, told) in [
        ("serve demo --scheduler pool", vec![priority, "--max-cpu-loras: no effect because"]),
        ("--model demo", vec![priority, "--max-cpu-loras: no effect because"]),
        (
            "serve demo --scheduler sglang",
            vec![
                priority,
                "--enable-lora, --max-loras, --max-cpu-loras: adapters are served, but",
                "--kv-transfer-config: no effect because",
            ],
        ),
        ("serve demo --scheduler vllm", vec![]),
    ] {
        let (code, errors) = run(dir.path(), &format!("config {words} {all}"));
        assert_eq!(code, 0, "{words}: {errors}");
        let warned = errors.lines().filter(|line| line.contains(" WARN "));
        let warned: Vec<&str> = warned.collect();
        assert_eq!(warned.len(), told.len(), "{words}: {errors}");
        for text in told {
            assert!(errors.contains(text), "{words}: no {text:?} in {errors}");
        }
    }
}

/// The tools warn, too; only `--scheduler vllm` reads these flags.
#[test]
fn flags_that_the_sglang_scheduler_ignores_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let llama = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --max-model-len 4096";
    let work = "--input-tokens 8 --output-tokens 2 --request-count 2 --request-rate 3";
    for flag in [
        "--max-num-batched-tokens 8192",
        "--max-num-scheduled-tokens 512",
        "--no-enable-chunked-prefill --max-num-batched-tokens 8192",
        "--long-prefill-token-threshold 100",
        "--long-prefill-token-threshold-adaptive",
        "--prefill-schedule-interval 2",
        "--no-scheduler-reserve-full-isl",
        "--watermark 0.3",
        "--preemption-mode fifo",
        "--prefix-cache-retention-interval 64",
        "--disable-hybrid-kv-cache-manager",
        "--performance-mode throughput",
        "--attention-backend FLASH_ATTN",
        "--cpu-offload-gb 2",
        "--kv-offloading-size 8",
        "--speculative-config {\"method\":\"eagle3\",\"model\":\"d\",\"num_speculative_tokens\":2}",
        "--disable-chunked-mm-input",
    ] {
        let name = flag.split(' ').next().unwrap().replacen("--no-", "--", 1);
        let warned = |scheduler: &str| {
            let words = format!("replay {work} {llama} --scheduler {scheduler} {flag}");
            let (code, errors) = run(dir.path(), &words);
            assert_eq!(code, 0, "{words}: {errors}");
            let mut lines = errors.lines().filter(|line| line.contains("no effect"));
            lines.any(|line| line.contains(&name))
        };
        assert!(warned("sglang"), "{flag}");
        // Without media, chunks of media have no effect with either, nor has a backend on step times.
        let in_both = ["--disable-chunked-mm-input", "--attention-backend FLASH_ATTN"];
        assert!(!warned("vllm") || in_both.contains(&flag), "{flag}");
    }
    // Drafts that are never made take no memory of the cache.
    let cache = |more: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
        command.args(format!("explain {llama} --scheduler sglang {more}").split_whitespace());
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with("KV cache ")).unwrap().to_owned();
        (line, text)
    };
    let (plain, text) = cache("--sglang-chunked-prefill-size 1024");
    let drafts = "{\"method\":\"eagle3\",\"model\":\"d\",\"num_speculative_tokens\":2}";
    assert_eq!(cache(&format!("--speculative-config {drafts}")).0, plain);
    let part = "batches of their own, of at most 16384 tokens, of which 1024 are of one prompt";
    assert!(text.contains(part), "no {part:?} in\n{text}");
    // Prompts of 64, 256, 1,024 and 4,096 tokens.
    let steps = text.lines().find(|line| line.starts_with("steps ")).unwrap();
    assert_eq!(steps.split_whitespace().collect::<Vec<_>>(), ["steps", "1", "1", "1", "4"]);
}

/// A cache that cannot hold a request of the whole context is a warning, also without a GPU.
#[test]
fn too_few_cache_blocks_are_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let warned = |words: &str| {
        let (code, errors) = run(dir.path(), &format!("config {words}"));
        assert_eq!(code, 0, "{words}: {errors}");
        errors
    };
    let context = "a request of --max-model-len (32768) tokens: 9 blocks hold 144 tokens";
    for scheduler in ["vllm", "pool"] {
        let words = format!("serve demo --scheduler {scheduler} --num-gpu-blocks-override 10");
        let told = format!("--num-gpu-blocks-override 10 is too small for {context}; vLLM would");
        let errors = warned(&words);
        assert!(errors.contains(&told), "{words}: {errors}");
    }
    let errors = warned("--model demo --enable-kvcache --kv-cache-size 3");
    let told = "--kv-cache-size 3 is too small for a request of --max-model-len (1024) tokens: 3 \
                blocks hold 48 tokens";
    assert!(errors.contains(told) && !errors.contains("vLLM would"), "{errors}");
    for words in [
        "serve demo --num-gpu-blocks-override 2049",
        "--model demo --enable-kvcache --kv-cache-size 64",
        "--model demo --num-gpu-blocks-override 10",
        "serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 1024 --num-gpu-blocks-override 65",
    ] {
        let errors = warned(words);
        assert!(!errors.contains("too small") && !errors.contains("refuse"), "{words}: {errors}");
    }
}

/// vLLM loads adapters at its start, and ends without one of them.
#[test]
fn an_adapter_without_a_folder_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let told = "--lora-modules b=/nowhere: no such folder";
    let words = "--enable-lora --lora-modules b=/nowhere";
    let (code, errors) = run(dir.path(), &format!("config serve demo {words}"));
    assert_eq!((code, errors.contains(told)), (0, true), "{errors}");
    // llm-d's command line, and names of a hub.
    for words in [
        format!("config --model demo {words}"),
        "config serve demo --enable-lora --lora-modules b=owner/adapter".to_owned(),
    ] {
        let (code, errors) = run(dir.path(), &words);
        assert_eq!((code, errors.contains("no such folder")), (0, false), "{errors}");
    }
}

#[test]
fn tools_warn_of_overrides_without_a_config_json() {
    let dir = tempfile::tempdir().unwrap();
    let llama = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100 \
                 --hf-overrides {\"max_position_embeddings\":4096}";
    let work = "--input-tokens 8 --request-count 2 --request-rate 3";
    for words in [
        format!("config serve {llama}"),
        format!("explain {llama}"),
        format!("replay {work} {llama}"),
    ] {
        let (code, errors) = run(dir.path(), &words);
        assert_eq!(code, 0, "{words}: {errors}");
        let told = "--hf-overrides has no effect: the model has no config.json here";
        assert_eq!(errors.matches(told).count(), 1, "{words}: {errors}");
    }
}
