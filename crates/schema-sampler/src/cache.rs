//! A cache of compiled JSON schemas, because agents send the same tools with every request.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::compiled::{CompiledConstraint, compile_constraint};
use crate::constraint::{Constraint, ConstraintError};

/// A least-recently-used cache of compiled JSON schemas, keyed by their text.
#[derive(Debug)]
pub struct SchemaCache {
    capacity: usize,
    entries: Mutex<SchemaCacheEntries>,
}

/// Maximum total size of the cached schema texts, in bytes. Compiled schemas are many times larger.
const MAX_CACHED_SCHEMA_BYTES: usize = 4 << 20;

#[derive(Debug, Default)]
struct SchemaCacheEntries {
    clock: u64,
    bytes: usize,
    by_text: HashMap<String, (u64, Arc<CompiledConstraint>)>,
}

impl SchemaCache {
    /// Creates a cache of at most `max_schemas` schemas (at least one).
    pub fn new(max_schemas: usize) -> Self {
        Self { capacity: max_schemas.max(1), entries: Mutex::default() }
    }

    /// Returns the compiled form of the JSON schema `schema`, from the cache if possible.
    ///
    /// # Errors
    /// The same errors as [`compile_constraint`]; errors are not cached.
    pub fn compile_cached(
        &self,
        schema: &Value,
    ) -> Result<Arc<CompiledConstraint>, ConstraintError> {
        // The text keeps the order of properties, which decides the order in the generated values.
        let text = schema.to_string();
        if let Some(known) = self.look_up_schema(&text) {
            return Ok(known);
        }
        // Compiled outside the lock, so that a slow schema does not block other callers.
        let compiled = Arc::new(compile_constraint(&Constraint::Json(schema.clone()))?);
        let mut entries = self.entries.lock();
        if entries.by_text.contains_key(&text) {
            return Ok(compiled);
        }
        while entries.by_text.len() >= self.capacity
            || entries.bytes + text.len() > MAX_CACHED_SCHEMA_BYTES && !entries.by_text.is_empty()
        {
            let oldest = entries.by_text.iter().min_by_key(|(_, (used, _))| *used);
            let Some(oldest) = oldest.map(|(text, _)| text.clone()) else {
                break;
            };
            entries.bytes -= oldest.len();
            entries.by_text.remove(&oldest);
        }
        entries.clock += 1;
        entries.bytes += text.len();
        let clock = entries.clock;
        entries.by_text.insert(text, (clock, Arc::clone(&compiled)));
        Ok(compiled)
    }

    fn look_up_schema(&self, text: &str) -> Option<Arc<CompiledConstraint>> {
        let mut entries = self.entries.lock();
        entries.clock += 1;
        let clock = entries.clock;
        let (used, compiled) = entries.by_text.get_mut(text)?;
        *used = clock;
        Some(Arc::clone(compiled))
    }
}

impl Default for SchemaCache {
    /// Creates a cache for 512 compiled JSON schemas, enough for the tools of a few dozen agents.
    fn default() -> Self {
        Self::new(512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_least_recently_used_schema_is_evicted() {
        let cache = SchemaCache::new(2);
        let [a, b, c] = ["a", "b", "c"].map(|v| json!({"const": v}));
        let first = cache.compile_cached(&a).expect("a schema");
        cache.compile_cached(&b).expect("a schema");
        assert!(Arc::ptr_eq(&first, &cache.compile_cached(&a).expect("a schema")));
        cache.compile_cached(&c).expect("a schema");
        assert_eq!(cache.entries.lock().by_text.len(), 2);
        assert!(Arc::ptr_eq(&first, &cache.compile_cached(&a).expect("a schema")));
    }

    #[test]
    fn schema_cache_is_bounded_by_schema_bytes() {
        let cache = SchemaCache::default();
        let large = |name: &str| json!({"const": name.repeat(900_000)});
        for name in ["a", "b", "c", "d", "e", "f"] {
            cache.compile_cached(&large(name)).expect("a schema");
        }
        let kept = cache.entries.lock();
        assert_eq!((kept.by_text.len(), kept.bytes), (4, 4 * 900_012));
    }

    #[test]
    fn an_invalid_schema_is_not_cached() {
        let cache = SchemaCache::new(2);
        assert!(cache.compile_cached(&json!({"type": "strin"})).is_err());
        assert!(cache.entries.lock().by_text.is_empty());
    }
}
