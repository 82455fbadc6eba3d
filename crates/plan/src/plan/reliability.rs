//! Describes how far the answer of a plan can be relied on.

use super::report::PlanReport;
use super::search::SimulatedDeploymentTrial;

/// `--bound` rounds a percentile above this one up to the maximum.
const MAX_EXACT_PERCENTILE: f64 = 99.75;

impl PlanReport {
    /// Returns notes about the answer: its known errors, percentiles of few samples, and an untested
    /// queue.
    pub(super) fn reliability_notes(&self) -> Vec<String> {
        let Some((row, best)) = self.best_candidate_and_trial() else {
            return Vec::new();
        };
        let mut notes = vec![match row.prediction_accuracy(best) {
            Ok(known) => format!("evidence: {known}"),
            Err(why) => format!("evidence: none, because {why}"),
        }];
        notes.extend(self.highest_value_notes(best));
        if let Some(why) = &best.untested_queue {
            notes.push(format!("not tested whether the queue grows: {why}"));
        }
        notes
    }

    /// Returns a note for each percentile of a run that is no more than the highest value.
    fn highest_value_notes(&self, trial: &SimulatedDeploymentTrial) -> Vec<String> {
        let completed = trial.report_summary_number("completed_requests");
        let gaps = trial.report_summary_number("total_output_tokens") - completed;
        let mut shown = vec![(99.0, completed, "requests")];
        for bound in &self.question.bounds {
            let percentile = match bound.is_of_single_gaps() {
                true => (bound.percent(), gaps, "gaps"),
                false => (bound.percent(), completed, "requests"),
            };
            if !shown.contains(&percentile) {
                shown.push(percentile);
            }
        }
        let notes = shown
            .into_iter()
            .filter_map(|(percent, samples, what)| highest_value_note(percent, samples, what));
        notes.collect()
    }
}

/// Returns a note if the percentile of `samples` values is the highest one.
fn highest_value_note(percent: f64, samples: f64, what: &str) -> Option<String> {
    if percent >= 100.0 {
        return None;
    }
    // Tolerant of binary rounding: 1,000 for 99.9.
    let needed = (100.0 / (100.0 - percent) - 1e-6).ceil();
    if samples < needed {
        return Some(format!(
            "p{percent} of {samples} {what} is their highest value: a p{percent} needs {needed}"
        ));
    }
    (percent > MAX_EXACT_PERCENTILE).then(|| {
        format!("p{percent} is the highest value: --bound rounds up to a quarter of a percent")
    })
}

#[cfg(test)]
mod tests {
    use super::highest_value_note;

    #[test]
    fn percentiles_of_few_samples_are_highest_values() {
        let note = |percent, samples| highest_value_note(percent, samples, "requests");
        let few = "p99 of 99 requests is their highest value: a p99 needs 100";
        assert_eq!(note(99.0, 99.0).as_deref(), Some(few));
        let few = "p99.9 of 999 requests is their highest value: a p99.9 needs 1000";
        assert_eq!(note(99.9, 999.0).as_deref(), Some(few));
        let rounded = "p99.9 is the highest value: --bound rounds up to a quarter of a percent";
        assert_eq!(note(99.9, 1000.0).as_deref(), Some(rounded));
        assert_eq!([note(99.0, 100.0), note(50.0, 2.0), note(100.0, 1.0)], [None, None, None]);
    }
}
