//! Warnings of the tools about deployments that vLLM refuses, that are not measured, and whose
//! costs are not all simulated.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::Path;

use serde_json::Value;

use super::replay_command::{printed, vllm_sim};

const LLAMA: &str = "--model meta-llama/Llama-3.1-8B-Instruct";
const WORK: &str = "--input-tokens 300 --output-tokens 20 --request-count 100 --request-rate 5 \
                    --slo-ttft-ms 2000 --vary tensor-parallel-size=1";

/// Returns the table of a plan and its report.
fn plan(dir: &Path, words: &str) -> (String, Value) {
    let table = printed(dir, &format!("plan {words} --report-json plan.json"));
    let report = std::fs::read_to_string(dir.join("plan.json")).unwrap();
    (table, serde_json::from_str(&report).unwrap())
}

/// Returns the warnings in the report of a plan, each of which its table must have too.
fn warnings(dir: &Path, words: &str) -> Vec<String> {
    let (table, report) = plan(dir, words);
    let warnings = report["warnings"].as_array().unwrap().iter();
    let warnings: Vec<String> = warnings.map(|text| text.as_str().unwrap().to_owned()).collect();
    for text in &warnings {
        assert!(table.contains(&format!("warning: {text}\n")), "{text}: {table}");
    }
    warnings
}

#[test]
fn settings_that_vllm_refuses_are_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, told) in [
        ("--gpu V100 -q fp8", "--quantization fp8: vLLM would refuse to start, because the method"),
        ("--gpu MI300X -q modelopt_fp4", "vLLM for ROCm does not have the method"),
        ("--gpu H100 -q awq", "the weights of \"meta-llama/Llama-3.1-8B-Instruct\" are not"),
        ("--gpu H100 --kv-cache-dtype fp8_ds_mla", "the model has no latent attention (MLA)"),
        ("--gpu H100 --block-size 7", "--block-size 7: vLLM would refuse to start"),
        ("--gpu H100 --attention-backend FLASHINFER", "FLASHINFER: no effect on step times"),
    ] {
        let found = warnings(dir.path(), &format!("{LLAMA} {WORK} {flags}"));
        assert!(found.iter().any(|text| text.contains(told)), "{flags}: {found:?}");
        let output = vllm_sim(dir.path(), &format!("explain {LLAMA} {flags}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(told), "{flags}: {errors}");
    }
    for flags in ["--gpu H100", "--gpu H100 -q fp8", "--gpu MI300X -q fp8", "--gpu T4 -q fp8"] {
        let found = warnings(dir.path(), &format!("{LLAMA} {WORK} {flags}"));
        assert!(found.is_empty(), "{flags}: {found:?}");
    }
}

#[test]
fn known_errors_name_settings_that_no_recorded_run_has() {
    let dir = tempfile::tempdir().unwrap();
    let llama = format!("{LLAMA} --gpu H100 {WORK}");
    let drafts =
        "--speculative-config {\"method\":\"eagle3\",\"model\":\"d\",\"num_speculative_tokens\":3}";
    for (flags, told) in [
        (drafts, "--speculative-config"),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype"),
        ("--cpu-offload-gb 10", "--cpu-offload-gb"),
        ("--enforce-eager", "--enforce-eager"),
        ("--enforce-eager --cpu-offload-gb 10", "--cpu-offload-gb, --enforce-eager"),
    ] {
        let (table, _) = plan(dir.path(), &format!("{llama} {flags}"));
        let told = format!("; not measured with {told}; median error");
        assert!(table.contains(&told), "{flags}: {table}");
    }
    let (table, _) = plan(dir.path(), &llama);
    assert!(!table.contains("not measured"), "{table}");
    // Quantized models were recorded with a cache in fp8.
    let (table, _) = plan(dir.path(), &format!("{llama} -q fp8 --kv-cache-dtype fp8"));
    assert!(!table.contains("not measured"), "{table}");
}

#[test]
fn step_times_fitted_for_another_deployment_are_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let profile = "model: meta-llama/Llama-3.1-8B-Instruct\ngpu: h100\nspeedup-ratio: 0.8\n\
                   latency-coefficients: {step_us: 90}\n";
    std::fs::write(dir.path().join("profile.yaml"), profile).unwrap();
    let fitted = "profile.yaml: its step times were fitted for";
    let words = format!("--config profile.yaml {WORK}");
    let own = warnings(dir.path(), &format!("{words} --gpu H100-SXM"));
    assert!(own.is_empty(), "{own:?}");
    let (llama, h100) = ("meta-llama/Llama-3.1-8B-Instruct", "H100-SXM-80GB");
    for (flags, told) in [
        ("--gpu A100", format!("{fitted} {h100}, and are used for A100-SXM-80GB")),
        (
            "--model meta-llama/Llama-3.2-3B-Instruct",
            format!("{fitted} {llama}, and are used for meta-llama/Llama-3.2-3B-Instruct"),
        ),
    ] {
        assert_eq!(warnings(dir.path(), &format!("{words} {flags}")), [told]);
    }
    // Coefficients of the command line are no longer those of the file.
    let other = format!("{words} --gpu A100 --latency-coefficients {{\"step_us\":80}}");
    assert!(warnings(dir.path(), &other).is_empty());
}

