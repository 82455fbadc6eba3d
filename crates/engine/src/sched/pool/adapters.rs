use std::collections::HashMap;
use std::time::Duration;

use crate::{LoraId, SimTime};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoraSlotFit {
    Ready,
    /// The LoRA adapter can be loaded, if necessary in place of an unused adapter.
    Loadable,
    No,
}

#[derive(Debug)]
pub(super) struct LoraAdapterSlots {
    /// Maximum number of loaded LoRA adapters; `None`: no limit and no load time.
    max: Option<usize>,
    load_time: Duration,
    loaded: HashMap<LoraId, LoadedAdapter>,
}

#[derive(Debug, Clone, Copy)]
struct LoadedAdapter {
    users: u32,
    last_used: SimTime,
}

impl LoraAdapterSlots {
    pub(super) fn new(max_adapters: Option<usize>, load_time: Duration) -> Self {
        Self { max: max_adapters, load_time, loaded: HashMap::new() }
    }

    pub(super) fn slot_fit(&self, lora: LoraId) -> LoraSlotFit {
        match self.max {
            Some(max) if !self.loaded.contains_key(&lora) => {
                let has_room =
                    self.loaded.len() < max || self.loaded.values().any(|a| a.users == 0);
                if has_room { LoraSlotFit::Loadable } else { LoraSlotFit::No }
            }
            _ => LoraSlotFit::Ready,
        }
    }

    /// Marks a LoRA adapter as used by one more sequence, and returns the time until it is loaded.
    pub(super) fn take_adapter_slot(&mut self, now: SimTime, lora: Option<LoraId>) -> Duration {
        let (Some(lora), Some(max)) = (lora, self.max) else {
            return Duration::ZERO;
        };
        if let Some(adapter) = self.loaded.get_mut(&lora) {
            adapter.users += 1;
            return Duration::ZERO;
        }
        if self.loaded.len() >= max {
            let idle = self.loaded.iter().filter(|(_, a)| a.users == 0);
            let oldest = idle.min_by_key(|(id, a)| (a.last_used, **id));
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.loaded.remove(&oldest);
            }
        }
        let adapter = LoadedAdapter { users: 1, last_used: now };
        self.loaded.insert(lora, adapter);
        self.load_time
    }

    pub(super) fn release_adapter_slot(&mut self, now: SimTime, lora: Option<LoraId>) {
        if let Some(adapter) = lora.and_then(|lora| self.loaded.get_mut(&lora)) {
            adapter.users = adapter.users.saturating_sub(1);
            adapter.last_used = now;
        }
    }
}
