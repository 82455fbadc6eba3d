//! Writes the step log of workloads of `lab/scheduler`: `step_log WORKLOAD.json...` writes
//! `WORKLOAD.ours.jsonl` next to each.

#[path = "../tests/engine/scheduler_workload.rs"]
mod scheduler_workload;

use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let work = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        let log = std::fs::File::create(path.replace(".json", ".ours.jsonl"))?;
        let mut log = std::io::BufWriter::new(log);
        match scheduler_workload::play(&work) {
            Ok(lines) => lines.iter().try_for_each(|line| writeln!(log, "{line}"))?,
            Err(error) => eprintln!("{path}: {error}"),
        }
    }
    Ok(())
}
