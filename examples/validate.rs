//! Predicts a folder of recorded runs: `validate RUNS [OUT]`.

fn main() {
    let mut args = std::env::args_os().skip(1).map(std::path::PathBuf::from);
    let runs = args.next().unwrap_or_else(|| "runs".into());
    let out = args.next();
    match vllm_sim::tools::validate::validate(&runs, out.as_deref()) {
        Ok(table) => print!("{table}"),
        Err(error) => eprintln!("{error}"),
    }
}
