//! Fitting the roofline: what was changed is found again, what cannot be told is left alone.

use serde_json::{Value, json};
use vllm_sim_calibrate::validate;
use vllm_sim_calibrate::{
    self as calibrate, CalibrateOptions, FittedOrHeldOutRuns, FittedRoofline, RooflineParameter,
};
use vllm_sim_engine::latency::{
    LatencyModel, ModelShape, RooflineCoefficients, RooflineModel, RooflineModelSetup, find_gpu,
    known_model_shape,
};
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;
use vllm_sim_replay::load::{BenchRun, MeasuredRequest, OfferedLoad};
use vllm_sim_replay::outcome::{ReplaySink, RequestOutcome};
use vllm_sim_replay::synth::{ArrivalProcess, SyntheticWorkload, TokenLengthDistribution};
use vllm_sim_replay::{PoolSpec, ReplaySettings, RouterConfig, run_replay};

/// Returns the value of a parameter that was fitted in common for all runs.
fn fitted_value(fitted: &FittedRoofline, parameter: RooflineParameter) -> Option<f64> {
    let mut outcomes = fitted.parameters.iter();
    outcomes.find(|outcome| outcome.parameter == parameter).map(|outcome| outcome.value)
}

fn setup(coefficients: RooflineCoefficients) -> RooflineModelSetup {
    let shape: ModelShape =
        known_model_shape("meta-llama/Llama-3.1-8B-Instruct").expect("is known");
    RooflineModelSetup {
        coefficients,
        ..RooflineModelSetup::new(shape, find_gpu("H100").expect("is known").clone())
    }
}

fn engine() -> VllmSchedulerConfig {
    VllmSchedulerConfig { max_num_batched_tokens: 2048, ..VllmSchedulerConfig::default() }
}

/// What a client measures.
struct Client {
    run: BenchRun,
}

impl ReplaySink for Client {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        let since = |at: Option<vllm_sim_engine::SimTime>| {
            at.map(|at| (at - outcome.arrival).as_secs_f64() * 1e3)
        };
        self.run.requests.push(MeasuredRequest {
            at_ms: Some(outcome.arrival.as_nanos() as f64 / 1e6),
            input: outcome.input,
            output: outcome.output,
            ttft_ms: since(outcome.first),
            e2e_ms: since(outcome.last),
            ..MeasuredRequest::default()
        });
    }
    fn on_token_gaps(&mut self, _: u64, _: u64) {}
}

/// A run on a machine with these constants.
fn measure(truth: RooflineCoefficients, rate: f64, prompt: u32) -> BenchRun {
    let setup = setup(truth);
    let roofline = RooflineModel::new(&setup).expect("makes sense");
    let mut client = Client { run: BenchRun::new(format!("{rate}/s of {prompt}")) };
    client.run.load = OfferedLoad::Times;
    let engine =
        VllmSchedulerConfig { latency: LatencyModel::Roofline(Box::new(roofline)), ..engine() };
    let settings = ReplaySettings {
        seed: 0,
        ..ReplaySettings::new(PoolSpec::new(
            SchedulerSpec::Vllm(Box::new(engine)),
            1,
            RouterConfig::RoundRobin,
        ))
    };
    let mut source = SyntheticWorkload {
        sessions: 50,
        input: TokenLengthDistribution::Constant(prompt),
        output: TokenLengthDistribution::Constant(24),
        arrivals: ArrivalProcess::Poisson(rate),
        ..SyntheticWorkload::default()
    }
    .into_source()
    .expect("makes sense");
    run_replay(&settings, &mut source, &mut client).expect("is played");
    client.run.compute_latency_stats();
    client.run
}

