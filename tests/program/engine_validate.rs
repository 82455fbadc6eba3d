//! Recorded runs of real servers, predicted.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vllm_sim_calibrate::validate::{predict_recorded_run, validate_recorded_runs};
use vllm_sim_engine::latency::RooflineCoefficients;

fn run(name: &str) -> Value {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fidelity");
    serde_json::from_str(&std::fs::read_to_string(dir.join(name)).unwrap()).unwrap()
}

/// A mixture of experts in fp8 on two H100, and a dense model on an A100.
#[test]
fn predictions_match_measurements() {
    for name in ["b17.json", "b38.json"] {
        let run = run(name);
        let predicted = serde_json::to_value(
            predict_recorded_run(&run, &RooflineCoefficients::default()).unwrap(),
        )
        .unwrap();
        for key in ["ttft_mean", "itl_mean", "e2e_mean", "e2e_p90"] {
            let measured = run["actual"]["summary"][key].as_f64().unwrap();
            let ratio = predicted["summary"][key].as_f64().unwrap() / measured;
            assert!((0.92..1.08).contains(&ratio), "{name} {key}: {ratio} of {measured} ms");
        }
        assert_eq!(predicted["summary"]["completed"], 5100);
    }
}

/// Requests that arrive at random wait for one another, those at equal gaps do not.
#[test]
fn random_arrivals_have_longer_tails() {
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 400}]);
    let predicted =
        |run: &Value| predict_recorded_run(run, &RooflineCoefficients::default()).unwrap().summary;
    let random = predicted(&run);
    run["workload"]["arrivals"] = "even".into();
    let even = predicted(&run);
    let tail = |of: &vllm_sim_calibrate::validate::RunLatencySummary| of.e2e_p99 / of.e2e_p50;
    assert!(tail(&random) > 1.02 * tail(&even), "{random:?} {even:?}");
}

/// A prompt that fits into a CUDA graph is not launched kernel by kernel.
#[test]
fn largest_cuda_graph_of_a_run_shortens_its_prompts() {
    let mut run = run("b38.json");
    run["hardware"] = "B200".into();
    // The launch of this version takes longer than the kernels of the prompt.
    run["vllm"]["version"] = "0.11.0".into();
    run["vllm"]["max_num_batched_tokens"] = 2048.into();
    run["workload"] = serde_json::json!({
        "kind": "trace", "api": "in process", "client_timeout_s": null,
        "client_max_concurrency": 1, "trace": [{"t": 0.0, "input": 1000, "output": 2}],
    });
    let predicted = |run: &Value| predict_recorded_run(run, &RooflineCoefficients::default());
    let eager = predicted(&run).unwrap().summary.ttft_mean;
    run["vllm"]["max_cudagraph_capture_size"] = 2048.into();
    let graphed = predicted(&run).unwrap().summary.ttft_mean;
    assert!(graphed < eager - 2.0, "{graphed} {eager} ms");
    run["vllm"]["max_cudagraph_capture_size"] = "all".into();
    let error = predicted(&run).unwrap_err().to_string();
    assert!(error.contains("vllm.max_cudagraph_capture_size"), "{error}");
}

#[test]
fn validate_folder_writes_table_and_files() {
    let (runs, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 20}]);
    std::fs::write(runs.path().join("a.json"), run.to_string()).unwrap();
    run["id"] = "not-measured".into();
    run["actual"] = Value::Null;
    std::fs::write(runs.path().join("b.json"), run.to_string()).unwrap();
    let path = |name: &str| out.path().join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(["validate", "--runs"]).arg(runs.path());
    command.arg("--out").arg(out.path());
    command.arg("--json").arg(path("report")).arg("--html").arg(path("page"));
    let done = command.output().unwrap();
    let table = String::from_utf8(done.stdout).unwrap();
    assert!(table.starts_with("run (errors in percent)"), "{table}");
    assert!(table.lines().nth(1).unwrap().starts_with("b38"), "{table}");
    let cells = |line: usize| table.lines().nth(line).unwrap().split_whitespace();
    assert_eq!(cells(2).collect::<Vec<_>>(), ["not-measured", "stable", "-", "-", "-"]);
    let json = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path(name)).unwrap()).unwrap()
    };
    assert_eq!(json("b38.json")["stages"][0]["completed"], 20);

    let report = json("report");
    assert_eq!(report["schema"], "vllm-sim/fidelity/1");
    assert_eq!(report["runs"][0]["predicted"]["stages"][0]["completed"], 20);
    assert_eq!(report["runs"][1]["error_percent"], serde_json::json!({}));
    assert_eq!(report["summary"]["all"]["ttft_mean"]["runs"], 1);
    let peer = &report["peers"][0];
    assert_eq!((&peer["runs"], &peer["ours_on_these"]["itl_mean"]["runs"]), (&1.into(), &1.into()));
    let page = std::fs::read_to_string(path("page")).unwrap();
    for part in ["By group", "Other simulators", "A100-SXM-80GB", "measured", "--html"] {
        assert!(page.contains(part), "no {part:?}");
    }
    assert!(!page.contains("NaN") && !page.contains(">inf"));
}

