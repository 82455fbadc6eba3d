//! Metric families of vllm-sim itself: injected faults and the scenario phase.
//!
//! They are vectors of `prometheus` in a registry. A family appears on `/metrics` with its first value.

use prometheus::proto::LabelPair;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::Metrics;
use super::families::Id;
use super::family::Family;
use super::text::{PrometheusTextWriter, RenderedLabels};

/// Metrics of vllm-sim itself.
pub(super) struct SimulatorMetrics {
    registry: Registry,
    faults: IntCounterVec,
    phase: IntGaugeVec,
}

impl SimulatorMetrics {
    /// Creates and registers the metric families.
    ///
    /// # Errors
    /// Fails if the list has an invalid name or label, or a name twice.
    pub(super) fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let [faults, phase] = [Id::Faults, Id::ScenarioPhase].map(Id::family);
        let opts = |family: &Family| Opts::new(family.name, family.help);
        let faults = IntCounterVec::new(opts(faults), faults.labels)?;
        let phase = IntGaugeVec::new(opts(phase), phase.labels)?;
        registry.register(Box::new(faults.clone()))?;
        registry.register(Box::new(phase.clone()))?;
        Ok(Self { registry, faults, phase })
    }

    /// Writes one of the families, with its series sorted by kind, scenario and phase; nothing
    /// without series.
    pub(super) fn write_family(&self, family: &Family, writer: &mut PrometheusTextWriter<'_>) {
        let gathered = self.registry.gather();
        let Some(found) = gathered.iter().find(|one| one.name() == family.name) else { return };
        writer.write_header(family.name, family.help, family.kind);
        let mut metrics: Vec<_> = found.get_metric().iter().collect();
        // Labels are sorted by name: kind, phase and scenario.
        metrics.sort_by_key(|metric| {
            [0, 2, 1].map(|index| metric.get_label().get(index).map(LabelPair::value))
        });
        for metric in metrics {
            // prometheus has empty labels too; they are omitted in the text.
            let labels = metric.get_label().iter().map(|label| (label.name(), label.value()));
            let labels = RenderedLabels::new(labels.filter(|(_, value)| !value.is_empty()));
            // A metric is a counter or a gauge; the other one is zero.
            let value = metric.get_counter().get_value() + metric.get_gauge().get_value();
            writer.write_sample(family.name, "", &labels, value);
        }
    }
}

impl Metrics {
    /// Counts an injected fault that took effect on a client.
    ///
    /// `scenario` and `phase` are empty outside a scenario.
    pub fn on_fault(&self, kind: &str, scenario: &str, phase: &str) {
        self.page.own.faults.with_label_values(&[kind, phase, scenario]).inc();
    }

    /// Sets the active fault scenario and its phase; `None`: no scenario.
    pub fn on_scenario_phase(&self, phase: Option<(&str, &str)>) {
        self.page.own.phase.reset();
        if let Some((scenario, phase)) = phase {
            self.page.own.phase.with_label_values(&[phase, scenario]).set(1);
        }
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
        let often = metrics.page.own.faults.with_label_values(&["cut", "", ""]);
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
