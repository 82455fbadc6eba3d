//! Answers the question of a plan in one line, with the costs of the cheapest deployment.

use super::report::PlanReport;
use super::search::{MAX_TRAFFIC_FACTOR, SimulatedDeploymentTrial};
use vllm_sim_replay::report::group_thousands;

/// Number of hours per month in prices: a twelfth of the 8,760 hours of a year.
const HOURS_PER_MONTH: f64 = 730.0;

/// Cost of a deployment, in the currency of the prices.
pub(super) struct DeploymentCost {
    pub(super) per_hour: f64,
    pub(super) per_month: f64,
    /// Cost of a million generated tokens under the planned traffic; `None` if no tokens are
    /// generated.
    pub(super) per_million_output: Option<f64>,
    /// Cost of a million prompt and generated tokens under the planned traffic.
    pub(super) per_million: Option<f64>,
}

impl DeploymentCost {
    /// Computes the cost of a run's deployment from its cost per hour.
    pub(super) fn new(cost_per_hour: f64, trial: &SimulatedDeploymentTrial) -> Self {
        let per_million = |rate: f64| (rate > 0.0).then(|| cost_per_hour * 1e6 / (rate * 3600.0));
        Self {
            per_hour: cost_per_hour,
            per_month: cost_per_hour * HOURS_PER_MONTH,
            per_million_output: per_million(trial.output_rate),
            per_million: per_million(trial.token_rate),
        }
    }

    /// Describes the cost of a deployment in words.
    fn description(&self, currency: &str) -> String {
        let (hour, month) = (self.per_hour, group_thousands(&format!("{:.0}", self.per_month)));
        let mut words = format!("{hour:.2} {currency}/h, {month} {currency} a month");
        if let (Some(output), Some(all)) = (self.per_million_output, self.per_million) {
            words.push_str(&format!(
                ", {output:.3} {currency} per million output tokens ({all:.3} of prompt and output)"
            ));
        }
        words
    }
}

impl PlanReport {
    /// Returns the answer in one line: GPUs, workers, latencies and costs, and the traffic if the
    /// number of workers was fixed; `None` if the search found no answer.
    pub(super) fn best_deployment_summary_line(&self) -> Option<String> {
        let (row, found) = self.best_candidate_and_trial()?;
        let group = row.pools.as_ref()?;
        let mut text = format!(
            "Answer: {} in {}",
            super::worker_count::gpus_in_words(group, found.workers),
            found.workers.split_groups_into_workers(group).worker_count_in_words()
        );
        if !row.label.is_empty() {
            text.push_str(&format!(" ({})", row.label));
        }
        if self.question.fixed_workers.is_some() {
            let bound = match found.traffic >= MAX_TRAFFIC_FACTOR {
                true => "at least ",
                false => "",
            };
            text.push_str(&format!("; serves {bound}{:.3} times the traffic", found.traffic));
        }
        let latencies = self.displayed_latencies(found);
        if !latencies.is_empty() {
            text.push_str(&format!("; {}", latencies.join(", ")));
        }
        if let Some(prices) = &self.prices {
            let cost = row.cost_of_trial(found).description(&prices.currency);
            text.push_str(&format!("; {cost}"));
        }
        Some(text)
    }
}
