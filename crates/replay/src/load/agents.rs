//! Builds sessions from recorded agents: each turn waits for its tools, and for the turns of other
//! agents.
//!
//! A wait is the recorded time between two requests without the time that the recorded server took.
//! A faster server therefore ends a run sooner.

use std::collections::VecDeque;
use std::sync::Arc;

use super::loaded::{LoadedSessions, SessionOrder, nanos_from_ms, sim_time_from_ms};
use super::options::WorkloadReadOptions;
use crate::workload::{ClientSession, SessionTurn, TurnDependency, TurnLifecycleEvent};

/// Tolerance when recorded times are compared, in milliseconds.
///
/// **Source:** aiperf 0.13 `dataset/loader/weka_trace.py`, `_JOIN_EPSILON_SECONDS`.
pub(super) const TIME_EPSILON_MS: f64 = 1e-3;

/// Recorded request of an agent, with its times in milliseconds.
pub(super) struct RecordedAgentCall {
    pub start_ms: f64,
    pub end_ms: f64,
    pub turn: SessionTurn,
}

/// Index of a recorded agent in its run, and index of one of the agent's model calls.
pub(super) type AgentCallIndex = (usize, usize);

/// Recorded agent with its model calls, sorted by their start.
#[derive(Default)]
pub(super) struct RecordedAgent {
    pub id: String,
    pub calls: Vec<RecordedAgentCall>,
    /// The model call with which another agent started this agent.
    pub started_by: Option<AgentCallIndex>,
    /// The model call of another agent that waits for the end of this agent's last call.
    pub awaited_by: Option<AgentCallIndex>,
}

impl RecordedAgent {
    /// Returns the index of the agent's first model call that starts at `min_start_ms` or later.
    pub(super) fn first_model_call_from(&self, min_start_ms: f64) -> Option<usize> {
        self.calls.iter().position(|call| call.start_ms + TIME_EPSILON_MS >= min_start_ms)
    }

    /// Returns the end of the agent's last model call, in milliseconds.
    pub(super) fn last_call_end_ms(&self) -> f64 {
        self.calls.iter().fold(f64::NEG_INFINITY, |end, call| end.max(call.end_ms))
    }
}

/// Recorded run of a task: the first agent, and the agents that were started in the run.
pub(super) struct RecordedAgentRun {
    pub name: String,
    pub agents: Vec<RecordedAgent>,
}

impl RecordedAgentRun {
    fn calls(&self) -> impl Iterator<Item = (AgentCallIndex, &RecordedAgentCall)> {
        self.agents.iter().enumerate().flat_map(|(agent, of)| {
            of.calls.iter().enumerate().map(move |(call, of)| ((agent, call), of))
        })
    }

    fn start_ms(&self) -> Option<f64> {
        self.calls().map(|(_, call)| call.start_ms).min_by(f64::total_cmp)
    }

    /// Returns the model call that an agent's first call waits for; `None` for the first agent of
    /// the run.
    ///
    /// Without a known starter it is the last call of the agents before to end, or else the first
    /// call of an agent without a starter. So no agent waits for itself through others.
    fn call_before(&self, agent: usize) -> Option<AgentCallIndex> {
        if let Some(known) = self.agents[agent].started_by {
            return Some(known);
        }
        let start = self.agents[agent].calls.first()?.start_ms;
        let ended = self.calls().filter(|((of, _), call)| {
            *of < agent && call.start_ms < start && call.end_ms <= start + TIME_EPSILON_MS
        });
        let last = ended.max_by(|(_, a), (_, b)| a.end_ms.total_cmp(&b.end_ms));
        let roots = self.calls().filter(|((of, _), _)| self.agents[*of].started_by.is_none());
        let first = roots.min_by(|(_, a), (_, b)| a.start_ms.total_cmp(&b.start_ms));
        let first = first.filter(|((of, _), _)| *of != agent);
        last.or(first).map(|(index, _)| index)
    }

