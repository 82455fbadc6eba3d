//! Maps KV block keys to node numbers of the router's block index.

/// Open-addressing hash table from KV block keys to nodes of the block index: eight bytes per slot,
/// at most half full, without tombstones.
///
/// Blocks are inserted and removed all the time, and this table is the router's largest random
/// access. The nodes store the keys.
#[derive(Debug, Default)]
pub(super) struct BlockKeyTable {
    slots: Vec<KeySlot>,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct KeySlot {
    hash: u32,
    node: u32,
}

const EMPTY: KeySlot = KeySlot { hash: 0, node: u32::MAX };

impl KeySlot {
    fn is_empty(self) -> bool {
        self.node == EMPTY.node
    }
}

impl BlockKeyTable {
    /// Returns the index node of a block key; `is_key_of_node` tests whether the key belongs to a
    /// node.
    pub(super) fn find_block_node(
        &self,
        key: u64,
        is_key_of_node: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        self.probe(hash(key), is_key_of_node).ok()
    }

    /// Returns the node in the home slot of a block key, which usually is the key's own node; used
    /// to read nodes ahead.
    pub(super) fn block_node_in_home_slot(&self, key: u64) -> Option<u32> {
        let slot = self.slots.get(self.home_slot(hash(key)))?;
        Some(slot.node).filter(|_| !slot.is_empty())
    }

    /// Returns the node of a block key. If there is none, returns the free slot for the key, which
    /// must be filled by [`BlockKeyTable::fill_slot`] first.
    pub(super) fn find_node_or_free_slot(
        &mut self,
        key: u64,
        is_key_of_node: impl Fn(u32) -> bool,
    ) -> Result<u32, usize> {
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        self.probe(hash(key), is_key_of_node)
    }

    pub(super) fn fill_slot(&mut self, slot: usize, key: u64, node: u32) {
        let hash = hash(key);
        self.slots[slot] = KeySlot { hash, node };
        self.len += 1;
    }

    /// Removes an index node from the table by backward-shift deletion.
    ///
    /// Moves later entries of the probe sequence into the gap, so lookups need no tombstones.
    pub(super) fn remove_block_node(&mut self, key: u64, node: u32) {
        let mask = self.slots.len() - 1;
        let mut hole = self.home_slot(hash(key));
        while self.slots[hole].node != node {
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.is_empty() {
                break;
            }
            let home = self.home_slot(slot.hash);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
        self.len -= 1;
    }

    pub(super) fn block_node_indices(&self) -> Vec<u32> {
        let filled = self.slots.iter().filter(|slot| !slot.is_empty());
        filled.map(|slot| slot.node).collect()
    }

    fn probe(&self, hash: u32, is: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.home_slot(hash);
        loop {
            let slot = self.slots[at];
            if slot.is_empty() {
                return Err(at);
            }
            if slot.hash == hash && is(slot.node) {
                return Ok(slot.node);
            }
            at = (at + 1) & mask;
        }
    }

    fn home_slot(&self, hash: u32) -> usize {
        // The high bits of the hash select the slot.
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    fn grow(&mut self) {
        let slots = (2 * self.slots.len()).max(16);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots]);
        for slot in old.into_iter().filter(|slot| !slot.is_empty()) {
            if let Err(at) = self.probe(slot.hash, |_| false) {
                self.slots[at] = slot;
            }
        }
    }
}

/// Hashes a block key. Real keys are hashes already; the multiplication is for the keys of tests.
fn hash(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use vllm_sim_random::{DrawRandom, RandomStreamPurpose, request_rng};

    use super::*;

    #[test]
    fn key_table_behaves_like_hash_map() {
        let mut table = BlockKeyTable::default();
        let mut keys: Vec<u64> = Vec::new();
        let mut model: BTreeMap<u64, u32> = BTreeMap::new();
        let mut draws = request_rng(1, 2, RandomStreamPurpose::Workload);
        for _ in 0..20_000 {
            let key = draws.draw_u64_between(0, 400);
            let found = table.find_block_node(key, |node| keys[node as usize] == key);
            assert_eq!(found, model.get(&key).copied(), "{key}");
            match found {
                Some(node) => {
                    table.remove_block_node(key, node);
                    model.remove(&key);
                }
                None => {
                    let slot = table.find_node_or_free_slot(key, |node| keys[node as usize] == key);
                    let node = keys.len() as u32;
                    keys.push(key);
                    table.fill_slot(slot.expect_err("it is not there"), key, node);
                    model.insert(key, node);
                }
            }
            assert_eq!(table.len, model.len());
        }
        let (mut nodes, mut expected) =
            (table.block_node_indices(), Vec::from_iter(model.into_values()));
        nodes.sort_unstable();
        expected.sort_unstable();
        assert_eq!(nodes, expected);
    }
}
