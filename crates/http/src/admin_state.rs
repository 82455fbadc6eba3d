//! The operator's admin_state: settings of all ranks of one deployment, and the drill that is played.
//!
//! A change is worked out for every rank first and put into force only if all of them take it.
//! While a drill is played, its phases lie over what the operator set.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::app::App;
use super::image_output::ImageOutput;
use vllm_sim_config::{ConfigError, Loaded};
use vllm_sim_engine::{Command, Reset};
use vllm_sim_observe::metrics::Fake;
use vllm_sim_service::LiveSettings;
use vllm_sim_service::fault::Origin;
use vllm_sim_service::scenario::{
    Action, PhaseChange, Player, Scenario, ScenarioError, ScenarioRun,
};

/// How often a drill looks at the clock when nothing is due.
const LOOK: Duration = Duration::from_millis(100);

/// The settings of one rank behind the port of a server.
struct ManagedServer {
    app: Weak<App>,
    /// One per rank of the server.
    ranks: Vec<Loaded>,
}

/// Settings of a deployment.
#[derive(Default)]
pub struct AdminState {
    servers: Mutex<Vec<ManagedServer>>,
    scenario: Mutex<Option<ActiveScenario>>,
}

struct ActiveScenario {
    stage: Arc<ScenarioRun>,
    program: Arc<PhaseSettings>,
}

/// What the phases of a drill put into force.
struct PhaseSettings {
    apps: Vec<Weak<App>>,
    scenario: Arc<Scenario>,
    /// `[server][phase]`, and behind the phases what was in force before.
    settings: Mutex<Vec<Vec<AppliedSettings>>>,
}

/// Settings of one server, ready to be put into force.
#[derive(Clone)]
struct AppliedSettings {
    tuned: LiveSettings,
    speed: f64,
    /// Sequences that run and that wait, at most.
    bounds: (u32, Option<u32>),
    fake: Option<Value>,
    pictures: Arc<ImageOutput>,
}

impl AppliedSettings {
    fn of(ranks: &[Loaded], origin: Origin) -> Self {
        let first = &ranks[0].config;
        let engine = &first.engine;
        let delays = ranks.iter().map(|rank| &rank.config.engine.delays);
        Self {
            tuned: LiveSettings {
                plan: first.faults.rates.clone(),
                delays: delays.map(|delays| Arc::new(delays.clone())).collect(),
                admission: engine.admission,
                health: first.faults.health_status,
                origin,
            },
            speed: engine.speed(),
            bounds: (engine.max_num_seqs, engine.max_waiting_queue_length),
            fake: first.metrics.fake.clone(),
            pictures: Arc::new(ImageOutput::of(first)),
        }
    }

    fn apply(&self, app: &App) {
        let tuned = &self.tuned;
        for (rank, live) in app.service.ranks().iter().enumerate() {
            if let Some(delays) = tuned.delays.get(rank) {
                live.command(Command::Delays(delays.clone()));
            }
            live.command(Command::Speed(self.speed));
            let (running, waiting) = self.bounds;
            live.command(Command::Bounds { running, waiting });
        }
        if let Some(fake) = &self.fake
            && let Ok(fake) = Fake::from_value(fake.clone())
            && let Err(error) = app.metrics.update_fake(&fake)
        {
            tracing::warn!(%error, "fake metrics not changed");
        }
        app.pictures.store(self.pictures.clone());
        app.service.faults.set(tuned.clone(), true);
    }
}

/// Which ranks a change is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranks {
    All,
    One(u32),
}

