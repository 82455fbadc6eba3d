//! Warns about flags of a replay that have no effect in combination with others.

use std::collections::BTreeSet;
use std::sync::Mutex;

use vllm_sim_replay::load::WorkloadFormat;

use super::options::{PoolArgs, WorkloadArgs};

/// Warns about flags that the kind of workload does not read.
pub(super) fn warn_of_unread_workload_flags(args: &WorkloadArgs) {
    // Recorded workloads decide themselves what they read.
    if !args.files.is_empty() {
        return;
    }
    let synthetic = &args.synthetic;
    let turns = synthetic.turns_per_session.as_ref();
    let has_one_turn = turns.is_none_or(|turns| turns.constant_tokens() == Some(1));
    let is_closed = args.replay_concurrency.is_some();
    if is_closed {
        let why = "a closed loop (--replay-concurrency) ignores start times";
        let flags = [
            ("--arrival-interval-ms", args.arrival_interval_ms.is_some()),
            ("--arrival-speedup-ratio", args.arrival_speedup_ratio != 1.0),
            ("--arrival-seed", args.arrival_seed != 42),
        ];
        warn_of_unread_flags(why, &flags);
    }
    if has_one_turn {
        let flags = [
            ("--turn-tokens", synthetic.turn_tokens.is_some()),
            ("--inter-turn-delay-ms", synthetic.inter_turn_delay_ms != 0.0),
            ("--inter-turn-delay-varies", synthetic.inter_turn_delay_varies),
        ];
        warn_of_unread_flags("sessions have one turn (--turns-per-session)", &flags);
    }
    let flags = [
        ("--format", args.format != WorkloadFormat::default()),
        ("--trace-block-size", args.trace_block_size != 512),
        ("--trace-shared-prefix-ratio", args.trace_shared_prefix_ratio != 0.0),
        ("--trace-num-prefix-groups", args.trace_num_prefix_groups != 0),
    ];
    warn_of_unread_flags("the workload is synthetic, not a trace", &flags);
}

/// Warns about flags of workers that nothing starts.
pub(super) fn warn_of_unread_worker_flags(args: &PoolArgs) {
    let starts =
        args.scale.is_some() || args.autoscale_max.is_some() || args.lose_workers.is_some();
    if !starts && !args.cold_start {
        let why = "no worker starts later (--cold-start, --scale, --autoscale-max, --lose-workers)";
        warn_of_unread_flags(why, &[("--startup-time", args.startup_time > 0.0)]);
    }
    if args.startup_time == 0.0 {
        let why = "workers start in no time (--startup-time)";
        warn_of_unread_flags(why, &[("--cold-start", args.cold_start)]);
    }
}

/// Warns that LoRA adapters of a simulated workload cost less than those of vLLM.
pub fn warn_of_unmodelled_adapters(args: &WorkloadArgs) {
    if !args.adapters.lora.is_empty() {
        warn_once(format!("--lora: {UNMODELLED_ADAPTER_PARTS}"));
    }
}

/// Sentence about the costs of LoRA adapters that a replay does not simulate.
pub const UNMODELLED_ADAPTER_PARTS: &str = "requests of an adapter share prefixes only with each \
     other; slots (--max-loras), GPU memory, kernels and load times of adapters are not simulated";

/// Logs a warning with those of the flags that are given, and the reason why they have no effect.
fn warn_of_unread_flags(why: &str, flags: &[(&str, bool)]) {
    let given = flags.iter().filter_map(|(flag, given)| given.then_some(*flag));
    let given: Vec<&str> = given.collect();
    if !given.is_empty() {
        warn_once(format!("{}: no effect, because {why}", given.join(", ")));
    }
}

/// Logs a warning once per process, because a search opens its workload for every run.
pub(super) fn warn_once(text: String) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // A poisoned lock has only lost a warning.
    let is_new = WARNED.lock().map_or(true, |mut warned| warned.insert(text.clone()));
    if is_new {
        tracing::warn!("{text}");
    }
}
