//! What the mocker's scheduler knows of the memory of its host.

use std::collections::{HashMap, HashSet};

use crate::kv::{CopyId, MockerTier, MockerTierConfig};
use crate::{SeqId, SimTime};

/// What the mocker's scheduler knows of its tier.
#[derive(Debug)]
pub(super) struct MockerOffload {
    pub tier: MockerTier,
    pub seqs: HashMap<SeqId, OffloadedSequence>,
    /// Sequences that are not tried until a copy ends.
    pub asleep: HashSet<SeqId>,
    /// Requests that were made to wait, for their order.
    pub waited: i64,
    /// No pass computes before then: what it writes to is still being read.
    pub compute_after: SimTime,
}

/// What it knows of a sequence.
#[derive(Debug, Default)]
pub(super) struct OffloadedSequence {
    /// Blocks of its prompt that were offered, or loaded.
    pub offered: u32,
    pub store: Option<CopyId>,
    pub load: Option<CopyId>,
    /// Blocks that a load covers, those on the GPU before it included, and all that it has: until it runs.
    pub loaded: Option<(u32, u32)>,
}

impl MockerOffload {
    pub(super) fn new(config: MockerTierConfig) -> Self {
        Self {
            tier: MockerTier::new(config),
            seqs: HashMap::new(),
            asleep: HashSet::new(),
            waited: 0,
            compute_after: SimTime::ZERO,
        }
    }

    /// When the next copy ends.
    pub(super) fn next_due(&self) -> Option<SimTime> {
        self.tier.next_due()
    }

    /// Blocks that requests with a load lack for the rest.
    pub(super) fn owed(&self) -> u32 {
        let loads = self.seqs.values().filter_map(|seq| seq.loaded);
        loads.map(|(loaded, all)| all.saturating_sub(loaded)).sum()
    }
}
