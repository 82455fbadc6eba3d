//! Generates synthetic workloads: lengths, arrivals, shared prefixes, sessions.
//!
//! With constant lengths and without growing contexts the workload equals that of Dynamo's replay
//! 1.6.1 (`run_synthetic_trace_replay`), seeds included.

mod adapters;
mod arrivals;
mod curve;
mod lengths;

use crate::workload::{
    AgentRun, ClientSession, PromptTokenRun, SessionTurn, TurnPrompt, WorkloadError, WorkloadFacts,
    WorkloadSource,
};
use vllm_sim_engine::SimTime;
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, mix_u64_pair, request_rng};

pub use adapters::LoraAdapterSource;
pub use arrivals::{ArrivalProcess, SessionStartTimes};
pub use curve::{ArrivalRateCurve, ArrivalRateCurveSource};
pub use lengths::TokenLengthDistribution;
use vllm_sim_random::std_rng::StdRng;

/// High bits of the content ids of prompt blocks that sessions share.
pub(crate) const SHARED_CONTENT_ID_BITS: u64 = 0xD00D << 48;

/// Maximum number of sessions of a synthetic workload, a guard against mistyped counts.
pub const MAX_SYNTHETIC_SESSIONS: u64 = 100_000_000;

/// Parameters of a synthetic workload.
#[derive(Debug, Clone, PartialEq)]
pub struct SyntheticWorkload {
    /// Number of sessions; each session with one turn is one request.
    pub sessions: u64,
    /// Prompt length in tokens; if later turns add to the prompt, the length of the first turn's
    /// prompt.
    pub input: TokenLengthDistribution,
    /// Distribution of the output length of each turn, in tokens.
    pub output: TokenLengthDistribution,
    /// Random process of the sessions' arrival times.
    pub arrivals: ArrivalProcess,
    /// Seed of the random session arrivals. Default 42.
    pub arrival_seed: u64,
    /// Seed of the lengths and of the pauses between turns. Default 42.
    pub seed: u64,
    /// Fraction of a prompt's blocks that are shared with the other sessions of its prefix group, 0
    /// to 1.
    pub shared_prefix_ratio: f64,
    /// Number of prefix groups, to which sessions are assigned at random. 0 disables shared
    /// prefixes.
    pub prefix_groups: u32,
    /// Distribution of the number of turns per session.
    pub turns: TokenLengthDistribution,
    /// Number of tokens that each further turn adds to the previous prompt and output.
    ///
    /// `None`: each turn has a separate prompt that shares only the group's prefix, as in Dynamo.
    pub grows_by: Option<TokenLengthDistribution>,
    /// Pause between the end of a turn and the next one, in milliseconds.
    pub think_ms: f64,
    /// Whether pauses are exponentially distributed, with mean `think_ms`.
    pub think_varies: bool,
    /// Number of tokens per block of the shared prefixes.
    pub block: u32,
}

impl Default for SyntheticWorkload {
    fn default() -> Self {
        Self {
            sessions: 1,
            input: TokenLengthDistribution::Constant(1024),
            output: TokenLengthDistribution::Constant(128),
            arrivals: ArrivalProcess::Burst,
            arrival_seed: 42,
            seed: 42,
            shared_prefix_ratio: 0.0,
            prefix_groups: 0,
            turns: TokenLengthDistribution::Constant(1),
            grows_by: None,
            think_ms: 0.0,
            think_varies: false,
            block: 16,
        }
    }
}

impl SyntheticWorkload {
    /// Checks the parameters and returns the workload as a source of sessions.
    ///
    /// # Errors
    /// Returns [`WorkloadError::Bad`] with the name of the invalid option.
    pub fn into_source(self) -> Result<SyntheticSource, WorkloadError> {
        let bad =
            |place: &str, problem: String| WorkloadError::Bad { place: place.to_owned(), problem };
        if self.sessions > MAX_SYNTHETIC_SESSIONS {
            let problem = format!("{} is more than {MAX_SYNTHETIC_SESSIONS}", self.sessions);
            return Err(bad("number of requests", problem));
        }
        if !(0.0..=1.0).contains(&self.shared_prefix_ratio) {
            let problem = format!("{}, must be from 0 to 1", self.shared_prefix_ratio);
            return Err(bad("shared prefix ratio", problem));
        }
        if !self.think_ms.is_finite() || self.think_ms < 0.0 {
            let problem = format!("{} ms, must be a number of 0 or more", self.think_ms);
            return Err(bad("pause between turns", problem));
        }
        if self.block == 0 {
            return Err(bad("block size", "0, must be at least 1".to_owned()));
        }
        let arrivals = self.arrivals.check_arrival_parameters().map_err(|e| bad("arrivals", e))?;
        Ok(SyntheticSource {
            starts: arrivals.session_start_times(self.arrival_seed, self.sessions),
            groups: StdRng::new(42),
            made: 0,
            next_block: 0,
            what: self,
        })
    }

    /// Returns whether each session is a single request without a shared prefix or pauses.
    fn is_single_independent_turns(&self) -> bool {
        self.turns == TokenLengthDistribution::Constant(1)
            && self.shared_prefix_ratio == 0.0
            && self.prefix_groups == 0
            && self.think_ms == 0.0
    }
}

