//! Compares the live driver with virtual time. The arrivals of a run on the real clock, run again
//! by the offline driver, must give the same result to the nanosecond.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]
#![expect(clippy::disallowed_methods, reason = "it compares the real clock with the virtual one")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{
    EngineObserver, LiveEngine, LiveRankGroup, LiveSequencesSnapshot, SequencePhase,
    SequenceRecord, TimerThreadSettings,
};
use vllm_sim_engine::latency::{LatencyModel, PolynomialStepTime, SimulationSpeedFactors};
use vllm_sim_engine::sched::pool::{SlotScheduler, SlotSchedulerConfig};
use vllm_sim_engine::sched::sglang::{SglangConfig, SglangScheduler};
use vllm_sim_engine::sched::vllm::{VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{
    EngineStats, Scheduler, SchedulerEvent, SeqId, Sequence, SequenceSubmitError,
};

use crate::lock_step::LockStepGroup;
use crate::offline;

const SUBMISSION_WAVES: u64 = 4;
const SEQUENCES_PER_WAVE: u64 = 8;

/// Time and number of the tokens of a sequence, by its index.
type Tokens = Vec<(SimTime, u64, u32)>;

#[derive(Default)]
struct RecordedEvents {
    arrivals: Vec<(SimTime, u64)>,
    tokens: Tokens,
    /// Delay from the due time of a token to its delivery.
    late: Vec<Duration>,
}

struct RecordingObserver {
    epoch: Instant,
    heard: Arc<Mutex<RecordedEvents>>,
    ended: Sender<()>,
}

fn number(record: &SequenceRecord) -> u64 {
    record.request_id.parse().unwrap()
}

impl EngineObserver for RecordingObserver {
    fn on_sequence_queued(&mut self, record: &SequenceRecord) {
        let arrival = (record.queued, number(record));
        self.heard.lock().unwrap().arrivals.push(arrival);
    }

    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        _: SimTime,
    ) {
        match event {
            SchedulerEvent::Tokens { n, .. } | SchedulerEvent::Decoded { n, .. } => {
                let now = self.epoch.elapsed();
                let mut heard = self.heard.lock().unwrap();
                heard.tokens.push((at, number(record), *n));
                let due = Duration::from_nanos(at.as_nanos());
                heard.late.push(now.saturating_sub(due));
            }
            SchedulerEvent::Ended { .. } => self.ended.send(()).unwrap(),
            _ => {}
        }
    }

    fn on_engine_event(&mut self, _: SimTime, _: &SchedulerEvent) {}

    fn on_engine_stats(&mut self, _: &EngineStats) {}
}

/// Lengths differ, so that batches do.
fn sequence(number: u64) -> Sequence {
    let (prompt, output) = (100 + 37 * number as u32 % 900, 5 + number as u32 % 11);
    Sequence::new(SeqId(number), prompt, output)
}

fn submission(number: u64, now: SimTime) -> (Sequence, SequenceRecord) {
    let sequence = sequence(number);
    let record = SequenceRecord::new(number.to_string().into(), now, &sequence);
    (sequence, record)
}

/// Runs waves of requests on a real clock: the next one starts when the last has ended.
fn play_live(engine: Box<dyn Scheduler + Send>, look: impl Fn(&LiveEngine)) -> RecordedEvents {
    let epoch = Instant::now();
    let heard = Arc::<Mutex<RecordedEvents>>::default();
    let (ended, ends) = channel();
    let ear = RecordingObserver { epoch, heard: heard.clone(), ended };
    let live = LiveEngine::start_engine(
        "test",
        epoch,
        engine,
        Box::new(ear),
        TimerThreadSettings::default(),
    )
    .unwrap();
    play_waves(&[live], &ends, look);
    std::mem::take(&mut *heard.lock().unwrap())
}

