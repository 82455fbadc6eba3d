use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::arc::{ArcEvictionPolicy, HostChunkUse};
use crate::{BlockKey, SeqId};

/// Eviction order of a chunk of KV blocks; the lower value is evicted first. Orders by last use,
/// then by position in the prompt, so that the end of a prompt is evicted before its start.
pub(super) type ChunkRecency = (u64, Reverse<u32>);

/// Identifies a chunk of KV blocks in KV events: index of its layer group, and key of its last
/// block.
pub(super) type ChunkEventId = (u32, BlockKey);

/// Holds the chunks of KV blocks of a [`HostCache`](super::HostCache), their copies and their
/// eviction order.
#[derive(Debug)]
pub(super) struct HostChunks {
    capacity: u32,
    index: HashMap<BlockKey, u32>,
    /// Chunks of KV blocks by chunk id; free entries keep their allocation.
    chunks: Vec<HostChunk>,
    free: Vec<u32>,
    /// Chunks of KV blocks without a copy in progress, the least recently used first.
    evictable: BTreeSet<(ChunkRecency, u32)>,
    pub(super) arc: Option<Box<ArcEvictionPolicy>>,
    /// Number of chunks of KV blocks being written to host memory; `loading` is the number of reads
    /// of chunks in progress.
    pub(super) storing: u32,
    pub(super) loading: u32,
}

#[derive(Debug)]
struct HostChunk {
    key: BlockKey,
    name: ChunkEventId,
    hash: Option<[u8; 32]>,
    recency: ChunkRecency,
    reads: u32,
    storing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostChunkState {
    Ready,
    Storing,
    Loading,
}

impl HostChunks {
    pub(super) fn with_chunk_capacity(
        capacity_chunks: u32,
        arc_policy: Option<Box<ArcEvictionPolicy>>,
    ) -> Self {
        Self {
            capacity: capacity_chunks,
            index: HashMap::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            evictable: BTreeSet::new(),
            arc: arc_policy,
            storing: 0,
            loading: 0,
        }
    }

    pub(super) fn chunk_count(&self) -> u32 {
        (self.chunks.len() - self.free.len()) as u32
    }

    pub(super) fn chunk_event_ids(&self) -> impl Iterator<Item = ChunkEventId> {
        self.index.values().map(|&id| self.chunks[id as usize].name)
    }

    pub(super) fn find_chunk(&self, key: BlockKey) -> Option<u32> {
        self.index.get(&key).copied()
    }

    pub(super) fn chunk_key(&self, id: u32) -> BlockKey {
        self.chunks[id as usize].key
    }

    pub(super) fn chunk_state(&self, id: u32) -> HostChunkState {
        let chunk = &self.chunks[id as usize];
        match (chunk.storing, chunk.reads) {
            (true, _) => HostChunkState::Storing,
            (false, 0) => HostChunkState::Ready,
            (false, _) => HostChunkState::Loading,
        }
    }

    /// Raises the recency of a chunk of KV blocks to `recency`, unless the chunk's recency is
    /// already higher.
    pub(super) fn touch_chunk(&mut self, id: u32, recency: ChunkRecency) {
        let before = self.chunks[id as usize].recency;
        if before >= recency {
            return;
        }
        self.chunks[id as usize].recency = recency;
        if self.evictable.remove(&(before, id)) {
            self.evictable.insert((recency, id));
        }
    }

    pub(super) fn free_chunk_count(&self) -> u32 {
        self.capacity - self.chunk_count()
    }

    pub(super) fn choose_chunks_to_evict(&self, n: usize, kept: &HashSet<u32>) -> Vec<u32> {
        if let Some(arc) = &self.arc {
            let may =
                |id: &u32| self.chunk_state(*id) == HostChunkState::Ready && !kept.contains(id);
            let victims = arc
                .choose_chunks_to_evict(n, |key| self.find_chunk(key).is_some_and(|id| may(&id)));
            let victims = victims.unwrap_or_default().into_iter();
            return victims.filter_map(|key| self.find_chunk(key)).collect();
        }
        let may = self.evictable.iter().map(|&(_, id)| id);
        may.filter(|id| !kept.contains(id)).take(n).collect()
    }

    /// Evicts a chunk of KV blocks that no copy reads or writes. Returns its layer group, its key
    /// in events and its hash.
    pub(super) fn evict_chunk(&mut self, id: u32) -> (u32, BlockKey, Option<[u8; 32]>) {
        let chunk = &mut self.chunks[id as usize];
        let ((group, name), hash) = (chunk.name, chunk.hash.take());
        self.evictable.remove(&(chunk.recency, id));
        self.index.remove(&chunk.key);
        if let Some(arc) = &mut self.arc {
            arc.record_chunk_eviction(chunk.key);
        }
        self.free.push(id);
        (group, name, hash)
    }

    /// Adds a chunk of KV blocks that a copy to host memory will write. There must be room, and the
    /// key must be new.
    pub(super) fn insert_chunk(
        &mut self,
        key: BlockKey,
        name: ChunkEventId,
        hash: Option<[u8; 32]>,
        recency: ChunkRecency,
    ) -> u32 {
        if let Some(arc) = &mut self.arc {
            arc.insert_recent_chunk(key);
        }
        let chunk = HostChunk { key, name, hash, recency, reads: 0, storing: true };
        let id = match self.free.pop() {
            Some(id) => {
                self.chunks[id as usize] = chunk;
                id
            }
            None => {
                self.chunks.push(chunk);
                (self.chunks.len() - 1) as u32
            }
        };
        self.storing += 1;
        self.index.insert(key, id);
        id
    }

    pub(super) fn record_chunk_use(
        &mut self,
        seq: SeqId,
        id: u32,
        place: (u32, u32),
        how: HostChunkUse,
    ) {
        if let Some(arc) = &mut self.arc {
            arc.record_chunk_use(seq, place, self.chunks[id as usize].key, how);
        }
    }

    /// Marks a chunk of KV blocks as completely written to host memory, so that it may be evicted.
    pub(super) fn mark_chunk_stored(&mut self, id: u32) {
        let chunk = &mut self.chunks[id as usize];
        chunk.storing = false;
        self.storing -= 1;
        self.evictable.insert((chunk.recency, id));
    }

    pub(super) fn pin_chunk(&mut self, id: u32) {
        let chunk = &mut self.chunks[id as usize];
        self.evictable.remove(&(chunk.recency, id));
        chunk.reads += 1;
        self.loading += 1;
    }

    pub(super) fn unpin_chunk(&mut self, id: u32) {
        let chunk = &mut self.chunks[id as usize];
        chunk.reads -= 1;
        self.loading -= 1;
        if chunk.reads == 0 {
            self.evictable.insert((chunk.recency, id));
        }
    }
}
