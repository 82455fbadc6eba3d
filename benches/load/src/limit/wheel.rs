//! Hashed timer wheel: fixed slots, entries carry their exact deadline; one tick drives many streams.
use std::sync::LazyLock;
use std::time::Instant;

pub struct Wheel<T> {
    slots: Vec<Vec<(u64, T)>>,
    tick: u64, // ns per slot
    at: u64,   // every slot before this tick number has been fired
    pub len: usize,
}

/// Nanoseconds since it was first asked.
pub fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

impl<T> Wheel<T> {
    pub fn new(tick: u64) -> Self {
        Wheel {
            slots: (0..4096).map(|_| Vec::new()).collect(),
            tick,
            at: now() / tick,
            len: 0,
        }
    }
    pub fn add(&mut self, due: u64, v: T) {
        // The slot that ends at or after the deadline: never early, at most one tick late.
        let n = due.div_ceil(self.tick).max(self.at);
        self.slots[(n & 4095) as usize].push((due, v));
        self.len += 1;
    }
    /// Moves what is due at `t` to `out`.
    pub fn fire(&mut self, t: u64, out: &mut Vec<T>) {
        let upto = t / self.tick;
        let steps = (upto + 1).saturating_sub(self.at).min(4096);
        let first = upto + 1 - steps;
        for n in first..=upto {
            let slot = &mut self.slots[(n & 4095) as usize];
            if slot.is_empty() {
                continue;
            }
            let mut i = 0;
            while i < slot.len() {
                if slot[i].0 <= t {
                    out.push(slot.swap_remove(i).1);
                    self.len -= 1;
                } else {
                    i += 1;
                }
            }
        }
        self.at = self.at.max(upto + 1);
    }
    /// When the next occupied slot ends (a far entry may share the slot; then it is a spare wake-up).
    pub fn next(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        (0..4096)
            .map(|k| self.at + k)
            .find(|n| !self.slots[(n & 4095) as usize].is_empty())
            .map(|n| n * self.tick)
    }
}
