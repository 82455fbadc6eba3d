//! Tests workloads against pools of workers behind routers, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

mod parallel;
mod pools;
mod ranks;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::TokenDelays;
use vllm_sim_engine::latency::{LatencyModel, PolynomialStepTime};
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::dynamo_mocker::DynamoMockerConfig;
use vllm_sim_engine::sched::pool::SlotSchedulerConfig;
use vllm_sim_engine::sched::sglang::SglangConfig;
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;
use vllm_sim_replay::outcome::{PoolRole, ReplaySink, RequestOutcome, RequestStatus, WorkerChange};
use vllm_sim_replay::synth::{ArrivalProcess, SyntheticWorkload, TokenLengthDistribution};
use vllm_sim_replay::workload::{
    ClientSession, PromptTokenRun, SessionTurn, TurnDependency, TurnLifecycleEvent, TurnPrompt,
    WorkloadError, WorkloadFacts, WorkloadSource,
};
use vllm_sim_replay::{
    EndpointPickerConfig, KvAwareRouterConfig, KvTransferTime, PoolSpec, ReplaySettings,
    ReplayTotals, RouterConfig, RouterQueuePolicy, run_replay,
};

#[derive(Debug, Clone, PartialEq)]
struct SeenOutcome {
    number: u64,
    session: u64,
    turn: u32,
    status: RequestStatus,
    arrival: u64,
    ended: u64,
    worker: Option<u32>,
    reused: u32,
    overlap: u32,
    queued_ns: u64,
    tokens: Vec<u64>,
}

/// Records all outcomes, gaps and worker changes.
#[derive(Default)]
struct RecordingSink {
    seen: Vec<SeenOutcome>,
    gaps: HashMap<u64, u64>,
    workers: Vec<(u64, u32, WorkerChange)>,
}

impl ReplaySink for RecordingSink {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        assert_eq!(outcome.tokens.len(), outcome.output as usize);
        assert_eq!(outcome.first, outcome.tokens.first().copied());
        assert_eq!(outcome.second, outcome.tokens.get(1).copied());
        assert_eq!(outcome.last, outcome.tokens.last().copied());
        self.seen.push(SeenOutcome {
            number: outcome.number,
            session: outcome.session,
            turn: outcome.turn,
            status: outcome.status,
            arrival: outcome.arrival.as_nanos(),
            ended: outcome.ended.as_nanos(),
            worker: outcome.worker,
            reused: outcome.admissions.iter().map(|a| a.reused).max().unwrap_or(0),
            overlap: outcome.overlap,
            queued_ns: outcome.queued_ns,
            tokens: outcome.tokens.iter().map(|at| at.as_nanos()).collect(),
        });
    }

    fn on_token_gaps(&mut self, nanos: u64, times: u64) {
        *self.gaps.entry(nanos).or_insert(0) += times;
    }

    fn wants_token_times(&self) -> bool {
        true
    }

    fn on_worker_change(&mut self, at: SimTime, worker: u32, _: PoolRole, change: WorkerChange) {
        self.workers.push((at.as_nanos(), worker, change));
    }
}

impl RecordingSink {
    fn sorted(mut self) -> Vec<SeenOutcome> {
        self.seen.sort_by_key(|seen| seen.number);
        self.seen
    }
}

/// Engine with few blocks, so that it preempts.
fn vllm(blocks: u32) -> SchedulerSpec {
    SchedulerSpec::Vllm(Box::new(VllmSchedulerConfig {
        latency: LatencyModel::Polynomial(PolynomialStepTime::for_kv_cache_capacity(
            u64::from(blocks) * 16,
        )),
        num_gpu_blocks: blocks,
        max_num_batched_tokens: 512,
        ..VllmSchedulerConfig::default()
    }))
}

fn sglang() -> SchedulerSpec {
    SchedulerSpec::Sglang(Box::new(SglangConfig {
        latency: LatencyModel::Polynomial(PolynomialStepTime::for_kv_cache_capacity(8192)),
        num_pages: 512,
        page_size: 16,
        chunked_prefill_size: 512,
        ..SglangConfig::default()
    }))
}

fn slots() -> SchedulerSpec {
    let delays = TokenDelays {
        ttft: (Duration::from_millis(20), Duration::ZERO),
        itl: (Duration::from_millis(3), Duration::ZERO),
        ..TokenDelays::default()
    };
    SchedulerSpec::Pool(Box::new(SlotSchedulerConfig {
        slots: 4,
        delays,
        ..SlotSchedulerConfig::default()
    }))
}

fn settings(pool: PoolSpec) -> ReplaySettings {
    ReplaySettings { seed: 7, ..ReplaySettings::new(pool) }
}

/// Sessions of three growing turns with shared prefixes, at random times.
fn chats(sessions: u64) -> SyntheticWorkload {
    SyntheticWorkload {
        sessions,
        input: TokenLengthDistribution::Uniform(40, 300),
        output: TokenLengthDistribution::Uniform(1, 60),
        arrivals: ArrivalProcess::Poisson(40.0),
        shared_prefix_ratio: 0.5,
        prefix_groups: 3,
        turns: TokenLengthDistribution::Constant(3),
        grows_by: Some(TokenLengthDistribution::Uniform(5, 50)),
        think_ms: 30.0,
        ..SyntheticWorkload::default()
    }
}

