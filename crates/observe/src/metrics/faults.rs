//! Faults on purpose, counted by kind. Nothing of vLLM: the series exist once there is something
//! to count.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::page::{Labels, Live};

/// Scenario and phase, as labels show them.
type Place = (String, String);

/// `vllm_sim_faults_total` and `vllm_sim_scenario_phase`.
#[derive(Debug, Default)]
pub(super) struct Faults {
    counts: Mutex<BTreeMap<(&'static str, Place), u64>>,
    playing: Mutex<Option<Place>>,
}

impl Faults {
    pub(super) fn add(&self, kind: &'static str, scenario: &str, phase: &str) {
        let place = (scenario.to_owned(), phase.to_owned());
        *self.counts.lock().entry((kind, place)).or_default() += 1;
    }

    pub(super) fn play(&self, place: Option<(&str, &str)>) {
        *self.playing.lock() = place.map(|(s, p)| (s.to_owned(), p.to_owned()));
    }
}

fn labels(kind: Option<&'static str>, (scenario, phase): &Place) -> Labels {
    let all = [
        ("kind", kind.unwrap_or_default()),
        ("scenario", scenario),
        ("phase", phase),
    ];
    // A label without a value is one that is not there.
    Labels::new(all.into_iter().filter(|(_, value)| !value.is_empty()))
}

impl Live for Faults {
    fn write(&self, out: &mut String, _: f64) {
        let counts = self.counts.lock();
        if !counts.is_empty() {
            out.push_str("# HELP vllm_sim_faults_total Faults on purpose that clients got to feel.\n# TYPE vllm_sim_faults_total counter\n");
        }
        for ((kind, place), count) in counts.iter() {
            let labels = labels(Some(kind), place).render();
            out.push_str(&format!("vllm_sim_faults_total{labels} {count}.0\n"));
        }
        drop(counts);
        if let Some(place) = self.playing.lock().as_ref() {
            let labels = labels(None, place).render();
            out.push_str(&format!("# HELP vllm_sim_scenario_phase The phase of the drill that is being played.\n# TYPE vllm_sim_scenario_phase gauge\nvllm_sim_scenario_phase{labels} 1.0\n"));
        }
    }
}
