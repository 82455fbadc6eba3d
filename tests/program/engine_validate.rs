//! Recorded runs of real servers, predicted.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::path::Path;

use serde_json::Value;
use vllm_sim::tools::validate::{predict, validate};

fn run(name: &str) -> Value {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fidelity");
    serde_json::from_str(&std::fs::read_to_string(dir.join(name)).unwrap()).unwrap()
}

/// A mixture of experts in fp8 on two H100, and a dense model on an A100.
#[test]
fn predictions_are_near_what_was_measured() {
    for name in ["b17.json", "b38.json"] {
        let run = run(name);
        let predicted = serde_json::to_value(predict(&run).unwrap()).unwrap();
        for key in ["ttft_mean", "itl_mean", "e2e_mean", "e2e_p90"] {
            let measured = run["actual"]["summary"][key].as_f64().unwrap();
            let ratio = predicted["summary"][key].as_f64().unwrap() / measured;
            assert!(
                (0.92..1.08).contains(&ratio),
                "{name} {key}: {ratio} of {measured} ms"
            );
        }
        assert_eq!(predicted["summary"]["completed"], 5100);
    }
}

#[test]
fn a_folder_becomes_a_table_and_files() {
    let (runs, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut run = run("b38.json");
    run["workload"]["stages"] = serde_json::json!([{"rate_rps": 2.5, "requests": 20}]);
    std::fs::write(runs.path().join("a.json"), run.to_string()).unwrap();
    let table = validate(runs.path(), Some(out.path())).unwrap();
    assert!(table.starts_with("run (errors in percent)"), "{table}");
    assert!(table.lines().nth(1).unwrap().starts_with("b38"), "{table}");
    let file = std::fs::read_to_string(out.path().join("b38.json")).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    assert_eq!(file["stages"][0]["completed"], 20);
}

#[test]
fn what_is_wrong_with_a_run_is_named() {
    let error = |change: &dyn Fn(&mut Value)| {
        let mut run = run("b17.json");
        change(&mut run);
        predict(&run).unwrap_err().to_string()
    };
    let unknown = error(&|run| run["hardware"] = "Cray-1".into());
    assert_eq!(unknown, "run b17: hardware \"Cray-1\" is not known");
    let missing = error(&|run| run["model_config"]["layers"] = Value::Null);
    assert_eq!(
        missing,
        "run b17: model_config.layers must be a whole number"
    );
    let stopped = error(&|run| run["workload"]["stages"][0]["rate_rps"] = 0.into());
    assert_eq!(stopped, "run b17: workload.stages has a rate of 0");
    let past = error(&|run| run["workload"]["client_timeout_s"] = (-1).into());
    assert!(
        past.starts_with("run b17: workload.client_timeout_s "),
        "{past}"
    );
    let tight = error(&|run| run["tp"] = 0.into());
    assert_eq!(tight, "tensor-parallel size is 0, must be at least 1");
}
