use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value};

use super::{
    FaultRandomKey, FaultScenario, ScenarioPhase, ScenarioPhaseAction, ScenarioPhaseLength,
    ScenarioReplicaOverride,
};
use crate::fields::{expect_mapping, non_null_field, whole_number_field};
use vllm_sim_engine::duration;

const MAX_PHASES: usize = 1000;
/// Minimum length of a scenario's phase, so that an endless scenario cannot busy-loop.
const MIN_PHASE_LENGTH: Duration = Duration::from_millis(1);

/// Error in a fault scenario's file or value, with the phase and field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("scenario: {place}{why}")]
pub struct ScenarioError {
    place: String,
    why: String,
}

impl ScenarioError {
    /// Creates an error about the phase of a fault scenario with this index and name.
    pub fn error_in_phase(index: usize, name: &str, why: impl ToString) -> Self {
        Self { place: format!("phases[{index}] {name:?}: "), why: why.to_string() }
    }
}

fn scenario_error(why: impl Into<String>) -> ScenarioError {
    ScenarioError { place: String::new(), why: why.into() }
}

const SCENARIO_KEYS: &str = "name, seed, repeat, by, phases";
const PHASE_KEYS: &str = "name, for, requests, set, do, replicas";
const ACTION_FORMS: &str = "reset-prefix-cache, abort-requests, load-lora: {name, path}, unload-lora: NAME, restart: DURATION";

impl FaultScenario {
    /// Parses a fault scenario in YAML (JSON is YAML).
    ///
    /// # Errors
    /// [`ScenarioError`] with the phase and field in error.
    pub fn from_yaml(text: &str) -> Result<Self, ScenarioError> {
        let value: Option<Value> = serde_saphyr::from_str(text)
            .map_err(|error| scenario_error(format!("not YAML: {error}")))?;
        Self::from_value(&value.unwrap_or_default())
    }

    /// Parses a fault scenario in a JSON value.
    ///
    /// # Errors
    /// The same as for [`Self::from_yaml`].
    pub fn from_value(value: &Value) -> Result<Self, ScenarioError> {
        if !value.is_object() {
            let words = format!("a mapping with the keys {SCENARIO_KEYS} was expected");
            return Err(scenario_error(words));
        }
        let fields = expect_mapping(value, SCENARIO_KEYS).map_err(scenario_error)?;
        let name = match non_null_field(fields, "name") {
            None => "scenario".to_owned(),
            Some(name) => {
                text_value(name).ok_or_else(|| scenario_error("'name' must be a string"))?
            }
        };
        let whole = |key: &str| whole_number_field(fields, key, 0).map_err(scenario_error);
        let repeat = whole("repeat")?.unwrap_or(1);
        let by = fields.get("by").map(|by| text_value(by).unwrap_or_default());
        let by = match by.as_deref() {
            None | Some("ordinal") => FaultRandomKey::Ordinal,
            Some("request-id") => FaultRandomKey::RequestId,
            Some(by) => {
                let words = format!("'by' must be ordinal or request-id, not {by:?}");
                return Err(scenario_error(words));
            }
        };
        let phases = match fields.get("phases") {
            Some(Value::Array(phases)) if (1..=MAX_PHASES).contains(&phases.len()) => phases,
            _ => {
                return Err(scenario_error(format!(
                    "'phases' must be a list of 1 to {MAX_PHASES} phases"
                )));
            }
        };
        let phases: Result<Vec<ScenarioPhase>, _> =
            phases.iter().enumerate().map(read_phase).collect();
        let phases = phases?;
        let names: BTreeSet<_> = phases.iter().map(|phase| &phase.name).collect();
        if names.len() < phases.len() {
            return Err(scenario_error("every phase needs a unique name"));
        }
        if let Some(index) =
            phases.iter().position(|phase| phase.length == ScenarioPhaseLength::Open)
            && index + 1 < phases.len()
        {
            let why =
                "a phase with neither 'for' nor 'requests' never ends, so it must be the last";
            return Err(ScenarioError::error_in_phase(index, &phases[index].name, why));
        }
        Ok(Self {
            name,
            seed: whole("seed")?,
            repeat: u32::try_from(repeat).map_err(|_| scenario_error("'repeat' is too large"))?,
            by,
            phases,
        })
    }
}

