//! Counts the workers and GPUs of a simulated run.

use serde::{Deserialize, Serialize};

use vllm_sim_replay_cli::WorkerPools;

/// Number of workers of each kind in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WorkerCountByKind {
    /// Number of workers, or of groups of prefill and decode workers.
    Groups(u32),
    /// Numbers of prefill and of decode workers, which the search chose independently.
    Split { prefill: u32, decode: u32 },
}

impl WorkerCountByKind {
    /// Returns two numbers: how many times the deployment repeats the engines of the prefill pool,
    /// and of the other pool.
    pub(super) fn worker_pool_repeat_counts(self) -> (u32, u32) {
        match self {
            Self::Groups(groups) => (groups, groups),
            Self::Split { prefill, decode } => (prefill, decode),
        }
    }

    /// Returns the number of workers, or of prefill/decode groups.
    pub(super) fn total_workers(self) -> u32 {
        match self {
            Self::Groups(groups) => groups,
            Self::Split { prefill, decode } => prefill.saturating_add(decode),
        }
    }

    /// Returns the numbers of prefill workers and of all other workers; `group` has the engines of
    /// one worker or of one prefill/decode group.
    pub(super) fn prefill_and_other_workers(self, group: &WorkerPools) -> (u32, u32) {
        let (prefill_times, times) = self.worker_pool_repeat_counts();
        let of = |engines: usize, ranks: u32, times: u32| {
            let workers = u32::try_from(engines).unwrap_or(u32::MAX) / ranks.max(1);
            workers.saturating_mul(times)
        };
        let prefills = group.prefill.as_ref().map_or(0, |pool| pool.engines.len());
        (
            of(prefills, group.ranks.0, prefill_times),
            of(group.serving.engines.len(), group.ranks.1, times),
        )
    }

    /// Converts a number of prefill/decode groups to the numbers of their prefill and decode
    /// workers.
    pub(super) fn split_groups_into_workers(self, group: &WorkerPools) -> Self {
        match self.prefill_and_other_workers(group) {
            (0, _) => self,
            (prefill, decode) => Self::Split { prefill, decode },
        }
    }

    /// Returns the number of workers as a table cell.
    pub(super) fn worker_count_table_cell(self) -> String {
        match self {
            Self::Groups(groups) => groups.to_string(),
            Self::Split { prefill, decode } => format!("{prefill}+{decode}"),
        }
    }

    /// Returns the number of workers in words.
    pub(super) fn worker_count_in_words(self) -> String {
        let plural = |number: u32| if number == 1 { "" } else { "s" };
        match self {
            Self::Groups(groups) => format!("{groups} worker{}", plural(groups)),
            Self::Split { prefill, decode } => format!(
                "{prefill} prefill worker{} and {decode} decode worker{}",
                plural(prefill),
                plural(decode)
            ),
        }
    }
}

/// Returns the number of GPUs of a number of workers or prefill/decode groups.
pub(super) fn gpus_of_workers(pools: &WorkerPools, workers: WorkerCountByKind) -> u32 {
    let (prefill, serving) = gpus_by_pool(pools, workers);
    prefill.saturating_add(serving)
}

/// Returns the numbers and names of the GPUs in words, such as `2 H100`.
pub(super) fn gpus_in_words(pools: &WorkerPools, workers: WorkerCountByKind) -> String {
    let (prefill, serving) = gpus_by_pool(pools, workers);
    let (first, second) = &pools.gpu_names;
    let shown =
        |gpus: u32, name: &Option<String>| format!("{gpus} {}", name.as_deref().unwrap_or("GPUs"));
    match prefill > 0 && first != second {
        true => format!("{} and {}", shown(prefill, first), shown(serving, second)),
        false => shown(prefill.saturating_add(serving), second),
    }
}

/// Returns the numbers of GPUs of the prefill workers and of all other workers.
pub(super) fn gpus_by_pool(pools: &WorkerPools, workers: WorkerCountByKind) -> (u32, u32) {
    let (prefill, serving) = workers.prefill_and_other_workers(pools);
    let of = |workers: u32, ranks: u32, gpus: u32| {
        workers.saturating_mul(ranks.max(1)).saturating_mul(gpus)
    };
    (of(prefill, pools.ranks.0, pools.gpus.0), of(serving, pools.ranks.1, pools.gpus.1))
}

/// Returns the worker pools for a number of workers, by repeating the engines of the smallest
/// pools, `group`.
pub(super) fn repeat_worker_pools(group: &WorkerPools, workers: WorkerCountByKind) -> WorkerPools {
    let mut pools = group.clone();
    let (prefill, serving) = workers.worker_pool_repeat_counts();
    let all = [(Some(&mut pools.serving), serving), (pools.prefill.as_mut(), prefill)];
    for (pool, times) in all {
        if let Some(pool) = pool {
            let engines = std::mem::take(&mut pool.engines);
            let group = engines.iter().cycle().cloned();
            pool.engines = group.take(engines.len() * times as usize).collect();
        }
    }
    pools
}
