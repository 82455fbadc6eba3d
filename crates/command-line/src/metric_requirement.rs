//! Parses and checks requirements on the results of tools: `--require reuse>=0.9`.

use std::fmt;

use anyhow::Result;

use crate::refuse;

/// Required bound on a metric in the result of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricRequirement {
    /// Name of the metric in the tool's result that must be within the bound, such as
    /// `p99_ttft_ms`.
    pub name: String,
    operator: &'static str,
    bound: f64,
}

impl MetricRequirement {
    /// Parses a requirement `NAME>=NUMBER`, whose operator is `>=`, `<=`, `>` or `<`. Error
    /// messages contain the example `error_example`.
    ///
    /// # Errors
    /// Returns a [`UsageError`](crate::UsageError) for an invalid requirement.
    pub fn parse_metric_requirement(text: &str, error_example: &str) -> Result<Self> {
        let found = [">=", "<=", ">", "<"]
            .into_iter()
            .find_map(|operator| Some((operator, text.split_once(operator)?)));
        let Some((operator, (name, bound))) = found else {
            refuse!("--require {text:?} must be NAME>=NUMBER, such as {error_example}");
        };
        let number = bound.trim().parse().ok();
        let Some(bound) = number.filter(|n: &f64| n.is_finite() && *n >= 0.0) else {
            refuse!("--require {text:?}: {bound:?} is not a number of 0 or more");
        };
        Ok(Self { name: name.trim().to_owned(), operator, bound })
    }

    /// Returns whether a metric's value is within the required bound; false if the value is
    /// unknown.
    pub fn is_requirement_met_by(&self, value: Option<f64>) -> bool {
        value.is_some_and(|value| match self.operator {
            ">=" => value >= self.bound,
            "<=" => value <= self.bound,
            ">" => value > self.bound,
            _ => value < self.bound,
        })
    }
}

impl fmt::Display for MetricRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.name, self.operator, self.bound)
    }
}

/// Returns a message that lists the missed requirements and their values; `None` if all are met.
pub fn describe_missed_metric_requirements(
    requirements: &[MetricRequirement],
    value: impl Fn(&MetricRequirement) -> Option<f64>,
) -> Option<String> {
    let missed = requirements.iter().filter_map(|requirement| {
        let value = value(requirement);
        let shown = value.map_or_else(|| "is unknown".to_owned(), |v| format!("is {v:.3}"));
        (!requirement.is_requirement_met_by(value)).then(|| format!("{requirement} (it {shown})"))
    });
    let missed: Vec<String> = missed.collect();
    (!missed.is_empty()).then(|| format!("--require missed: {}", missed.join(", ")))
}
