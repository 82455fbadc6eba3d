//! Caches the texts of simulated token ids, in bounded memory.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

/// Number of cache shards, which reduces lock contention between encoders.
const INTERNER_SHARDS: usize = 64;

/// Maximum number of token texts in a shard; a quarter of a million in all shards.
const MAX_SHARD_TEXTS: usize = 4096;

/// Maximum total length of the token texts in a shard, in bytes; 64 MiB in all. A longer text is
/// not stored.
const MAX_SHARD_BYTES: usize = 1 << 20;

const RECENT_PIECE_SLOTS: usize = 256;

/// Range of eviction counts reserved for each interner, so that counts are unique.
const EVICTION_COUNT_RANGE: u64 = 1 << 40;

/// Start of the next interner's eviction counts.
static NEXT_EVICTION_COUNT: AtomicU64 = AtomicU64::new(EVICTION_COUNT_RANGE);

thread_local! {
    /// Token texts known to be stored, by id, for the current thread.
    ///
    /// Access needs no lock and shares no memory with other threads.
    static RECENT_PIECES: RefCell<[RecentPiece; RECENT_PIECE_SLOTS]> =
        const { RefCell::new([RecentPiece { changes: 0, id: 0, hash: 0 }; RECENT_PIECE_SLOTS]) };
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
pub(crate) struct TokenTextInterner {
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

impl Default for TokenTextInterner {
    fn default() -> Self {
        Self {
            shards: (0..INTERNER_SHARDS).map(|_| RwLock::default()).collect(),
            changes: AtomicU64::new(
                NEXT_EVICTION_COUNT.fetch_add(EVICTION_COUNT_RANGE, Ordering::Relaxed),
            ),
        }
    }
}

impl TokenTextInterner {
    fn shard_of(&self, id: u32) -> &RwLock<InternerShard> {
        &self.shards[id as usize % INTERNER_SHARDS]
    }

    /// Stores the text of a token id. If two texts have the same id, the later one wins, unless
    /// they also have the same `hash`.
    pub(crate) fn intern_text(&self, id: u32, hash: u64, text: &str) {
        let piece = RecentPiece {
            // Read before the lookup, so that a later eviction changes the count.
            changes: self.changes.load(Ordering::Acquire),
            id,
            hash,
        };
        RECENT_PIECES.with_borrow_mut(|recently| {
            // `id % INTERNER_SHARDS` selects the shard.
            let recent = &mut recently[id as usize / INTERNER_SHARDS % RECENT_PIECE_SLOTS];
            // A new piece has not been used yet; caching it here would keep it that way.
            if *recent != piece && self.intern_if_missing(id, text) {
                *recent = piece;
            }
        });
    }

    /// Stores the text of a token id if it is missing; returns whether it was stored before.
    fn intern_if_missing(&self, id: u32, text: &str) -> bool {
        if let Some(piece) = self.shard_of(id).read().pieces.get(&id)
            && *piece.text == *text
        {
            if !piece.seen.load(Ordering::Relaxed) {
                piece.seen.store(true, Ordering::Relaxed);
            }
            return true;
        }
        if text.len() <= MAX_SHARD_BYTES {
            let mut shard = self.shard_of(id).write();
            if shard.insert_text(id, text) {
                self.changes.fetch_add(1, Ordering::Release);
            }
        }
        false
    }

    /// Appends the text of a token id to `out`; returns false if the text is not stored.
    pub(crate) fn append_text(&self, id: u32, out: &mut String) -> bool {
        match self.shard_of(id).read().pieces.get(&id) {
            Some(piece) => {
                out.push_str(&piece.text);
                true
            }
            None => false,
        }
    }
}

impl InternerShard {
    fn insert_text(&mut self, id: u32, text: &str) -> bool {
        let piece = InternedPiece { text: text.into(), seen: AtomicBool::new(false) };
        self.bytes += text.len();
        let mut forgotten = false;
        match self.pieces.insert(id, piece) {
            Some(old) => {
                self.bytes -= old.text.len();
                forgotten = true;
            }
            None => self.queue.push_back(id),
        }
        while self.queue.len() > MAX_SHARD_TEXTS || self.bytes > MAX_SHARD_BYTES {
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

    fn text_of(interner: &TokenTextInterner, id: u32) -> Option<String> {
        let mut out = String::new();
        interner.append_text(id, &mut out).then_some(out)
    }

    #[test]
    fn interner_keeps_the_later_text_of_an_id() {
        let interner = TokenTextInterner::default();
        interner.intern_text(7, 0, "a");
        interner.intern_text(7, 1, "b");
        assert_eq!(text_of(&interner, 7).as_deref(), Some("b"));
        assert_eq!(text_of(&interner, 8), None);
    }

    #[test]
    fn interner_is_bounded_and_keeps_used_texts() {
        let interner = TokenTextInterner::default();
        let ids = |n: usize| u32::try_from(n * INTERNER_SHARDS).unwrap();
        for n in 0..3 * MAX_SHARD_TEXTS {
            interner.intern_text(0, 0, "always");
            interner.intern_text(ids(n + 1), 0, "some text");
        }
        let shard = interner.shards[0].read();
        assert_eq!(shard.pieces.len(), MAX_SHARD_TEXTS);
        assert_eq!(shard.queue.len(), MAX_SHARD_TEXTS);
        assert_eq!(shard.bytes, (MAX_SHARD_TEXTS - 1) * "some text".len() + "always".len());
        drop(shard);
        assert_eq!(text_of(&interner, 0).as_deref(), Some("always"));
        assert_eq!(text_of(&interner, ids(1)), None);
        assert!(text_of(&interner, ids(3 * MAX_SHARD_TEXTS)).is_some());
    }

    #[test]
    fn thread_cache_is_valid_until_the_interner_evicts() {
        let (one, other) = (TokenTextInterner::default(), TokenTextInterner::default());
        for _ in 0..3 {
            one.intern_text(7, 0, "a");
        }
        assert_eq!(text_of(&other, 7), None);
        other.intern_text(7, 0, "a");
        assert_eq!(text_of(&other, 7).as_deref(), Some("a"));
        one.intern_text(7, 1, "b");
        one.intern_text(7, 0, "a");
        assert_eq!(text_of(&one, 7).as_deref(), Some("a"));
        // Too long to store, and therefore evicted.
        one.intern_text(7 + INTERNER_SHARDS as u32, 0, &"x".repeat(MAX_SHARD_BYTES));
        assert_eq!(text_of(&one, 7), None);
        one.intern_text(7, 0, "a");
        assert_eq!(text_of(&one, 7).as_deref(), Some("a"));
    }

    #[test]
    fn interner_evicts_by_text_bytes() {
        let interner = TokenTextInterner::default();
        interner.intern_text(0, 0, "short");
        interner.intern_text(64, 0, &"x".repeat(MAX_SHARD_BYTES));
        assert_eq!(text_of(&interner, 64).map(|text| text.len()), Some(MAX_SHARD_BYTES));
        assert_eq!(text_of(&interner, 0), None);
        interner.intern_text(128, 0, &"x".repeat(MAX_SHARD_BYTES + 1));
        assert_eq!(text_of(&interner, 128), None);
        assert!(interner.shards[0].read().bytes <= MAX_SHARD_BYTES);
    }
}
