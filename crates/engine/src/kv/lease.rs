use std::collections::BTreeMap;
use std::time::Duration;

use super::{BlockPool, BlockTable};
use crate::SeqId;
use crate::{SimTime, TimerQueue};

/// Holds the KV blocks of finished prefills until another engine has read them.
///
/// The blocks count as used until the reader releases them or the lease expires.
///
/// **Source:** `request_finished` of
/// `vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py`, 0.33.
#[derive(Debug, Default)]
pub(crate) struct PrefillBlockLeases {
    tables: BTreeMap<SeqId, BlockTable>,
    ends: TimerQueue<SeqId>,
}

impl PrefillBlockLeases {
    /// Keeps the KV blocks of a finished prefill for the duration `term` from `now`. Returns their
    /// ids in token order.
    pub(crate) fn lease_blocks(
        &mut self,
        now: SimTime,
        term: Duration,
        id: SeqId,
        table: BlockTable,
    ) -> Box<[u32]> {
        let ids = table.block_ids().into();
        self.tables.insert(id, table);
        self.ends.schedule_item(now + term, id);
        ids
    }

    pub(crate) fn free_leased_blocks(&mut self, id: SeqId, pool: &mut BlockPool) -> bool {
        let table = self.tables.remove(&id);
        if let Some(mut table) = table {
            pool.release_block_table(&mut table);
            return true;
        }
        false
    }

    /// Ends the lease of a sequence's KV blocks at `now`; the next expiry of leases frees the
    /// blocks.
    pub(crate) fn schedule_lease_expiry(&mut self, id: SeqId, now: SimTime) {
        if self.has_lease(id) {
            self.ends.schedule_item(now, id);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    pub(crate) fn has_lease(&self, id: SeqId) -> bool {
        self.tables.contains_key(&id)
    }

    pub(crate) fn next_lease_expiry(&self) -> Option<SimTime> {
        self.ends.next_due_time()
    }

    /// Ends the first lease of KV blocks that expires by `now`. Returns when the lease expired, and
    /// whether blocks were freed.
    pub(crate) fn expire_next_lease(
        &mut self,
        now: SimTime,
        pool: &mut BlockPool,
    ) -> Option<(SimTime, bool)> {
        let (at, id) = self.ends.pop_due_item(now)?;
        Some((at, self.free_leased_blocks(id, pool)))
    }
}
