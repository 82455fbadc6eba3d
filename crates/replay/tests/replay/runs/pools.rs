//! Tests scaling, failures and disaggregated pools.

use vllm_sim_replay::{AutoscalerPolicy, AutoscalerRule, WorkerScaling};

use super::*;

fn changes(notes: &RecordingSink, change: WorkerChange) -> Vec<(u64, u32)> {
    let found = notes.workers.iter().filter(|(_, _, what)| *what == change);
    found.map(|&(at, worker, _)| (at / 1_000_000, worker)).collect()
}

#[test]
fn a_plan_adds_and_drains_workers() {
    let mut pool = PoolSpec::new(vllm(400), 1, RouterConfig::RoundRobin);
    pool.startup = Duration::from_millis(500);
    pool.scaling = WorkerScaling {
        schedule: vec![(SimTime::from_millis(1000), 3), (SimTime::from_millis(4000), 1)],
        ..WorkerScaling::default()
    };
    let asks: Vec<_> = (0..60).map(|i| (i * 100, i, 100, 30)).collect();
    let (notes, totals) = play(&settings(pool), requests(&asks));
    assert_eq!(changes(&notes, WorkerChange::Starting), [(0, 0), (1000, 1), (1000, 2)]);
    assert_eq!(changes(&notes, WorkerChange::Ready), [(0, 0), (1500, 1), (1500, 2)]);
    assert_eq!(changes(&notes, WorkerChange::Draining).len(), 2);
    let gone = changes(&notes, WorkerChange::Gone);
    assert_eq!(gone.len(), 2);
    assert_eq!(totals.most_workers, 3);
    // A draining worker receives no further requests and completes those that it has.
    for seen in notes.sorted() {
        assert_eq!(seen.status, RequestStatus::Completed);
        let late = seen.arrival > 4_000_000_000;
        assert!(!late || !gone.iter().any(|&(_, worker)| seen.worker == Some(worker)));
    }
    let expected = totals.ended.as_secs_f64() + 2.0 * 3.0;
    assert!((totals.worker_seconds - expected).abs() < 1.5, "{totals:?}");
}

#[test]
fn autoscaler_follows_load() {
    let mut pool = PoolSpec::new(vllm(40), 1, RouterConfig::LeastLoaded);
    pool.scaling.rule = Some(AutoscalerRule {
        max: 6,
        target_waiting: Some(2.0),
        interval: Duration::from_millis(500),
        cool_down: Duration::from_millis(2000),
        ..AutoscalerRule::default()
    });
    // Forty requests together, then single ones.
    let mut asks: Vec<_> = (0..40).map(|i| (i, i, 300, 40)).collect();
    asks.extend((0..20).map(|i| (8000 + i * 500, 100 + i, 100, 5)));
    let (notes, totals) = play(&settings(pool), requests(&asks));
    assert_eq!(totals.most_workers, 6);
    let started = changes(&notes, WorkerChange::Starting).len();
    assert_eq!(changes(&notes, WorkerChange::Gone).len(), started - 1);
    assert!(notes.seen.iter().all(|seen| seen.status == RequestStatus::Completed));
}

#[test]
fn the_autoscaler_counts_starting_workers() {
    let mut pool = PoolSpec::new(vllm(40), 1, RouterConfig::LeastLoaded);
    pool.startup = Duration::from_secs(20);
    pool.scaling.rule = Some(AutoscalerRule {
        max: 9,
        target_kv_usage: Some(0.5),
        interval: Duration::from_secs(1),
        ..AutoscalerRule::default()
    });
    // One worker with a full cache needs a second one, at every check.
    let asks: Vec<_> = (0..60).map(|i| (0, i, 300, 200)).collect();
    let (notes, _) = play(&settings(pool), requests(&asks));
    let started = changes(&notes, WorkerChange::Starting);
    let early = started.iter().filter(|(at, _)| *at < 20_000).count();
    assert_eq!(early, 2, "{started:?}");
}

