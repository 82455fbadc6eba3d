//! LoRA adapters of an engine core, keyed by the ids that front ends assign.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::control::lock_unpoisoned;
use super::parts::EngineCoreDependencies;
use super::request::LoraRequest;
use vllm_sim_service::LoraAdapterLoadMode;

pub(crate) struct LoadedLoraAdapters {
    parts: EngineCoreDependencies,
    names: Mutex<BTreeMap<i64, String>>,
}

impl LoadedLoraAdapters {
    pub(crate) fn with_no_adapters_loaded(dependencies: EngineCoreDependencies) -> Self {
        Self { parts: dependencies, names: Mutex::default() }
    }

    /// Loads a request's LoRA adapter when the adapter is first used, as vLLM's workers do.
    ///
    /// # Errors
    /// A message for the front end if the adapter cannot be loaded.
    pub(crate) fn load_lora_adapter(&self, lora: LoraRequest) -> Result<(), String> {
        if !self.parts.config.lora.enabled {
            return Err("LoRA is not enabled. Use --enable-lora to enable LoRA.".to_owned());
        }
        let models = &self.parts.service.models;
        let known = matches!(models.resolve_model_name(&lora.name), Ok(Some(_)));
        if !known || lora.in_place {
            let loaded = models.load_lora_adapter(
                &lora.name,
                &lora.path,
                None,
                LoraAdapterLoadMode::InPlace,
            );
            loaded.map_err(|error| error.to_string())?;
        }
        lock_unpoisoned(&self.names).insert(lora.id, lora.name);
        Ok(())
    }

    pub(crate) fn remove_lora_adapter(&self, id: i64) -> bool {
        let name = lock_unpoisoned(&self.names).remove(&id);
        name.is_some_and(|name| self.parts.service.models.unload_lora_adapter(&name))
    }

    pub(crate) fn is_lora_adapter_loaded(&self, id: i64) -> bool {
        lock_unpoisoned(&self.names).contains_key(&id)
    }

    pub(crate) fn lora_adapter_ids(&self) -> Vec<i64> {
        lock_unpoisoned(&self.names).keys().copied().collect()
    }
}
