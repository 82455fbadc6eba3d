//! Recorded runs of Dynamo's offline replay, played again: equal request by request.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::io::Write as _;
use std::path::Path;

use serde_json::Value;
use vllm_sim_dynamo_run::replay_dynamo_run;

/// Equal within a nanosecond's share of a long run.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * b.abs().max(1.0),
        _ => a == b,
    }
}

fn check(name: &str) {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dynamo");
    check_in(&all, name, None);
}

fn check_in(all: &Path, name: &str, tables: Option<&Path>) {
    let dir = all.join(name);
    let text = std::fs::read_to_string(dir.join("report.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let report = serde_json::to_value(replay_dynamo_run(&dir, tables).unwrap()).unwrap();
    let mut wrong = Vec::new();
    let named = !dir.join("trace.jsonl").exists();
    let (requests, ours) = (&recorded["per_request"], &report["per_request"]);
    compare_requests(requests, ours, named, &mut wrong);
    for (key, value) in recorded["summary"].as_object().unwrap() {
        // Speed of the host; percentiles that the peer takes from a sketch.
        let host = key == "wall_time_ms" || key.starts_with("processed_") && key.ends_with("_s");
        let sketched = key.contains("itl") || key.contains("per_user");
        let estimate = sketched && (key.starts_with('p') || key.starts_with("median"));
        if !host && !estimate && !same(&report["summary"][key], value) {
            wrong.push(format!("summary {key}: {} is {value}", report["summary"][key]));
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "{name}");
}

/// By arrival, then by session and turn, then by the names that synthetic requests have.
fn sorted(requests: &Value) -> Vec<&Value> {
    let mut all: Vec<&Value> = requests.as_array().unwrap().iter().collect();
    let text = |request: &Value, key: &str| request[key].as_str().unwrap_or("").to_owned();
    all.sort_by(|a, b| {
        let key = |r: &Value| {
            let name = match r["session_id"].is_null() {
                true => text(r, "uuid"),
                false => text(r, "session_id"),
            };
            (name, r["turn_index"].as_u64())
        };
        let arrival = |r: &Value| r["arrival_time_ms"].as_f64().unwrap();
        let order = (arrival(a) - arrival(b)).abs() > 1e-6;
        match order {
            true => arrival(a).total_cmp(&arrival(b)),
            false => key(a).cmp(&key(b)),
        }
    });
    all
}

fn compare_requests(recorded: &Value, played: &Value, named: bool, wrong: &mut Vec<String>) {
    let (recorded, played) = (sorted(recorded), sorted(played));
    assert_eq!(played.len(), recorded.len());
    for (i, (recorded, played)) in recorded.into_iter().zip(played).enumerate() {
        for (key, value) in recorded.as_object().unwrap() {
            // Traces get random names, and admissions are compared one by one.
            let skipped = key == "uuid" && (!named || !recorded["session_id"].is_null());
            let equal = match key.as_str() {
                "admission_history" => {
                    let (a, b) = (value.as_array().unwrap(), played[key].as_array().unwrap());
                    a.len() == b.len()
                        && a.iter().zip(b).all(|(a, b)| {
                            a.as_object().unwrap().iter().all(|(key, a)| same(&b[key], a))
                        })
                }
                _ => same(&played[key], value),
            };
            if !equal && !skipped {
                wrong.push(format!("request {i} {key}: {} is {value}", played[key]));
            }
        }
    }
}

#[test]
fn dynamo_closed_loop_matches() {
    check("01-basic-closed");
}

#[test]
fn dynamo_open_loop_matches() {
    check("02-open-fixed-interval");
}

#[test]
fn dynamo_sessions_with_shared_prefixes_match() {
    check("16-sessions-trace");
}

#[test]
fn dynamo_sglang_matches() {
    check("20-sglang-basic");
}

/// Small runs of the peer that `tests/python/dynamo_peer.py golden` made.
#[test]
fn pressure_drafts_ranks_split_pools_and_traces() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dynamo");
    let names = std::fs::read_dir(all).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.as_str() >= "30").collect();
    names.sort();
    assert!(names.len() >= 19, "{names:?}");
    names.iter().for_each(|name| check(name));
}

/// Runs of the peer by NVIDIA's kernel tables of aisimulate 0.13, which are not shipped: played where
/// `$VLLM_SIM_KERNEL_TABLES` names their folder (`aisimulate_core/systems`).
#[test]
fn runs_by_kernel_tables_where_they_are() {
    let Some(tables) = std::env::var_os("VLLM_SIM_KERNEL_TABLES") else {
        // Unlike `eprintln!` it is seen of a test that passes.
        let why = "SKIP: runs by kernel tables, VLLM_SIM_KERNEL_TABLES is not set";
        let _ = writeln!(std::io::stderr(), "{why}");
        return;
    };
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dynamo-tables");
    for name in ["70-llama-closed", "71-experts-mooncake"] {
        check_in(&all, name, Some(Path::new(&tables)));
    }
}

/// A synthetic run of 24 requests with the given settings.
fn synthetic(engine: Value, kwargs: Value) -> Result<Value, String> {
    with_tables(engine, kwargs, None)
}

fn with_tables(engine: Value, kwargs: Value, tables: Option<&Path>) -> Result<Value, String> {
    let dir = tempfile::tempdir().unwrap();
    let mut all = serde_json::json!({
        "extra_engine_args": {"engine": engine},
        "capture_per_request": true,
    });
    all.as_object_mut().unwrap().extend(kwargs.as_object().unwrap().clone());
    let args = serde_json::json!({
        "api": "run_synthetic_trace_replay", "positional": [300, 40, 24], "kwargs": all,
    });
    std::fs::write(dir.path().join("args.json"), args.to_string()).unwrap();
    let report = replay_dynamo_run(dir.path(), tables).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(report).unwrap())
}

