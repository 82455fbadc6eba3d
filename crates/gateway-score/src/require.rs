//! Parses and checks requirements on a gateway: `--require reuse>=0.9`.

use anyhow::Result;

use super::measure::{MEASURES, Values};
use vllm_sim_command_line::refuse;

/// Names of values that are not relative to the ideal.
const OTHER_MEASURES: [&str; 3] = ["score", "misroutes", "retries"];

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Requirement {
    pub(super) name: &'static str,
    operator: &'static str,
    bound: f64,
}

impl Requirement {
    /// Parses `NAME>=NUMBER`; also `<=`, `>` and `<`.
    ///
    /// # Errors
    /// Returns a usage error for an invalid requirement.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let found = [">=", "<=", ">", "<"]
            .into_iter()
            .find_map(|operator| Some((operator, text.split_once(operator)?)));
        let Some((operator, (name, bound))) = found else {
            refuse!("--require {text:?} must be NAME>=NUMBER, such as reuse>=0.9");
        };
        let names = || MEASURES.iter().map(|m| m.name).chain(OTHER_MEASURES);
        let Some(name) = names().find(|known| *known == name.trim()) else {
            let known = names().collect::<Vec<_>>().join(", ");
            refuse!("--require {text:?}: unknown measure; known are {known}");
        };
        let number = bound.trim().parse().ok();
        let Some(bound) = number.filter(|n: &f64| n.is_finite() && *n >= 0.0) else {
            refuse!("--require {text:?}: {bound:?} is not a number of 0 or more");
        };
        Ok(Self {
            name,
            operator,
            bound,
        })
    }

    /// Whether the value is within the bound; an unknown value is not.
    pub(super) fn is_met(&self, value: Option<f64>) -> bool {
        value.is_some_and(|value| match self.operator {
            ">=" => value >= self.bound,
            "<=" => value <= self.bound,
            ">" => value > self.bound,
            _ => value < self.bound,
        })
    }

    /// Returns the bounded value, which of a measure is its ratio to the ideal.
    pub(super) fn value(&self, shares: &Values, others: [Option<f64>; 3]) -> Option<f64> {
        let measure = MEASURES.iter().position(|m| m.name == self.name);
        let other = || OTHER_MEASURES.iter().position(|name| *name == self.name);
        match measure {
            Some(at) => shares[at],
            None => others[other()?],
        }
    }
}

impl std::fmt::Display for Requirement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}{}", self.name, self.operator, self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_read_and_held() {
        let reuse = Requirement::parse("reuse>=0.9").unwrap();
        assert_eq!(reuse.to_string(), "reuse>=0.9");
        assert!(reuse.is_met(Some(0.9)) && !reuse.is_met(Some(0.89)) && !reuse.is_met(None));
        assert!(Requirement::parse("retries < 1").unwrap().is_met(Some(0.0)));
        for (text, told) in [
            ("reuse", "must be NAME>=NUMBER"),
            ("reuze>=1", "unknown measure"),
            ("reuse>=x", "is not a number"),
        ] {
            let error = Requirement::parse(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