#[test]
fn validate_can_print_json_only() {
    let runs = tempfile::tempdir().unwrap();
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 3}]);
    run["actual"]["requests"] =
        serde_json::json!([{"ttft_ms": 20.0, "itl_ms": 14.0, "e2e_ms": 3000.0}]);
    std::fs::write(runs.path().join("a.json"), run.to_string()).unwrap();
    let said = validate_recorded_runs(runs.path(), &RooflineCoefficients::default(), None).unwrap();
    assert!(said.render_validation_page("command").contains("ITL of a request (its mean gap)"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(["validate", "--json", "-", "--runs"]).arg(runs.path());
    let json: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(json["runs"][0]["predicted"]["summary"]["completed"], 3);
}

#[test]
fn coefficients_change_engine_time_only() {
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 20}]);
    let usual = RooflineCoefficients::default();
    let slow = RooflineCoefficients {
        step_us: usual.step_us + 5000.0,
        front_end_us: usual.front_end_us + 50_000.0,
        ..usual
    };
    let predicted =
        |run: &Value, by: &RooflineCoefficients| predict_recorded_run(run, by).unwrap().summary;
    let (before, after) = (predicted(&run, &usual), predicted(&run, &slow));
    assert!((after.itl_mean - before.itl_mean - 5.0).abs() < 0.5);
    assert!(after.ttft_mean - before.ttft_mean > 55.0);
    run["workload"]["api"] = "in process".into();
    let more = predicted(&run, &slow).ttft_mean - predicted(&run, &usual).ttft_mean;
    assert!((5.0..20.0).contains(&more), "{more} ms");
}

#[test]
fn predicted_run_includes_front_end_time() {
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 20}]);
    let ttft = |run: &Value| {
        let predicted = predict_recorded_run(run, &RooflineCoefficients::default()).unwrap();
        predicted.summary.ttft_mean
    };
    let usual = ttft(&run);
    run["source"] = "somebody on GKE".into();
    assert_eq!(ttft(&run), usual);
    run["workload"]["front_end_ms"] = 3.4.into();
    assert_eq!(ttft(&run), usual);
    run["workload"]["front_end_ms"] = 23.4.into();
    assert!((ttft(&run) - usual - 20.0).abs() < 8.0);
}

#[test]
fn a_model_is_described_as_in_its_config_json_too() {
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 20}]);
    let told = predict_recorded_run(&run, &RooflineCoefficients::default()).unwrap().summary;
    run["model_config"] = serde_json::json!({"config": {"hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256}});
    let read = predict_recorded_run(&run, &RooflineCoefficients::default()).unwrap().summary;
    assert_eq!((told.itl_mean, told.ttft_mean), (read.itl_mean, read.ttft_mean));
    run["model_config"]["config"]["sliding_window"] = 128.into();
    let window = predict_recorded_run(&run, &RooflineCoefficients::default()).unwrap().summary;
    assert!(window.itl_mean < read.itl_mean);
}

/// The recording script against our own server: what it writes is a run, and predicted.
#[test]
fn recorded_server_can_be_validated() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let config = serde_json::json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "max_position_embeddings": 8192});
    std::fs::write(path("config.json"), config.to_string()).unwrap();
    let sampling = r#"{"temperature": 0.6, "top_p": 0.9}"#;
    std::fs::write(path("generation_config.json"), sampling).unwrap();
    std::fs::create_dir(path("runs")).unwrap();
    let model = folder.path().to_str().unwrap();
    let words = ["serve", model, "--served-model-name", "own", "--gpu", "H100"];
    let limits =
        "--max-num-seqs 64 --max-num-batched-tokens 2048 --port 0 --num-gpu-blocks-override 4000";
    let limits: Vec<&str> = limits.split(' ').collect();
    let (_running, log) = super::start::start(&[&words[..], &limits[..]].concat());
    let (_, url) = log.last().unwrap().split_once("listening on ").unwrap();
    let (url, _) = url.split_once(": model").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/record_run.py");
    let asked = "--hardware H100 --max-num-seqs 64 --max-num-batched-tokens 2048 --rate 20 --requests 12 \
        --input 64 --output 16";
    let mut command = Command::new("python3");
    command.arg(script).args(["--url", url, "--model-folder", model]);
    command.args(asked.split_whitespace()).arg("--out").arg(path("runs/own.json"));
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    let text = std::fs::read_to_string(path("runs/own.json")).unwrap();
    let run: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&run["model"], &run["tp"]), (&"own".into(), &1.into()));
    assert_eq!(run["vllm"]["num_gpu_blocks"], 4000);
    assert_eq!(run["sampling"]["truncated_sampling"], true);
    assert_eq!(run["actual"]["requests"].as_array().unwrap().len(), 12);
    let validated =
        validate_recorded_runs(&path("runs"), &RooflineCoefficients::default(), None).unwrap();
    let said = validated.validation_report_json();
    assert_eq!(said["runs"][0]["predicted"]["summary"]["completed"], 12);
    // What this machine adds to the gaps is not predicted.
    let gap = said["runs"][0]["error_percent"]["itl_mean"].as_f64().unwrap();
    assert!((-60.0..20.0).contains(&gap), "{gap} %");
}