/// Why a change was not made; nothing of it is in force.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
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
    /// A server whose settings are kept here from now on.
    pub fn join(&self, app: &Arc<App>, loaded: Loaded) {
        let ranks = vec![loaded; app.service.ranks().len()];
        let force = AppliedSettings::of(&ranks, Origin::default());
        app.service.faults.set(force.tuned, false);
        self.servers.lock().push(ManagedServer {
            app: Arc::downgrade(app),
            ranks,
        });
    }

    /// The settings of a rank, those before the drill; without one those of `app` itself.
    pub(super) fn show(&self, app: &Arc<App>, rank: Ranks) -> Result<Map<String, Value>, Refused> {
        let servers = self.servers.lock();
        let own = Arc::downgrade(app);
        let found = servers.iter().find_map(|server| match rank {
            Ranks::All => Weak::ptr_eq(&server.app, &own).then(|| &server.ranks[0]),
            Ranks::One(rank) => Some(&server.ranks[place(server, rank)?]),
        });
        match (found, rank) {
            (Some(loaded), _) => Ok(loaded.to_json()),
            (None, Ranks::One(rank)) => Err(no_rank(&servers, rank)),
            (None, Ranks::All) => Err(Refused::Fixed),
        }
    }

    /// Changes settings: all of them on every rank that is meant, or none.
    pub(super) fn change(
        &self,
        app: &Arc<App>,
        rank: Ranks,
        update: &Map<String, Value>,
    ) -> Result<Map<String, Value>, Refused> {
        {
            let mut servers = self.servers.lock();
            if servers.is_empty() {
                return Err(Refused::Fixed);
            }
            let new = changed(&servers, rank, update)?;
            let active = self.scenario.lock();
            if let Some(active) = active.as_ref() {
                let settings = programmed(&active.program.scenario, &new)?;
                *active.program.settings.lock() = settings;
            }
            for (server, ranks) in servers.iter_mut().zip(new) {
                server.ranks = ranks;
            }
            match active.as_ref() {
                Some(active) if active.stage.player().place().is_some() => active.stage.again(),
                _ => {
                    for server in servers.iter() {
                        if let Some(app) = server.app.upgrade() {
                            AppliedSettings::of(&server.ranks, Origin::default()).apply(&app);
                        }
                    }
                }
            }
        }
        self.show(app, rank)
    }

    /// Starts a drill on all ranks, in place of one that is played.
    pub(super) fn play(&self, scenario: Scenario) -> Result<(), Refused> {
        let servers = self.servers.lock();
        let clock = servers.iter().find_map(|server| server.app.upgrade());
        let clock = clock.ok_or(Refused::Fixed)?;
        let scenario = Arc::new(scenario);
        let all: Vec<Vec<Loaded>> = servers.iter().map(|m| m.ranks.clone()).collect();
        let program = Arc::new(PhaseSettings {
            apps: servers.iter().map(|m| m.app.clone()).collect(),
            settings: Mutex::new(programmed(&scenario, &all)?),
            scenario: scenario.clone(),
        });
        let mut scenario_run = self.scenario.lock();
        if let Some(active) = scenario_run.take() {
            active.stage.end();
        }
        let told = program.clone();
        let now = clock.service.now();
        let seed = scenario.seed;
        tracing::info!(
            scenario = scenario.name,
            seed,
            phases = scenario.phases.len(),
            "drill begins"
        );
        let stage = Arc::new(ScenarioRun::begin(
            scenario,
            now,
            Box::new(move |_, place, cue| told.enter(place, cue)),
        ));
        for app in program.apps.iter().filter_map(Weak::upgrade) {
            app.service.faults.play(Some(stage.clone()));
        }
        tokio::spawn(keep_time(stage.clone(), Arc::downgrade(&clock)));
        *scenario_run = Some(ActiveScenario { stage, program });
        Ok(())
    }

    /// Starts a drill that the server was started with.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn start(&self, scenario: Scenario) -> Result<(), String> {
        self.play(scenario).map_err(|error| error.to_string())
    }

    /// Ends the drill; whether one was played.
    pub(super) fn end(&self) -> bool {
        let Some(active) = self.scenario.lock().take() else {
            return false;
        };
        let played = active.stage.player().place().is_some();
        active.stage.end();
        for app in active.program.apps.iter().filter_map(Weak::upgrade) {
            app.service.faults.play(None);
        }
        played
    }

    /// Where the drill is.
    pub(super) fn scene(&self) -> Value {
        let player = self.scenario.lock().as_ref().map(|p| p.stage.player());
        player.map_or(json!({"scenario": null}), |player| scene(&player))
    }
}

/// A drill as `/admin/scenario` shows it.
fn scene(player: &Player) -> Value {
    let scenario = player.scenario();
    let names: Vec<_> = scenario.phases.iter().map(|phase| &phase.name).collect();
    let place = player.place();
    json!({
        "scenario": scenario.name,
        "seed": scenario.seed,
        "repeat": scenario.repeat,
        "phases": names,
        "running": place.is_some(),
        "round": place.map(|(round, _)| round + 1),
        "phase": place.map(|(_, phase)| &scenario.phases[phase].name),
        "requests": player.requests(),
    })
}

/// Wakes a drill when its phases are due, until it is over or nobody is left.
async fn keep_time(stage: Arc<ScenarioRun>, app: Weak<App>) {
    while let Some(app) = app.upgrade() {
        let now = app.service.now();
        drop(app);
        let due = stage.tick(now);
        if stage.player().place().is_none() {
            return;
        }
        // Requests may move a drill on to a phase that ends by time.
        let wait = due.map_or(LOOK, |due| (due - now).min(LOOK));
        tokio::time::sleep(wait).await;
    }
}

/// The place of a rank within a server.
fn place(server: &ManagedServer, rank: u32) -> Option<usize> {
    let (first, count) = server.ranks[0].config.engine.parallel.local_ranks;
    let place = rank.checked_sub(first).filter(|place| *place < count)?;
    Some(place as usize)
}

fn no_rank(servers: &[ManagedServer], rank: u32) -> Refused {
    let ranks = servers.iter().flat_map(|server| {
        let (first, count) = server.ranks[0].config.engine.parallel.local_ranks;
        first..first + count
    });
    let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
    Refused::Rank {
        rank,
        have: ranks.join(", "),
    }
}

