//! Predicts recorded runs on all processors: `evidence RUNS.jsonl OUT.jsonl [COEFFICIENTS.json]`.
//!
//! Each line of the input is one recorded run, each line of the output its prediction. The output
//! of `tests/python/evidence.py` needs it.

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use vllm_sim_calibrate::validate::predict_recorded_run;
use vllm_sim_engine::latency::RooflineCoefficients;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [runs, out, rest @ ..] = &arguments[..] else {
        return Err("usage: evidence RUNS.jsonl OUT.jsonl [COEFFICIENTS.json]".into());
    };
    let coefficients: RooflineCoefficients = match rest.first() {
        Some(path) => serde_json::from_str(&std::fs::read_to_string(path)?)?,
        None => RooflineCoefficients::default(),
    };
    let text = std::fs::read_to_string(runs)?;
    let runs: Vec<&str> = text.lines().collect();
    let next = AtomicUsize::new(0);
    let lines = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(line) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run: Value = serde_json::from_str(line).unwrap_or_default();
                    let row = match predict_recorded_run(&run, &coefficients) {
                        Ok(said) => {
                            json!({"id": said.id, "summary": said.summary, "stages": said.stages})
                        }
                        Err(error) => json!({"id": run["id"], "error": error.to_string()}),
                    };
                    if let Ok(mut lines) = lines.lock() {
                        lines.push(row.to_string());
                    }
                }
            });
        }
    });
    let mut file = std::fs::File::create(out)?;
    for line in lines.into_inner()? {
        writeln!(file, "{line}")?;
    }
    Ok(())
}
