//! Warns about parts of a deployment that a plan does not simulate, or that vLLM refuses.

use super::report::PlanReport;
use vllm_sim_replay_cli::UNMODELLED_ADAPTER_PARTS;

impl PlanReport {
    /// Returns warnings about the cheapest deployment, or about the first one if the plan has no
    /// answer.
    pub(super) fn deployment_warnings(&self) -> Vec<String> {
        let best = self.best_candidate_and_trial().map(|(row, _)| row);
        let Some(row) = best.or(self.rows.first()) else {
            return Vec::new();
        };
        let pools = row.pools.iter();
        let mut all: Vec<String> = pools.flat_map(|pools| &pools.warnings).cloned().collect();
        if !row.adapters.is_empty() {
            all.push(format!(
                "--lora {}: {UNMODELLED_ADAPTER_PARTS}. Name the adapters' folders with \
                 --lora-modules NAME=PATH when you start vLLM",
                row.adapters.join(",")
            ));
        }
        let trial = row.answer.found.as_ref().or(row.answer.trials.last());
        all.extend(trial.and_then(|trial| trial.unfinished_requests_warning()));
        all
    }
}
