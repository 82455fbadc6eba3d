//! Names the reasons in a workload, or in the virtual time of its run, why requests are not good.

use super::search::SimulatedDeploymentTrial;

impl SimulatedDeploymentTrial {
    /// Returns the reason why requests of the run are not good that has nothing to do with the
    /// deployment, if one is known.
    pub(super) fn workload_reason(&self) -> Option<String> {
        let is_zero = |key: &str| self.report_summary_number(key) == 0.0;
        match is_zero("num_requests") {
            true => Some("the workload has no request".to_owned()),
            false if is_zero("total_output_tokens") && !is_zero("completed_requests") => {
                Some("no request has an output token".to_owned())
            }
            false => self.unfinished_requests_warning(),
        }
    }

    /// Returns a warning about requests that had not ended when the virtual time of the run was
    /// over.
    pub(super) fn unfinished_requests_warning(&self) -> Option<String> {
        let keys = ["incomplete_requests", "num_requests"];
        let [unfinished, all] = keys.map(|key| self.report_summary_number(key));
        (unfinished > 0.0 && !self.stopped).then(|| {
            format!(
                "{unfinished} of {all} requests had not ended when the virtual time was over \
                 (--max-sim-time-seconds), and are not good"
            )
        })
    }
}
