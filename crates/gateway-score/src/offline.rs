//! Simulates the workload behind well-known routers, in virtual time.

use anyhow::Result;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_replay::{
    ArrivalPacing, EndpointPickerConfig, EndpointScorer, KvAwareRouterConfig, PoolSpec,
    ReplaySettings, RouterConfig, WorkerScaling,
};

use super::gateway_run::GatewayRun;
use super::measure::{
    SCORE_MEASURES, ScoreMeasureValues, best_measure_values, gateway_score,
    score_measure_ratios_to_ideal, score_measures_of_run,
};
use super::workload::LoadedWorkload;

/// Values of the KV router's `prefill_load_scale` with which the oracle (the ideal router) is
/// simulated; the best of them counts.
const ORACLE_PREFILL_LOAD_SCALES: [f64; 7] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0];

pub(super) struct RouterCandidate {
    pub(super) name: &'static str,
    pub(super) play: GatewayRun,
    pub(super) values: ScoreMeasureValues,
}

pub(super) struct OfflineRouterSimulation<'a> {
    pub(super) workload: &'a LoadedWorkload,
    pub(super) engine: &'a SchedulerSpec,
    pub(super) pods: u32,
    /// Number of simulated pods over time, lower during faults.
    pub(super) scaling: WorkerScaling,
    pub(super) pace: ArrivalPacing,
    pub(super) limit: Option<SimTime>,
    pub(super) seed: u64,
}

impl RouterCandidate {
    /// Returns the pod index of each turn, as `[session][turn]`; `None` if a request was not
    /// placed.
    pub(super) fn pod_of_each_turn(&self, workload: &LoadedWorkload) -> Option<Vec<Vec<u32>>> {
        let turns = workload.sessions.iter().map(|s| vec![0; s.turns.len()]);
        let mut places: Vec<Vec<u32>> = turns.collect();
        for turn in &self.play.turns {
            let place = places.get_mut(usize::try_from(turn.session).ok()?)?;
            *place.get_mut(turn.turn as usize)? = u32::try_from(turn.pod?).ok()?;
        }
        Some(places)
    }
}

pub(super) fn best_router(policies: &[RouterCandidate]) -> Option<&RouterCandidate> {
    let all: Vec<ScoreMeasureValues> = policies.iter().map(|policy| policy.values).collect();
    let ideal = best_measure_values(&all, None);
    let scored = policies.iter().map(|policy| {
        (gateway_score(&score_measure_ratios_to_ideal(&policy.values, &ideal)), policy)
    });
    // Of equal scores, the first policy wins.
    let best = scored.rev().max_by(|a, b| a.0.unwrap_or(0.0).total_cmp(&b.0.unwrap_or(0.0)));
    best.map(|(_, policy)| policy)
}

impl OfflineRouterSimulation<'_> {
    /// Simulates the workload behind all known routers; the oracle comes first.
    ///
    /// # Errors
    /// Returns the errors of the simulated runs.
    pub(super) fn simulate_all_routers(&self) -> Result<Vec<RouterCandidate>> {
        let mut policies = vec![self.simulate_oracle_router()?];
        let with = |scorer, weight| {
            let mut config = EndpointPickerConfig::default();
            config.weights.push((scorer, weight));
            RouterConfig::Scorers(config)
        };
        let mut turns = self.workload.sessions.iter().flat_map(|s| &s.turns);
        if turns.any(|turn| turn.lora.is_some()) {
            policies.push(self.simulate_router("llm-d+lora", with(EndpointScorer::Lora, 1.0))?);
        }
        for (name, router) in [
            ("kv-aware", RouterConfig::Kv(KvAwareRouterConfig::default())),
            ("llm-d", RouterConfig::Scorers(EndpointPickerConfig::default())),
            ("llm-d+session", with(EndpointScorer::Session, 2.0)),
            ("session-hash", RouterConfig::SessionHash),
            ("least-loaded", RouterConfig::LeastLoaded),
            ("round-robin", RouterConfig::RoundRobin),
            ("random", RouterConfig::Random),
        ] {
            policies.push(self.simulate_router(name, router)?);
        }
        Ok(policies)
    }

    fn simulate_router(&self, name: &'static str, router: RouterConfig) -> Result<RouterCandidate> {
        let pool = PoolSpec {
            scaling: self.scaling.clone(),
            ..PoolSpec::new(self.engine.clone(), self.pods, router)
        };
        let settings = ReplaySettings {
            pace: self.pace,
            limit: self.limit,
            seed: self.seed,
            ..ReplaySettings::new(pool)
        };
        let mut play = GatewayRun::empty_gateway_run(self.pods as usize);
        vllm_sim_replay::run_replay(&settings, &mut self.workload.as_workload_source(), &mut play)?;
        let values = score_measures_of_run(&play, self.workload);
        Ok(RouterCandidate { name, play, values })
    }

    /// Simulates a KV router that always knows the current blocks and queues of all pods, for each
    /// of [`ORACLE_PREFILL_LOAD_SCALES`].
    ///
    /// Returns the run with the lowest mean TTFT, of equal ones that with the highest reuse.
    fn simulate_oracle_router(&self) -> Result<RouterCandidate> {
        let at = |name: &str| SCORE_MEASURES.iter().position(|m| m.name == name).unwrap_or(0);
        let (reuse, ttft) = (at("reuse"), at("ttft"));
        let rank = |policy: &RouterCandidate| {
            let values = &policy.values;
            (values[ttft].unwrap_or(f64::INFINITY), -values[reuse].unwrap_or(0.0))
        };
        let with = |weight: f64| {
            let config = KvAwareRouterConfig {
                prefill_load_scale: weight,
                ..KvAwareRouterConfig::default()
            };
            self.simulate_router("oracle", RouterConfig::Kv(config))
        };
        let mut best = with(ORACLE_PREFILL_LOAD_SCALES[0])?;
        for weight in &ORACLE_PREFILL_LOAD_SCALES[1..] {
            let other = with(*weight)?;
            if rank(&other) < rank(&best) {
                best = other;
            }
        }
        Ok(best)
    }
}
