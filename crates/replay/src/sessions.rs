use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

use vllm_sim_engine::SimTime;

use super::content::{SessionTokenHistory, TurnOutputTokens};
use super::workload::{
    AgentRun, ClientSession, SessionTurn, TurnLifecycleEvent, WorkloadError, WorkloadSource,
};

/// Pacing of the session arrivals of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalPacing {
    /// Maximum number of concurrent sessions (closed loop); `None` sends sessions at their start
    /// times (open loop).
    pub concurrency: Option<usize>,
    /// Maximum number of concurrent agent runs; the start times of the sessions of a run are
    /// relative to the start of the run.
    ///
    /// `None` uses the recorded start times. Excludes `concurrency`. Dynamo calls it
    /// `agentic_lanes`.
    pub plays: Option<usize>,
    /// Divisor of the start times and delays of an open loop; greater than 0.
    pub speedup: f64,
}

impl Default for ArrivalPacing {
    fn default() -> Self {
        Self { concurrency: None, plays: None, speedup: 1.0 }
    }
}

impl ArrivalPacing {
    /// Returns the maximum number of concurrent sessions or agent runs of a closed loop; `None` in
    /// an open loop.
    pub fn concurrency_limit(self) -> Option<usize> {
        self.concurrency.or(self.plays)
    }

    /// Divides a duration in ns by the speedup; a closed loop keeps the duration.
    pub(super) fn divide_by_speedup(self, nanos: u64) -> u64 {
        if self.speedup == 1.0 || self.concurrency.is_some() {
            return nanos;
        }
        (nanos as f64 / self.speedup).round() as u64
    }
}

pub(super) trait NumberedSessionSource {
    /// Whether requests are sent in the order of their session numbers, one request per session.
    const IN_ORDER: bool;

    fn next(&mut self) -> Result<Option<(u64, ClientSession)>, WorkloadError>;

    fn has_dependencies(&self) -> bool {
        false
    }
}

pub(super) struct NumberedSessions<'a> {
    source: &'a mut dyn WorkloadSource,
    given: u64,
}

impl<'a> NumberedSessions<'a> {
    pub(super) fn new(source: &'a mut dyn WorkloadSource) -> Self {
        Self { source, given: 0 }
    }
}

impl NumberedSessionSource for NumberedSessions<'_> {
    const IN_ORDER: bool = false;

    fn next(&mut self) -> Result<Option<(u64, ClientSession)>, WorkloadError> {
        let number = self.given;
        self.given += 1;
        Ok(self.source.next_session()?.map(|session| (number, session)))
    }

    fn has_dependencies(&self) -> bool {
        self.source.facts().has_dependencies
    }
}

#[derive(Debug)]
pub(super) struct OpenSession {
    pub number: u64,
    pub session: ClientSession,
    content: SessionTokenHistory,
    waiting: WaitingTurn,
}

/// Turn of a session that cannot be sent yet.
#[derive(Debug, Clone, Copy)]
struct WaitingTurn {
    turn: u32,
    /// Earliest time to send the turn, even if all its dependencies are fulfilled before.
    earliest: SimTime,
    /// Number of the turn's unfulfilled dependencies.
    missing: usize,
}

impl OpenSession {
    /// Returns the prompt length and KV block keys of a turn. Must be called once per turn, in
    /// order.
    pub(super) fn next_turn_block_keys(
        &mut self,
        turn: u32,
        block_size: u32,
    ) -> (u32, std::sync::Arc<vllm_sim_engine::PlannedKvBlocks>) {
        let turns = &self.session.turns;
        let spec = &turns[turn as usize];
        let next = turns.get(turn as usize + 1);
        let output = TurnOutputTokens { session: self.number, turn, len: spec.output };
        self.content.next_turn_block_keys(
            &spec.prompt,
            spec.lora.as_deref(),
            output,
            block_size,
            next.map(|next| &next.prompt),
        )
    }

    pub(super) fn session_turn(&self, turn: u32) -> &SessionTurn {
        &self.session.turns[turn as usize]
    }
}

/// Turn to send: its send time, the session's index in the workload, the turn's index, and the
/// session's index among the open sessions.
pub(super) type DueTurn = (SimTime, u64, u32, u32);

/// Open sessions of a workload, with a queue of the next turns of these sessions.
///
/// Turns leave in the order (time, session number, turn).
pub(super) struct SessionQueue<N> {
    pub source: N,
    pace: ArrivalPacing,
    peeked: Option<(u64, ClientSession)>,
    exhausted: bool,
    open: Vec<Option<OpenSession>>,
    free: Vec<u32>,
    ready: BinaryHeap<Reverse<DueTurn>>,
    /// Send and end time of each turn, for workloads with dependencies.
    history: HashMap<(u64, u32), (SimTime, Option<SimTime>)>,
    waiters: HashMap<(u64, u32, TurnLifecycleEvent), Vec<u32>>,
    plays: AgentRunQueue,
}