    /// Returns the dependency of a model call that starts at `start_ms` on the earlier model call
    /// `on`.
    ///
    /// A call that overlaps the other one waits for its dispatch only.
    fn dependency(&self, on: AgentCallIndex, session: u64, start_ms: f64) -> TurnDependency {
        let call = &self.agents[on.0].calls[on.1];
        let (trigger, from) = match start_ms + TIME_EPSILON_MS < call.end_ms {
            true => (TurnLifecycleEvent::Dispatch, call.start_ms),
            false => (TurnLifecycleEvent::Completion, call.end_ms),
        };
        TurnDependency {
            session,
            turn: on.1 as u32,
            trigger,
            delay_ns: nanos_from_ms(start_ms - from),
        }
    }

    /// Adds the dependencies between recorded agents to the agents' turns; `numbers` are the
    /// indices of the agents' sessions.
    fn link_agents(&mut self, numbers: &[u64]) {
        let mut links: Vec<(AgentCallIndex, TurnDependency)> = Vec::new();
        for (agent, of) in self.agents.iter().enumerate() {
            let (Some(first), Some(last)) = (of.calls.first(), of.calls.len().checked_sub(1))
            else {
                continue;
            };
            if let Some(on) = self.call_before(agent) {
                let dependency = self.dependency(on, numbers[on.0], first.start_ms);
                links.push(((agent, 0), dependency));
            }
            if let Some(waiting) = of.awaited_by {
                let start = self.agents[waiting.0].calls[waiting.1].start_ms;
                let dependency = TurnDependency {
                    session: numbers[agent],
                    turn: last as u32,
                    trigger: TurnLifecycleEvent::Completion,
                    delay_ns: nanos_from_ms(start - of.calls[last].end_ms),
                };
                links.push((waiting, dependency));
            }
        }
        for ((agent, call), dependency) in links {
            self.agents[agent].calls[call].turn.after.push(dependency);
        }
    }
}

/// Converts recorded runs to sessions, one per agent; the sessions of a run start together.
pub(super) fn sessions_of_agent_runs(
    runs: Vec<RecordedAgentRun>,
    options: &WorkloadReadOptions,
) -> LoadedSessions {
    let with_start = |run: RecordedAgentRun| {
        let start_ms = run.start_ms()?;
        Some((start_ms, run))
    };
    let mut runs: Vec<(f64, RecordedAgentRun)> = runs.into_iter().filter_map(with_start).collect();
    if options.session_order == SessionOrder::ByStart {
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    if let Some(limit) = options.limit {
        runs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    let first = runs.iter().map(|(start_ms, _)| *start_ms).fold(f64::INFINITY, f64::min);
    let mut sessions = VecDeque::new();
    for (order, (start_ms, mut run)) in runs.into_iter().enumerate() {
        let mut next = sessions.len() as u64;
        let numbers: Vec<u64> = run
            .agents
            .iter()
            .map(|agent| {
                let number = next;
                next += u64::from(!agent.calls.is_empty());
                number
            })
            .collect();
        run.link_agents(&numbers);
        let start = sim_time_from_ms(start_ms - first);
        let play: (u64, Arc<str>) = (order as u64, run.name.into());
        for agent in run.agents.into_iter().filter(|agent| !agent.calls.is_empty()) {
            let mut ended = None;
            let turns = agent.calls.into_iter().map(|call| {
                let mut turn = call.turn;
                let wait = ended.map_or(0.0, |ended: f64| (call.start_ms - ended).max(0.0));
                turn.delay_ns = nanos_from_ms(wait);
                ended = Some(call.end_ms);
                turn
            });
            let turns = turns.collect();
            let (id, play) = (Some(agent.id.into()), Some(play.clone()));
            sessions.push_back(ClientSession { id, start, turns, play });
        }
    }
    let mut sessions = LoadedSessions::from_ordered_sessions(sessions);
    sessions.facts.has_agent_runs = true;
    sessions
}
