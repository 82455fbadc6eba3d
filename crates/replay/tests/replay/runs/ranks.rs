//! Tests workers with several data-parallel ranks, which step together.

use super::*;

/// Two ranks behind a round-robin router: a prefill step takes 10 ms, a decode step 1 ms.
fn two_ranks(async_scheduling: bool) -> PoolSpec {
    let engine = SchedulerSpec::Vllm(Box::new(VllmSchedulerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(1),
        },
        async_scheduling,
        ..VllmSchedulerConfig::default()
    }));
    PoolSpec { ranks: 2, ..PoolSpec::new(engine, 2, RouterConfig::RoundRobin) }
}

fn token_ms(notes: RecordingSink) -> Vec<Vec<u64>> {
    let seen = notes.sorted();
    let ms = |seen: SeenOutcome| seen.tokens.iter().map(|at| at / 1_000_000).collect();
    seen.into_iter().map(ms).collect()
}

#[test]
fn a_prompt_on_one_rank_delays_the_decode_of_the_other_by_its_step() {
    let asks = [(0, 0, 16, 6), (11, 1, 16, 2)];
    let (notes, totals) = play(&settings(two_ranks(false)), requests(&asks));
    assert_eq!(token_ms(notes), [vec![10, 11, 21, 22, 23, 24], vec![21, 22]]);
    assert_eq!(totals.worker_seconds, 2.0 * 0.024, "dummy steps do not count");
}

#[test]
fn with_async_scheduling_a_prompt_joins_while_the_other_rank_continues() {
    let asks = [(0, 0, 16, 400), (11, 1, 16, 2)];
    let (notes, _) = play(&settings(two_ranks(true)), requests(&asks));
    let tokens = token_ms(notes);
    // The request arrives after the step to 11 ms has ended and that to 12 ms was scheduled.
    assert_eq!(tokens[1], [22, 23]);
    assert_eq!(tokens[0][..6], [10, 11, 12, 22, 23, 24]);
}

#[test]
fn lockstep_ranks_are_not_run_in_parallel() {
    let workload = || chats(40).into_source().unwrap();
    let mut pool = PoolSpec::new(vllm(60), 4, RouterConfig::RoundRobin);
    pool.ranks = 2;
    let (together, _) = play(&settings(pool.clone()), workload());
    let (again, _) = play(&settings(pool.clone()), workload());
    let together = together.sorted();
    assert_eq!(together, again.sorted());
    assert!(together.iter().all(|seen| seen.status == RequestStatus::Completed));
    pool.ranks = 1;
    assert_ne!(together, play(&settings(pool), workload()).0.sorted());
}

#[test]
fn pd_pools_run_ranks_in_lockstep() {
    let prefill = two_ranks(false);
    let settings = ReplaySettings { prefill: Some(prefill.clone()), ..settings(prefill) };
    // Each prompt is computed on one rank of the first pool and decoded on one of the second, where
    // its last token is recomputed as a decode. The ranks run a dummy step of 1 ms while a prompt is
    // transferred, even if that takes no time.
    let asks = [(0, 0, 16, 4), (5, 1, 16, 3)];
    let (notes, totals) = play(&settings, requests(&asks));
    assert_eq!(token_ms(notes), [vec![12, 13, 14, 15], vec![22, 23, 24]]);
    assert_eq!(totals.requests, 2);
}
