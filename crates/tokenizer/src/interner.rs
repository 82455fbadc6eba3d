//! Caches the texts of simulated token ids, in bounded memory.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

/// Number of cache shards, which reduces lock contention between encoders.
const SHARDS: usize = 64;

/// Maximum number of token texts in a shard; a quarter of a million in all shards.
const PIECES: usize = 4096;

/// Maximum total length of the token texts in a shard, in bytes; 64 MiB in all. A longer text is
/// not stored.
const BYTES: usize = 1 << 20;

const RECENT: usize = 256;

/// Range of eviction counts reserved for each interner, so that counts are unique.
const CHANGES: u64 = 1 << 40;

/// Start of the next interner's eviction counts.
static NEXT_CHANGES: AtomicU64 = AtomicU64::new(CHANGES);

thread_local! {
    /// Token texts known to be stored, by id, for the current thread.
    ///
    /// Access needs no lock and shares no memory with other threads.
    static RECENT_PIECES: RefCell<[RecentPiece; RECENT]> =
        const { RefCell::new([RecentPiece { changes: 0, id: 0, hash: 0 }; RECENT]) };
}

/// Token id and hash of a text, stored as long as its interner's eviction count is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecentPiece {
    changes: u64,
    id: u32,
    hash: u64,
}

/// Stores token texts by id, with second-chance eviction (CLOCK).
///
/// A full shard evicts the oldest text that was not used since its last turn.
#[derive(Debug)]
pub(crate) struct Interner {
    shards: Box<[RwLock<InternerShard>]>,
    /// Eviction count: grows with each eviction and is unique among interners.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct InternerShard {
    pieces: HashMap<u32, InternedPiece, BuildHasherDefault<IdHasher>>,
    queue: VecDeque<u32>,
    bytes: usize,
}

#[derive(Debug)]
struct InternedPiece {
    text: Box<str>,
    seen: AtomicBool,
}

#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Default for Interner {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            changes: AtomicU64::new(NEXT_CHANGES.fetch_add(CHANGES, Ordering::Relaxed)),
        }
    }
}

impl Interner {
    fn shard(&self, id: u32) -> &RwLock<InternerShard> {
        &self.shards[id as usize % SHARDS]
    }

    /// Stores the text of a token id. If two texts have the same id, the later one wins, unless
    /// they also have the same `hash`.
    pub(crate) fn intern(&self, id: u32, hash: u64, text: &str) {
        let piece = RecentPiece {
            // Read before the lookup, so that a later eviction changes the count.
            changes: self.changes.load(Ordering::Acquire),
            id,
            hash,
        };
        RECENT_PIECES.with_borrow_mut(|recently| {
            // `id % SHARDS` selects the shard.
            let recent = &mut recently[id as usize / SHARDS % RECENT];
            // A new piece has not been used yet; caching it here would keep it that way.
            if *recent != piece && self.was_interned(id, text) {
                *recent = piece;
            }
        });
    }

    /// Stores the text of a token id if it is missing; returns whether it was stored before.
    fn was_interned(&self, id: u32, text: &str) -> bool {
        if let Some(piece) = self.shard(id).read().pieces.get(&id)
            && *piece.text == *text
        {
            if !piece.seen.load(Ordering::Relaxed) {
                piece.seen.store(true, Ordering::Relaxed);
            }
            return true;
        }
        if text.len() <= BYTES {
            let mut shard = self.shard(id).write();
            if shard.insert(id, text) {
                self.changes.fetch_add(1, Ordering::Release);
            }
        }
        false
    }

    /// Appends the text of a token id to `out`; returns false if the text is not stored.
    pub(crate) fn append(&self, id: u32, out: &mut String) -> bool {
        match self.shard(id).read().pieces.get(&id) {
            Some(piece) => {
                out.push_str(&piece.text);
                true
            }
            None => false,
        }
    }
}

impl InternerShard {
    fn insert(&mut self, id: u32, text: &str) -> bool {
        let piece = InternedPiece {
            text: text.into(),
            seen: AtomicBool::new(false),
        };
        self.bytes += text.len();
        let mut forgotten = false;
        match self.pieces.insert(id, piece) {
            Some(old) => {
                self.bytes -= old.text.len();
                forgotten = true;
            }
            None => self.queue.push_back(id),
        }
        while self.queue.len() > PIECES || self.bytes > BYTES {
            let Some(oldest) = self.queue.pop_front() else {
                break;
            };
            let Some(piece) = self.pieces.get(&oldest) else {
                continue;
            };
            if oldest == id || piece.seen.swap(false, Ordering::Relaxed) {
                self.queue.push_back(oldest);
                continue;
            }
            self.bytes -= piece.text.len();
            self.pieces.remove(&oldest);
            forgotten = true;
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(interner: &Interner, id: u32) -> Option<String> {
        let mut out = String::new();
        interner.append(id, &mut out).then_some(out)
    }

    #[test]
    fn the_later_of_two_texts_wins() {
        let interner = Interner::default();
        interner.intern(7, 0, "a");
        interner.intern(7, 1, "b");
        assert_eq!(text_of(&interner, 7).as_deref(), Some("b"));
        assert_eq!(text_of(&interner, 8), None);
    }

    #[test]
    fn memory_is_bounded_and_what_is_in_use_stays() {
        let interner = Interner::default();
        let ids = |n: usize| u32::try_from(n * SHARDS).unwrap();
        for n in 0..3 * PIECES {
            interner.intern(0, 0, "always");
            interner.intern(ids(n + 1), 0, "some text");
        }
        let shard = interner.shards[0].read();
        assert_eq!(shard.pieces.len(), PIECES);
        assert_eq!(shard.queue.len(), PIECES);
        assert_eq!(
            shard.bytes,
            (PIECES - 1) * "some text".len() + "always".len()
        );
        drop(shard);
        assert_eq!(text_of(&interner, 0).as_deref(), Some("always"));
        assert_eq!(text_of(&interner, ids(1)), None);
        assert!(text_of(&interner, ids(3 * PIECES)).is_some());
    }

    #[test]
    fn what_a_thread_saw_remembered_holds_for_one_memory_until_it_forgets() {
        let (one, other) = (Interner::default(), Interner::default());
        for _ in 0..3 {
            one.intern(7, 0, "a");
        }
        assert_eq!(text_of(&other, 7), None);
        other.intern(7, 0, "a");
        assert_eq!(text_of(&other, 7).as_deref(), Some("a"));
        one.intern(7, 1, "b");
        one.intern(7, 0, "a");
        assert_eq!(text_of(&one, 7).as_deref(), Some("a"));
        // Too long to store, and therefore evicted.
        one.intern(7 + SHARDS as u32, 0, &"x".repeat(BYTES));
        assert_eq!(text_of(&one, 7), None);
        one.intern(7, 0, "a");
        assert_eq!(text_of(&one, 7).as_deref(), Some("a"));
    }

    #[test]
    fn long_texts_push_out_others_but_never_more_than_the_bound() {
        let interner = Interner::default();
        interner.intern(0, 0, "short");
        interner.intern(64, 0, &"x".repeat(BYTES));
        assert_eq!(text_of(&interner, 64).map(|text| text.len()), Some(BYTES));
        assert_eq!(text_of(&interner, 0), None);
        interner.intern(128, 0, &"x".repeat(BYTES + 1));
        assert_eq!(text_of(&interner, 128), None);
        assert!(interner.shards[0].read().bytes <= BYTES);
    }
}
