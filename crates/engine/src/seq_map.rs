use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::SeqId;

pub(crate) type SeqMap<T> = HashMap<SeqId, T, BuildHasherDefault<SeqIdHasher>>;

/// Hashes sequence ids without protection against collisions: the driver assigns ids, not clients.
#[derive(Debug, Default)]
pub(crate) struct SeqIdHasher(u64);

impl Hasher for SeqIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
