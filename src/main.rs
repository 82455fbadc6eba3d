//! Entry point of vllm-sim: runs the command line and returns its exit code.

use std::process::ExitCode;

#[cfg(all(feature = "jemalloc", unix, not(target_env = "msvc")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    vllm_sim::cli::run_cli(&args, &|name| std::env::var(name).ok())
}
