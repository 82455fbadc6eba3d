//! Metric families of vllm-sim itself: injected faults and the scenario phase.
//!
//! A family appears on `/metrics` with its first value.

use prometheus::proto::{Metric, MetricType};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::page::{Labels, LiveFamily, header};

pub(super) struct FaultMetrics {
    registry: Registry,
    faults: IntCounterVec,
    phase: IntGaugeVec,
}

impl FaultMetrics {
    pub(super) fn new() -> Self {
        const CONSTANT: &str = "names and labels are constants, each registered once";
        let faults = Opts::new(
            "vllm_sim_faults_total",
            "Number of injected faults that took effect on a client.",
        );
        let faults = IntCounterVec::new(faults, &["kind", "scenario", "phase"]).expect(CONSTANT);
        let phase =
            Opts::new("vllm_sim_scenario_phase", "1 for the active phase of the running scenario.");
        let phase = IntGaugeVec::new(phase, &["scenario", "phase"]).expect(CONSTANT);
        let registry = Registry::new();
        registry.register(Box::new(faults.clone())).expect(CONSTANT);
        registry.register(Box::new(phase.clone())).expect(CONSTANT);
        Self { registry, faults, phase }
    }

    pub(super) fn count(&self, kind: &str, scenario: &str, phase: &str) {
        let labels = [kind, scenario, phase];
        self.faults.with_label_values(&labels).inc();
    }

    pub(super) fn set_phase(&self, phase: Option<(&str, &str)>) {
        self.phase.reset();
        if let Some((scenario, phase)) = phase {
            self.phase.with_label_values(&[scenario, phase]).set(1);
        }
    }
}

impl LiveFamily for FaultMetrics {
    fn write(&self, out: &mut String, _: f64) {
        for mut family in self.registry.gather() {
            let counter = family.get_field_type() == MetricType::COUNTER;
            let kind = if counter { "counter" } else { "gauge" };
            out.push_str(&header(family.name(), family.help(), kind));
            let mut metrics = family.take_metric();
            metrics
                .sort_by_cached_key(|m| ["kind", "scenario", "phase"].map(|name| label(m, name)));
            for metric in &metrics {
                let value = match counter {
                    true => metric.get_counter().get_value(),
                    false => metric.get_gauge().get_value(),
                };
                let labels = metric.get_label().iter();
                // prometheus registers empty labels; they are omitted in the text.
                let labels = labels.filter(|label| !label.value().is_empty());
                let labels = Labels::new(labels.map(|label| (label.name(), label.value())));
                let (name, labels) = (family.name(), labels.render());
                out.push_str(&format!("{name}{labels} {value:?}\n"));
            }
        }
    }
}

fn label(metric: &Metric, name: &str) -> String {
    let found = metric.get_label().iter().find(|label| label.name() == name);
    found.map_or_else(String::new, |label| label.value().to_owned())
}