/// Agent runs of a workload, with a limit on the number of runs at the same time.
#[derive(Default)]
struct AgentRunQueue {
    waiting: VecDeque<Vec<(u64, ClientSession)>>,
    /// Number of unfinished sessions of each active agent run.
    left: HashMap<Option<AgentRun>, usize>,
}

impl AgentRunQueue {
    fn read(source: &mut impl NumberedSessionSource) -> Result<Self, WorkloadError> {
        let mut plays: BTreeMap<_, Vec<_>> = BTreeMap::new();
        while let Some((number, session)) = source.next()? {
            let sessions = plays.entry(session.play.clone()).or_default();
            sessions.push((number, session));
        }
        Ok(Self { waiting: plays.into_values().collect(), left: HashMap::new() })
    }

    /// Records the end of a session and returns true if its agent run has ended.
    fn end_session(&mut self, play: &Option<AgentRun>) -> bool {
        match self.left.get_mut(play) {
            None => false,
            Some(1) => self.left.remove(play).is_some(),
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }
}

impl<N: NumberedSessionSource> SessionQueue<N> {
    pub(super) fn new(source: N, pace: ArrivalPacing) -> Result<Self, WorkloadError> {
        let mut sessions = Self {
            source,
            pace,
            peeked: None,
            exhausted: false,
            open: Vec::new(),
            free: Vec::new(),
            ready: BinaryHeap::new(),
            history: HashMap::new(),
            waiters: HashMap::new(),
            plays: AgentRunQueue::default(),
        };
        if let Some(plays) = pace.plays {
            sessions.plays = AgentRunQueue::read(&mut sessions.source)?;
            for _ in 0..plays {
                sessions.start_next_agent_run(SimTime::ZERO);
            }
            return Ok(sessions);
        }
        match pace.concurrency {
            Some(slots) => {
                for _ in 0..slots {
                    sessions.open_next(SimTime::ZERO)?;
                }
            }
            None => sessions.peek_next_session()?,
        }
        Ok(sessions)
    }

    pub(super) fn next_turn_due_time(&self) -> Option<SimTime> {
        let ready = self.ready.peek().map(|Reverse((at, ..))| *at);
        let peeked = self.peeked.as_ref().map(|(_, session)| session.start);
        ready.into_iter().chain(peeked).min()
    }

    pub(super) fn pop_due_turn(&mut self, now: SimTime) -> Result<Option<DueTurn>, WorkloadError> {
        while let Some((number, session)) = self.peeked.take_if(|(_, next)| next.start <= now) {
            let start = session.start;
            self.insert_session(number, session, start);
            self.peek_next_session()?;
        }
        let due = self.ready.peek().filter(|Reverse((at, ..))| *at <= now);
        if due.is_none() {
            return Ok(None);
        }
        Ok(self.ready.pop().map(|Reverse(due)| due))
    }

    pub(super) fn get(&self, open_session_index: u32) -> &OpenSession {
        self.open[open_session_index as usize].as_ref().expect("it is open")
    }

    pub(super) fn get_mut(&mut self, open_session_index: u32) -> &mut OpenSession {
        self.open[open_session_index as usize].as_mut().expect("it is open")
    }

    /// Records that a turn was sent, and wakes sessions that depend on it.
    pub(super) fn record_sent_turn(&mut self, open_session_index: u32, turn: u32, now: SimTime) {
        if self.source.has_dependencies() {
            let number = self.get(open_session_index).number;
            self.history.insert((number, turn), (now, None));
            self.wake_dependents(number, turn, TurnLifecycleEvent::Dispatch);
        }
    }

    /// Records the end of a turn and schedules the next turn, session or agent run.
    pub(super) fn record_turn_end(
        &mut self,
        open_session_index: u32,
        turn: u32,
        now: SimTime,
    ) -> Result<(), WorkloadError> {
        let open = self.get(open_session_index);
        let number = open.number;
        let next = open.session.turns.get(turn as usize + 1);
        let delay = next.map(|next| self.pace.divide_by_speedup(next.delay_ns));
        if self.source.has_dependencies() {
            let sent = self.history.entry((number, turn)).or_insert((now, None));
            sent.1 = Some(now);
            self.wake_dependents(number, turn, TurnLifecycleEvent::Completion);
        }
        match delay {
            Some(delay) => {
                let earliest = SimTime::from_nanos(now.as_nanos().saturating_add(delay));
                self.schedule_turn(open_session_index, turn + 1, earliest);
            }
            None => {
                let ended = self.open[open_session_index as usize].take();
                self.free.push(open_session_index);
                if let Some(ended) = ended.filter(|_| self.pace.plays.is_some())
                    && self.plays.end_session(&ended.session.play)
                {
                    self.start_next_agent_run(now);
                }
                if self.pace.concurrency.is_some() {
                    self.open_next(now)?;
                }
            }
        }
        Ok(())
    }

