//! Parses and checks upper bounds of latency percentiles.

use std::str::FromStr;

use vllm_sim_replay::report::ReplayReport;

/// Upper bound of a latency percentile over all requests: `ttft-p99=500`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LatencyPercentileBound {
    /// Name of the latency distribution in
    /// [`ReplayReport::curves`](vllm_sim_replay::report::ReplayReport::curves).
    curve: &'static str,
    percent: f64,
    most_ms: f64,
}

impl FromStr for LatencyPercentileBound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (what, most) = text.split_once('=')?;
            let (metric, percent) = what.split_once("-p")?;
            let curve = match metric {
                "ttft" => "TTFT",
                "itl" => "ITL",
                "tpot" => "TPOT",
                "e2e" => "E2E",
                _ => return None,
            };
            let (percent, most_ms): (f64, f64) = (percent.parse().ok()?, most.parse().ok()?);
            let is_right = (0.0..=100.0).contains(&percent) && most_ms.is_finite() && most_ms > 0.0;
            is_right.then_some(Self { curve, percent, most_ms })
        };
        let wrong = || {
            format!(
                "{text:?} must be METRIC-pPERCENT=MS, METRIC one of ttft, itl (single gaps between tokens), tpot (the mean gap of a request), e2e"
            )
        };
        read().ok_or_else(wrong)
    }
}

impl LatencyPercentileBound {
    /// Returns the metric's name in tables; there ITL is a request's mean time between tokens.
    fn metric_label(&self) -> &'static str {
        match self.curve {
            "ITL" => "single gap",
            "TPOT" => "ITL",
            curve => curve,
        }
    }

    /// Returns the title of the bound's column in tables.
    pub(super) fn latency_bound_column_title(&self) -> String {
        format!("{} p{} ms", self.metric_label(), self.percent)
    }

    /// Returns the percentile, from 0 to 100.
    pub(super) fn percent(&self) -> f64 {
        self.percent
    }

    /// Returns whether the samples are single gaps between tokens, not requests.
    pub(super) fn is_of_single_gaps(&self) -> bool {
        self.curve == "ITL"
    }

    /// Returns the key of the bounded percentile in a report summary.
    pub(super) fn report_summary_key(&self) -> String {
        let metric = match self.curve {
            "E2E" => "e2e_latency".to_owned(),
            curve => curve.to_lowercase(),
        };
        format!("p{}_{metric}_ms", self.percent)
    }

    /// Returns the bounded percentile of a report, in milliseconds; `None` without samples.
    pub(super) fn percentile_ms(&self, report: &ReplayReport) -> Option<f64> {
        let (_, curve) = report.curves.iter().find(|(name, _)| *name == self.curve)?;
        let last = curve.len().checked_sub(1)?;
        // Between two points of the curve, the higher one.
        let at = (self.percent / 100.0 * last as f64).ceil() as usize;
        Some(curve[at.min(last)])
    }

    /// Returns a message if the percentile in the report exceeds the bound.
    pub(super) fn missed_bound_message(&self, report: &ReplayReport) -> Option<String> {
        let value = self.percentile_ms(report)?;
        (value > self.most_ms).then(|| {
            format!(
                "{} p{} {value:.1} ms, bound {} ms",
                self.metric_label(),
                self.percent,
                self.most_ms
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_text_is_metric_percentile_and_ms() {
        let bound: LatencyPercentileBound = "ttft-p99.5=500".parse().expect("is a bound");
        assert_eq!((bound.curve, bound.percent, bound.most_ms), ("TTFT", 99.5, 500.0));
        for (text, title) in [("itl-p99=5", "single gap p99 ms"), ("tpot-p99=5", "ITL p99 ms")] {
            let bound: LatencyPercentileBound = text.parse().expect("is a bound");
            assert_eq!(bound.latency_bound_column_title(), title);
        }
        for text in ["ttft", "ttft-p101=5", "ttft-p9=0", "foo-p9=1"] {
            assert!(text.parse::<LatencyPercentileBound>().is_err(), "{text}");
        }
    }
}
