use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::generate::request::Target;

/// Names that requests may use: the base model's aliases and the loaded adapters.
#[derive(Debug)]
pub struct Models {
    served: Vec<Arc<str>>,
    any_name: bool,
    adapters: ArcSwap<Vec<Adapter>>,
    last_id: Mutex<u32>,
}

/// A loaded adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// The name requests use.
    pub name: Arc<str>,
    /// Where it lies.
    pub path: String,
    /// Its base model, when that is a served name.
    pub base: Option<String>,
    /// Its number in the engines, from 1.
    pub id: u32,
}

/// Tells what becomes of an adapter that has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadMode {
    /// It stays, and loading is refused.
    New,
    /// vLLM's `load_inplace`: the new one takes its place.
    InPlace,
}

/// Why an adapter was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The name is taken by an adapter.
    #[error(
        "The lora adapter '{0}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
    )]
    AlreadyLoaded(String),
    /// The name is taken by the base model.
    #[error("The lora adapter '{0}' conflicts with a served base model.")]
    BaseModel(String),
}

impl Models {
    /// The base model under `served` names (at least one); `any_name` turns the check off.
    pub fn new(served: &[String], any_name: bool) -> Self {
        Self {
            served: served.iter().map(|name| name.as_str().into()).collect(),
            any_name,
            adapters: ArcSwap::default(),
            last_id: Mutex::new(0),
        }
    }

    /// Names of the base model; the first is the one that answers show.
    pub fn served(&self) -> &[Arc<str>] {
        &self.served
    }

    /// The name that answers of the base model show.
    pub fn displayed(&self) -> &Arc<str> {
        &self.served[0]
    }

    /// The name that answers of a target show.
    pub fn shown(&self, target: &Target) -> Arc<str> {
        match target {
            Target::Base => self.displayed().clone(),
            Target::Lora { name, .. } => name.clone(),
        }
    }

    /// Adapters in the order they were loaded.
    pub fn adapters(&self) -> Arc<Vec<Adapter>> {
        self.adapters.load_full()
    }

    /// Who answers to `name`; nobody: `None`. A missing or empty name means the base model.
    pub fn resolve(&self, name: Option<&str>) -> Option<Target> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Some(Target::Base);
        };
        if self.served.iter().any(|served| **served == *name) {
            return Some(Target::Base);
        }
        let adapters = self.adapters.load();
        if let Some(adapter) = adapters.iter().find(|a| *a.name == *name) {
            return Some(Target::Lora {
                name: adapter.name.clone(),
                id: adapter.id,
            });
        }
        self.any_name.then_some(Target::Base)
    }

    /// Adds an adapter.
    ///
    /// # Errors
    /// [`LoadError`] when the name is taken.
    pub fn load(
        &self,
        name: &str,
        path: &str,
        base: Option<String>,
        mode: LoadMode,
    ) -> Result<Adapter, LoadError> {
        if self.served.iter().any(|served| **served == *name) {
            return Err(LoadError::BaseModel(name.into()));
        }
        let mut last_id = self.last_id.lock();
        let mut adapters = self.adapters.load().to_vec();
        if let Some(old) = adapters.iter_mut().find(|a| *a.name == *name) {
            if mode == LoadMode::New {
                return Err(LoadError::AlreadyLoaded(name.into()));
            }
            old.path = path.into();
            let loaded = old.clone();
            self.adapters.store(Arc::new(adapters));
            return Ok(loaded);
        }
        *last_id += 1;
        let base = base.filter(|base| self.served.iter().any(|served| **served == **base));
        let adapter = Adapter {
            name: name.into(),
            path: path.into(),
            base,
            id: *last_id,
        };
        adapters.push(adapter.clone());
        self.adapters.store(Arc::new(adapters));
        Ok(adapter)
    }

    /// Has these adapters and no others, as a process that starts anew.
    pub(super) fn restore(&self, adapters: &Arc<Vec<Adapter>>) {
        let _guard = self.last_id.lock();
        self.adapters.store(adapters.clone());
    }

    /// Removes an adapter; `false` when there is none of that name.
    pub fn unload(&self, name: &str) -> bool {
        let _guard = self.last_id.lock();
        let mut adapters = self.adapters.load().to_vec();
        let before = adapters.len();
        adapters.retain(|a| *a.name != *name);
        let removed = adapters.len() < before;
        self.adapters.store(Arc::new(adapters));
        removed
    }
}