#[test]
fn other_dynamo_settings_run_to_end() {
    use serde_json::json;
    for (engine, kwargs) in [
        (json!({"num_gpu_blocks": 20}), json!({"arrival_interval_ms": 1.0})),
        (json!({"num_gpu_blocks": 20, "preemption_mode": "fifo"}), json!({"request_rate": 90.0})),
        (json!({"max_num_batched_tokens": 100}), json!({"replay_concurrency": 7})),
        (json!({"aic_nextn": 2, "num_gpu_blocks": 22}), json!({"arrival_interval_ms": 5.0})),
        (
            json!({"timing_model": {"type": "fixed", "prefill_ms": 9, "decode_ms": 1.5}}),
            json!({"replay_concurrency": 3, "num_workers": 4}),
        ),
        (
            json!({"block_size": 16}),
            json!({"request_rate": 30.0, "shared_prefix_ratio": 0.5, "num_prefix_groups": 4}),
        ),
        (
            json!({"backend": "sglang", "block_size": 16, "num_gpu_blocks": 70}),
            json!({"arrival_interval_ms": 2.0}),
        ),
        (
            json!({"backend": "sglang", "num_gpu_blocks": 900,
                "sglang": {"chunked_prefill_size": 128, "schedule_conservativeness": 0.1}}),
            json!({"arrival_interval_ms": 0.0, "sla_ttft_ms": 100.0, "sla_itl_ms": 20.0}),
        ),
    ] {
        let report = synthetic(engine.clone(), kwargs).unwrap();
        let done = &report["summary"]["completed_requests"];
        assert_eq!(*done, 24, "{engine}");
        assert_eq!(report["summary"]["total_output_tokens"], 24 * 40, "{engine}");
    }
}

#[test]
fn session_turns_run_in_sequence() {
    let kwargs = serde_json::json!({
        "replay_concurrency": 2, "turns_per_session": 3, "inter_turn_delay_ms": 100.0,
        "shared_prefix_ratio": 0.5, "num_prefix_groups": 1,
    });
    let report = synthetic(serde_json::json!({}), kwargs).unwrap();
    let requests = report["per_request"].as_array().unwrap();
    assert_eq!(requests.len(), 72);
    let of = |session: &str, turn: u64| {
        let mut all = requests.iter();
        all.find(|r| r["session_id"] == session && r["turn_index"] == turn).unwrap()
    };
    let gap = of("session_5", 1)["arrival_time_ms"].as_f64().unwrap()
        - of("session_5", 0)["terminal_time_ms"].as_f64().unwrap();
    assert!((gap - 100.0).abs() < 1e-6, "{gap}");
    // Five blocks of 64, of which half, rounded up, is shared.
    assert_eq!(of("session_5", 2)["reused_input_tokens"], 192);
}

#[test]
fn impossible_requests_are_rejected() {
    let engine = serde_json::json!({"max_model_len": 300});
    let report = synthetic(engine, serde_json::json!({"replay_concurrency": 2})).unwrap();
    assert_eq!(report["summary"]["completed_requests"], 0);
    assert_eq!(report["summary"]["num_requests"], 24);
    assert_eq!(report["per_request"][23]["terminal_status"], "rejected");
}

#[test]
fn unmodelled_arguments_are_rejected_by_name() {
    use serde_json::json;
    let error = |engine, kwargs| synthetic(engine, kwargs).unwrap_err();
    let closed = || json!({"replay_concurrency": 1});
    assert_eq!(
        error(json!({"watermark": 0.1}), closed()),
        "extra_engine_args.engine.watermark: 0.1 is not modelled"
    );
    assert_eq!(
        error(json!({}), json!({"replay_concurrency": 1, "router_mode": "random"})),
        "kwargs.router_mode: \"random\" is not modelled, only [\"round_robin\", \"kv_router\"]"
    );
    assert_eq!(
        error(json!({"block_size": 0}), closed()),
        "extra_engine_args.engine.block_size: must be at least 2"
    );
}