#[test]
fn calibration_recovers_coefficients_within_5_percent() {
    let truth = RooflineCoefficients {
        front_end_us: 12_000.0,
        step_us: 900.0,
        sequence_us: 20.0,
        gemm_compute_scale: 0.75,
        ..RooflineCoefficients::default()
    };
    let mut runs = Vec::new();
    for (prompt, rates) in
        [(128, [1.0, 5.0, 20.0, 80.0, 300.0]), (1500, [1.0, 2.0, 4.0, 9.0, 16.0])]
    {
        for rate in rates {
            runs.push(measure(truth, rate, prompt));
        }
    }
    let deployment = (engine(), setup(RooflineCoefficients::default()));
    let fitted = calibrate::fit_roofline_to_bench_runs(
        &runs,
        (&deployment.0, &deployment.1),
        &CalibrateOptions::default(),
    )
    .expect("can be fitted");
    for (parameter, truth) in [
        (RooflineParameter::FrontEnd, truth.front_end_us),
        (RooflineParameter::Step, truth.step_us),
        (RooflineParameter::Sequence, truth.sequence_us),
        (RooflineParameter::Compute, truth.gemm_compute_scale),
    ] {
        let found = fitted_value(&fitted, parameter);
        let found = found
            .unwrap_or_else(|| panic!("{} not fitted: {fitted}", parameter.coefficient_name()));
        let off = found / truth - 1.0;
        assert!(
            off.abs() < 0.05,
            "{}: {found}, not {truth}\n{fitted}",
            parameter.coefficient_name()
        );
    }
    let [before, after] = fitted.median_error_percentages(FittedOrHeldOutRuns::Fitted);
    for (before, after) in before.iter().zip(&after) {
        let (before, after) = (before.expect("is known"), after.expect("is known"));
        assert!(after < before / 5.0 && after < 1.0, "{before} to {after}\n{fitted}");
    }
    let yaml = calibrate::fitted_config_yaml(&fitted, &deployment.1.coefficients, &[]);
    let step = yaml.lines().find(|line| line.starts_with("  step_us: ")).expect("is there");
    let step: f64 = step["  step_us: ".len()..].parse().expect("is a number");
    assert_eq!(Some(step), fitted_value(&fitted, RooflineParameter::Step));
}

#[test]
fn one_run_fits_two_coefficients() {
    let truth = RooflineCoefficients { front_end_us: 15_000.0, ..RooflineCoefficients::default() };
    let fitted = calibrate::fit_roofline_to_bench_runs(
        &[measure(truth, 4.0, 128)],
        (&engine(), &setup(RooflineCoefficients::default())),
        &CalibrateOptions::default(),
    )
    .expect("can be fitted");
    let names: Vec<&str> =
        fitted.parameters.iter().map(|o| o.parameter.coefficient_name()).collect();
    assert_eq!(names, ["front_end_us", "step_scale"]);
    let front_end = fitted_value(&fitted, RooflineParameter::FrontEnd).expect("was fitted");
    assert!((front_end / 15_000.0 - 1.0).abs() < 0.05, "{fitted}");
    let text = fitted.to_string();
    assert!(text.contains("kept at its default: needs two different loads"), "{text}");
}

#[test]
fn measured_front_end_time_is_not_fitted() {
    let truth = RooflineCoefficients {
        front_end_us: 15_000.0,
        step_us: 1_500.0,
        ..RooflineCoefficients::default()
    };
    let given = CalibrateOptions { front_end_us: Some(15_000.0), ..CalibrateOptions::default() };
    let deployment = (&engine(), &setup(RooflineCoefficients::default()));
    let runs = [measure(truth, 4.0, 128)];
    let fitted =
        calibrate::fit_roofline_to_bench_runs(&runs, deployment, &given).expect("can be fitted");
    let names: Vec<&str> =
        fitted.parameters.iter().map(|o| o.parameter.coefficient_name()).collect();
    assert_eq!(names, ["step_scale"]);
    let first = fitted.runs[0].after[0].expect("is known");
    assert!(first.abs() < 5.0, "{fitted}");
    assert!(fitted.to_string().contains("given by --front-end-ms"), "{fitted}");
    let both = CalibrateOptions { fit: vec!["front_end_us".to_owned()], ..given };
    let error =
        calibrate::fit_roofline_to_bench_runs(&runs, deployment, &both).expect_err("excluded");
    assert_eq!(error.to_string(), "--fit front_end_us and --front-end-ms cannot be used together");
}