#[test]
fn autoscalers_scale_down_after_stabilization() {
    for policy in [AutoscalerPolicy::Keda, AutoscalerPolicy::Wva] {
        let mut pool = PoolSpec::new(vllm(200), 1, RouterConfig::LeastLoaded);
        pool.scaling.rule = Some(AutoscalerRule {
            policy,
            max: 6,
            target_waiting: (policy == AutoscalerPolicy::Keda).then_some(2.0),
            interval: Duration::from_millis(100),
            cool_down: Duration::from_secs(2),
            ..AutoscalerRule::default()
        });
        let mut asks: Vec<_> = (0..60).map(|i| (i, i, 300, 40)).collect();
        asks.extend((0..20).map(|i| (8000 + i * 500, 100 + i, 100, 5)));
        let (notes, totals) = play(&settings(pool), requests(&asks));
        // WVA adds one worker at a time, and none while another worker has spare capacity.
        let most = if policy == AutoscalerPolicy::Wva { 2 } else { 6 };
        assert_eq!(totals.most_workers, most, "{policy:?}: {totals:?}");
        let gone = changes(&notes, WorkerChange::Gone);
        let started = changes(&notes, WorkerChange::Starting);
        let last = started.last().map_or(0, |(at, _)| *at);
        assert!(gone.iter().all(|(at, _)| *at >= last + 2_000), "{policy:?}: {gone:?}");
        assert!(!gone.is_empty(), "{policy:?}");
    }
}

#[test]
fn initial_workers_stay_until_stabilized() {
    let mut pool = PoolSpec::new(vllm(200), 4, RouterConfig::LeastLoaded);
    pool.scaling.rule = Some(AutoscalerRule {
        policy: AutoscalerPolicy::Keda,
        max: 4,
        target_waiting: Some(2.0),
        interval: Duration::from_millis(100),
        cool_down: Duration::from_secs(2),
        ..AutoscalerRule::default()
    });
    let asks: Vec<_> = (0..10).map(|i| (i * 500, i, 100, 5)).collect();
    let (notes, _) = play(&settings(pool), requests(&asks));
    let gone = changes(&notes, WorkerChange::Gone);
    assert_eq!(gone.len(), 3, "{gone:?}");
    assert!(gone.iter().all(|(at, _)| *at >= 2_000), "{gone:?}");
}

#[test]
fn requests_of_a_lost_worker_fail_and_a_new_worker_starts() {
    let mut pool = PoolSpec::new(vllm(400), 2, RouterConfig::RoundRobin);
    pool.startup = Duration::from_secs(2);
    pool.scaling.losses = vec![(SimTime::from_millis(500), 1)];
    let asks: Vec<_> = (0..40).map(|i| (i * 100, i, 100, 200)).collect();
    let (notes, _) = play(&settings(pool), requests(&asks));
    assert_eq!(changes(&notes, WorkerChange::Gone), [(500, 0)]);
    let ready = changes(&notes, WorkerChange::Ready);
    assert_eq!(ready, [(0, 0), (0, 1), (2500, 0)]);
    let (lost, kept): (Vec<SeenOutcome>, Vec<SeenOutcome>) =
        (notes.sorted().into_iter()).partition(|seen| seen.status == RequestStatus::Failed);
    // The lost worker had the first, third and fifth of six requests.
    let numbers: Vec<u64> = lost.iter().map(|seen| seen.number).collect();
    assert_eq!(numbers, [0, 2, 4]);
    assert!(lost.iter().all(|seen| seen.ended == 500_000_000));
    assert!(kept.iter().all(|seen| seen.status == RequestStatus::Completed));
    assert_eq!(lost.len() + kept.len(), 40);
}

