//! Flags of `replay` that cannot be used together.

use clap::{Args, Command, Id};

use super::options::{OnlineArgs, PoolArgs, WorkloadArgs};

/// Returns the flags of an argument struct and of the structs in it. Clap's own group of a struct
/// leaves out the flags of one that contains others, and an error about a group names other flags
/// than the one that was given.
pub(super) fn arg_ids<A: Args>() -> Vec<Id> {
    let command = A::augment_args(Command::new("arguments"));
    command.get_arguments().map(|arg| arg.get_id().clone()).collect()
}

/// Returns the flags without effect on reports and on runs that another program describes.
pub(super) fn flags_of_simulated_runs() -> Vec<Id> {
    let own = [
        "no_per_request",
        "sample_interval_ms",
        "slo_ttft_ms",
        "slo_itl_ms",
        "slo_e2e_ms",
        "threads",
    ];
    [
        arg_ids::<WorkloadArgs>(),
        arg_ids::<PoolArgs>(),
        arg_ids::<OnlineArgs>(),
        own.map(Id::from).to_vec(),
    ]
    .concat()
}
