//! Tests that independent workers produce the same sink calls as the loop over all workers.

use super::*;
use vllm_sim_replay::outcome::{PoolRole, WorkerSample};

/// Hides that its sessions have one turn each, which disables the independent mode.
struct Hidden<S>(S);

impl<S: WorkloadSource> WorkloadSource for Hidden<S> {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        self.0.next_session()
    }
}

/// Records all calls of a sink, in order.
#[derive(Default)]
struct Calls(Vec<String>);

impl ReplaySink for Calls {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        self.0.push(format!("{outcome:?}"));
    }
    fn on_token_gaps(&mut self, nanos: u64, times: u64) {
        self.0.push(format!("{times} gaps of {nanos}"));
    }
    fn wants_token_times(&self) -> bool {
        true
    }
    fn on_worker_change(&mut self, at: SimTime, worker: u32, pool: PoolRole, change: WorkerChange) {
        self.0.push(format!("{at:?} {worker} {pool:?} {change:?}"));
    }
    fn on_worker_sample(&mut self, sample: &WorkerSample) {
        self.0.push(format!("{sample:?}"));
    }
}

fn workload(seed: u64, arrivals: ArrivalProcess) -> SyntheticWorkload {
    SyntheticWorkload {
        sessions: 700,
        input: "lognormal:300:400:1:6000".parse().unwrap(),
        output: TokenLengthDistribution::Uniform(0, 90),
        arrivals,
        arrival_seed: seed,
        seed,
        shared_prefix_ratio: 0.4,
        prefix_groups: 5,
        ..SyntheticWorkload::default()
    }
}

fn engines() -> [SchedulerSpec; 3] {
    let pressed = VllmSchedulerConfig {
        num_gpu_blocks: 260,
        max_num_seqs: 12,
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(20),
            decode: Duration::from_millis(5),
        },
        ..VllmSchedulerConfig::default()
    };
    [
        SchedulerSpec::Vllm(Box::new(pressed)),
        SchedulerSpec::Sglang(Box::default()),
        SchedulerSpec::Pool(Box::default()),
    ]
}

fn both(settings: &ReplaySettings, made: &SyntheticWorkload) -> [(Vec<String>, ReplayTotals); 2] {
    let mut alone = Calls::default();
    let mut source = made.clone().into_source().unwrap();
    assert!(source.facts().is_single_turn);
    let one_by_one = run_replay(settings, &mut source, &mut alone).unwrap();
    let mut together = Calls::default();
    let mut source = Hidden(made.clone().into_source().unwrap());
    let in_one_loop = run_replay(settings, &mut source, &mut together).unwrap();
    [(alone.0, one_by_one), (together.0, in_one_loop)]
}

#[test]
fn separate_workers_give_the_same_report_as_the_event_loop() {
    let (mut preempted, mut rejected, mut incomplete) = (false, false, false);
    for (seed, engine) in (0u64..).zip(engines().into_iter().cycle().take(12)) {
        let router = match seed % 4 {
            0 | 1 => RouterConfig::RoundRobin,
            2 => RouterConfig::Random,
            _ => RouterConfig::SessionHash,
        };
        let arrivals = match seed % 5 {
            0 => ArrivalProcess::Burst,
            // Many requests, step ends and samples coincide.
            1 => ArrivalProcess::Interval(5.0),
            _ => ArrivalProcess::Poisson(90.0),
        };
        let mut settings = settings(PoolSpec::new(engine, 5, router));
        settings.threads = 1 + seed as usize % 3;
        settings.sample_every = (seed % 2 == 0).then(|| Duration::from_millis(35));
        settings.limit = (seed % 3 == 0).then(|| SimTime::from_millis(2_300));
        settings.pace.speedup = 1.0 + (seed % 2) as f64 * 0.7;
        let [alone, together] = both(&settings, &workload(seed, arrivals));
        let first = (alone.0.iter().zip(&together.0)).position(|(a, b)| a != b);
        let differs = first.map(|at| (at, &alone.0[at], &together.0[at]));
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(alone.0.len(), together.0.len(), "seed {seed}");
        assert_eq!(alone.1, together.1, "seed {seed}");
        let has = |word: &str| alone.0.iter().any(|call| call.contains(word));
        preempted |= alone.1.preemptions > 0;
        rejected |= has("status: Rejected");
        incomplete |= has("status: Incomplete");
    }
    assert!(preempted && rejected && incomplete);
}