/// Without kernel tables the roofline of that model on that GPU stands in for them.
#[test]
fn the_roofline_replaces_missing_kernel_tables() {
    use serde_json::json;
    let play = |engine| synthetic(engine, json!({"replay_concurrency": 1})).unwrap();
    let tables = |system, tp| {
        json!({"aic_backend": "vllm", "aic_system": system, "aic_tp_size": tp,
            "aic_backend_version": "0.12.0", "aic_model_path": "nvidia/Llama-3.1-8B-Instruct-FP8"})
    };
    let ttft = |report: &serde_json::Value| report["summary"]["mean_ttft_ms"].as_f64().unwrap();
    let (h200, a100) = (play(tables("h200_sxm", 1)), play(tables("a100_sxm", 1)));
    assert!(ttft(&h200) < ttft(&a100), "{} {}", ttft(&h200), ttft(&a100));
    // Both generations of names, and the form of 1.6, mean the same.
    let renamed = json!({"ais_backend": "vllm", "ais_system": "h200_sxm",
        "ais_model_path": "nvidia/Llama-3.1-8B-Instruct-FP8"});
    let timing = json!({"timing_model": {"type": "external", "provider": "ais", "config": {
        "backend": "vllm", "system": "h200_sxm", "tp": 1, "worker_type": "aggregated",
        "model": "nvidia/Llama-3.1-8B-Instruct-FP8"}}});
    assert_eq!(play(renamed)["summary"], h200["summary"]);
    assert_eq!(play(timing)["summary"], h200["summary"]);
    // A timing model that is spelt out wins.
    let mut fixed = tables("h200_sxm", 1);
    fixed["timing_model"] = json!({"type": "fixed", "prefill_ms": 5.0, "decode_ms": 2.0});
    assert_eq!(play(fixed)["summary"]["mean_ttft_ms"], 5.0);
}

/// The tables of the fixture are made up: no measured time is in them.
#[test]
fn kernel_tables_are_read_where_they_are() {
    use serde_json::json;
    use vllm_sim_engine::latency::{
        AiConfiguratorSetup, AiConfiguratorStepTimes, MixedStepTiming, ModelShape, StepOverhead,
    };
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/engine/tests/fixtures/aic");
    let config = json!({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 128});
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let play = |version: &str| {
        let engine = json!({"num_gpu_blocks": 1000, "timing_model": {"type": "external",
            "provider": "aic", "config": {"backend": "vllm", "system": "h100_sxm",
            "backend_version": version, "model": folder.path(), "worker_type": "aggregated"}}});
        with_tables(engine, json!({"replay_concurrency": 1}), Some(&tables))
    };
    let setup = AiConfiguratorSetup {
        shape: ModelShape::from_hf_config(&config).unwrap(),
        system: "h100_sxm".to_owned(),
        backend: "vllm".to_owned(),
        version: None,
        tp: 1,
        moe_ep: 1,
        kv_bytes: 2,
        qk_norm: false,
        mixed: MixedStepTiming::Sum,
        overhead: StepOverhead::default(),
    };
    let prefill =
        AiConfiguratorStepTimes::load_kernel_times(&tables, &setup).unwrap().prefill_ms(1, 300, 0);
    let ttft = play("current").unwrap()["summary"]["mean_ttft_ms"].as_f64();
    assert!((ttft.unwrap() - prefill).abs() < 1e-6, "{ttft:?}, {prefill}");
    let refused = play("9.9.9").unwrap_err();
    assert!(refused.contains("have no vllm 9.9.9"), "{refused}");
}

#[test]
fn missing_kernel_table_error_lists_available() {
    use serde_json::json;
    let error = |key: &str, value: serde_json::Value| {
        let mut engine = json!({"aic_backend": "vllm", "aic_model_path": "Qwen/Qwen3-0.6B"});
        engine[key] = value;
        synthetic(engine, json!({"replay_concurrency": 1})).unwrap_err()
    };
    let place = "extra_engine_args.engine.aic_";
    let system = error("aic_system", json!("h900_sxm"));
    let wanted = format!("{place}system: \"h900_sxm\" is not known; available are H100-SXM-80GB, ");
    assert!(system.starts_with(&wanted), "{system}");
    let model = error("aic_model_path", json!("acme/none"));
    let wanted = format!("{place}model_path: \"acme/none\" is neither a folder with a config.json");
    assert!(model.starts_with(&wanted) && model.contains("llama-3.1-8b"), "{model}");
    assert_eq!(
        error("aic_backend", json!("tgi")),
        format!("{place}backend: \"tgi\" is not known; available are vllm, sglang, trtllm")
    );
    assert_eq!(
        error("aic_tp_size", json!(0)),
        format!("{place}tp_size: 0 is not a whole number of 1 or more")
    );
    assert_eq!(
        error("aic_attention_dp_size", json!(2)),
        format!("{place}attention_dp_size: only 1 is modelled")
    );
}
