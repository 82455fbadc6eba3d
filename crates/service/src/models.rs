use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use parking_lot::RwLock;

use super::error::RequestError;

/// The model names that requests may use: aliases of the base model and loaded adapters.
#[derive(Debug)]
pub struct ServedModels {
    served: Vec<Arc<str>>,
    any_name: bool,
    /// Folder with one subfolder for each LoRA adapter that requests load by name.
    resolver_folder: Option<PathBuf>,
    adapters: RwLock<LoadedAdapters>,
}

#[derive(Debug, Default)]
struct LoadedAdapters {
    /// Loaded adapters by name, in order of loading.
    by_name: IndexMap<Arc<str>, Arc<LoraAdapter>>,
    last_id: u32,
    /// List of all loaded LoRA adapters, cached by the first reader after a change.
    list: Option<Arc<Vec<Arc<LoraAdapter>>>>,
}

/// Maximum length of an adapter's name and of its path, in bytes; many responses repeat name and
/// path.
const MAX_NAME_BYTES: usize = 4096;

/// A loaded LoRA adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraAdapter {
    /// Name of the adapter, used as the model in requests.
    pub name: Arc<str>,
    /// Path of the adapter's files.
    pub path: String,
    /// Base model of the adapter, if the client gave a served name.
    pub base: Option<String>,
    /// Numeric id of the adapter in the engines, starting at 1.
    pub id: u32,
}

/// The effect of loading an adapter whose name is already loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoraAdapterLoadMode {
    /// Load mode: loading fails, and the loaded LoRA adapter of the same name stays.
    New,
    /// Load mode: the new LoRA adapter replaces the loaded one of the same name (vLLM's
    /// `load_inplace`).
    InPlace,
}

/// Error of loading a LoRA adapter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoraAdapterLoadError {
    /// A loaded LoRA adapter already has the name of the adapter to load.
    #[error(
        "The lora adapter '{0}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
    )]
    AlreadyLoaded(String),
    /// The base model is served under the name of the adapter to load.
    #[error("The lora adapter '{0}' conflicts with a served base model.")]
    BaseModel(String),
    /// The name or the path of the adapter to load is too long.
    #[error("The name and the path of a lora adapter have at most {MAX_NAME_BYTES} bytes.")]
    TooLong,
}

impl ServedModels {
    /// Creates the table of model names for a base model with the names `served_names` (at least one).
    ///
    /// `accepts_any_name` makes every unknown name resolve to the base model.
    pub fn new(served_names: &[String], accepts_any_name: bool) -> Self {
        Self {
            served: served_names.iter().map(|name| name.as_str().into()).collect(),
            any_name: accepts_any_name,
            resolver_folder: None,
            adapters: RwLock::default(),
        }
    }

    /// Sets the folder from which adapters are loaded at their first request.
    #[must_use]
    pub fn with_lora_resolver_folder(mut self, folder: Option<PathBuf>) -> Self {
        self.resolver_folder = folder;
        self
    }

    /// Returns the served names of the base model; responses show the first one.
    pub fn served_model_names(&self) -> &[Arc<str>] {
        &self.served
    }

    /// Returns the name of the base model in responses.
    pub fn displayed_model_name(&self) -> &Arc<str> {
        &self.served[0]
    }

    /// Returns the name of a LoRA adapter in responses; that of the base model without an adapter.
    pub fn model_name_in_responses<'a>(&'a self, lora: Option<&'a LoraAdapter>) -> &'a Arc<str> {
        lora.map_or(self.displayed_model_name(), |adapter| &adapter.name)
    }

    /// Returns the name of a model in a request, unless it is the one that responses show.
    pub fn model_alias(&self, requested: Option<&str>) -> Option<Box<str>> {
        let shown = self.displayed_model_name();
        requested.filter(|name| !name.is_empty() && **name != **shown).map(Into::into)
    }

    /// Returns the loaded LoRA adapters in order of loading.
    pub fn loaded_lora_adapters(&self) -> Arc<Vec<Arc<LoraAdapter>>> {
        if let Some(list) = &self.adapters.read().list {
            return list.clone();
        }
        let mut adapters = self.adapters.write();
        let LoadedAdapters { by_name, list, .. } = &mut *adapters;
        let all = || Arc::new(by_name.values().cloned().collect());
        list.get_or_insert_with(all).clone()
    }

    /// Returns the LoRA adapter with this name, `Ok(None)` for a name of the base model.
    ///
    /// An empty name means the base model.
    ///
    /// # Errors
    /// [`RequestError::UnknownModel`] if neither the base model nor an adapter has the name.
    pub fn resolve_model_name(&self, name: &str) -> Result<Option<Arc<LoraAdapter>>, RequestError> {
        if name.is_empty() || self.served.iter().any(|served| **served == *name) {
            return Ok(None);
        }
        if let Some(adapter) = self.adapters.read().by_name.get(name) {
            return Ok(Some(adapter.clone()));
        }
        match self.resolve_adapter(name) {
            None if !self.any_name => Err(RequestError::UnknownModel(name.to_owned())),
            found => Ok(found),
        }
    }