    /// Starts the next agent run, if any. The first request of the run starts immediately, the
    /// others at their offsets from the first.
    ///
    /// **Source:** aisimulate-core 0.13.0 `replay/loadgen/driver.rs` (`activate_play`,
    /// `release_lane`).
    fn start_next_agent_run(&mut self, now: SimTime) {
        let Some(sessions) = self.plays.waiting.pop_front() else {
            return;
        };
        let waits = |session: &ClientSession| {
            session.turns.first().is_some_and(|turn| !turn.after.is_empty())
        };
        let roots = sessions.iter().filter(|(_, session)| !waits(session));
        let first = roots.map(|(_, session)| session.start).min();
        let first = first.unwrap_or(SimTime::ZERO);
        for (number, session) in sessions {
            *self.plays.left.entry(session.play.clone()).or_default() += 1;
            let later = session.start.as_nanos().saturating_sub(first.as_nanos());
            let start = now.as_nanos().saturating_add(self.pace.divide_by_speedup(later));
            self.insert_session(number, session, SimTime::from_nanos(start));
        }
    }

    fn open_next(&mut self, now: SimTime) -> Result<(), WorkloadError> {
        if self.exhausted {
            return Ok(());
        }
        match self.source.next()? {
            Some((number, session)) => self.insert_session(number, session, now),
            None => self.exhausted = true,
        }
        Ok(())
    }

    /// Reads the next session of the workload, unless a session is already read ahead. Called after
    /// sessions were added to the source.
    pub(super) fn resume_reading_sessions(&mut self) -> Result<(), WorkloadError> {
        match self.peeked {
            Some(_) => Ok(()),
            None => self.peek_next_session(),
        }
    }

    fn peek_next_session(&mut self) -> Result<(), WorkloadError> {
        self.peeked = self.source.next()?;
        if let Some((_, session)) = &mut self.peeked {
            session.start =
                SimTime::from_nanos(self.pace.divide_by_speedup(session.start.as_nanos()));
        }
        Ok(())
    }

    fn insert_session(&mut self, number: u64, session: ClientSession, start: SimTime) {
        if session.turns.is_empty() {
            return;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            (self.open.len() - 1) as u32
        });
        self.open[place as usize] = Some(OpenSession {
            number,
            session: ClientSession { start, ..session },
            content: SessionTokenHistory::default(),
            waiting: WaitingTurn { turn: 0, earliest: start, missing: 0 },
        });
        self.schedule_turn(place, 0, start);
    }

    /// Schedules a turn for `earliest`, or for later if it depends on turns of other sessions.
    fn schedule_turn(&mut self, place: u32, turn: u32, earliest: SimTime) {
        let open = self.open[place as usize].as_ref().expect("it is open");
        let mut missing = 0;
        for after in &open.session_turn(turn).after {
            let known = self.history.get(&(after.session, after.turn));
            let happened = known.is_some_and(|(_, ended)| match after.trigger {
                TurnLifecycleEvent::Dispatch => true,
                TurnLifecycleEvent::Completion => ended.is_some(),
            });
            if !happened {
                missing += 1;
                let key = (after.session, after.turn, after.trigger);
                self.waiters.entry(key).or_default().push(place);
            }
        }
        self.get_mut(place).waiting = WaitingTurn { turn, earliest, missing };
        if missing == 0 {
            self.queue_waiting_turn(place);
        }
    }

    /// Queues the waiting turn of a session when all dependencies of the turn are fulfilled.
    fn queue_waiting_turn(&mut self, place: u32) {
        let open = self.get(place);
        let WaitingTurn { turn, earliest, .. } = open.waiting;
        let after = open.session_turn(turn).after.iter().filter_map(|after| {
            let (sent, ended) = self.history.get(&(after.session, after.turn))?;
            let from = match after.trigger {
                TurnLifecycleEvent::Dispatch => *sent,
                TurnLifecycleEvent::Completion => (*ended)?,
            };
            let delay = self.pace.divide_by_speedup(after.delay_ns);
            Some(SimTime::from_nanos(from.as_nanos().saturating_add(delay)))
        });
        let due = after.fold(earliest, SimTime::max);
        self.ready.push(Reverse((due, open.number, turn, place)));
    }

    fn wake_dependents(&mut self, session: u64, turn: u32, event: TurnLifecycleEvent) {
        let waiters = self.waiters.remove(&(session, turn, event));
        for place in waiters.unwrap_or_default() {
            let waiting = &mut self.get_mut(place).waiting;
            waiting.missing -= 1;
            if waiting.missing == 0 {
                self.queue_waiting_turn(place);
            }
        }
    }

    pub(super) fn describe_stuck_sessions(&self) -> Vec<String> {
        let waiting = self.open.iter().flatten().filter(|open| open.waiting.missing > 0);
        let name = |open: &OpenSession| match &open.session.id {
            Some(id) => id.to_string(),
            None => open.number.to_string(),
        };
        waiting.map(name).collect()
    }
}
