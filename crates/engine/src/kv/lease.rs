use std::collections::BTreeMap;
use std::time::Duration;

use super::{BlockPool, BlockTable};
use crate::SeqId;
use crate::{SimTime, TimerQueue};

/// Blocks of ended sequences that wait for another engine to read them.
///
/// They count as used until the reader lets go of them or the lease runs out.
/// Source: `request_finished` of `vllm/distributed/kv_transfer/kv_connector/v1/nixl/
/// pull_scheduler.py`, 0.33.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    tables: BTreeMap<SeqId, BlockTable>,
    ends: TimerQueue<SeqId>,
}

impl Leases {
    /// Keeps the blocks of a sequence from `now` for `term`; their numbers, in the order of its
    /// tokens.
    pub(crate) fn hold(
        &mut self,
        now: SimTime,
        term: Duration,
        id: SeqId,
        table: BlockTable,
    ) -> Box<[u32]> {
        let ids = table.ids().into();
        self.tables.insert(id, table);
        self.ends.set(now + term, id);
        ids
    }

    /// Gives the blocks of a sequence back; false when they were no longer held.
    pub(crate) fn release(&mut self, id: SeqId, pool: &mut BlockPool) -> bool {
        let table = self.tables.remove(&id);
        if let Some(mut table) = table {
            pool.release(&mut table);
            return true;
        }
        false
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Whether blocks of this sequence are held.
    pub(crate) fn holds(&self, id: SeqId) -> bool {
        self.tables.contains_key(&id)
    }

    /// When the next lease may run out.
    pub(crate) fn next_due(&self) -> Option<SimTime> {
        self.ends.next_due()
    }

    /// Ends the first lease that runs out at or before `now`: when it did, if blocks came back.
    pub(crate) fn expire(&mut self, now: SimTime, pool: &mut BlockPool) -> Option<(SimTime, bool)> {
        let (at, id) = self.ends.pop_due(now)?;
        Some((at, self.release(id, pool)))
    }
}
