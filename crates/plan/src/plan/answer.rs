//! Answers the question of a plan in one line, with the costs of the cheapest deployment.

use super::report::PlanReport;
use super::search::{SimulatedTrial, WorkerCount};
use vllm_sim_replay_cli::WorkerPools;

/// Hours of a month in prices: a year of 8,760 hours has twelve.
const HOURS_PER_MONTH: f64 = 730.0;

/// Cost of a deployment, in the currency of the prices.
pub(super) struct Cost {
    pub(super) per_hour: f64,
    pub(super) per_month: f64,
    /// Cost of a million generated tokens under the planned traffic; `None` without tokens.
    pub(super) per_million_output: Option<f64>,
    /// Cost of a million prompt and generated tokens under the planned traffic.
    pub(super) per_million: Option<f64>,
}

impl Cost {
    /// Computes the cost of a run's deployment from its cost per hour.
    pub(super) fn new(per_hour: f64, trial: &SimulatedTrial) -> Self {
        let per_million = |rate: f64| (rate > 0.0).then(|| per_hour * 1e6 / (rate * 3600.0));
        Self {
            per_hour,
            per_month: per_hour * HOURS_PER_MONTH,
            per_million_output: per_million(trial.output_rate),
            per_million: per_million(trial.token_rate),
        }
    }

    /// Describes the cost in words.
    fn words(&self, currency: &str) -> String {
        let (hour, month) = (self.per_hour, self.per_month);
        let mut words = format!("{hour:.2} {currency}/h, {} {currency} a month", thousands(month));
        if let (Some(output), Some(all)) = (self.per_million_output, self.per_million) {
            words.push_str(&format!(
                ", {output:.3} {currency} per million output tokens ({all:.3} of prompt and output)"
            ));
        }
        words
    }
}

impl PlanReport {
    /// Returns the answer in one line: GPUs, workers, latencies and costs; `None` without one.
    pub(super) fn answer(&self) -> Option<String> {
        let (row, found) = self.best_trial()?;
        let gpu = row.pools.as_ref()?.provenance.gpu.as_deref();
        let mut text = format!(
            "Answer: {} {} in {}",
            found.gpus,
            gpu.unwrap_or("GPUs"),
            workers(row.pools.as_ref()?, found.workers).words()
        );
        if !row.label.is_empty() {
            text.push_str(&format!(" ({})", row.label));
        }
        let latencies = self.bounded_latencies(found);
        if !latencies.is_empty() {
            text.push_str(&format!("; {}", latencies.join(", ")));
        }
        if let Some(prices) = &self.prices {
            let cost = row.cost_of(found).words(&prices.currency);
            text.push_str(&format!("; {cost}"));
        }
        Some(text)
    }
}

/// Returns the workers of a run; groups of prefill and decode workers become their workers.
fn workers(group: &WorkerPools, count: WorkerCount) -> WorkerCount {
    let (WorkerCount::Groups(groups), Some(pool)) = (count, &group.prefill) else {
        return count;
    };
    let of = |engines: usize, ranks: u32| (engines as u32 / ranks.max(1)).saturating_mul(groups);
    WorkerCount::Split {
        prefill: of(pool.engines.len(), group.ranks.0),
        decode: of(group.serving.engines.len(), group.ranks.1),
    }
}

/// Formats a whole number with commas between thousands.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn thousands_are_separated() {
        let all = [1.4, 999.6, 43_800.0, 1_234_567.0].map(thousands);
        assert_eq!(all, ["1", "1,000", "43,800", "1,234,567"]);
    }
}