#[test]
fn a_session_stays_on_the_worker_of_its_hash() {
    let pool = PoolSpec::new(vllm(400), 4, RouterConfig::SessionHash);
    let mut source = SyntheticWorkload {
        sessions: 40,
        input: TokenLengthDistribution::Constant(50),
        output: TokenLengthDistribution::Constant(2),
        turns: TokenLengthDistribution::Constant(3),
        arrivals: ArrivalProcess::Interval(5.0),
        ..SyntheticWorkload::default()
    }
    .into_source()
    .unwrap();
    let mut notes = RecordingSink::default();
    run_replay(&settings(pool), &mut source, &mut notes).unwrap();
    let mut homes = HashMap::new();
    for seen in notes.sorted() {
        let home = homes.entry(seen.session).or_insert(seen.worker);
        assert_eq!(*home, seen.worker);
    }
    let used: std::collections::BTreeSet<_> = homes.values().collect();
    assert_eq!(used.len(), 4);
}

#[test]
fn requests_wait_for_the_first_worker() {
    let mut pool = PoolSpec::new(vllm(400), 2, RouterConfig::RoundRobin);
    pool.startup = Duration::from_secs(3);
    pool.cold = true;
    let seen = play(&settings(pool), requests(&[(0, 1, 100, 3), (10, 2, 100, 3)]));
    let seen = seen.0.sorted();
    let waited: Vec<u64> = seen.iter().map(|seen| seen.queued_ns / 1_000_000).collect();
    assert_eq!(waited, [3000, 2990]);
}

#[test]
fn unequal_workers_take_their_engines_in_turn() {
    let mut pool = PoolSpec::new(vllm(400), 2, RouterConfig::RoundRobin);
    pool.engines = vec![slots(), vllm(400)];
    let seen = play(&settings(pool), requests(&[(0, 1, 100, 3), (0, 2, 100, 3)]));
    let seen = seen.0.sorted();
    let gap = |at: usize| seen[at].tokens[1] - seen[at].tokens[0];
    assert_eq!(gap(0), 3_000_000);
    assert_ne!(gap(1), 3_000_000);
}

/// Two prefill workers and two decode workers; a prompt token takes `fetch_ns` to transfer.
fn split(fetch_ns: u64, blocks: u32, router: &RouterConfig) -> ReplaySettings {
    let engine = SchedulerSpec::Mocker(Box::new(DynamoMockerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(20),
            decode: Duration::from_millis(5),
        },
        num_gpu_blocks: blocks,
        ..DynamoMockerConfig::default()
    }));
    let (before, after) = router.prefill_and_decode_routers();
    ReplaySettings {
        prefill: Some(PoolSpec {
            transfer: KvTransferTime {
                ns_per_token: fetch_ns as f64,
                whole: true,
                ..Default::default()
            },
            ..PoolSpec::new(engine.clone(), 2, before)
        }),
        ..settings(PoolSpec::new(engine, 2, after))
    }
}

#[test]
fn a_split_request_waits_for_prompt_transfer_and_one_decode() {
    let settings = split(2048, 400, &RouterConfig::RoundRobin);
    let seen = play(&settings, requests(&[(0, 1, 4096, 3)])).0.sorted();
    // 4096 tokens of 2048 ns each.
    let first = 20_000_000 + 8_388_608 + 5_000_000;
    let expected = [first, first + 5_000_000, first + 10_000_000];
    assert_eq!(seen[0].tokens, expected);
}

#[test]
fn pd_pools_lose_no_request_under_kv_pressure() {
    for router in routers() {
        let settings = split(100_000, 24, &router);
        let asks: Vec<_> = (0..80).map(|i| (i * 5, i % 7, 500, 12)).collect();
        let (notes, totals) = play(&settings, requests(&asks));
        assert_eq!(totals.requests, 80);
        let seen = notes.sorted();
        assert!(seen.iter().all(|seen| seen.status == RequestStatus::Completed));
        assert!(seen.iter().all(|seen| seen.tokens.len() == 12));
    }
}