fn text_value(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn read_phase((index, value): (usize, &Value)) -> Result<ScenarioPhase, ScenarioError> {
    let unnamed = format!("phase-{}", index + 1);
    let name = match value.get("name").filter(|name| !name.is_null()) {
        None => unnamed,
        Some(name) => text_value(name).ok_or_else(|| {
            ScenarioError::error_in_phase(index, &unnamed, "'name' must be a string")
        })?,
    };
    let fail = |why: String| ScenarioError::error_in_phase(index, &name, why);
    let fields = expect_mapping(value, PHASE_KEYS).map_err(fail)?;
    let given = |key: &str| non_null_field(fields, key);
    let length = match (given("for"), given("requests")) {
        (Some(_), Some(_)) => {
            return Err(fail("'for' and 'requests' cannot be used together".to_owned()));
        }
        (Some(time), None) => {
            ScenarioPhaseLength::Time(read_duration("for", time, MIN_PHASE_LENGTH).map_err(fail)?)
        }
        (None, _) => {
            let requests = whole_number_field(fields, "requests", 1).map_err(fail)?;
            requests.map_or(ScenarioPhaseLength::Open, ScenarioPhaseLength::Requests)
        }
    };
    let ScenarioReplicaOverride { set, actions } = read_override(fields).map_err(fail)?;
    let replicas = match given("replicas") {
        None => BTreeMap::new(),
        Some(Value::Object(all)) => {
            let each = all.iter().map(|(who, fields)| {
                let read = expect_mapping(fields, "set, do").and_then(read_override);
                let read = read.map_err(|why| format!("replicas: {who:?}: {why}"))?;
                Ok((who.clone(), read))
            });
            each.collect::<Result<_, String>>().map_err(fail)?
        }
        Some(other) => {
            let why = "'replicas' must map numbers or names of pods to their additional settings";
            return Err(fail(format!("{why}, not {other}")));
        }
    };
    Ok(ScenarioPhase { length, set, actions, replicas, name })
}

fn read_override(fields: &Map<String, Value>) -> Result<ScenarioReplicaOverride, String> {
    let set = match non_null_field(fields, "set") {
        None => Map::new(),
        Some(Value::Object(set)) => set.clone(),
        Some(other) => return Err(format!("'set' must map settings to values, not {other}")),
    };
    let actions: Result<Vec<ScenarioPhaseAction>, String> = match non_null_field(fields, "do") {
        None => Ok(Vec::new()),
        Some(Value::Array(actions)) => actions.iter().map(read_action).collect(),
        Some(one) => read_action(one).map(|action| vec![action]),
    };
    Ok(ScenarioReplicaOverride { set, actions: actions? })
}

fn read_action(value: &Value) -> Result<ScenarioPhaseAction, String> {
    let wrong = || format!("'do' has the unknown action {value}; allowed are {ACTION_FORMS}");
    let (name, argument) = match value {
        Value::String(name) => (name.as_str(), None),
        Value::Object(fields) if fields.len() == 1 => {
            let (name, argument) = fields.iter().next().ok_or_else(wrong)?;
            (name.as_str(), Some(argument))
        }
        _ => return Err(wrong()),
    };
    Ok(match (name, argument) {
        ("reset-prefix-cache", None) => ScenarioPhaseAction::ResetPrefixCache,
        ("abort-requests", None) => ScenarioPhaseAction::AbortRequests,
        ("restart", None) => ScenarioPhaseAction::Restart(Duration::ZERO),
        ("restart", Some(time)) => {
            ScenarioPhaseAction::Restart(read_duration("restart", time, Duration::ZERO)?)
        }
        ("unload-lora", Some(name)) => {
            ScenarioPhaseAction::UnloadLora(text_value(name).ok_or_else(wrong)?)
        }
        ("load-lora", Some(adapter @ Value::Object(_))) => {
            expect_mapping(adapter, "name, path").map_err(|why| format!("load-lora: {why}"))?;
            let name = adapter.get("name").and_then(text_value).ok_or_else(wrong)?;
            let path = adapter.get("path").and_then(text_value);
            ScenarioPhaseAction::LoadLora { path: path.unwrap_or_else(|| name.clone()), name }
        }
        ("load-lora", Some(name)) => {
            let name = text_value(name).ok_or_else(wrong)?;
            ScenarioPhaseAction::LoadLora { path: name.clone(), name }
        }
        _ => return Err(wrong()),
    })
}

/// Reads a duration in the syntax of flags; a plain number is in milliseconds.
fn read_duration(key: &str, value: &Value, least: Duration) -> Result<Duration, String> {
    let typed = text_value(value).unwrap_or_default();
    let time = duration::parse_duration(&typed)
        .map_err(|why| format!("'{key}': {value} is not a duration such as 30s: {why}"))?;
    if time < least {
        return Err(format!("'{key}' must be at least {}", duration::format_go_duration(least)));
    }
    Ok(time)
}
