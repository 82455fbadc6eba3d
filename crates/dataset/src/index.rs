use rand_chacha::rand_core::Rng;

use super::{Hash, Summary, below};

/// Where a reply is and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// The first bytes of the prompt's hash: enough to tell prompts apart.
    key: u64,
    /// Tokens of the reply.
    pub(super) n: u32,
    /// Its row.
    pub(super) id: i64,
}

impl Entry {
    pub(super) fn new(hash: &Hash, n: u32, id: i64) -> Self {
        Self {
            key: key(hash),
            n,
            id,
        }
    }
}

fn key(hash: &Hash) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_be_bytes(first)
}

/// All rows, by prompt and by length. Most files have no index of their own.
#[derive(Debug)]
pub(super) struct Index {
    /// In order of (key, n, id).
    by_prompt: Vec<Entry>,
    /// Places in `by_prompt`, in order of n.
    by_length: Vec<u32>,
}

impl Index {
    /// Of rows in any order; the same index for the same rows.
    pub(super) fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_unstable();
        let places = 0..u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let mut by_length: Vec<u32> = places.collect();
        by_length.sort_by_key(|place| entries[*place as usize].n);
        Self {
            by_prompt: entries,
            by_length,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_prompt.len()
    }

    /// Every row and its tokens.
    pub(super) fn rows(&self) -> impl Iterator<Item = (i64, u32)> {
        self.by_prompt.iter().map(|entry| (entry.id, entry.n))
    }

    pub(super) fn summary(&self) -> Summary {
        let rows = self.len();
        let at = |place: usize| {
            let place = self.by_length.get(place);
            place.map_or(0, |place| self.by_prompt[*place as usize].n)
        };
        Summary {
            rows,
            prompts: self.by_prompt.chunk_by(|a, b| a.key == b.key).count(),
            tokens: self.by_prompt.iter().map(|entry| u64::from(entry.n)).sum(),
            lengths: [at(0), at(rows / 2), at(rows.saturating_sub(1))],
        }
    }

    /// Replies to a prompt that hashes to one of these, in order of their length.
    pub(super) fn same(&self, hashes: &[Hash]) -> Vec<Entry> {
        let mut keys: Vec<u64> = hashes.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut found = Vec::new();
        for key in keys {
            let start = self.by_prompt.partition_point(|entry| entry.key < key);
            let rest = &self.by_prompt[start..];
            found.extend_from_slice(&rest[..rest.partition_point(|entry| entry.key == key)]);
        }
        found.sort_unstable_by_key(|entry| (entry.n, entry.id));
        found
    }

    /// A random row by the rules of [`choose`], except that when nothing fits any row is cut.
    pub(super) fn any(&self, most: u32, exact: bool, rng: &mut impl Rng) -> Option<i64> {
        let length = |place: &u32| self.by_prompt[*place as usize].n;
        let up_to = self
            .by_length
            .partition_point(|place| length(place) <= most);
        let from = if exact {
            self.by_length.partition_point(|place| length(place) < most)
        } else {
            0
        };
        let places = match &self.by_length[from..up_to] {
            [] => &self.by_length[..],
            fitting => fitting,
        };
        if places.is_empty() {
            return None;
        }
        let place = places[below(places.len(), rng)];
        Some(self.by_prompt[place as usize].id)
    }
}

/// One of the replies to a prompt, given in order of their length: a random one that fits, else
/// any longer one. When the length has to be exact: an equal one, else a longer one, else any.
pub(super) fn choose(same: &[Entry], most: u32, exact: bool, rng: &mut impl Rng) -> Option<i64> {
    let shorter = same.partition_point(|entry| entry.n < most);
    let fitting = same.partition_point(|entry| entry.n <= most);
    let (best, second) = if exact {
        (&same[shorter..fitting], &same[fitting..])
    } else {
        (&same[..fitting], &same[fitting..])
    };
    let from = [best, second, same]
        .into_iter()
        .find(|entries| !entries.is_empty())?;
    Some(from[below(from.len(), rng)].id)
}
