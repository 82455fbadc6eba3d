//! Run-time settings of all data-parallel ranks of a deployment, and the fault scenario that
//! overrides them.
//!
//! A change is computed for every rank first, and applied only if it is valid for all. While a
//! scenario runs, its phases override the operator's settings.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::annotations::{ChartAnnotationKind, ChartAnnotationLog};
use super::applied_settings::RankCombinedRuntimeSettings;
use super::server_controls::ServerControls;
use vllm_sim_config::{
    ConfigError, LoadedConfig, RuntimeChangeScope, find_runtime_changeable_flag,
};
use vllm_sim_service::fault::FaultScenarioAndPhase;
use vllm_sim_service::scenario::{
    FaultScenario, ReplicaId, ScenarioError, ScenarioPhaseChange, ScenarioPosition, ScenarioRun,
};

/// Longest interval between two checks for the next phase of a fault scenario.
const SCENARIO_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Run-time settings of the data-parallel ranks behind one port.
struct ManagedServer {
    controls: Weak<ServerControls>,
    /// First data-parallel rank of this server, and number of its ranks. Stored here because a
    /// configuration changed at run time has only the values of the whole deployment.
    local_ranks: (u32, u32),
    /// Index of this process among the deployment's replicas, and the number of replicas.
    replica: (ReplicaId, u32),
    ranks: Vec<LoadedConfig>,
}

/// Run-time settings of a deployment, and the fault scenario that overrides them.
#[derive(Default)]
pub struct AdminState {
    servers: Mutex<Vec<ManagedServer>>,
    scenario: Mutex<Option<ActiveScenario>>,
    pub(super) drills: Arc<ChartAnnotationLog>,
}

struct ActiveScenario {
    run: Arc<ScenarioRun>,
    phases: Arc<ScenarioPhaseSettings>,
}