/// Assigns a sequence to the rank of its number.
fn play_waves(ranks: &[LiveEngine], ends: &Receiver<()>, look: impl Fn(&LiveEngine)) {
    for wave in 0..SUBMISSION_WAVES {
        let wave: Vec<_> = (wave * SEQUENCES_PER_WAVE..(wave + 1) * SEQUENCES_PER_WAVE)
            .flat_map(|number| {
                let live = &ranks[number as usize % ranks.len()];
                live.submit_sequences(vec![submission(number, live.now())]).unwrap()
            })
            .collect();
        for _ in &wave {
            look(&ranks[0]);
            ends.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }
    ranks.iter().for_each(LiveEngine::stop_engine);
}

/// Runs the same on ranks in lock step.
fn play_ranks(config: &VllmSchedulerConfig, ranks: usize) -> RecordedEvents {
    let epoch = Instant::now();
    let heard = Arc::<Mutex<RecordedEvents>>::default();
    let (ended, ends) = channel();
    let together =
        LiveRankGroup::start_rank_group("test", epoch, TimerThreadSettings::default()).unwrap();
    let ranks: Vec<_> = (0..ranks)
        .map(|_| {
            let config = VllmSchedulerConfig { lock_step: true, ..config.clone() };
            let ear = RecordingObserver { epoch, heard: heard.clone(), ended: ended.clone() };
            together
                .add_engine_as_rank(Box::new(VllmScheduler::new(config).unwrap()), Box::new(ear))
        })
        .collect();
    play_waves(&ranks, &ends, |_| {});
    std::mem::take(&mut *heard.lock().unwrap())
}

fn compare_live_with_virtual(name: &str, make: impl Fn() -> Box<dyn Scheduler + Send>) {
    compare_with_snapshots(name, make, |_| {});
}

/// Runs the same while another thread takes snapshots of the live engine.
fn compare_with_snapshots(
    name: &str,
    make: impl Fn() -> Box<dyn Scheduler + Send>,
    look: impl Fn(&LiveEngine),
) {
    compare_recorded_events(name, play_live(make(), look), &mut *make());
}

fn compare_recorded_events(name: &str, mut live: RecordedEvents, engine: &mut dyn Scheduler) {
    let arrivals = live.arrivals.iter().map(|(at, n)| (*at, sequence(*n)));
    let log = offline::run(engine, arrivals).unwrap();
    let virtual_tokens: Tokens = log
        .into_iter()
        .filter_map(|(at, event)| match event {
            SchedulerEvent::Tokens { id, n } | SchedulerEvent::Decoded { id, n } => {
                Some((at, id.0, n))
            }
            _ => None,
        })
        .collect();
    assert_eq!(live.tokens, virtual_tokens);
    live.late.sort_unstable();
    let share = |percent| live.late[(live.late.len() - 1) * percent / 100];
    println!(
        "{name}: {} tokens equal; late by {:?} (median), {:?} (99th percentile)",
        live.tokens.len(),
        share(50),
        share(99)
    );
}

fn latency() -> (LatencyModel, SimulationSpeedFactors) {
    let curves = LatencyModel::Polynomial(PolynomialStepTime::for_kv_cache_capacity(16_384 * 16));
    let speed = SimulationSpeedFactors { all: 4.0, decode: 1.0 };
    (curves, speed)
}

fn vllm(async_scheduling: bool) -> VllmSchedulerConfig {
    let (latency, speed) = latency();
    VllmSchedulerConfig { latency, speed, async_scheduling, ..VllmSchedulerConfig::default() }
}

#[test]
fn vllm_events_are_equal_in_live_and_virtual_time() {
    for async_scheduling in [false, true] {
        let config = vllm(async_scheduling);
        let name = if async_scheduling { "vllm, async" } else { "vllm" };
        compare_live_with_virtual(name, || Box::new(VllmScheduler::new(config.clone()).unwrap()));
    }
}

#[test]
fn lock_step_events_are_equal_in_live_and_virtual_time() {
    for async_scheduling in [false, true] {
        let config = vllm(async_scheduling);
        let live = play_ranks(&config, 2);
        compare_recorded_events("2 ranks", live, &mut LockStepGroup::new(&config, 2));
    }
}

#[test]
fn sglang_events_are_equal_in_live_and_virtual_time() {
    let (latency, speed) = latency();
    let config = SglangConfig { latency, speed, ..SglangConfig::default() };
    compare_live_with_virtual("sglang", || Box::new(SglangScheduler::new(config.clone()).unwrap()));
}

#[test]
fn snapshot_does_not_change_scheduling() {
    let (latency, speed) = latency();
    let config =
        VllmSchedulerConfig { latency, speed, max_num_seqs: 5, ..VllmSchedulerConfig::default() };
    let look = |live: &LiveEngine| {
        let (seen, map) = (live.snapshot_sequences(3), live.snapshot_kv_block_map(16));
        assert!(seen.newest.len() <= 3 && map.cells.len() <= 16);
        assert!(seen.phases.iter().sum::<usize>() <= SEQUENCES_PER_WAVE as usize);
    };
    compare_with_snapshots(
        "vllm, seen",
        || Box::new(VllmScheduler::new(config.clone()).unwrap()),
        look,
    );
}

/// Phases of sequences whose step takes a minute.
#[test]
fn a_snapshot_lists_running_and_waiting_sequences() {
    let (latency, _) = latency();
    let speed = SimulationSpeedFactors { all: 1e-5, decode: 1.0 };
    let config = VllmSchedulerConfig {
        latency,
        speed,
        max_num_seqs: 2,
        num_gpu_blocks: 200,
        block_size: 16,
        ..VllmSchedulerConfig::default()
    };
    let engine = Box::new(VllmScheduler::new(config).unwrap());
    let tally = TokenTally(Arc::default());
    let tune = TimerThreadSettings::default();
    let live =
        LiveEngine::start_engine("look", Instant::now(), engine, Box::new(tally), tune).unwrap();
    let now = live.now();
    let all = (0..3).map(|number| submission(number, now)).collect();
    let handles = live.submit_sequences(all).unwrap();
    let seen = live.snapshot_sequences(2);
    assert_eq!(seen.phases, [1, 0, 2, 0, 0]);
    let rows = seen.newest.iter().map(|s| {
        let id: u64 = s.id.parse().unwrap();
        (id, s.phase, s.prompt, s.output)
    });
    let expected = [
        (2, SequencePhase::Waiting, sequence(2).prompt, 0),
        (1, SequencePhase::Prefill, sequence(1).prompt, 0),
    ];
    assert!(rows.eq(expected), "{seen:?}");
    // Prompts of 100 and 137 tokens.
    let map = live.snapshot_kv_block_map(10);
    assert_eq!((map.blocks_per_cell, map.cells.len()), (20, 10));
    let used: u32 = map.cells.iter().map(|cell| cell.used).sum();
    assert_eq!((used, map.stats.used_blocks), (7 + 9, 7 + 9));
    drop(handles);
    assert_eq!(live.snapshot_sequences(2), LiveSequencesSnapshot::default());
    live.stop_engine();
}

/// Counts the reported tokens and steps.
struct TokenTally(Arc<Mutex<(u32, u32)>>);

impl EngineObserver for TokenTally {
    fn on_sequence_event(
        &mut self,
        _: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        _: SimTime,
    ) {
        if let SchedulerEvent::Tokens { n, .. } | SchedulerEvent::Decoded { n, .. } = event {
            let mut counts = self.0.lock().unwrap();
            counts.0 += n;
            assert_eq!(record.output, counts.0, "the record is up to date");
        }
    }

    fn on_engine_event(&mut self, _: SimTime, event: &SchedulerEvent) {
        if let SchedulerEvent::Step { count, .. } = event {
            self.0.lock().unwrap().1 += count;
        }
    }

    fn on_engine_stats(&mut self, _: &EngineStats) {}
}

#[test]
fn reply_without_delays_ends_at_submission() {
    let config =
        VllmSchedulerConfig { latency: LatencyModel::ZERO, ..VllmSchedulerConfig::default() };
    let counts = Arc::<Mutex<(u32, u32)>>::default();
    let tally = Box::new(TokenTally(counts.clone()));
    let engine = Box::new(VllmScheduler::new(config).unwrap());
    let tune = TimerThreadSettings::default();
    let live = LiveEngine::start_engine("test", Instant::now(), engine, tally, tune).unwrap();
    let (mut sequence, request) = submission(1, live.now());
    sequence.output = 1_000;
    let handles = live.submit_sequences(vec![(sequence, request)]).unwrap();
    assert_eq!(handles[0].progress().released_output_tokens(), 1_000);
    live.stop_engine();
    assert_eq!(*counts.lock().unwrap(), (1_000, 1_000));
}

/// A job with one sequence too many for the queue is rejected as a whole, and leaves nothing
/// behind.
#[test]
fn rejected_submission_leaves_no_state() {
    let vllm = VllmSchedulerConfig {
        latency: LatencyModel::ZERO,
        max_waiting: Some(2),
        ..VllmSchedulerConfig::default()
    };
    let sglang = SglangConfig {
        latency: LatencyModel::ZERO,
        max_waiting: Some(2),
        ..SglangConfig::default()
    };
    let pool = SlotSchedulerConfig { slots: 1, queue: Some(1), ..SlotSchedulerConfig::default() };
    let engines: [Box<dyn Scheduler + Send>; 3] = [
        Box::new(VllmScheduler::new(vllm).unwrap()),
        Box::new(SglangScheduler::new(sglang).unwrap()),
        Box::new(SlotScheduler::new(pool)),
    ];
    for engine in engines {
        let (heard, epoch) = (Arc::<Mutex<RecordedEvents>>::default(), Instant::now());
        let (ended, _ends) = channel();
        let ear = Box::new(RecordingObserver { epoch, heard: heard.clone(), ended });
        let live =
            LiveEngine::start_engine("job", epoch, engine, ear, TimerThreadSettings::default())
                .unwrap();
        let before = live.stats();
        let job = (0..3).map(|number| submission(number, live.now())).collect();
        assert!(matches!(live.submit_sequences(job), Err(SequenceSubmitError::QueueFull { .. })));
        live.stop_engine();
        let heard = heard.lock().unwrap();
        assert_eq!((heard.arrivals.len(), heard.tokens.len()), (0, 0));
        assert_eq!(live.stats(), before);
    }
}

#[test]
fn tokens_due_before_a_cancellation_are_emitted() {
    let config = VllmSchedulerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(1),
            decode: Duration::from_secs(3600),
        },
        ..VllmSchedulerConfig::default()
    };
    let engine = Box::new(VllmScheduler::new(config).unwrap());
    // The timer thread wakes once an hour.
    let tune = TimerThreadSettings {
        quantum: Duration::from_secs(3600),
        busy: 0,
        ..TimerThreadSettings::default()
    };
    let tally = Box::new(TokenTally(Arc::default()));
    let live = LiveEngine::start_engine("cancel", Instant::now(), engine, tally, tune).unwrap();
    let handles = live.submit_sequences(vec![submission(1, live.now())]).unwrap();
    let due = live.now() + Duration::from_millis(1);
    while live.now() <= due {
        std::thread::yield_now();
    }
    assert_eq!(live.cancel_matching_sequences(|_| true), 1);
    assert_eq!(handles[0].progress().released_output_tokens(), 1);
    live.stop_engine();
}
