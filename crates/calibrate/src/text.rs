//! Formats the report of a fit, and the profile for `--config`.

use std::fmt;
use std::fmt::Write as _;

use vllm_sim_engine::latency::RooflineCoefficients;
use vllm_sim_replay::statistics;

use super::apply_fit_to_coefficients;
use super::fit::{FittedParameter, FittedRoofline, RunPredictionErrors};
use super::plan::FRONT_END_TIME_NOT_FITTED_REASON;

/// Subset of the measured runs: those used in the fit, or those used for validation only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FittedOrHeldOutRuns {
    /// The measured runs that were used in the fit.
    Fitted,
    /// The measured runs that were used for validation only.
    HeldOut,
}

impl FittedOrHeldOutRuns {
    fn contains_run(self, run: &RunPredictionErrors) -> bool {
        run.held_out == (self == Self::HeldOut)
    }
}

impl FittedRoofline {
    /// Returns the median absolute prediction errors (TTFT, ITL, E2E latency) in percent over the
    /// runs of `set`, before and after the fit.
    ///
    /// Overloaded runs count for ITL only.
    pub fn median_error_percentages(&self, set: FittedOrHeldOutRuns) -> [[Option<f64>; 3]; 2] {
        self.aggregate_errors(set, statistics::median)
    }

    fn aggregate_errors(
        &self,
        set: FittedOrHeldOutRuns,
        sum_up: fn(Vec<f64>) -> Option<f64>,
    ) -> [[Option<f64>; 3]; 2] {
        let of = |pick: fn(&RunPredictionErrors) -> &[Option<f64>; 3]| {
            [0, 1, 2].map(|i| {
                let runs = self.runs.iter().filter(|run| set.contains_run(run));
                let runs = runs.filter(|run| i == 1 || run.warning.is_none());
                sum_up(runs.filter_map(|run| Some(pick(run)[i]?.abs())).collect())
            })
        };
        [of(|run| &run.before), of(|run| &run.after)]
    }

    fn write_error_summary(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        for (what, set) in
            [("fitted", FittedOrHeldOutRuns::Fitted), ("held out", FittedOrHeldOutRuns::HeldOut)]
        {
            if !self.runs.iter().any(|run| set.contains_run(run)) {
                continue;
            }
            for (kind, [before, after]) in [
                ("median", self.median_error_percentages(set)),
                ("mean", self.aggregate_errors(set, |sizes| statistics::mean(&sizes))),
            ] {
                let plain = |value: &Option<f64>| match value {
                    Some(value) => format!("{value:>8.1}"),
                    None => format!("{:>8}", "-"),
                };
                let label = format!("{kind} size, {what}");
                let cells: String = before.iter().chain(&after).map(plain).collect();
                writeln!(f, "{label:<width$} {cells}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for FittedRoofline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.runs.iter().map(|run| run.name.chars().count());
        let width = names.max().unwrap_or(0).max(24);
        writeln!(f, "Error in percent, with the defaults and with the fitted numbers:\n")?;
        let heads = ["TTFT", "ITL", "E2E", "TTFT", "ITL", "E2E"];
        let heads = heads.map(|head| format!("{head:>8}")).join("");
        writeln!(f, "{:<width$} {heads}", "run")?;
        let cell = |value: &Option<f64>| match value {
            Some(value) => format!("{value:>+8.1}"),
            None => format!("{:>8}", "-"),
        };
        for run in &self.runs {
            let cells: String = run.before.iter().chain(&run.after).map(cell).collect();
            let note = match (run.held_out, run.warning) {
                (true, Some(warning)) => &format!("  held out; {warning}"),
                (true, None) => "  held out",
                (false, Some(warning)) => &format!("  {warning}"),
                (false, None) => "",
            };
            writeln!(f, "{:<width$} {cells}{note}", run.name)?;
        }
        self.write_error_summary(f, width)?;
        writeln!(f, "\n{:<20} {:>12} {:>12} {:>12}", "number", "default", "fitted", "± error")?;
        for outcome in &self.parameters {
            write_parameter_line(f, outcome)?;
        }
        for (parameter, why) in &self.left {
            let default = parameter.parameter_prior().centre;
            let name = parameter.coefficient_name();
            match *why == FRONT_END_TIME_NOT_FITTED_REASON {
                true => writeln!(f, "{name:<20} {:>12}   {why}", "")?,
                false => writeln!(f, "{name:<20} {default:>12.4}   kept at its default: {why}")?,
            }
        }
        for own in self.deployments.iter().filter(|own| !own.parameters.is_empty()) {
            let runs = if own.runs == 1 { "run" } else { "runs" };
            writeln!(f, "\n{} ({} {runs})", own.name, own.runs)?;
            for outcome in &own.parameters {
                write_parameter_line(f, outcome)?;
            }
        }
        Ok(())
    }
}

fn write_parameter_line(f: &mut fmt::Formatter<'_>, outcome: &FittedParameter) -> fmt::Result {
    let note = if outcome.at_bound { "  at the limit of its range" } else { "" };
    writeln!(
        f,
        "{:<20} {:>12.4} {:>12.4} {:>12.4}{note}",
        outcome.parameter.coefficient_name(),
        outcome.default,
        outcome.value,
        outcome.error
    )
}

/// Returns the text of a file for `--config`: the flags in `deployment`, then the fitted
/// coefficients.
pub fn fitted_config_yaml(
    fitted: &FittedRoofline,
    base: &RooflineCoefficients,
    deployment: &[(String, String)],
) -> String {
    let coefficients = apply_fit_to_coefficients(fitted, base);
    let mut text = String::from("# Written by `vllm-sim calibrate`.\n");
    for line in fitted.to_string().lines() {
        let _ = writeln!(text, "{}", format!("# {line}").trim_end());
    }
    for (name, value) in deployment {
        let _ = writeln!(text, "{name}: {value}");
    }
    text.push_str("latency-coefficients:\n");
    if let Ok(serde_json::Value::Object(map)) = serde_json::to_value(coefficients) {
        for (name, value) in map {
            let _ = writeln!(text, "  {name}: {value}");
        }
    }
    text
}
