use crate::LoraId;

/// Assigns LoRA adapter slots to waiting sequences.
///
/// As in vLLM, a sequence whose adapter exceeds the limit is skipped, and later ones may overtake
/// it any number of times.
#[derive(Debug, Default)]
pub(super) struct LoraSlots {
    /// Ids of the LoRA adapters of running sequences and of sequences admitted in this scheduling
    /// pass.
    batch: Vec<LoraId>,
    used: Vec<LoraId>,
    loaded: Vec<LoraId>,
    /// Number of sequences skipped for their LoRA adapters in the last pass over the waiting queue.
    pub(super) deferred: usize,
}

impl LoraSlots {
    pub(super) fn begin_scheduling_pass(&mut self) {
        self.used.clear();
    }

    /// Begins admissions to a batch whose running sequences use the LoRA adapters `running`.
    /// Sequences whose last step is in flight are still part of the batch.
    pub(super) fn begin_lora_admissions(&mut self, running: impl Iterator<Item = LoraId>) {
        self.batch.clear();
        running.for_each(|lora| self.record_lora_admission(Some(lora)));
    }

    pub(super) fn admits_lora(&self, lora: LoraId, max_loras: usize) -> bool {
        self.batch.len() < max_loras || self.batch.contains(&lora)
    }

    pub(super) fn record_lora_admission(&mut self, lora: Option<LoraId>) {
        if let Some(lora) = lora.filter(|lora| !self.batch.contains(lora)) {
            self.batch.push(lora);
        }
    }

    /// Marks a LoRA adapter as used in this step. Returns true if the adapter must be loaded first.
    pub(super) fn mark_lora_used(&mut self, lora: LoraId, max_loaded: usize) -> bool {
        if self.used.contains(&lora) {
            return false;
        }
        self.used.push(lora);
        let at = self.loaded.iter().position(|&loaded| loaded == lora);
        match at {
            Some(at) => drop(self.loaded.remove(at)),
            None if self.loaded.len() >= max_loaded => {
                // Adapters of this step are at the back of the list.
                self.loaded.remove(0);
            }
            None => {}
        }
        self.loaded.push(lora);
        at.is_none()
    }
}
