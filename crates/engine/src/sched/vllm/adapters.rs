use crate::{LoraId, SeqId};

/// Maximum number of sequences that may overtake one whose LoRA adapter has no slot.
const MAX_ADAPTER_OVERTAKES: u32 = 16;

/// Assigns LoRA adapter slots to waiting sequences.
///
/// As in vLLM, a sequence whose adapter exceeds the limit is skipped and later ones are tried. vLLM
/// lets them overtake forever. Here at most [`MAX_ADAPTER_OVERTAKES`] sequences overtake the first skipped
/// one; then running adapters drain until its adapter fits.
#[derive(Debug, Default)]
pub(super) struct LoraSlots {
    used: Vec<LoraId>,
    loaded: Vec<LoraId>,
    /// First sequence skipped for its adapter, and the number of sequences that overtook it.
    passed: Option<(SeqId, u32)>,
    skipped: Option<SeqId>,
    /// Number of sequences skipped for their adapters in the last pass over the queue.
    pub(super) deferred: usize,
}

impl LoraSlots {
    pub(super) fn begin_pass(&mut self) {
        self.used.clear();
        self.skipped = None;
    }

    pub(super) fn admits_lora(&mut self, lora: LoraId, id: SeqId, slots: usize) -> bool {
        let fits = self.used.len() < slots || self.used.contains(&lora);
        match self.skipped {
            None if !fits => {
                self.skipped = Some(id);
                if self.passed.is_none_or(|(first, _)| first != id) {
                    self.passed = Some((id, 0));
                }
                false
            }
            Some(_) if self.passed.is_some_and(|(_, times)| times >= MAX_ADAPTER_OVERTAKES) => {
                false
            }
            _ => fits,
        }
    }

    pub(super) fn record_admission(&mut self, lora: Option<LoraId>, id: SeqId) {
        match &mut self.passed {
            Some((first, _)) if *first == id => self.passed = None,
            Some((_, times)) if lora.is_some() && self.skipped.is_some() => *times += 1,
            _ => {}
        }
    }

    /// Marks an adapter as used in this step. Returns true if it must be loaded first.
    pub(super) fn use_lora(&mut self, lora: LoraId, kept: usize) -> bool {
        if self.used.contains(&lora) {
            return false;
        }
        self.used.push(lora);
        let at = self.loaded.iter().position(|&loaded| loaded == lora);
        match at {
            Some(at) => drop(self.loaded.remove(at)),
            None if self.loaded.len() >= kept => {
                // Adapters of this step are at the back of the list.
                self.loaded.remove(0);
            }
            None => {}
        }
        self.loaded.push(lora);
        at.is_none()
    }
}
