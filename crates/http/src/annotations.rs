//! Annotations for charts of the dashboard: scenario phases and changed settings, with their times.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use vllm_sim_engine::driver::unix_now_secs;

/// Maximum number of chart annotations in the dashboard's log; beyond it, the oldest is dropped.
const MAX_ANNOTATIONS: usize = 200;

#[derive(Default)]
pub(super) struct ChartAnnotationLog {
    events: Mutex<VecDeque<ChartAnnotation>>,
}

#[derive(Debug, Clone)]
pub(super) struct ChartAnnotation {
    time: f64,
    kind: ChartAnnotationKind,
}

#[derive(Debug, Clone)]
pub(super) enum ChartAnnotationKind {
    /// Chart annotation: a phase of a fault scenario has started; `round` is the repetition of the
    /// scenario, from 1.
    Phase { scenario: String, phase: String, round: u32 },
    /// Chart annotation: a fault scenario has ended.
    End { scenario: String },
    /// Chart annotation: an operator has changed settings, on one data-parallel rank or on all.
    Settings { changed: Map<String, Value>, rank: Option<u32> },
}

impl ChartAnnotationLog {
    pub(super) fn add_annotation(&self, kind: ChartAnnotationKind) {
        let time = unix_now_secs();
        let mut events = self.events.lock();
        events.push_back(ChartAnnotation { time, kind });
        if events.len() > MAX_ANNOTATIONS {
            events.pop_front();
        }
    }

    /// Returns all chart annotations as JSON, oldest first.
    pub(super) fn chart_annotations_json(&self, visibility: SettingValueVisibility) -> Vec<Value> {
        let events = self.events.lock();
        events.iter().map(|event| event.to_json(visibility)).collect()
    }
}

impl ChartAnnotation {
    fn to_json(&self, values: SettingValueVisibility) -> Value {
        let time = self.time;
        match &self.kind {
            ChartAnnotationKind::Phase { scenario, phase, round } => {
                json!({"time": time, "event": "phase", "scenario": scenario, "phase": phase, "round": round})
            }
            ChartAnnotationKind::End { scenario } => {
                json!({"time": time, "event": "end", "scenario": scenario})
            }
            ChartAnnotationKind::Settings { changed, rank } => {
                let changed = settings_json(changed, values);
                json!({"time": time, "event": "settings", "changed": changed, "rank": rank})
            }
        }
    }
}

/// Selects whether clients see the values of run-time settings or only their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingValueVisibility {
    Shown,
    Hidden,
}

/// Returns run-time settings by name, with values or with `null` for hidden values.
pub(super) fn settings_json(
    settings: &Map<String, Value>,
    values: SettingValueVisibility,
) -> Map<String, Value> {
    let settings = settings.iter();
    let shown = settings.map(|(name, value)| match values {
        SettingValueVisibility::Shown => (name.clone(), value.clone()),
        SettingValueVisibility::Hidden => (name.clone(), Value::Null),
    });
    shown.collect()
}
