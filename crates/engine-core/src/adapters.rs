//! LoRA adapters of an engine core, keyed by the ids that front ends assign.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::parts::EngineCoreParts;
use super::request::LoraRequest;
use vllm_sim_service::LoadMode;
use vllm_sim_service::generate::request::Target;

pub(crate) struct Adapters {
    parts: EngineCoreParts,
    names: Mutex<BTreeMap<i64, String>>,
}

impl Adapters {
    pub(crate) fn new(parts: EngineCoreParts) -> Self {
        Self {
            parts,
            names: Mutex::default(),
        }
    }

    /// A poisoned lock is safe to use, because each change is one assignment.
    fn names(&self) -> MutexGuard<'_, BTreeMap<i64, String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the adapter of a request, as vLLM's workers do on its first use.
    ///
    /// # Errors
    /// A message for the front end if the adapter cannot be loaded.
    pub(crate) fn load(&self, lora: LoraRequest) -> Result<(), String> {
        if !self.parts.config.lora.enabled {
            return Err("LoRA is not enabled. Use --enable-lora to enable LoRA.".to_owned());
        }
        let models = &self.parts.service.models;
        let known = matches!(models.resolve(Some(&lora.name)), Some(Target::Lora { .. }));
        if !known || lora.in_place {
            let loaded = models.load(&lora.name, &lora.path, None, LoadMode::InPlace);
            loaded.map_err(|error| error.to_string())?;
        }
        self.names().insert(lora.id, lora.name);
        Ok(())
    }

    pub(crate) fn remove(&self, id: i64) -> bool {
        let name = self.names().remove(&id);
        name.is_some_and(|name| self.parts.service.models.unload(&name))
    }

    pub(crate) fn has(&self, id: i64) -> bool {
        self.names().contains_key(&id)
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        self.names().keys().copied().collect()
    }
}