/// Applies the settings of a fault scenario's phases to the servers.
struct ScenarioPhaseSettings {
    servers: Vec<Weak<ServerControls>>,
    scenario: Arc<FaultScenario>,
    drills: Arc<ChartAnnotationLog>,
    /// Settings of each phase of the fault scenario, as `[server][phase]`; the last entry restores
    /// the settings from before the scenario.
    settings: Mutex<Vec<Vec<RankCombinedRuntimeSettings>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataParallelRankSelector {
    All,
    One(u32),
}

/// Flags of a settings update that the current phase of a fault scenario overrides.
pub(super) struct PhaseOverriddenFlags {
    pub(super) scenario: String,
    pub(super) phase: String,
    /// Names of the overridden flags; empty if the update is in effect.
    pub(super) flags: Vec<&'static str>,
}

/// Error for a rejected change of run-time settings, or for a rejected fault scenario.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    #[error("this server was started without a tunable configuration")]
    Fixed,
    #[error("there is no rank {rank}: this deployment has {have}")]
    Rank { rank: u32, have: String },
    #[error("'{field}' is the same for all ranks behind one port: leave out `rank`")]
    Shared { field: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

impl AdminState {
    /// Adds a server whose settings can be changed at run time.
    pub fn add_managed_server(&self, controls: &Arc<ServerControls>, initial_config: LoadedConfig) {
        let engine = &initial_config.config.engine;
        let local_ranks = engine.parallel.local_ranks;
        let id = ReplicaId {
            number: engine.replicas.index,
            pod: initial_config.config.server.pod.name.clone(),
        };
        let replica = (id, engine.replicas.count);
        let ranks = vec![initial_config; controls.service.rank_engines().len()];
        RankCombinedRuntimeSettings::combine_rank_settings(
            &ranks,
            FaultScenarioAndPhase::default(),
        )
        .apply_at_server_start(controls);
        self.servers.lock().push(ManagedServer {
            controls: Arc::downgrade(controls),
            local_ranks,
            replica,
            ranks,
        });
    }

    /// Returns a warning for each field in a settings update that has no effect because of the
    /// server's other settings.
    pub(super) fn ineffective_field_warnings(&self, update: &Map<String, Value>) -> Vec<String> {
        let servers = self.servers.lock();
        let ranks = servers.first().map(|server| &server.ranks[..]);
        let said = ranks.and_then(|ranks| ranks.first()).into_iter();
        let said = said.flat_map(|loaded| &loaded.without_effect);
        let concerns = |text: &&String| {
            LoadedConfig::updated_flags(update).any(|(flag, _)| text.contains(&format!("--{flag}")))
        };
        said.filter(concerns).cloned().collect()
    }

    /// Returns the effective settings of a data-parallel rank, including those of the current phase
    /// of the fault scenario.
    ///
    /// `DataParallelRankSelector::All` selects the server itself.
    pub(super) fn effective_settings(
        &self,
        controls: &Arc<ServerControls>,
        rank: DataParallelRankSelector,
    ) -> Result<Map<String, Value>, AdminError> {
        self.read_rank_settings(controls, rank, |loaded| {
            Ok(match self.current_phase_settings() {
                Some(set) => loaded.with_admin_update(&set)?.to_admin_json(),
                None => loaded.to_admin_json(),
            })
        })
    }

    /// Returns the settings of a data-parallel rank without those that a fault scenario overrides.
    pub(super) fn settings_without_scenario(
        &self,
        controls: &Arc<ServerControls>,
        rank: DataParallelRankSelector,
    ) -> Result<Map<String, Value>, AdminError> {
        self.read_rank_settings(controls, rank, |loaded| Ok(loaded.to_admin_json()))
    }

    /// Returns those settings of a data-parallel rank that an operator changed since the start.
    /// Settings of the fault scenario are not included.
    pub(super) fn settings_changed_since_start(
        &self,
        controls: &Arc<ServerControls>,
        rank: DataParallelRankSelector,
    ) -> Result<Map<String, Value>, AdminError> {
        self.read_rank_settings(controls, rank, |loaded| Ok(loaded.runtime_changes_to_admin_json()))
    }

    fn read_rank_settings(
        &self,
        controls: &Arc<ServerControls>,
        rank: DataParallelRankSelector,
        read: impl Fn(&LoadedConfig) -> Result<Map<String, Value>, AdminError>,
    ) -> Result<Map<String, Value>, AdminError> {
        let servers = self.servers.lock();
        let own = Arc::downgrade(controls);
        let found = servers.iter().find_map(|server| match rank {
            DataParallelRankSelector::All => {
                Weak::ptr_eq(&server.controls, &own).then(|| &server.ranks[0])
            }
            DataParallelRankSelector::One(rank) => {
                Some(&server.ranks[local_rank_index(server, rank)?])
            }
        });
        match (found, rank) {
            (Some(loaded), _) => read(loaded),
            (None, DataParallelRankSelector::One(rank)) => Err(unknown_rank_error(&servers, rank)),
            (None, DataParallelRankSelector::All) => Err(AdminError::Fixed),
        }
    }

    /// Changes settings on all selected data-parallel ranks, or on none if the update is invalid.
    pub(super) fn update_settings(
        &self,
        controls: &Arc<ServerControls>,
        rank: DataParallelRankSelector,
        update: &Map<String, Value>,
    ) -> Result<Map<String, Value>, AdminError> {
        {
            let mut servers = self.servers.lock();
            if servers.is_empty() {
                return Err(AdminError::Fixed);
            }
            let new = updated_configs(&servers, rank, update)?;
            let active = self.scenario.lock();
            if let Some(active) = active.as_ref() {
                let settings = settings_by_phase(&active.phases.scenario, &new)?;
                *active.phases.settings.lock() = settings;
            }
            for (server, ranks) in servers.iter_mut().zip(new) {
                server.ranks = ranks;
            }
            let changed = LoadedConfig::updated_flags(update)
                .map(|(flag, value)| (flag.to_owned(), value.clone()));
            self.drills.add_annotation(ChartAnnotationKind::Settings {
                changed: changed.collect(),
                rank: match rank {
                    DataParallelRankSelector::All => None,
                    DataParallelRankSelector::One(rank) => Some(rank),
                },
            });
            match active.as_ref() {
                Some(active)
                    if active
                        .run
                        .current_scenario_position()
                        .scenario_round_and_phase()
                        .is_some() =>
                {
                    active.run.call_phase_callback_again()
                }
                _ => {
                    for server in servers.iter() {
                        if let Some(controls) = server.controls.upgrade() {
                            RankCombinedRuntimeSettings::combine_rank_settings(
                                &server.ranks,
                                FaultScenarioAndPhase::default(),
                            )
                            .apply_to_server(&controls);
                        }
                    }
                }
            }
        }
        self.effective_settings(controls, rank)
    }

    /// Starts a fault scenario on all data-parallel ranks, in place of one that is running.
    ///
    /// `number` selects a replica of a larger fleet; without it, the server's own replica number
    /// counts.
    pub(super) fn run_fault_scenario(
        &self,
        scenario: FaultScenario,
        number: Option<u32>,
    ) -> Result<(), AdminError> {
        let servers = self.servers.lock();
        let server = servers.iter().find_map(|s| Some((s, s.controls.upgrade()?)));
        let (server, clock) = server.ok_or(AdminError::Fixed)?;
        let (mut id, count) = server.replica.clone();
        match number {
            Some(number) => id.number = number,
            None => scenario.check_replica_numbers(count)?,
        }
        let scenario = Arc::new(scenario.scenario_for_replica(&id));
        let all: Vec<Vec<LoadedConfig>> = servers.iter().map(|s| s.ranks.clone()).collect();
        let phases = Arc::new(ScenarioPhaseSettings {
            servers: servers.iter().map(|s| s.controls.clone()).collect(),
            settings: Mutex::new(settings_by_phase(&scenario, &all)?),
            scenario: scenario.clone(),
            drills: self.drills.clone(),
        });
        let mut active = self.scenario.lock();
        if let Some(active) = active.take() {
            active.run.end_scenario();
        }
        let entered = phases.clone();
        let now = clock.service.now();
        let seed = scenario.seed;
        tracing::info!(
            scenario = scenario.name,
            seed,
            phases = scenario.phases.len(),
            "scenario started"
        );
        let run = Arc::new(ScenarioRun::start_scenario(
            scenario,
            now,
            Box::new(move |_, place, change| entered.apply_phase(place, change)),
        ));
        for server in phases.servers.iter().filter_map(Weak::upgrade) {
            server.service.faults.set_scenario(Some(run.clone()));
        }
        tokio::spawn(drive_scenario_phases(run.clone(), Arc::downgrade(&clock)));
        *active = Some(ActiveScenario { run, phases });
        Ok(())
    }

    /// Starts the fault scenario given on the command line.
    ///
    /// # Errors
    /// A message if the scenario is invalid.
    pub fn start_configured_scenario(&self, scenario: FaultScenario) -> Result<(), String> {
        self.run_fault_scenario(scenario, None).map_err(|error| error.to_string())
    }

    /// Ends the fault scenario; returns whether one was running.
    pub(super) fn end_fault_scenario(&self) -> bool {
        let Some(active) = self.scenario.lock().take() else {
            return false;
        };
        let running = active.run.current_scenario_position().scenario_round_and_phase().is_some();
        active.run.end_scenario();
        for server in active.phases.servers.iter().filter_map(Weak::upgrade) {
            server.service.faults.set_scenario(None);
        }
        running
    }

    /// Returns the name of the running fault scenario and of its phase; null if none is running.
    pub(super) fn running_scenario_phase_json(&self) -> Value {
        let active = self.scenario.lock();
        let position = active.as_ref().map(|active| active.run.current_scenario_position());
        let place = position.as_ref().and_then(ScenarioPosition::scenario_round_and_phase);
        let (Some(position), Some((_, phase))) = (position, place) else {
            return Value::Null;
        };
        let scenario = position.scenario();
        json!({"name": scenario.name, "phase": scenario.phases[phase].name})
    }

    /// Returns those settings of a server that were changed since the start, overridden by the
    /// settings of the fault scenario's current phase.
    pub(super) fn overridden_settings(&self, controls: &Arc<ServerControls>) -> Map<String, Value> {
        let changed = self.settings_changed_since_start(controls, DataParallelRankSelector::All);
        let mut changed = changed.unwrap_or_default();
        changed.extend(self.current_phase_settings().unwrap_or_default());
        changed
    }

    /// Returns those flags of a settings update that the current phase of the fault scenario
    /// overrides; `None` without a running scenario.
    pub(super) fn flags_overridden_by_phase(
        &self,
        update: &Map<String, Value>,
    ) -> Option<PhaseOverriddenFlags> {
        let active = self.scenario.lock();
        let position = active.as_ref()?.run.current_scenario_position();
        let (_, phase) = position.scenario_round_and_phase()?;
        let scenario = position.scenario();
        let phase = &scenario.phases[phase];
        let overridden = LoadedConfig::updated_flags(update).filter(|(flag, value)| {
            LoadedConfig::updated_flags(&phase.set)
                .any(|(own, over)| own == *flag && overrides_setting(over, value))
        });
        let known = overridden.filter_map(|(flag, _)| find_runtime_changeable_flag(flag));
        Some(PhaseOverriddenFlags {
            scenario: scenario.name.clone(),
            phase: phase.name.clone(),
            flags: known.map(|(flag, _)| flag.name).collect(),
        })
    }

    fn current_phase_settings(&self) -> Option<Map<String, Value>> {
        let active = self.scenario.lock();
        let position = active.as_ref()?.run.current_scenario_position();
        let (_, phase) = position.scenario_round_and_phase()?;
        Some(position.scenario().phases[phase].set.clone())
    }

    pub(super) fn scenario_status_json(&self) -> Value {
        let position = self.scenario.lock().as_ref().map(|s| s.run.current_scenario_position());
        position.map_or(json!({"scenario": null}), |position| scenario_position_json(&position))
    }
}

/// Returns whether a phase's value of a flag overrides all of an operator's value.
///
/// Objects (`fake-metrics`) are merged key by key.
fn overrides_setting(phase: &Value, operator: &Value) -> bool {
    match (phase, operator) {
        (Value::Object(phase), Value::Object(operator)) => {
            operator.keys().all(|key| phase.contains_key(key))
        }
        _ => true,
    }
}

fn scenario_position_json(position: &ScenarioPosition) -> Value {
    let scenario = position.scenario();
    let names: Vec<_> = scenario.phases.iter().map(|phase| &phase.name).collect();
    let place = position.scenario_round_and_phase();
    json!({
        "scenario": scenario.name,
        "seed": scenario.seed,
        "repeat": scenario.repeat,
        "phases": names,
        "running": place.is_some(),
        "round": place.map(|(round, _)| round + 1),
        "phase": place.map(|(_, phase)| &scenario.phases[phase].name),
        "requests": position.requests_in_phase(),
    })
}

/// Moves a fault scenario to its next phases when they are due, until the scenario ends or its
/// server is dropped.
async fn drive_scenario_phases(run: Arc<ScenarioRun>, clock: Weak<ServerControls>) {
    while let Some(server) = clock.upgrade() {
        let now = server.service.now();
        drop(server);
        let due = run.enter_due_phases(now);
        if run.current_scenario_position().scenario_round_and_phase().is_none() {
            return;
        }
        // Requests may move a scenario to a phase that ends by time.
        let wait =
            due.map_or(SCENARIO_POLL_INTERVAL, |due| (due - now).min(SCENARIO_POLL_INTERVAL));
        tokio::time::sleep(wait).await;
    }
}

fn local_rank_index(server: &ManagedServer, rank: u32) -> Option<usize> {
    let (first, count) = server.local_ranks;
    let index = rank.checked_sub(first).filter(|index| *index < count)?;
    Some(index as usize)
}

fn unknown_rank_error(servers: &[ManagedServer], rank: u32) -> AdminError {
    let ranks = servers.iter().flat_map(|server| {
        let (first, count) = server.local_ranks;
        first..first + count
    });
    let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
    AdminError::Rank { rank, have: ranks.join(", ") }
}

fn updated_configs(
    servers: &[ManagedServer],
    rank: DataParallelRankSelector,
    update: &Map<String, Value>,
) -> Result<Vec<Vec<LoadedConfig>>, AdminError> {
    let mut all: Vec<Vec<LoadedConfig>> = servers.iter().map(|s| s.ranks.clone()).collect();
    let DataParallelRankSelector::One(rank) = rank else {
        for loaded in all.iter_mut().flatten() {
            *loaded = loaded.with_admin_update(update)?;
        }
        return Ok(all);
    };
    for (server, ranks) in servers.iter().zip(&mut all) {
        let Some(index) = local_rank_index(server, rank) else {
            continue;
        };
        if ranks.len() > 1
            && let Some((field, _)) =
                LoadedConfig::updated_flags(update).find(|(flag, _)| !is_engine_setting(flag))
        {
            let field = field.to_owned();
            return Err(AdminError::Shared { field });
        }
        ranks[index] = ranks[index].with_admin_update(update)?;
        return Ok(all);
    }
    Err(unknown_rank_error(servers, rank))
}

fn is_engine_setting(field: &str) -> bool {
    find_runtime_changeable_flag(field)
        .is_some_and(|(_, scope)| scope == RuntimeChangeScope::Engine)
}

/// Returns the settings of each phase of a fault scenario on each server; the last entry restores
/// the current settings.
fn settings_by_phase(
    scenario: &FaultScenario,
    servers: &[Vec<LoadedConfig>],
) -> Result<Vec<Vec<RankCombinedRuntimeSettings>>, ScenarioError> {
    let one = |ranks: &Vec<LoadedConfig>| {
        let phases = scenario.phases.iter().enumerate();
        let phases = phases.map(|(index, phase)| {
            let ranks = ranks.iter().map(|loaded| loaded.with_admin_update(&phase.set));
            let ranks: Result<Vec<LoadedConfig>, ConfigError> = ranks.collect();
            let fail = |error| ScenarioError::error_in_phase(index, &phase.name, error);
            let origin = FaultScenarioAndPhase {
                scenario: scenario.name.as_str().into(),
                phase: phase.name.as_str().into(),
            };
            Ok(RankCombinedRuntimeSettings::combine_rank_settings(&ranks.map_err(fail)?, origin))
        });
        let mut all: Vec<RankCombinedRuntimeSettings> =
            phases.collect::<Result<_, ScenarioError>>()?;
        all.push(RankCombinedRuntimeSettings::combine_rank_settings(
            ranks,
            FaultScenarioAndPhase::default(),
        ));
        Ok(all)
    };
    servers.iter().map(one).collect()
}

impl ScenarioPhaseSettings {
    /// Applies a phase of the fault scenario to all servers; `None` restores the settings from
    /// before the scenario.
    fn apply_phase(&self, place: Option<(u32, usize)>, change: ScenarioPhaseChange) {
        let phases = &self.scenario.phases;
        let index = place.map_or(phases.len(), |(_, phase)| phase);
        let phase = phases.get(index);
        let settings = self.settings.lock();
        for (server, settings) in self.servers.iter().zip(settings.iter()) {
            let Some(server) = server.upgrade() else {
                continue;
            };
            settings[index].apply_to_server(&server);
            let name = phase.map(|phase| (self.scenario.name.as_str(), phase.name.as_str()));
            server.metrics.on_scenario_phase(name);
            if change == ScenarioPhaseChange::Begin {
                for action in phase.iter().flat_map(|phase| &phase.actions) {
                    server.run_phase_action(action);
                }
            }
        }
        let scenario = &self.scenario.name;
        if change == ScenarioPhaseChange::Begin {
            self.drills.add_annotation(match (phase, place) {
                (Some(phase), Some((round, _))) => ChartAnnotationKind::Phase {
                    scenario: scenario.clone(),
                    phase: phase.name.clone(),
                    round: round + 1,
                },
                _ => ChartAnnotationKind::End { scenario: scenario.clone() },
            });
        }
        match (phase, place) {
            (Some(phase), Some((round, _))) => {
                tracing::info!(scenario, phase = phase.name, round = round + 1, "phase started");
            }
            _ => tracing::info!(scenario, "scenario ended"),
        }
    }
}