/// Generates the sessions of a synthetic workload on demand.
#[derive(Debug, Clone)]
pub struct SyntheticSource {
    what: SyntheticWorkload,
    starts: SessionStartTimes,
    groups: StdRng,
    made: u64,
    next_block: u64,
}

impl SyntheticSource {
    fn draw_prompt(&mut self, input: u32, group: u32) -> Vec<PromptTokenRun> {
        let block = self.what.block;
        let blocks = input.div_ceil(block);
        let shared = match self.what.prefix_groups {
            0 => 0,
            _ => (f64::from(blocks) * self.what.shared_prefix_ratio).round() as u32,
        };
        // One run is enough where no other prompt shares single blocks.
        let single = self.what.grows_by.is_some();
        let mut runs = Vec::with_capacity(if single { shared + 1 } else { blocks } as usize);
        for b in 0..blocks {
            let len = block.min(input - b * block);
            if b < shared {
                let id = SHARED_CONTENT_ID_BITS | u64::from(group) << 32 | u64::from(b);
                runs.push(PromptTokenRun { id, len, same: true });
                continue;
            }
            self.next_block += 1;
            if single {
                runs.push(PromptTokenRun {
                    id: mix_u64_pair(4, self.next_block),
                    len: input - b * block,
                    same: false,
                });
                break;
            }
            runs.push(PromptTokenRun { id: self.next_block, len, same: true });
        }
        runs
    }
}

impl WorkloadSource for SyntheticSource {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        let i = self.made;
        if i == self.what.sessions {
            return Ok(None);
        }
        self.made += 1;
        let start = (self.starts.next_session_start_ms() * 1e6).round() as u64;
        let mut rng = request_rng(self.what.seed, i, RandomStreamPurpose::Workload);
        let (ratio, groups) = (self.what.shared_prefix_ratio, self.what.prefix_groups);
        let group = match groups {
            n if n > 0 && ratio > 0.0 => self.groups.draw_u32_below(n),
            _ => 0,
        };
        let plain = self.what.is_single_independent_turns();
        let count = self.what.turns.draw_tokens(&mut rng, 1);
        let mut turns = Vec::with_capacity(count as usize);
        for n in 0..count {
            let output = self.what.output.draw_tokens(&mut rng, 0);
            let prompt = match &self.what.grows_by {
                Some(more) if n > 0 => {
                    let len = more.draw_tokens(&mut rng, 1);
                    self.next_block += 1;
                    TurnPrompt::Grown(vec![PromptTokenRun {
                        id: mix_u64_pair(4, self.next_block),
                        len,
                        same: false,
                    }])
                }
                _ => {
                    let input = self.what.input.draw_tokens(&mut rng, 1);
                    TurnPrompt::Whole(if plain {
                        vec![PromptTokenRun { id: mix_u64_pair(1, i), len: input, same: false }]
                    } else {
                        self.draw_prompt(input, group)
                    })
                }
            };
            let mut turn = SessionTurn::new(prompt, output);
            if n > 0 {
                let factor = match self.what.think_varies {
                    true => rng.draw_exponential(1.0),
                    false => 1.0,
                };
                turn.delay_ns = (self.what.think_ms * factor * 1e6).round() as u64;
            }
            turns.push(turn);
        }
        let id = (!plain).then(|| format!("session_{i}").into());
        let start = SimTime::from_nanos(start);
        Ok(Some(ClientSession { start, ..ClientSession::new(id, turns) }))
    }

    fn facts(&self) -> WorkloadFacts {
        let turns = self.what.turns.constant_tokens();
        WorkloadFacts {
            is_single_turn: turns == Some(1),
            max_requests: turns.map(|turns| self.what.sessions * u64::from(turns.max(1))),
            ..WorkloadFacts::default()
        }
    }
}

/// Replaces the start times of another workload's sessions with those of an arrival process.
#[derive(Debug)]
pub struct RescheduledSource<S> {
    source: S,
    starts: SessionStartTimes,
    /// Agent run of the previous session, and the start time of the run.
    run: Option<(AgentRun, SimTime)>,
}

impl<S: WorkloadSource> RescheduledSource<S> {
    /// Replaces the start times of the sessions of `source`, and keeps their order.
    ///
    /// The sessions of an agent run arrive together.
    pub fn new(source: S, arrivals: ArrivalProcess, seed: u64) -> Self {
        Self { starts: arrivals.session_start_times(seed, 0), source, run: None }
    }
}

impl<S: WorkloadSource> WorkloadSource for RescheduledSource<S> {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        let Some(mut session) = self.source.next_session()? else {
            return Ok(None);
        };
        session.start = match (&self.run, &session.play) {
            (Some((run, start)), Some(play)) if run == play && !play.1.is_empty() => *start,
            _ => SimTime::from_nanos((self.starts.next_session_start_ms() * 1e6).round() as u64),
        };
        self.run = session.play.clone().map(|play| (play, session.start));
        Ok(Some(session))
    }

    fn facts(&self) -> WorkloadFacts {
        let source = self.source.facts();
        WorkloadFacts { has_no_start_times: false, recorded_concurrency: None, ..source }
    }
}
