//! Predicts a folder of recorded runs: `validate RUNS`.

use vllm_sim_engine::latency::Coefficients;

fn main() {
    let runs = std::env::args_os().nth(1).unwrap_or_else(|| "runs".into());
    match vllm_sim_calibrate::validate::validate(runs.as_ref(), &Coefficients::default(), None) {
        Ok(validation) => print!("{}", validation.table()),
        Err(error) => eprintln!("{error}"),
    }
}