fn play(
    settings: &ReplaySettings,
    mut source: impl WorkloadSource,
) -> (RecordingSink, ReplayTotals) {
    let mut notes = RecordingSink::default();
    let totals = run_replay(settings, &mut source, &mut notes).unwrap();
    (notes, totals)
}

fn routers() -> Vec<RouterConfig> {
    vec![
        RouterConfig::RoundRobin,
        RouterConfig::Random,
        RouterConfig::LeastLoaded,
        RouterConfig::PowerOfTwo,
        RouterConfig::Kv(KvAwareRouterConfig::default()),
        RouterConfig::Kv(KvAwareRouterConfig {
            queue_threshold: Some(0.2),
            policy: RouterQueuePolicy::Wspt,
            temperature: 0.5,
            event_lag: Duration::from_millis(50),
            ..KvAwareRouterConfig::default()
        }),
        RouterConfig::Scorers(EndpointPickerConfig::default()),
    ]
}

#[test]
fn every_turn_ends_once_with_every_router_and_scheduler() {
    for engine in [vllm(60), sglang(), slots()] {
        for router in routers() {
            for concurrency in [None, Some(5)] {
                let mut settings = settings(PoolSpec::new(engine.clone(), 3, router.clone()));
                settings.pace.concurrency = concurrency;
                let (notes, totals) = play(&settings, chats(40).into_source().unwrap());
                assert_eq!(totals.requests, 120);
                let gaps = notes.gaps.clone();
                let seen = notes.sorted();
                let numbers: Vec<u64> = seen.iter().map(|seen| seen.number).collect();
                assert_eq!(numbers, (0..120).collect::<Vec<_>>());
                let mut expected = HashMap::new();
                for seen in &seen {
                    assert_eq!(seen.status, RequestStatus::Completed, "{seen:?}");
                    assert!(seen.tokens.is_sorted() && seen.tokens[0] > seen.arrival);
                    for pair in seen.tokens.windows(2) {
                        *expected.entry(pair[1] - pair[0]).or_insert(0) += 1;
                    }
                }
                assert_eq!(gaps, expected);
            }
        }
    }
}

#[test]
fn replay_is_deterministic() {
    for router in routers() {
        let settings = settings(PoolSpec::new(vllm(80), 4, router));
        let (a, b) = (
            play(&settings, chats(60).into_source().unwrap()),
            play(&settings, chats(60).into_source().unwrap()),
        );
        assert_eq!(a.1, b.1);
        assert_eq!(a.0.seen, b.0.seen);
    }
}

#[test]
fn next_turn_waits_for_previous_end_and_delay() {
    let settings = settings(PoolSpec::new(vllm(400), 2, RouterConfig::RoundRobin));
    let seen = play(&settings, chats(30).into_source().unwrap()).0.sorted();
    let of = |session: u64, turn: u32| {
        let found = seen.iter().find(|s| (s.session, s.turn) == (session, turn));
        found.unwrap()
    };
    for session in 0..30 {
        for turn in 1..3 {
            let pause = of(session, turn).arrival - of(session, turn - 1).ended;
            assert_eq!(pause, 30_000_000);
            // Earlier turns are cached, unless they were evicted.
            assert_eq!(of(session, turn).reused % 16, 0);
        }
    }
}

struct Listed(std::vec::IntoIter<ClientSession>, bool);

impl WorkloadSource for Listed {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        Ok(self.0.next())
    }

    fn facts(&self) -> WorkloadFacts {
        WorkloadFacts { has_dependencies: self.1, ..WorkloadFacts::default() }
    }
}

/// Single requests: start in ms, content and length of the prompt, output.
fn requests(of: &[(u64, u64, u32, u32)]) -> Listed {
    let sessions = of.iter().map(|&(at, id, len, output)| {
        let run = PromptTokenRun { id, len, same: false };
        ClientSession {
            id: None,
            start: SimTime::from_millis(at),
            turns: vec![SessionTurn::new(TurnPrompt::Whole(vec![run]), output)],
            play: None,
        }
    });
    Listed(sessions.collect::<Vec<_>>().into_iter(), false)
}

#[test]
fn equal_prompts_are_routed_to_the_worker_that_cached_them() {
    let asks: Vec<_> = (0..40).map(|i| (i * 400, i % 4, 640, 4)).collect();
    for router in [
        RouterConfig::Kv(KvAwareRouterConfig::default()),
        RouterConfig::Scorers(EndpointPickerConfig::default()),
    ] {
        let settings = settings(PoolSpec::new(vllm(1000), 4, router));
        let seen = play(&settings, requests(&asks)).0.sorted();
        for seen in &seen[4..] {
            let first = &seen_with(&asks, &seen_list(&settings, &asks), seen.number % 4);
            assert_eq!(seen.worker, first.worker, "{seen:?}");
            assert_eq!((seen.overlap, seen.reused), (40, 624), "{seen:?}");
        }
    }
}

