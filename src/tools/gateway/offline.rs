//! The same workload behind routers that are known, in virtual time.

use anyhow::Result;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_replay::{KvConfig, Pace, PoolSpec, RouterConfig, Scaling, ScorersConfig, Settings};

use super::measure::{MEASURES, Values, measured};
use super::play::Play;
use super::workload::Workload;

/// Weights of prefill against decode among which the oracle chooses in hindsight.
const WEIGHTS: [f64; 7] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0];

/// A router that was played, and what is measured of it.
pub(super) struct Policy {
    pub(super) name: &'static str,
    pub(super) play: Play,
    pub(super) values: Values,
}

/// What every router is played against.
pub(super) struct Field<'a> {
    pub(super) workload: &'a Workload,
    pub(super) engine: &'a EngineSpec,
    pub(super) pods: u32,
    /// When there are fewer of them.
    pub(super) scaling: Scaling,
    pub(super) pace: Pace,
    pub(super) limit: Option<SimTime>,
    pub(super) seed: u64,
}

impl Field<'_> {
    /// Plays all routers; the oracle comes first.
    ///
    /// # Errors
    /// Those of a replay.
    pub(super) fn policies(&self) -> Result<Vec<Policy>> {
        let mut policies = vec![self.oracle()?];
        for (name, router) in [
            ("kv-aware", RouterConfig::Kv(KvConfig::default())),
            ("llm-d", RouterConfig::Scorers(ScorersConfig::default())),
            ("least-loaded", RouterConfig::LeastLoaded),
            ("round-robin", RouterConfig::RoundRobin),
            ("random", RouterConfig::Random),
        ] {
            policies.push(self.play(name, router)?);
        }
        Ok(policies)
    }

    fn play(&self, name: &'static str, router: RouterConfig) -> Result<Policy> {
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
        let mut play = Play::of(self.pods as usize);
        vllm_sim_replay::run(&settings, &mut self.workload.playback(), &mut play)?;
        let values = measured(&play, self.workload);
        Ok(Policy { name, play, values })
    }

    /// Knows every block and every queue at once, and which weights suit this workload best: those
    /// with the least mean time to the first token, of equals those with the most reuse.
    fn oracle(&self) -> Result<Policy> {
        let at = |name: &str| MEASURES.iter().position(|m| m.name == name).unwrap_or(0);
        let (reuse, ttft) = (at("reuse"), at("ttft"));
        let rank = |policy: &Policy| {
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
