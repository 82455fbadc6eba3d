use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::arc::ArcPolicy;
use crate::{BlockKey, SeqId};

/// The greater, the later a chunk is evicted: when it was used, and how near it is to the start of
/// its prompt, so that a tail goes before its head.
pub(super) type Recency = (u64, Reverse<u32>);

/// The number of its group in events, and the key of its last block.
pub(super) type ChunkName = (u32, BlockKey);

/// The chunks of a [`HostTier`](super::HostTier): which are there, which copies hold them, and who
/// goes first.
#[derive(Debug)]
pub(super) struct HostChunks {
    capacity: u32,
    index: HashMap<BlockKey, u32>,
    /// By number; those that are free keep their memory.
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    /// Chunks that no copy holds, in the order in which they leave.
    evictable: BTreeSet<(Recency, u32)>,
    /// Who goes first instead, where recency alone does not say it.
    pub(super) arc: Option<Box<ArcPolicy>>,
    /// Chunks that are being written, and pins of those that are being read.
    pub(super) storing: u32,
    pub(super) loading: u32,
}

#[derive(Debug)]
struct Chunk {
    key: BlockKey,
    name: ChunkName,
    /// The whole hash, where the plan had one.
    hash: Option<[u8; 32]>,
    recency: Recency,
    /// Copies that read it.
    reads: u32,
    /// It is not complete yet.
    storing: bool,
}

/// What a chunk can be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkState {
    /// It can be loaded.
    Ready,
    /// It is being written.
    Storing,
    /// Somebody loads it.
    Loading,
}

impl HostChunks {
    pub(super) fn new(capacity: u32, is_arc: bool) -> Self {
        Self {
            capacity,
            index: HashMap::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            evictable: BTreeSet::new(),
            arc: is_arc.then(|| Box::new(ArcPolicy::new(capacity))),
            storing: 0,
            loading: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        (self.chunks.len() - self.free.len()) as u32
    }

    /// The names of the chunks that are there, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = ChunkName> {
        self.index.values().map(|&id| self.chunks[id as usize].name)
    }

    pub(super) fn find(&self, key: BlockKey) -> Option<u32> {
        self.index.get(&key).copied()
    }

    pub(super) fn state(&self, id: u32) -> ChunkState {
        let chunk = &self.chunks[id as usize];
        match (chunk.storing, chunk.reads) {
            (true, _) => ChunkState::Storing,
            (false, 0) => ChunkState::Ready,
            (false, _) => ChunkState::Loading,
        }
    }

    /// A chunk was used; one that a copy holds remembers it for later.
    pub(super) fn touch(&mut self, id: u32, recency: Recency) {
        let before = self.chunks[id as usize].recency;
        if before == recency {
            return;
        }
        self.chunks[id as usize].recency = recency;
        if self.evictable.remove(&(before, id)) {
            self.evictable.insert((recency, id));
        }
    }

    /// Chunks that nobody uses.
    pub(super) fn room(&self) -> u32 {
        self.capacity - self.len()
    }

    /// The first `n` that may leave and are not among `kept`, or fewer.
    pub(super) fn victims(&self, n: usize, kept: &HashSet<u32>) -> Vec<u32> {
        if let Some(arc) = &self.arc {
            let may = |id: &u32| self.state(*id) == ChunkState::Ready && !kept.contains(id);
            let victims = arc.victims(n, |key| self.find(key).is_some_and(|id| may(&id)));
            let victims = victims.unwrap_or_default().into_iter();
            return victims.filter_map(|key| self.find(key)).collect();
        }
        let may = self.evictable.iter().map(|&(_, id)| id);
        may.filter(|id| !kept.contains(id)).take(n).collect()
    }

    /// A chunk that no copy holds leaves; what it was.
    pub(super) fn evict(&mut self, id: u32) -> (u32, BlockKey, Option<[u8; 32]>) {
        let chunk = &mut self.chunks[id as usize];
        let ((group, name), hash) = (chunk.name, chunk.hash.take());
        self.evictable.remove(&(chunk.recency, id));
        self.index.remove(&chunk.key);
        if let Some(arc) = &mut self.arc {
            arc.evicted(chunk.key);
        }
        self.free.push(id);
        (group, name, hash)
    }

    /// A chunk comes in, to be written; there is room for it, and it is not there yet.
    pub(super) fn insert(
        &mut self,
        key: BlockKey,
        name: ChunkName,
        hash: Option<[u8; 32]>,
        recency: Recency,
    ) -> u32 {
        if let Some(arc) = &mut self.arc {
            arc.insert(key);
        }
        let chunk = Chunk {
            key,
            name,
            hash,
            recency,
            reads: 0,
            storing: true,
        };
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

    /// A sequence brought a chunk, or used one that was there, at this place of its prompt.
    pub(super) fn used(&mut self, seq: SeqId, id: u32, place: (u32, u32), reused: bool) {
        if let Some(arc) = &mut self.arc {
            arc.used(seq, place, self.chunks[id as usize].key, reused);
        }
    }

    /// A chunk is complete.
    pub(super) fn stored(&mut self, id: u32) {
        let chunk = &mut self.chunks[id as usize];
        chunk.storing = false;
        self.storing -= 1;
        self.evictable.insert((chunk.recency, id));
    }

    /// A copy begins to read a chunk.
    pub(super) fn pin(&mut self, id: u32) {
        let chunk = &mut self.chunks[id as usize];
        self.evictable.remove(&(chunk.recency, id));
        chunk.reads += 1;
        self.loading += 1;
    }

    /// A copy has read a chunk.
    pub(super) fn unpin(&mut self, id: u32) {
        let chunk = &mut self.chunks[id as usize];
        chunk.reads -= 1;
        self.loading -= 1;
        if chunk.reads == 0 {
            self.evictable.insert((chunk.recency, id));
        }
    }
}
