//! Predicts a folder of recorded runs: `validate RUNS`.

use vllm_sim_engine::latency::RooflineCoefficients;

fn main() {
    let runs = std::env::args_os().nth(1).unwrap_or_else(|| "runs".into());
    match vllm_sim_calibrate::validate::validate_recorded_runs(
        runs.as_ref(),
        &RooflineCoefficients::default(),
        None,
    ) {
        Ok(validation) => print!("{}", validation.render_prediction_error_table()),
        Err(error) => eprintln!("{error}"),
    }
}
