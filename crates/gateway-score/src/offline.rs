//! Simulates the workload behind well-known routers, in virtual time.

use anyhow::Result;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_replay::{
    ArrivalPacing, KvConfig, PoolSpec, RouterConfig, Scaling, Scorer, ScorersConfig, Settings,
};

use super::gateway_run::GatewayRun;
use super::measure::{MEASURES, Values, ideal, measured, score, shares};
use super::workload::Workload;

/// Values of the KV router's `prefill_load_scale` from which the oracle chooses the best.
const WEIGHTS: [f64; 7] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0];

pub(super) struct RouterCandidate {
    pub(super) name: &'static str,
    pub(super) play: GatewayRun,
    pub(super) values: Values,
}

pub(super) struct OfflineSetup<'a> {
    pub(super) workload: &'a Workload,
    pub(super) engine: &'a EngineSpec,
    pub(super) pods: u32,
    /// Number of simulated pods over time, lower during faults.
    pub(super) scaling: Scaling,
    pub(super) pace: ArrivalPacing,
    pub(super) limit: Option<SimTime>,
    pub(super) seed: u64,
}

impl RouterCandidate {
    /// Returns the pod index of each turn, as `[session][turn]`; `None` if a request was not
    /// placed.
    pub(super) fn placement(&self, workload: &Workload) -> Option<Vec<Vec<u32>>> {
        let turns = workload.sessions.iter().map(|s| vec![0; s.turns.len()]);
        let mut places: Vec<Vec<u32>> = turns.collect();
        for turn in &self.play.turns {
            let place = places.get_mut(usize::try_from(turn.session).ok()?)?;
            *place.get_mut(turn.turn as usize)? = u32::try_from(turn.pod?).ok()?;
        }
        Some(places)
    }
}

pub(super) fn best(policies: &[RouterCandidate]) -> Option<&RouterCandidate> {
    let all: Vec<Values> = policies.iter().map(|policy| policy.values).collect();
    let ideal = ideal(&all, None);
    let scored = policies
        .iter()
        .map(|policy| (score(&shares(&policy.values, &ideal)), policy));
    // Of equal scores, the first policy wins.
    let best = scored
        .rev()
        .max_by(|a, b| a.0.unwrap_or(0.0).total_cmp(&b.0.unwrap_or(0.0)));
    best.map(|(_, policy)| policy)
}

impl OfflineSetup<'_> {
    /// Simulates the workload behind all known routers; the oracle comes first.
    ///
    /// # Errors
    /// Returns the errors of the simulated runs.
    pub(super) fn policies(&self) -> Result<Vec<RouterCandidate>> {
        let mut policies = vec![self.oracle()?];
        let with = |scorer, weight| {
            let mut config = ScorersConfig::default();
            config.weights.push((scorer, weight));
            RouterConfig::Scorers(config)
        };
        let mut turns = self.workload.sessions.iter().flat_map(|s| &s.turns);
        if turns.any(|turn| turn.lora.is_some()) {
            policies.push(self.play("llm-d+lora", with(Scorer::Lora, 1.0))?);
        }
        for (name, router) in [
            ("kv-aware", RouterConfig::Kv(KvConfig::default())),
            ("llm-d", RouterConfig::Scorers(ScorersConfig::default())),
            ("llm-d+session", with(Scorer::Session, 2.0)),
            ("session-hash", RouterConfig::SessionHash),
            ("least-loaded", RouterConfig::LeastLoaded),
            ("round-robin", RouterConfig::RoundRobin),
            ("random", RouterConfig::Random),
        ] {
            policies.push(self.play(name, router)?);
        }
        Ok(policies)
    }

    fn play(&self, name: &'static str, router: RouterConfig) -> Result<RouterCandidate> {
        let pool = PoolSpec {
            scaling: self.scaling.clone(),
            ..PoolSpec::new(self.engine.clone(), self.pods, router)
        };
        let settings = Settings {
            pace: self.pace,
            limit: self.limit,
            seed: self.seed,
            ..Settings::new(pool)
        };
        let mut play = GatewayRun::of(self.pods as usize);
        vllm_sim_replay::run(&settings, &mut self.workload.playback(), &mut play)?;
        let values = measured(&play, self.workload);
        Ok(RouterCandidate { name, play, values })
    }

    /// Simulates a KV router with current knowledge of all blocks and queues, for each of
    /// [`WEIGHTS`].
    ///
    /// Returns the run with the lowest mean TTFT, of equal ones that with the highest reuse.
    fn oracle(&self) -> Result<RouterCandidate> {
        let at = |name: &str| MEASURES.iter().position(|m| m.name == name).unwrap_or(0);
        let (reuse, ttft) = (at("reuse"), at("ttft"));
        let rank = |policy: &RouterCandidate| {
            let values = &policy.values;
            (
                values[ttft].unwrap_or(f64::INFINITY),
                -values[reuse].unwrap_or(0.0),
            )
        };
        let with = |weight: f64| {
            let config = KvConfig {
                prefill_load_scale: weight,
                ..KvConfig::default()
            };
            self.play("oracle", RouterConfig::Kv(config))
        };
        let mut best = with(WEIGHTS[0])?;
        for weight in &WEIGHTS[1..] {
            let other = with(*weight)?;
            if rank(&other) < rank(&best) {
                best = other;
            }
        }
        Ok(best)
    }
}
