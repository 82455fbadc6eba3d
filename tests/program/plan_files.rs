//! The files that `vllm-sim plan` writes: reports without an answer, and `--deploy-dir` in a folder
//! that has files already.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::Path;

use super::replay_command::{printed, vllm_sim};

const DENSE: &str = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100";
const WORK: &str = "--input-tokens 300 --output-tokens 20 --request-count 60 --request-rate 10 \
                    --max-gpus 8";
const LOOSE: &str = "--slo-ttft-ms 900";

/// Returns exit code, standard output and standard error of a command.
fn outcome(dir: &Path, words: &str) -> (Option<i32>, String, String) {
    let output = vllm_sim(dir, words);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Asserts that a plan is refused with exit code 2 and a text that has all of `parts`.
fn is_refused(dir: &Path, words: &str, parts: &[&str]) {
    let (code, _, errors) = outcome(dir, words);
    assert_eq!(code, Some(2), "{words}: {errors}");
    for part in parts {
        assert!(errors.contains(part), "{words}: {errors}");
    }
}

#[test]
fn a_plan_without_an_answer_writes_its_reports_and_nothing_to_deploy() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!(
        "plan {DENSE} {WORK} --slo-ttft-ms 1 --deploy-dir out --helm-values values.yaml \
         --html page.html --report-json report.json"
    );
    let (code, text, errors) = outcome(dir.path(), &words);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("no deployment meets the bounds"), "{errors}");
    assert!(text.contains("no deployment of up to 8 GPUs"), "{text}");
    assert!(!text.contains("files to deploy"), "{text}");
    let is_there = |name: &str| dir.path().join(name).exists();
    let there = ["page.html", "report.json", "out", "values.yaml"].map(is_there);
    assert_eq!(there, [true, true, false, false]);
}

#[test]
fn files_to_deploy_need_a_model() {
    let dir = tempfile::tempdir().unwrap();
    for flag in ["--deploy-dir", "--helm-values"] {
        let words = format!("plan {WORK} {LOOSE} --time-to-first-token 5ms {flag} out");
        is_refused(dir.path(), &words, &[flag, "--model"]);
    }
}

#[test]
fn workers_of_different_kinds_have_no_files_to_deploy() {
    let dir = tempfile::tempdir().unwrap();
    let split = "--num-prefill-workers 1 --num-decode-workers 1";
    for output in ["--deploy-dir", "--helm-values"] {
        for flag in
            ["--pool-flags", "--extra-engine-args", "--prefill-engine-args", "--decode-engine-args"]
        {
            let words = format!("plan {DENSE} {WORK} {LOOSE} {split} {output} out {flag} {{}}");
            is_refused(dir.path(), &words, &[output, flag]);
        }
        let words =
            format!("plan {DENSE} {WORK} {LOOSE} {split} {output} out --vary pool-flags={{}}");
        is_refused(dir.path(), &words, &[output, "--pool-flags"]);
    }
    // Without the files there is no command that would start the wrong servers.
    let words = format!(
        "plan {DENSE} {WORK} {LOOSE} -tp 1 {split} \
         --pool-flags {{\"prefill\":{{\"tensor-parallel-size\":2}}}}"
    );
    let text = printed(dir.path(), &words);
    assert!(text.contains("Answer: ") && !text.contains("to deploy: "), "{text}");
}

#[test]
fn files_for_amd_gpus_ask_for_amds_resource_and_image() {
    let dir = tempfile::tempdir().unwrap();
    let model = "--model meta-llama/Llama-3.1-8B-Instruct --gpu MI300X -tp 1";
    printed(dir.path(), &format!("plan {model} {WORK} {LOOSE} --deploy-dir out"));
    let out = |name: &str| dir.path().join("out").join(name);
    let image = |repository: &str| format!("{repository}:v");
    for (name, parts) in [
        ("kubernetes.yaml", ["amd.com/gpu".to_owned(), image("vllm/vllm-openai-rocm")]),
        ("llm-d.values.yaml", ["type: amd".to_owned(), image("vllm/vllm-openai-rocm")]),
        (
            "production-stack.values.yaml",
            ["amd.com/gpu".to_owned(), "vllm/vllm-openai-rocm".to_owned()],
        ),
    ] {
        let text = std::fs::read_to_string(out(name)).unwrap();
        for part in parts {
            assert!(text.contains(&part), "{name}: no {part} in {text}");
        }
        assert!(!text.contains("nvidia"), "{name}: {text}");
    }
    assert!(!out("kserve.yaml").exists());
    let page = std::fs::read_to_string(out("DEPLOY.md")).unwrap();
    assert!(page.contains("No `kserve.yaml`: the image that KServe chooses"), "{page}");
}

#[test]
fn llmd_values_are_left_out_if_the_chart_would_count_fewer_gpus() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        format!("plan {DENSE} {WORK} {LOOSE} -tp 2 --pipeline-parallel-size 2 --deploy-dir out");
    printed(dir.path(), &words);
    let out = |name: &str| dir.path().join("out").join(name);
    assert!(!out("llm-d.values.yaml").exists());
    let page = std::fs::read_to_string(out("DEPLOY.md")).unwrap();
    assert!(page.contains("No `llm-d.values.yaml`: "), "{page}");
    assert!(out("kubernetes.yaml").exists());
}

#[test]
fn a_second_plan_replaces_its_own_files_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("README.md"), "mine").unwrap();
    let plan = |more: &str| format!("plan {DENSE} {WORK} {LOOSE} -tp 1 --deploy-dir . {more}");
    printed(dir.path(), &plan(""));
    assert!(path("production-stack.values.yaml").exists());
    // The production stack splits no prefill and decode, so its old file would be stale.
    printed(dir.path(), &plan("--num-prefill-workers 1 --num-decode-workers 1"));
    assert!(!path("production-stack.values.yaml").exists());
    assert_eq!(std::fs::read_to_string(path("README.md")).unwrap(), "mine");
    // A file of the user's that has one of the names is neither replaced nor removed.
    for name in ["kubernetes.yaml", "production-stack.values.yaml", "DEPLOY.md"] {
        std::fs::remove_file(path(name)).ok();
        std::fs::write(path(name), "kind: List\n").unwrap();
        is_refused(dir.path(), &plan(""), &["--deploy-dir", name]);
        assert_eq!(std::fs::read_to_string(path(name)).unwrap(), "kind: List\n");
        std::fs::remove_file(path(name)).unwrap();
    }
}
