use std::sync::Arc;

use crate::workload::{ClientSession, WorkloadError, WorkloadFacts, WorkloadSource};
use vllm_sim_random::mix_u64_pair;

/// Assigns LoRA adapters to some sessions of another workload.
#[derive(Debug)]
pub struct LoraAdapterSource<S> {
    source: S,
    names: Vec<Arc<str>>,
    share: f64,
    seed: u64,
    given: u64,
}

impl<S: WorkloadSource> LoraAdapterSource<S> {
    /// Assigns a random LoRA adapter to a fraction `adapter_share` (0 to 1) of the sessions of
    /// `source`.
    ///
    /// Each adapter is equally likely.
    pub fn new(source: S, adapter_names: &[String], adapter_share: f64, seed: u64) -> Self {
        Self {
            source,
            names: adapter_names.iter().map(|name| name.as_str().into()).collect(),
            share: adapter_share,
            seed,
            given: 0,
        }
    }

    fn draw_adapter(&self, session: u64) -> Option<Arc<str>> {
        let draw = mix_u64_pair(mix_u64_pair(self.seed, u64::from(u32::MAX)), session);
        let unit = (draw >> 11) as f64 / (1u64 << 53) as f64;
        let which = mix_u64_pair(draw, 1) % (self.names.len() as u64).max(1);
        let name = self.names.get(usize::try_from(which).ok()?)?;
        (unit < self.share).then(|| name.clone())
    }
}

impl<S: WorkloadSource> WorkloadSource for LoraAdapterSource<S> {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        let Some(mut session) = self.source.next_session()? else {
            return Ok(None);
        };
        let adapter = self.draw_adapter(self.given);
        self.given += 1;
        if adapter.is_some() {
            for turn in &mut session.turns {
                turn.lora.clone_from(&adapter);
            }
        }
        Ok(Some(session))
    }

    fn facts(&self) -> WorkloadFacts {
        self.source.facts()
    }
}