fn seen_list(settings: &ReplaySettings, asks: &[(u64, u64, u32, u32)]) -> Vec<SeenOutcome> {
    play(settings, requests(asks)).0.sorted()
}

fn seen_with(asks: &[(u64, u64, u32, u32)], seen: &[SeenOutcome], content: u64) -> SeenOutcome {
    let at = asks.iter().position(|ask| ask.1 == content).unwrap();
    seen[at].clone()
}

#[test]
fn a_busy_pool_keeps_requests_at_the_router() {
    let asks: Vec<_> = (0..12).map(|i| (0, i, 2000, 2)).collect();
    let queue = |threshold| {
        let router = RouterConfig::Kv(KvAwareRouterConfig {
            queue_threshold: threshold,
            ..KvAwareRouterConfig::default()
        });
        let settings = settings(PoolSpec::new(vllm(2000), 2, router));
        let seen = play(&settings, requests(&asks)).0.sorted();
        seen.iter().filter(|seen| seen.queued_ns > 0).count()
    };
    // Without a threshold no request waits; with a small one a single prompt makes a worker busy.
    assert_eq!((queue(None), queue(Some(0.5))), (0, 10));
}

#[test]
fn session_waits_for_its_dependencies() {
    let mut list: Vec<ClientSession> =
        requests(&[(0, 1, 100, 20), (0, 2, 100, 5), (0, 3, 100, 5)]).0.collect();
    let after = |session, trigger| TurnDependency { session, turn: 0, trigger, delay_ns: 1_000 };
    list[1].turns[0].after = vec![after(0, TurnLifecycleEvent::Completion)];
    list[2].turns[0].after = vec![after(1, TurnLifecycleEvent::Dispatch)];
    list[2].id = Some(Arc::from("last"));
    let settings = settings(PoolSpec::new(vllm(100), 1, RouterConfig::RoundRobin));
    let source = Listed(list.clone().into_iter(), true);
    let seen = play(&settings, source).0.sorted();
    let by = |session: u64| seen.iter().find(|s| s.session == session).unwrap();
    assert_eq!(by(1).arrival, by(0).ended + 1_000);
    assert_eq!(by(2).arrival, by(1).arrival + 1_000);
    // A dependency cycle never starts, and is reported by name.
    list[0].turns[0].after = vec![after(2, TurnLifecycleEvent::Completion)];
    let (notes, totals) = play(&settings, Listed(list.into_iter(), true));
    assert!(notes.seen.is_empty());
    assert_eq!(totals.stuck, ["0", "1", "last"]);
}

#[test]
fn a_later_turn_waits_for_another_session() {
    let mut list: Vec<ClientSession> = requests(&[(0, 1, 100, 5), (0, 2, 100, 90)]).0.collect();
    let mut turn = list[0].turns[0].clone();
    turn.delay_ns = 2_000;
    let after = TurnDependency {
        session: 1,
        turn: 0,
        trigger: TurnLifecycleEvent::Completion,
        delay_ns: 1_000,
    };
    turn.after = vec![after];
    list[0].turns.push(turn);
    let settings = settings(PoolSpec::new(vllm(100), 1, RouterConfig::RoundRobin));
    let arrivals = |list: &[ClientSession]| {
        let seen = play(&settings, Listed(Vec::from(list).into_iter(), true)).0.sorted();
        let ended =
            |session| seen.iter().filter(|s| s.session == session).map(|s| s.ended).min().unwrap();
        let last = seen.iter().filter(|s| s.session == 0).map(|s| s.arrival).max();
        (last.unwrap(), ended(0), ended(1))
    };
    let (arrival, _, other) = arrivals(&list);
    assert_eq!(arrival, other + 1_000, "the other session ends last");
    // If it ends first, the turn waits for its own session.
    list[1].turns[0].output = 1;
    let (arrival, own, _) = arrivals(&list);
    assert_eq!(arrival, own + 2_000);
}

#[test]
fn the_time_limit_leaves_running_requests_incomplete() {
    let mut settings = settings(PoolSpec::new(vllm(200), 1, RouterConfig::RoundRobin));
    let asks = [(0, 1, 100, 10), (10, 2, 100, 2000), (99_000, 3, 10, 10)];
    settings.limit = Some(SimTime::from_millis(1000));
    let (notes, totals) = play(&settings, requests(&asks));
    let status: Vec<RequestStatus> = notes.sorted().iter().map(|seen| seen.status).collect();
    assert_eq!(status, [RequestStatus::Completed, RequestStatus::Incomplete]);
    assert_eq!(totals.requests, 2);
}

#[test]
fn open_loop_arrivals_are_sped_up() {
    let mut settings = settings(PoolSpec::new(vllm(400), 2, RouterConfig::RoundRobin));
    settings.pace.speedup = 4.0;
    let asks = [(0, 1, 100, 4), (1000, 2, 100, 4), (3000, 3, 100, 4)];
    let arrivals = play(&settings, requests(&asks)).0.sorted();
    let arrivals: Vec<u64> = arrivals.iter().map(|seen| seen.arrival).collect();
    assert_eq!(arrivals, [0, 250_000_000, 750_000_000]);
}