/// A recorded run of a small workload, measured `off` times what the defaults say.
fn recorded(id: &str, model_layers: u32, rate: u32, off: f64) -> Value {
    let mut run = json!({
        "id": id, "source": "made up", "model": "made/up", "hardware": "H100-SXM-80GB",
        "tp": 1, "dp": 1, "ep": false, "regime": "stable",
        "model_config": {
            "layers": model_layers, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
            "intermediate": 14336, "vocab": 128_256, "experts": 0, "experts_per_token": 0,
            "moe_intermediate": 0, "shared_expert_intermediate": 0,
            "tie_word_embeddings": false, "weight_quantization": "none", "gated_mlp": true,
        },
        "vllm": {
            "max_num_seqs": 128, "max_num_batched_tokens": 2048, "block_size": 16,
            "gpu_memory_utilization": 0.9, "max_model_len": 4096, "enable_prefix_caching": true,
            "enable_chunked_prefill": true, "async_scheduling": true,
            "kv_cache_dtype": "auto", "num_gpu_blocks": 20_000,
        },
        "workload": {
            "kind": "shared_prefix", "api": "streaming",
            "stages": [{"rate_rps": rate, "requests": 200}],
            "prompts": {
                "unique_prompts": 20, "groups": 2, "system_prompt_tokens": 64,
                "prompt_tokens_estimate": 300.0,
            },
            "output_tokens": {"requested": 32},
        },
    });
    let said = validate::predict_recorded_run(&run, &RooflineCoefficients::default())
        .expect("is a run")
        .summary;
    run["actual"] = json!({"summary": {
        "ttft_mean": said.ttft_mean * off, "itl_mean": said.itl_mean * off,
        "e2e_mean": said.e2e_mean * off,
    }});
    run
}

/// Fits to recorded runs, as from a folder.
fn from_folder(runs: &[Value], options: &CalibrateOptions) -> FittedRoofline {
    let folder = tempfile::tempdir().expect("can be made");
    for run in runs {
        let name = run["id"].as_str().expect("has a name");
        let path = folder.path().join(format!("{name}.json"));
        std::fs::write(path, run.to_string()).expect("can be written");
    }
    calibrate::fit_roofline_to_recorded_runs(folder.path(), options).expect("can be fitted")
}

#[test]
fn per_deployment_speed_improves_unseen_runs() {
    let mut runs = Vec::new();
    // Off by as much as runs of one machine differ.
    for (rate, off) in [(2, 0.004), (6, -0.003), (12, 0.003), (20, -0.004)] {
        runs.push(recorded(&format!("slow-{rate}"), 32, rate, 1.07 + off));
        runs.push(recorded(&format!("known-{rate}"), 24, rate, 1.0 - off));
    }
    let options = CalibrateOptions {
        hold_out: vec!["slow-6".to_owned(), "known-12".to_owned()],
        profile_of: Some("slow-6".to_owned()),
        ..CalibrateOptions::default()
    };
    let fitted = from_folder(&runs, &options);
    let run = |name: &str| {
        let mut runs = fitted.runs.iter();
        runs.find(|run| run.name == name).expect("is there")
    };
    let size = |error: Option<f64>| error.expect("is known").abs();
    let (slow, known) = (run("slow-6"), run("known-12"));
    for i in 0..3 {
        // The first token falls into one step or the next.
        let (least, bound) = if i == 0 { (3.0, 3.5) } else { (4.0, 1.5) };
        assert!(size(slow.before[i]) > least, "{fitted}");
        assert!(size(slow.after[i]) < bound, "{fitted}");
        assert!(size(known.after[i]) < bound, "{fitted}");
    }
    assert!(fitted.parameters.is_empty(), "{fitted}");
    let own = fitted.profile.as_ref().expect("was asked for");
    assert_eq!((own.name.as_str(), own.runs), ("up on H100-SXM-80GB", 3));
    let yaml = calibrate::fitted_config_yaml(&fitted, &RooflineCoefficients::default(), &[]);
    let scale = yaml.lines().find_map(|line| line.strip_prefix("  step_scale: "));
    let scale: f64 = scale.expect("is there").parse().expect("is a number");
    assert!((scale / 1.07 - 1.0).abs() < 0.015, "{yaml}");
}

