use crate::{LoraId, SeqId};

/// Sequences that may pass one whose adapter finds no slot.
const PASSES: u32 = 16;

/// The slots of adapters, and whose turn it is to get one.
///
/// Like vLLM, which skips a sequence whose adapter is one too many and tries those behind it. There
/// they may pass for ever; here the first that was skipped is passed [`PASSES`] times, and then the
/// adapters that run drain until it fits.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    /// Those of this step.
    used: Vec<LoraId>,
    /// Those at hand, the least recently used first.
    loaded: Vec<LoraId>,
    /// The sequence that is passed, and how often it was.
    passed: Option<(SeqId, u32)>,
    /// The first sequence that this pass skipped.
    skipped: Option<SeqId>,
    /// Sequences that the last look at the queue skipped.
    pub(super) deferred: usize,
}

impl Adapters {
    /// Starts a step.
    pub(super) fn begin(&mut self) {
        self.used.clear();
        self.skipped = None;
    }

    /// Whether a waiting sequence with this adapter may run in this step.
    pub(super) fn admits(&mut self, lora: LoraId, id: SeqId, slots: usize) -> bool {
        let fits = self.used.len() < slots || self.used.contains(&lora);
        match self.skipped {
            None if !fits => {
                self.skipped = Some(id);
                if self.passed.is_none_or(|(first, _)| first != id) {
                    self.passed = Some((id, 0));
                }
                false
            }
            Some(_) if self.passed.is_some_and(|(_, times)| times >= PASSES) => false,
            _ => fits,
        }
    }

    /// A waiting sequence runs from this step on.
    pub(super) fn admitted(&mut self, lora: Option<LoraId>, id: SeqId) {
        match &mut self.passed {
            Some((first, _)) if *first == id => self.passed = None,
            Some((_, times)) if lora.is_some() && self.skipped.is_some() => *times += 1,
            _ => {}
        }
    }

    /// Uses an adapter in this step; whether it must be loaded first.
    pub(super) fn take(&mut self, lora: LoraId, kept: usize) -> bool {
        if self.used.contains(&lora) {
            return false;
        }
        self.used.push(lora);
        let at = self.loaded.iter().position(|&loaded| loaded == lora);
        match at {
            Some(at) => drop(self.loaded.remove(at)),
            None if self.loaded.len() >= kept => {
                // None of this step: those were put behind the others.
                self.loaded.remove(0);
            }
            None => {}
        }
        self.loaded.push(lora);
        at.is_none()
    }
}
