//! Metric families of vllm-sim itself: injected faults and the scenario phase.
//!
//! A family appears on `/metrics` with its first value.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};

use super::Metrics;
use super::families::Id;

/// Metrics of vllm-sim itself; clones share the values.
#[derive(Clone)]
pub(super) struct SimulatorMetrics {
    faults: IntCounterVec,
    phase: IntGaugeVec,
}

impl SimulatorMetrics {
    pub(super) fn new() -> prometheus::Result<Self> {
        let [faults, phase] = [Id::Faults, Id::ScenarioPhase].map(Id::family);
        Ok(Self {
            faults: IntCounterVec::new(Opts::new(faults.name, faults.help), faults.labels)?,
            phase: IntGaugeVec::new(Opts::new(phase.name, phase.help), phase.labels)?,
        })
    }
}

impl Metrics {
    /// Counts an injected fault that took effect on a client.
    ///
    /// `scenario` and `phase` are empty outside a scenario.
    pub fn on_fault(&self, kind: &str, scenario: &str, phase: &str) {
        self.own.faults.with_label_values(&[kind, phase, scenario]).inc();
    }

    /// Sets the active fault scenario and its phase; `None`: no scenario.
    pub fn on_scenario_phase(&self, phase: Option<(&str, &str)>) {
        self.own.phase.reset();
        if let Some((scenario, phase)) = phase {
            self.own.phase.with_label_values(&[phase, scenario]).set(1);
        }
    }
}

impl Collector for SimulatorMetrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.faults.desc(), self.phase.desc()].concat()
    }

    /// Returns the metric families of vllm-sim itself, with series sorted by kind, scenario and phase.
    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = [self.faults.collect(), self.phase.collect()].concat();
        for family in &mut families {
            let metrics = family.mut_metric();
            // Labels are sorted by name: kind, phase and scenario.
            metrics.sort_by_cached_key(|metric| {
                let labels = metric.get_label();
                [0, 2, 1].map(|index| labels.get(index).map(|label| label.value().to_owned()))
            });
            for (position, metric) in metrics.iter_mut().enumerate() {
                // prometheus registers empty labels; they are omitted in the text.
                let mut labels = metric.take_label();
                labels.retain(|label| !label.value().is_empty());
                metric.set_label(labels);
                metric.set_timestamp_ms(position as i64);
            }
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::super::MetricsSettings;
    use super::*;

    #[test]
    fn faults_are_sorted_by_scenario_and_written_as_other_counters() {
        let metrics = Metrics::new(MetricsSettings::default());
        metrics.on_fault("stall", "b", "1");
        metrics.on_fault("stall", "a", "2");
        let often = metrics.own.faults.with_label_values(&["cut", "", ""]);
        often.inc_by(1_000_000);
        let mut text = String::new();
        metrics.encode_page(&mut text, 0.0);
        let faults = text.lines().filter(|line| line.starts_with("vllm_sim_faults"));
        assert_eq!(
            faults.collect::<Vec<_>>(),
            [
                r#"vllm_sim_faults_total{kind="cut"} 1e+06"#,
                r#"vllm_sim_faults_total{kind="stall",phase="2",scenario="a"} 1.0"#,
                r#"vllm_sim_faults_total{kind="stall",phase="1",scenario="b"} 1.0"#,
            ]
        );
    }
}