#[test]
fn contradictory_runs_change_nothing() {
    let runs = [(2, 0.95), (6, 1.06), (12, 0.96), (20, 1.05)];
    let runs = runs.map(|(rate, off)| recorded(&format!("r{rate}"), 32, rate, off));
    let fitted = from_folder(&runs, &CalibrateOptions::default());
    assert!(fitted.parameters.is_empty(), "{fitted}");
    let text = fitted.to_string();
    assert!(
        text.contains(
            "kept at its default: does not improve predictions of runs that were not \
             fitted"
        ),
        "{text}"
    );
}

/// The first token of a reply cannot come after the last one.
#[test]
fn swapped_latencies_are_refused() {
    let mut run = recorded("swapped", 32, 2, 1.0);
    run["actual"]["summary"]["ttft_mean"] = 5_000.0.into();
    run["actual"]["summary"]["e2e_mean"] = 150.0.into();
    let folder = tempfile::tempdir().expect("can be made");
    std::fs::write(folder.path().join("run.json"), run.to_string()).expect("can be written");
    let options = CalibrateOptions::default();
    let error = calibrate::fit_roofline_to_recorded_runs(folder.path(), &options)
        .expect_err("contradicts itself")
        .to_string();
    assert!(error.contains("mean TTFT (5000 ms) must not be above the mean E2E"), "{error}");
}

#[test]
fn unfitted_coefficients_have_reasons() {
    let deployment = (engine(), setup(RooflineCoefficients::default()));
    let fit = |runs: &[BenchRun], options: &CalibrateOptions| {
        let error =
            calibrate::fit_roofline_to_bench_runs(runs, (&deployment.0, &deployment.1), options);
        error.expect_err("cannot be fitted").to_string()
    };
    let one = measure(RooflineCoefficients::default(), 4.0, 128);
    let unknown = CalibrateOptions { fit: vec!["warp".to_owned()], ..CalibrateOptions::default() };
    let error = fit(std::slice::from_ref(&one), &unknown);
    assert!(
        error.starts_with("--fit: unknown number \"warp\"; allowed are front_end_us"),
        "{error}"
    );
    let held = CalibrateOptions { hold_out: vec![one.name.clone()], ..CalibrateOptions::default() };
    let error = fit(std::slice::from_ref(&one), &held);
    assert!(error.starts_with("no run to fit"), "{error}");
    let stranger =
        CalibrateOptions { profile_of: Some("nobody".to_owned()), ..CalibrateOptions::default() };
    let error = fit(std::slice::from_ref(&one), &stranger);
    assert!(
        error.starts_with("--profile-of: no run has the name \"nobody\"; the runs are"),
        "{error}"
    );
    let stranger =
        CalibrateOptions { hold_out: vec!["nobody".to_owned()], ..CalibrateOptions::default() };
    let error = fit(std::slice::from_ref(&one), &stranger);
    let told = "--hold-out: no run has the name \"nobody\"; the runs are 4/s of 128";
    assert_eq!(error, told);
    let empty = BenchRun::new("empty".to_owned());
    let error = fit(&[empty], &CalibrateOptions::default());
    assert_eq!(error, "empty: contains no successful request");
}
