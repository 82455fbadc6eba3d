//! Keeps a workload in memory, so that several runs can use it.

use anyhow::Result;

use vllm_sim_engine::SimTime;
use vllm_sim_replay::workload::{
    ClientSession, SessionTurn, WorkloadError, WorkloadFacts, WorkloadSource,
};

use vllm_sim_command_line::refuse;
use vllm_sim_replay_cli::{SyntheticArgs, WorkloadArgs};

/// Maximum number of requests of a workload, all of which are kept in memory.
const MAX_REQUESTS: usize = 1_000_000;

/// Sets a default workload that distinguishes routers, if the arguments give none.
///
/// Sessions of three turns arrive in bursts; a dozen groups share 60 % of the first prompt. Flags
/// of a synthetic workload replace these values one by one.
pub(super) fn set_default_workload(args: &mut WorkloadArgs) {
    if !args.files.is_empty() || args.workload.is_some() || args.synthetic.input_tokens.is_some() {
        return;
    }
    let constant = |tokens| Some(vllm_sim_replay::synth::TokenLengthDistribution::Constant(tokens));
    let given = args.synthetic.clone();
    args.synthetic = SyntheticArgs {
        input_tokens: constant(1024),
        output_tokens: given.output_tokens.or(constant(32)),
        turns_per_session: given.turns_per_session.or(constant(3)),
        turn_tokens: given.turn_tokens.or(constant(128)),
        shared_prefix_ratio: given.shared_prefix_ratio.or(Some(0.6)),
        num_prefix_groups: given.num_prefix_groups.or(Some(12)),
        ..given
    };
    args.request_count = args.request_count.or(Some(100));
    if args.replay_concurrency.is_none() && args.arrival_interval_ms.is_none() {
        args.request_rate = args.request_rate.or(Some(10.0));
        args.burstiness = args.burstiness.or(Some(0.5));
    }
}

pub(super) struct LoadedWorkload {
    pub(super) sessions: Vec<ClientSession>,
    facts: WorkloadFacts,
}

impl LoadedWorkload {
    /// Reads the sessions of a workload that start before or at the time `limit`.
    ///
    /// # Errors
    /// Returns the errors of the source, or a usage error for too many requests.
    pub(super) fn read_all_sessions(
        source: &mut dyn WorkloadSource,
        limit: Option<SimTime>,
    ) -> Result<Self> {
        let (mut sessions, mut requests) = (Vec::new(), 0);
        while let Some(session) = source.next_session()? {
            if limit.is_some_and(|limit| session.start > limit) {
                break;
            }
            requests += session.turns.len();
            if requests > MAX_REQUESTS {
                refuse!("more than {MAX_REQUESTS} requests: limit them with --request-count");
            }
            sessions.push(session);
        }
        if requests == 0 {
            refuse!("the workload has no request");
        }
        let facts = WorkloadFacts {
            has_dependencies: sessions.iter().any(ClientSession::has_turn_dependencies),
            has_agent_runs: source.facts().has_agent_runs,
            ..WorkloadFacts::default()
        };
        Ok(Self { sessions, facts })
    }

    pub(super) fn workload_request_count(&self) -> usize {
        self.sessions.iter().map(|s| s.turns.len()).sum()
    }

    pub(super) fn session_turn(&self, session: u64, turn: u32) -> Option<&SessionTurn> {
        let session = self.sessions.get(usize::try_from(session).ok()?)?;
        session.turns.get(turn as usize)
    }

    pub(super) fn as_workload_source(&self) -> LoadedWorkloadSource<'_> {
        LoadedWorkloadSource { workload: self, at: 0 }
    }
}

pub(super) struct LoadedWorkloadSource<'a> {
    workload: &'a LoadedWorkload,
    at: usize,
}

impl WorkloadSource for LoadedWorkloadSource<'_> {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        let next = self.workload.sessions.get(self.at).cloned();
        self.at += 1;
        Ok(next)
    }

    fn facts(&self) -> WorkloadFacts {
        self.workload.facts
    }
}