    /// Loads the adapter `name` from the resolver's folder, if its configuration names the base
    /// model.
    ///
    /// Source: vLLM 0.33 `plugins/lora_resolvers/filesystem_resolver.py`.
    fn resolve_adapter(&self, name: &str) -> Option<Arc<LoraAdapter>> {
        let folder = self.resolver_folder.as_ref()?;
        if !is_plain_relative_path(name) {
            return None;
        }
        let path = folder.join(name);
        let config = std::fs::read(path.join("adapter_config.json")).ok()?;
        let config: serde_json::Value = serde_json::from_slice(&config).ok()?;
        let base = config["base_model_name_or_path"].as_str()?;
        let is_ours = config["peft_type"] == "LORA" && *base == **self.displayed_model_name();
        is_ours.then_some(())?;
        self.load_lora_adapter(name, path.to_str()?, None, LoraAdapterLoadMode::InPlace).ok()
    }

    /// Adds a LoRA adapter to the model names that requests may use.
    ///
    /// # Errors
    /// [`LoraAdapterLoadError`] if the name is taken, or if name or path is too long.
    pub fn load_lora_adapter(
        &self,
        name: &str,
        path: &str,
        base: Option<String>,
        mode: LoraAdapterLoadMode,
    ) -> Result<Arc<LoraAdapter>, LoraAdapterLoadError> {
        if self.served.iter().any(|served| **served == *name) {
            return Err(LoraAdapterLoadError::BaseModel(name.into()));
        }
        if name.len().max(path.len()) > MAX_NAME_BYTES {
            return Err(LoraAdapterLoadError::TooLong);
        }
        let mut adapters = self.adapters.write();
        if let Some(old) = adapters.by_name.get_mut(name) {
            if mode == LoraAdapterLoadMode::New {
                return Err(LoraAdapterLoadError::AlreadyLoaded(name.into()));
            }
            Arc::make_mut(old).path = path.into();
            let loaded = old.clone();
            adapters.list = None;
            return Ok(loaded);
        }
        adapters.last_id += 1;
        let base = base.filter(|base| self.served.iter().any(|served| **served == **base));
        let (name, path, id) = (name.into(), path.into(), adapters.last_id);
        let adapter = Arc::new(LoraAdapter { name, path, base, id });
        adapters.by_name.insert(adapter.name.clone(), adapter.clone());
        adapters.list = None;
        Ok(adapter)
    }

    pub(super) fn restore_lora_adapters(&self, list: &Arc<Vec<Arc<LoraAdapter>>>) {
        let mut adapters = self.adapters.write();
        let named = list.iter().map(|adapter| (adapter.name.clone(), adapter.clone()));
        adapters.by_name = named.collect();
        adapters.list = Some(list.clone());
    }

    /// Unloads a LoRA adapter; returns `false` if none has that name.
    pub fn unload_lora_adapter(&self, name: &str) -> bool {
        let mut adapters = self.adapters.write();
        let removed = adapters.by_name.shift_remove(name).is_some();
        if removed {
            adapters.list = None;
        }
        removed
    }
}

/// Returns whether `name` is a relative path in normalized form: without `.`, `..`, and repeated or
/// trailing slashes.
///
/// Otherwise clients could load one folder under any number of names.
fn is_plain_relative_path(name: &str) -> bool {
    let parts = Path::new(name).components();
    let named = parts.filter(|part| matches!(part, Component::Normal(_)));
    named.collect::<PathBuf>().as_os_str() == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_keep_load_order_and_name_limits() {
        let models = ServedModels::new(&["m".to_owned()], false);
        for id in 0..20_000 {
            let name = format!("a{id}");
            assert_eq!(
                models.load_lora_adapter(&name, "/p", None, LoraAdapterLoadMode::New).unwrap().id,
                id + 1
            );
        }
        assert!(models.unload_lora_adapter("a1") && !models.unload_lora_adapter("a1"));
        let all = models.loaded_lora_adapters();
        assert_eq!(all.len(), 19_999);
        assert_eq!((&*all[0].name, &*all[1].name), ("a0", "a2"));
        assert!(
            models.resolve_model_name("a2").is_ok() && models.resolve_model_name("a1").is_err()
        );
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(
            models.load_lora_adapter(&long, "/p", None, LoraAdapterLoadMode::New),
            Err(LoraAdapterLoadError::TooLong)
        );
        assert_eq!(
            models.load_lora_adapter("b", &long, None, LoraAdapterLoadMode::New),
            Err(LoraAdapterLoadError::TooLong)
        );
    }
}
