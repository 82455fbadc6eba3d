use std::sync::Arc;

use indexmap::IndexMap;
use parking_lot::RwLock;

use crate::generate::request::Target;

/// Names that requests may use: the base model's aliases and the loaded adapters.
#[derive(Debug)]
pub struct Models {
    served: Vec<Arc<str>>,
    any_name: bool,
    adapters: RwLock<Adapters>,
}

#[derive(Debug, Default)]
struct Adapters {
    /// In the order they were loaded.
    by_name: IndexMap<Arc<str>, Adapter>,
    last_id: u32,
    /// All of them, once somebody asked since the last change.
    list: Option<Arc<Vec<Adapter>>>,
}

/// Longest name and path of an adapter, in bytes; both stand in many answers.
const MOST_BYTES: usize = 4096;

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
    /// The loaded adapter stays, and loading is refused.
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
    /// A name or path that no file can have.
    #[error("The name and the path of a lora adapter have at most {MOST_BYTES} bytes.")]
    TooLong,
}

impl Models {
    /// The base model under `served` names (at least one); `any_name` turns the check off.
    pub fn new(served: &[String], any_name: bool) -> Self {
        Self {
            served: served.iter().map(|name| name.as_str().into()).collect(),
            any_name,
            adapters: RwLock::default(),
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
        if let Some(list) = &self.adapters.read().list {
            return list.clone();
        }
        let mut adapters = self.adapters.write();
        let Adapters { by_name, list, .. } = &mut *adapters;
        let all = || Arc::new(by_name.values().cloned().collect());
        list.get_or_insert_with(all).clone()
    }

    /// Who answers to `name`; nobody: `None`. A missing or empty name means the base model.
    pub fn resolve(&self, name: Option<&str>) -> Option<Target> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Some(Target::Base);
        };
        if self.served.iter().any(|served| **served == *name) {
            return Some(Target::Base);
        }
        if let Some(adapter) = self.adapters.read().by_name.get(name) {
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
        if name.len().max(path.len()) > MOST_BYTES {
            return Err(LoadError::TooLong);
        }
        let mut adapters = self.adapters.write();
        if let Some(old) = adapters.by_name.get_mut(name) {
            if mode == LoadMode::New {
                return Err(LoadError::AlreadyLoaded(name.into()));
            }
            old.path = path.into();
            let loaded = old.clone();
            adapters.list = None;
            return Ok(loaded);
        }
        adapters.last_id += 1;
        let base = base.filter(|base| self.served.iter().any(|served| **served == **base));
        let adapter = Adapter {
            name: name.into(),
            path: path.into(),
            base,
            id: adapters.last_id,
        };
        let name = adapter.name.clone();
        adapters.by_name.insert(name, adapter.clone());
        adapters.list = None;
        Ok(adapter)
    }

    /// Has these adapters and no others, as a process that starts anew.
    pub(super) fn restore(&self, list: &Arc<Vec<Adapter>>) {
        let mut adapters = self.adapters.write();
        let named = list
            .iter()
            .map(|adapter| (adapter.name.clone(), adapter.clone()));
        adapters.by_name = named.collect();
        adapters.list = Some(list.clone());
    }

    /// Removes an adapter; `false` when there is none of that name.
    pub fn unload(&self, name: &str) -> bool {
        let mut adapters = self.adapters.write();
        let removed = adapters.by_name.shift_remove(name).is_some();
        if removed {
            adapters.list = None;
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_keep_their_order_and_their_bounds() {
        let models = Models::new(&["m".to_owned()], false);
        for id in 0..20_000 {
            let name = format!("a{id}");
            assert_eq!(
                models.load(&name, "/p", None, LoadMode::New).unwrap().id,
                id + 1
            );
        }
        assert!(models.unload("a1") && !models.unload("a1"));
        let all = models.adapters();
        assert_eq!(all.len(), 19_999);
        assert_eq!((&*all[0].name, &*all[1].name), ("a0", "a2"));
        assert!(models.resolve(Some("a2")).is_some() && models.resolve(Some("a1")).is_none());
        let long = "x".repeat(MOST_BYTES + 1);
        assert_eq!(
            models.load(&long, "/p", None, LoadMode::New),
            Err(LoadError::TooLong)
        );
        assert_eq!(
            models.load("b", &long, None, LoadMode::New),
            Err(LoadError::TooLong)
        );
    }
}
