//! Compiled schemas, kept: agents send the same tools with every request.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::{Compiled, Constraint, ConstraintError, compile};

/// The most recently used schemas, by their text.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    clock: u64,
    by_text: HashMap<u128, (u64, Arc<Compiled>)>,
}

impl Cache {
    /// A cache of at most `capacity` schemas (at least one).
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            entries: Mutex::default(),
        }
    }

    /// The compiled form of `schema`, from the cache or made now.
    ///
    /// # Errors
    /// As [`compile`]; errors are not kept.
    pub fn schema(&self, schema: &Value) -> Result<Arc<Compiled>, ConstraintError> {
        let key = digest(schema);
        if let Some(known) = self.lookup(key, schema) {
            return Ok(known);
        }
        // Compiled outside the lock: a slow schema holds up nobody else.
        let compiled = Arc::new(compile(&Constraint::Json(schema.clone()))?);
        let mut entries = self.entries.lock();
        if entries.by_text.len() >= self.capacity && !entries.by_text.contains_key(&key) {
            let oldest = entries.by_text.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                entries.by_text.remove(&oldest);
            }
        }
        entries.clock += 1;
        let clock = entries.clock;
        entries.by_text.insert(key, (clock, Arc::clone(&compiled)));
        Ok(compiled)
    }

    fn lookup(&self, key: u128, schema: &Value) -> Option<Arc<Compiled>> {
        let mut entries = self.entries.lock();
        entries.clock += 1;
        let clock = entries.clock;
        let (used, compiled) = entries.by_text.get_mut(&key)?;
        if compiled.schema() != Some(schema) {
            return None;
        }
        *used = clock;
        Some(Arc::clone(compiled))
    }

    /// How many schemas are kept.
    pub fn len(&self) -> usize {
        self.entries.lock().by_text.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Cache {
    /// Room for the tools of a few dozen agents.
    fn default() -> Self {
        Self::new(512)
    }
}

struct Hasher(Xxh3);

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn digest(schema: &Value) -> u128 {
    let mut hasher = Hasher(Xxh3::new());
    // The writer cannot fail, and a `Value` has only string keys.
    let written = serde_json::to_writer(&mut hasher, schema);
    debug_assert!(written.is_ok());
    hasher.0.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_least_recently_used_schema_goes() {
        let cache = Cache::new(2);
        let [a, b, c] = ["a", "b", "c"].map(|v| json!({"const": v}));
        let first = cache.schema(&a).expect("a schema");
        cache.schema(&b).expect("a schema");
        assert!(Arc::ptr_eq(&first, &cache.schema(&a).expect("a schema")));
        cache.schema(&c).expect("a schema");
        assert_eq!(cache.len(), 2);
        assert!(Arc::ptr_eq(&first, &cache.schema(&a).expect("a schema")));
    }

    #[test]
    fn a_bad_schema_is_not_kept() {
        let cache = Cache::new(2);
        assert!(cache.schema(&json!({"type": "strin"})).is_err());
        assert!(cache.is_empty());
    }
}
