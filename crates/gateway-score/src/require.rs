//! Parses and checks requirements on a gateway's measures: `--require reuse>=0.9`.

use anyhow::Result;

use super::measure::{SCORE_MEASURES, ScoreMeasureValues};
use vllm_sim_command_line::metric_requirement::MetricRequirement;
use vllm_sim_command_line::refuse;

/// Names of the values that `--require` accepts in addition to the measures; they are not relative
/// to the ideal.
const OTHER_REQUIRABLE_VALUES: [&str; 3] = ["score", "misroutes", "retries"];

/// Parses a requirement on a measure or on one of [`OTHER_REQUIRABLE_VALUES`].
///
/// # Errors
/// Returns a usage error for an invalid requirement.
pub(super) fn parse_score_requirement(text: &str) -> Result<MetricRequirement> {
    let requirement = MetricRequirement::parse_metric_requirement(text, "reuse>=0.9")?;
    let names = || SCORE_MEASURES.iter().map(|m| m.name).chain(OTHER_REQUIRABLE_VALUES);
    if !names().any(|known| known == requirement.name) {
        let known = names().collect::<Vec<_>>().join(", ");
        refuse!("--require {text:?}: unknown measure; known are {known}");
    }
    Ok(requirement)
}

/// Returns the value of the run that a requirement limits; for a measure, its ratio to the ideal.
pub(super) fn measured_value_for_requirement(
    requirement: &MetricRequirement,
    ratios_to_ideal: &ScoreMeasureValues,
    others: [Option<f64>; 3],
) -> Option<f64> {
    let name = requirement.name.as_str();
    match SCORE_MEASURES.iter().position(|m| m.name == name) {
        Some(at) => ratios_to_ideal[at],
        None => others[OTHER_REQUIRABLE_VALUES.iter().position(|other| *other == name)?],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirement_is_parsed_and_checked() {
        let reuse = parse_score_requirement("reuse>=0.9").unwrap();
        assert_eq!(reuse.to_string(), "reuse>=0.9");
        assert!(
            reuse.is_requirement_met_by(Some(0.9))
                && !reuse.is_requirement_met_by(Some(0.89))
                && !reuse.is_requirement_met_by(None)
        );
        assert!(parse_score_requirement("retries < 1").unwrap().is_requirement_met_by(Some(0.0)));
        for (text, told) in [
            ("reuse", "must be NAME>=NUMBER"),
            ("reuze>=1", "unknown measure"),
            ("reuse>=x", "is not a number"),
        ] {
            let error = parse_score_requirement(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