#[test]
fn adapters_are_deployed_and_what_they_cost_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("{LLAMA} --gpu H100 {WORK} --deploy-dir out --helm-values values.yaml");
    let (table, report) = plan(dir.path(), &format!("{words} --lora a,b,c"));
    let deploy = report["deploy"].as_str().unwrap();
    assert!(deploy.ends_with(" --enable-lora --max-loras=3"), "{deploy}");
    let told = "warning: --lora a,b,c: requests of an adapter share prefixes only with each other; \
                slots (--max-loras), GPU memory, kernels and load times of adapters are not \
                simulated. Name the adapters' folders with --lora-modules NAME=PATH";
    assert!(table.contains(told), "{table}");
    for name in ["out/kubernetes.yaml", "values.yaml"] {
        let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(text.contains("enable-lora") && text.contains("max-loras"), "{name}: {text}");
    }
    let (_, report) = plan(dir.path(), &words);
    let deploy = report["deploy"].as_str().unwrap();
    assert!(!deploy.contains("lora"), "{deploy}");
    let replay = format!("replay {LLAMA} --gpu H100 --input-tokens 9 --request-count 3");
    let output = vllm_sim(dir.path(), &format!("{replay} --request-rate 5 --lora a,b"));
    let errors = String::from_utf8_lossy(&output.stderr);
    let told = "--lora: requests of an adapter share prefixes only";
    assert_eq!(errors.matches(told).count(), 1, "{errors}");
}

#[test]
fn a_plan_that_ends_early_names_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("plan {LLAMA} --gpu H100 {WORK} --max-gpus 2");
    let told = "requests had not ended when the virtual time was over (--max-sim-time-seconds)";
    let output = vllm_sim(dir.path(), &format!("{words} --max-sim-time-seconds 0.4"));
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{table}");
    let mut lines = table.lines();
    let told_why = lines.any(|line| line.contains(" are good (") && line.contains(told));
    assert!(told_why, "{table}");
    // The requests that had ended suffice.
    let table = printed(dir.path(), &format!("{words} --max-sim-time-seconds 10 --attainment 0.3"));
    assert!(table.starts_with("Answer: ") && table.contains(told), "{table}");
    let empty = dir.path().join("empty.csv");
    std::fs::write(empty, "arrival_s,prompt_tokens,output_tokens\n").unwrap();
    let empty = format!("plan empty.csv {LLAMA} --gpu H100 -tp 1 --slo-ttft-ms 9 --max-gpus 2");
    let output = vllm_sim(dir.path(), &empty);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("the workload has no request"), "{table}");
}
