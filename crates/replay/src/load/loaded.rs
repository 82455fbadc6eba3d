use std::collections::VecDeque;

use crate::workload::{ClientSession, WorkloadError, WorkloadFacts, WorkloadSource};
use vllm_sim_engine::SimTime;

/// Order of the sessions of a workload file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionOrder {
    /// Sessions are sorted by start time; equal starts keep the order of the file.
    #[default]
    ByStart,
    /// Sessions keep the order of the workload file.
    AsListed,
}

pub(super) struct LoadedSessions {
    sessions: VecDeque<ClientSession>,
    /// Facts about the sessions; a reader adds those that only the file contains.
    pub(super) facts: WorkloadFacts,
}

impl LoadedSessions {
    /// Creates a workload from sessions, each with its start time in milliseconds.
    ///
    /// The earliest start becomes 0.
    pub(super) fn new(mut sessions: Vec<(f64, ClientSession)>, order: SessionOrder) -> Self {
        let starts = sessions.iter().map(|(start, _)| *start);
        let first = starts.fold(f64::INFINITY, f64::min);
        for (start, session) in &mut sessions {
            session.start = sim_time_from_ms(*start - first);
        }
        if order == SessionOrder::ByStart {
            sessions.sort_by_key(|(_, session)| session.start);
        }
        Self::from_ordered_sessions(sessions.into_iter().map(|(_, session)| session).collect())
    }

    pub(super) fn from_ordered_sessions(sessions: VecDeque<ClientSession>) -> Self {
        let has_dependencies = sessions.iter().any(ClientSession::has_turn_dependencies);
        let facts = WorkloadFacts {
            has_dependencies,
            is_single_turn: !has_dependencies
                && sessions.iter().all(|s| s.turns.len() == 1)
                && sessions.iter().is_sorted_by_key(|s| s.start),
            max_requests: Some(sessions.iter().map(|s| s.turns.len() as u64).sum()),
            ..WorkloadFacts::default()
        };
        Self { sessions, facts }
    }
}

impl WorkloadSource for LoadedSessions {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        Ok(self.sessions.pop_front())
    }

    fn facts(&self) -> WorkloadFacts {
        self.facts
    }
}

/// Maximum absolute time in milliseconds; the difference of two such times still fits in
/// nanoseconds.
const MAX_TIME_MS: f64 = 9.2e12;

pub(super) const TIME_OUT_OF_RANGE_TEXT: &str = "milliseconds, from 0 to 9200000000000 of them (292 years); are these microseconds or nanoseconds?";

pub(super) fn is_time_in_range(ms: f64) -> bool {
    (0.0..=MAX_TIME_MS).contains(&ms)
}

/// Converts milliseconds to a virtual time, rounded to nanoseconds; negative values and NaN become
/// 0.
pub(super) fn sim_time_from_ms(ms: f64) -> SimTime {
    SimTime::from_nanos(nanos_from_ms(ms))
}

pub(super) fn nanos_from_ms(ms: f64) -> u64 {
    // The cast saturates, and converts NaN to 0.
    (ms * 1e6).round() as u64
}