#[test]
fn runs_that_kernel_tables_do_not_have_are_left_out_by_name() {
    let (runs, model) = (tempfile::tempdir().unwrap(), run("b38.json"));
    let shape = serde_json::json!({"hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 128, "vocab_size": 128});
    for gpu in ["H100", "A100", "T4"] {
        let mut run = model.clone();
        run["id"] = gpu.into();
        run["hardware"] = gpu.into();
        run["model_config"] = serde_json::json!({"config": shape});
        run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 3}]);
        std::fs::write(runs.path().join(format!("{gpu}.json")), run.to_string()).unwrap();
    }
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/engine/tests/fixtures/aic");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(["validate", "--runs"]).arg(runs.path());
    command.arg("--aic-data").arg(tables);
    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(said.contains("\nH100 "), "{said}");
    assert!(said.contains("left out: A100: the tables have no system"), "{said}");
    assert!(said.contains("left out: T4: there are no tables for T4-16GB"), "{said}");
}

#[test]
fn invalid_run_error_names_field() {
    let error = |change: &dyn Fn(&mut Value)| {
        let mut run = run("b17.json");
        change(&mut run);
        predict_recorded_run(&run, &RooflineCoefficients::default()).unwrap_err().to_string()
    };
    let unknown = error(&|run| run["hardware"] = "Cray-1".into());
    assert_eq!(unknown, "run b17: hardware \"Cray-1\" is not known");
    let weights = error(&|run| run["model_config"]["weight_quantization"] = "w3a3".into());
    assert!(
        weights.starts_with("run b17: model_config.weight_quantization \"w3a3\" is not known"),
        "{weights}"
    );
    let missing = error(&|run| run["model_config"]["layers"] = Value::Null);
    assert_eq!(missing, "run b17: model_config.layers must be a whole number");
    let stopped = error(&|run| run["workload"]["stages"][0]["rate_rps"] = 0.into());
    assert_eq!(stopped, "run b17: workload.stages has a rate of 0");
    let arrivals = error(&|run| run["workload"]["arrivals"] = "poisson".into());
    assert_eq!(
        arrivals,
        "run b17: workload.arrivals is \"poisson\", must be \"random\" or \"even\""
    );
    let past = error(&|run| run["workload"]["client_timeout_s"] = (-1).into());
    assert!(past.starts_with("run b17: workload.client_timeout_s "), "{past}");
    let tight = error(&|run| run["tp"] = 0.into());
    assert_eq!(tight, "tensor-parallel size is 0, must be at least 1");
    let uneven = error(&|run| run["tp"] = 3.into());
    assert_eq!(uneven, "run b17: tp is 3, must divide the 40 attention heads");
}

#[test]
fn questionable_fields_are_warnings() {
    let runs = tempfile::tempdir().unwrap();
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 3}]);
    let warnings = |run: &Value| {
        std::fs::write(runs.path().join("run.json"), run.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
        let done = command.args(["validate", "--runs"]).arg(runs.path()).output().unwrap();
        assert_eq!(done.status.code(), Some(0));
        String::from_utf8(done.stderr).unwrap()
    };
    assert_eq!(warnings(&run), "");
    run["regime"] = "wild".into();
    run["tensor_parallel"] = 4.into();
    let fields = run.as_object_mut().unwrap();
    fields.remove("id");
    fields.remove("actual");
    let told = warnings(&run);
    for problem in [
        "tensor_parallel is not a field of a recorded run",
        "id must be a string",
        "regime is \"wild\", must begin with stable, overload or mixed",
        "actual.summary is missing",
    ] {
        assert!(told.contains(problem), "{problem}: {told}");
    }
}

/// A failed run does not end the validation of the others.
#[test]
fn run_that_does_not_fit_is_skipped() {
    let runs = tempfile::tempdir().unwrap();
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 3}]);
    std::fs::write(runs.path().join("b.json"), run.to_string()).unwrap();
    run["id"] = "too-large".into();
    run["vllm"]["num_gpu_blocks"] = 1.into();
    std::fs::write(runs.path().join("a.json"), run.to_string()).unwrap();
    let validated = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
        let done = command.args(["validate", "--runs"]).arg(runs.path());
        let done = done.output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let (code, table) = validated();
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("\nb38 ") && table.contains("left out: too-large: "), "{table}");
    std::fs::remove_file(runs.path().join("b.json")).unwrap();
    assert_eq!(validated().0, Some(1));
}