/// The settings of every server after a change.
fn changed(
    servers: &[ManagedServer],
    rank: Ranks,
    update: &Map<String, Value>,
) -> Result<Vec<Vec<Loaded>>, Refused> {
    let mut all: Vec<Vec<Loaded>> = servers.iter().map(|m| m.ranks.clone()).collect();
    let Ranks::One(rank) = rank else {
        for loaded in all.iter_mut().flatten() {
            *loaded = loaded.tuned(update)?;
        }
        return Ok(all);
    };
    for (server, ranks) in servers.iter().zip(&mut all) {
        let Some(place) = place(server, rank) else {
            continue;
        };
        if ranks.len() > 1
            && let Some(field) = update.keys().find(|field| !is_delay(field))
        {
            let field = field.clone();
            return Err(Refused::Shared { field });
        }
        ranks[place] = ranks[place].tuned(update)?;
        return Ok(all);
    }
    Err(no_rank(servers, rank))
}

/// Whether a setting is an engine's own.
fn is_delay(field: &str) -> bool {
    let field = field.replace('_', "-");
    let starts = [
        "time-to-first-token",
        "inter-token-latency",
        "kv-cache-transfer",
        "prefill",
    ];
    starts.iter().any(|start| field.starts_with(start))
        || matches!(
            field.as_str(),
            "time-factor-under-load" | "latency-calculator"
        )
}

/// What each phase puts into force on each server, and what its end does.
fn programmed(
    scenario: &Scenario,
    servers: &[Vec<Loaded>],
) -> Result<Vec<Vec<AppliedSettings>>, ScenarioError> {
    let one = |ranks: &Vec<Loaded>| {
        let phases = scenario.phases.iter().enumerate();
        let phases = phases.map(|(index, phase)| {
            let ranks = ranks.iter().map(|loaded| loaded.tuned(&phase.set));
            let ranks: Result<Vec<Loaded>, ConfigError> = ranks.collect();
            let fail = |error| ScenarioError::in_phase(index, &phase.name, error);
            let origin = Origin {
                scenario: scenario.name.as_str().into(),
                phase: phase.name.as_str().into(),
            };
            Ok(AppliedSettings::of(&ranks.map_err(fail)?, origin))
        });
        let mut all: Vec<AppliedSettings> = phases.collect::<Result<_, ScenarioError>>()?;
        all.push(AppliedSettings::of(ranks, Origin::default()));
        Ok(all)
    };
    servers.iter().map(one).collect()
}

impl PhaseSettings {
    /// Puts a phase into force on all servers; `None`: what was in force before the drill.
    fn enter(&self, place: Option<(u32, usize)>, cue: PhaseChange) {
        let phases = &self.scenario.phases;
        let index = place.map_or(phases.len(), |(_, phase)| phase);
        let phase = phases.get(index);
        let settings = self.settings.lock();
        for (app, settings) in self.apps.iter().zip(settings.iter()) {
            let Some(app) = app.upgrade() else {
                continue;
            };
            settings[index].apply(&app);
            let name = phase.map(|phase| (self.scenario.name.as_str(), phase.name.as_str()));
            app.metrics.on_phase(name);
            if cue == PhaseChange::Begin {
                for action in phase.iter().flat_map(|phase| &phase.actions) {
                    act(&app, action);
                }
            }
        }
        let scenario = &self.scenario.name;
        match (phase, place) {
            (Some(phase), Some((round, _))) => {
                tracing::info!(
                    scenario,
                    phase = phase.name,
                    round = round + 1,
                    "phase begins"
                );
            }
            _ => tracing::info!(scenario, "drill is over"),
        }
    }
}

fn act(app: &Arc<App>, action: &Action) {
    match action {
        Action::ResetPrefixCache => {
            app.service
                .command(&Command::ResetPrefixCache(Reset::Forget));
        }
        Action::AbortRequests => {
            app.service.abort(None);
        }
        Action::LoadLora { name, path } => {
            if let Err(error) = app.service.models.load(name, path, None, true) {
                tracing::warn!(%error, "adapter not loaded");
            }
        }
        Action::UnloadLora(name) => {
            app.service.models.unload(name);
        }
        Action::Restart(time) => restart(app, *time),
    }
}

/// The process goes away, as far as clients can tell, and comes back after `time`.
fn restart(app: &Arc<App>, time: Duration) {
    let down = !time.is_zero();
    app.link.send_modify(|link| {
        link.lives = link.lives.wrapping_add(1);
        link.down = down;
    });
    app.service.command(&Command::CancelAll);
    app.service
        .command(&Command::ResetPrefixCache(Reset::Forget));
    app.metrics.restart();
    if down {
        let app = Arc::downgrade(app);
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(app) = app.upgrade() {
                app.link.send_modify(|link| link.down = false);
            }
        });
    }
}
