//! What charts are annotated with: phases of scenarios and settings that an operator changed, and when.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use vllm_sim_engine::driver::unix_now;

/// Events that are remembered; older ones go.
const KEPT: usize = 200;

/// The newest annotations of a deployment.
#[derive(Default)]
pub(super) struct AnnotationLog {
    events: Mutex<VecDeque<Annotation>>,
}

/// Something that was done on purpose.
#[derive(Debug, Clone)]
pub(super) struct Annotation {
    /// When, in seconds since 1970.
    time: f64,
    kind: AnnotationKind,
}

/// What was done.
#[derive(Debug, Clone)]
pub(super) enum AnnotationKind {
    /// A phase of a scenario begins, in a round from 1 on.
    Phase {
        scenario: String,
        phase: String,
        round: u32,
    },
    /// A scenario is over.
    End { scenario: String },
    /// An operator changed settings, of one rank or of all.
    Settings {
        changed: Map<String, Value>,
        rank: Option<u32>,
    },
}

impl AnnotationLog {
    /// Something is done now.
    pub(super) fn add(&self, kind: AnnotationKind) {
        let time = unix_now();
        let mut events = self.events.lock();
        events.push_back(Annotation { time, kind });
        if events.len() > KEPT {
            events.pop_front();
        }
    }

    /// All that is remembered, the oldest first.
    pub(super) fn to_json(&self, values: SettingValues) -> Vec<Value> {
        let events = self.events.lock();
        events.iter().map(|event| event.to_json(values)).collect()
    }
}

impl Annotation {
    fn to_json(&self, values: SettingValues) -> Value {
        let time = self.time;
        match &self.kind {
            AnnotationKind::Phase {
                scenario,
                phase,
                round,
            } => {
                json!({"time": time, "event": "phase", "scenario": scenario, "phase": phase, "round": round})
            }
            AnnotationKind::End { scenario } => {
                json!({"time": time, "event": "end", "scenario": scenario})
            }
            AnnotationKind::Settings { changed, rank } => {
                let changed = shown_settings(changed, values);
                json!({"time": time, "event": "settings", "changed": changed, "rank": rank})
            }
        }
    }
}

/// Tells whether the values of settings are shown to a client, or only the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingValues {
    Shown,
    Hidden,
}

/// Settings by name; hidden values are `null`.
pub(super) fn shown_settings(
    settings: &Map<String, Value>,
    values: SettingValues,
) -> Map<String, Value> {
    let settings = settings.iter();
    let shown = settings.map(|(name, value)| match values {
        SettingValues::Shown => (name.clone(), value.clone()),
        SettingValues::Hidden => (name.clone(), Value::Null),
    });
    shown.collect()
}
