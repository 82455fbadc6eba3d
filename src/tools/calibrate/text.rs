//! The report of a fit, and the file that `--config` takes.

use std::fmt;
use std::fmt::Write as _;

use crate::engine::latency::Coefficients;

use super::fit::{Fitted, RunOutcome};
use super::{Parameter, applied};

/// Median of the sizes of what is known.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.map(f64::abs).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    let upper = values.len() / 2;
    Some((values[middle] + values[upper]) / 2.0)
}

impl Fitted {
    /// Median size of the error of fitted (or held-out) runs in per cent: TTFT, ITL, E2E, before
    /// and after. Runs that were overloaded count for ITL only.
    pub fn medians(&self, held_out: bool) -> [[Option<f64>; 3]; 2] {
        let of = |pick: fn(&RunOutcome) -> &[Option<f64>; 3]| {
            [0, 1, 2].map(|i| {
                let runs = self.runs.iter().filter(|run| run.held_out == held_out);
                let runs = runs.filter(|run| i == 1 || run.warning.is_none());
                median(runs.filter_map(|run| pick(run)[i]))
            })
        };
        [of(|run| &run.before), of(|run| &run.after)]
    }

    /// The fitted value of a number.
    pub fn value(&self, parameter: Parameter) -> Option<f64> {
        let mut outcomes = self.parameters.iter();
        let outcome = outcomes.find(|outcome| outcome.parameter == parameter);
        outcome.map(|outcome| outcome.value)
    }
}

impl fmt::Display for Fitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.runs.iter().map(|run| run.name.chars().count());
        let width = names.max().unwrap_or(0).max(24);
        writeln!(
            f,
            "Error in per cent, with the defaults and with what was fitted:\n"
        )?;
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
                (true, _) => "  held out",
                (false, Some(warning)) => &format!("  {warning}"),
                (false, None) => "",
            };
            writeln!(f, "{:<width$} {cells}{note}", run.name)?;
        }
        for (label, held_out) in [
            ("median size, fitted", false),
            ("median size, held out", true),
        ] {
            if self.runs.iter().any(|run| run.held_out == held_out) {
                let [before, after] = self.medians(held_out);
                let plain = |value: &Option<f64>| match value {
                    Some(value) => format!("{value:>8.1}"),
                    None => format!("{:>8}", "-"),
                };
                let cells: String = before.iter().chain(&after).map(plain).collect();
                writeln!(f, "{label:<width$} {cells}")?;
            }
        }
        writeln!(
            f,
            "\n{:<20} {:>12} {:>12} {:>12}",
            "number", "default", "fitted", "± error"
        )?;
        for outcome in &self.parameters {
            let note = if outcome.at_bound {
                "  at its bound"
            } else {
                ""
            };
            writeln!(
                f,
                "{:<20} {:>12.4} {:>12.4} {:>12.4}{note}",
                outcome.parameter.name(),
                outcome.default,
                outcome.value,
                outcome.error
            )?;
        }
        for (parameter, why) in &self.left {
            let default = parameter.prior().centre;
            let name = parameter.name();
            writeln!(f, "{name:<20} {default:>12.4}   at its prior: {why}")?;
        }
        Ok(())
    }
}

/// A file for `--config`: the flags in `deployment`, then what was fitted.
pub fn yaml(fitted: &Fitted, base: &Coefficients, deployment: &[(String, String)]) -> String {
    let (coefficients, scale) = applied(fitted, base);
    let mut text = String::from("# Written by `vllm-sim calibrate`.\n");
    for line in fitted.to_string().lines() {
        let _ = writeln!(text, "{}", format!("# {line}").trim_end());
    }
    for (name, value) in deployment {
        let _ = writeln!(text, "{name}: {value}");
    }
    if fitted
        .parameters
        .iter()
        .any(|o| o.parameter == Parameter::StepScale)
    {
        let _ = writeln!(text, "speedup-ratio: {:.6}", 1.0 / scale);
    }
    text.push_str("latency-coefficients:\n");
    if let Ok(serde_json::Value::Object(map)) = serde_json::to_value(coefficients) {
        for (name, value) in map {
            let _ = writeln!(text, "  {name}: {value}");
        }
    }
    text
}
