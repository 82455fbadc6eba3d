//! Fitting the roofline: what was changed is found again, what cannot be told is left alone.

use std::time::Duration;

use vllm_sim::engine::latency::{
    Coefficients, LatencyModel, ModelShape, Roofline, Setup, gpu, model,
};
use vllm_sim::engine::sched::vllm::VllmConfig;
use vllm_sim::replay::load::{BenchRun, Load, Measured};
use vllm_sim::replay::outcome::{Outcome, Sink};
use vllm_sim::replay::synth::{Arrivals, Lengths, Synthetic};
use vllm_sim::replay::{EngineSpec, Pace, PoolSpec, RouterConfig, Settings, run};
use vllm_sim::tools::calibrate::{self, Options, Parameter};

fn setup(coefficients: Coefficients) -> Setup {
    let shape: ModelShape = model("meta-llama/Llama-3.1-8B-Instruct").expect("is known");
    Setup {
        coefficients,
        ..Setup::new(shape, gpu("H100").expect("is known").clone())
    }
}

fn engine() -> VllmConfig {
    VllmConfig {
        max_num_batched_tokens: 2048,
        ..VllmConfig::default()
    }
}

/// What a client sees: the engine's times, and the front end before them.
struct Client {
    front_end: Duration,
    run: BenchRun,
}

impl Sink for Client {
    fn request(&mut self, outcome: &Outcome<'_>) {
        let front_end = self.front_end.as_secs_f64() * 1e3;
        let since = |at: Option<vllm_sim::sim::SimTime>| {
            at.map(|at| (at - outcome.arrival).as_secs_f64() * 1e3 + front_end)
        };
        self.run.requests.push(Measured {
            at_ms: Some(outcome.arrival.nanos() as f64 / 1e6),
            input: outcome.input,
            output: outcome.output,
            ttft_ms: since(outcome.first),
            e2e_ms: since(outcome.last),
            ..Measured::default()
        });
    }
    fn gaps(&mut self, _: u64, _: u64) {}
}

/// A run on a machine with these constants.
fn measure(truth: Coefficients, rate: f64, prompt: u32) -> BenchRun {
    let setup = setup(truth);
    let roofline = Roofline::new(&setup).expect("makes sense");
    let mut client = Client {
        front_end: roofline.front_end(),
        run: BenchRun::new(format!("{rate}/s of {prompt}")),
    };
    client.run.load = Load::Times;
    let engine = VllmConfig {
        latency: LatencyModel::Roofline(Box::new(roofline)),
        ..engine()
    };
    let settings = Settings {
        pool: PoolSpec::new(
            EngineSpec::Vllm(Box::new(engine)),
            1,
            RouterConfig::RoundRobin,
        ),
        prefill: None,
        pace: Pace::default(),
        limit: None,
        seed: 0,
        sample_every: None,
    };
    let mut source = Synthetic {
        sessions: 50,
        input: Lengths::Constant(prompt),
        output: Lengths::Constant(24),
        arrivals: Arrivals::Poisson(rate),
        ..Synthetic::default()
    }
    .source()
    .expect("makes sense");
    run(&settings, &mut source, &mut client).expect("is played");
    client.run.measure();
    client.run
}

#[test]
fn changed_constants_are_found_within_five_per_cent() {
    let truth = Coefficients {
        front_end_us: 12_000.0,
        step_us: 900.0,
        sequence_us: 20.0,
        gemm_compute_scale: 0.75,
        ..Coefficients::default()
    };
    let mut runs = Vec::new();
    for (prompt, rates) in [
        (128, [1.0, 20.0, 80.0, 300.0]),
        (1500, [1.0, 4.0, 9.0, 16.0]),
    ] {
        for rate in rates {
            runs.push(measure(truth, rate, prompt));
        }
    }
    let deployment = (engine(), setup(Coefficients::default()));
    let fitted = calibrate::from_runs(&runs, (&deployment.0, &deployment.1), &Options::default())
        .expect("can be fitted");
    for (parameter, truth) in [
        (Parameter::FrontEnd, truth.front_end_us),
        (Parameter::Step, truth.step_us),
        (Parameter::Sequence, truth.sequence_us),
        (Parameter::Compute, truth.gemm_compute_scale),
    ] {
        let found = fitted.value(parameter).expect("was fitted");
        let off = found / truth - 1.0;
        assert!(
            off.abs() < 0.05,
            "{}: {found}, not {truth}\n{fitted}",
            parameter.name()
        );
    }
    let [before, after] = fitted.medians(false);
    for (before, after) in before.iter().zip(&after) {
        let (before, after) = (before.expect("is known"), after.expect("is known"));
        assert!(
            after < before / 5.0 && after < 1.0,
            "{before} to {after}\n{fitted}"
        );
    }
    let yaml = calibrate::yaml(&fitted, &deployment.1.coefficients, &[]);
    let step = yaml
        .lines()
        .find(|line| line.starts_with("  step_us: "))
        .expect("is there");
    let step: f64 = step["  step_us: ".len()..].parse().expect("is a number");
    assert_eq!(Some(step), fitted.value(Parameter::Step));
}

#[test]
fn one_run_tells_two_numbers_and_the_rest_stay() {
    let truth = Coefficients {
        front_end_us: 15_000.0,
        ..Coefficients::default()
    };
    let fitted = calibrate::from_runs(
        &[measure(truth, 4.0, 128)],
        (&engine(), &setup(Coefficients::default())),
        &Options::default(),
    )
    .expect("can be fitted");
    let names: Vec<&str> = fitted
        .parameters
        .iter()
        .map(|o| o.parameter.name())
        .collect();
    assert_eq!(names, ["front_end_us", "step_scale"]);
    let front_end = fitted.value(Parameter::FrontEnd).expect("was fitted");
    assert!((front_end / 15_000.0 - 1.0).abs() < 0.05, "{fitted}");
    let text = fitted.to_string();
    assert!(
        text.contains("at its prior: needs two different loads"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_fitted_is_said() {
    let deployment = (engine(), setup(Coefficients::default()));
    let fit = |runs: &[BenchRun], options: &Options| {
        let error = calibrate::from_runs(runs, (&deployment.0, &deployment.1), options);
        error.expect_err("cannot be fitted").to_string()
    };
    let one = measure(Coefficients::default(), 4.0, 128);
    let unknown = Options {
        fit: vec!["warp".to_owned()],
        ..Options::default()
    };
    let error = fit(std::slice::from_ref(&one), &unknown);
    assert!(
        error.starts_with("--fit \"warp\" is not known; there are front_end_us"),
        "{error}"
    );
    let held = Options {
        hold_out: vec![one.name.clone()],
        ..Options::default()
    };
    let error = fit(std::slice::from_ref(&one), &held);
    assert!(error.starts_with("no run is left to fit"), "{error}");
    let empty = BenchRun::new("empty".to_owned());
    let error = fit(&[empty], &Options::default());
    assert_eq!(error, "empty: holds no request that succeeded");
}
