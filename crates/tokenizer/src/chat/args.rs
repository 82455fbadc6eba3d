//! Arguments that a template may pass by position or by name, as Python allows.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, Value};

/// The arguments of one call.
#[derive(Debug)]
pub(super) struct Args<'a> {
    positional: &'a [Value],
    named: Kwargs,
}

impl<'a> Args<'a> {
    /// Splits the arguments of a call.
    pub(super) fn new(args: &'a [Value]) -> Result<Self, Error> {
        let (positional, named) = from_args(args)?;
        Ok(Self { positional, named })
    }

    /// An argument that is there and not none.
    pub(super) fn get(&self, position: usize, name: &str) -> Result<Option<Value>, Error> {
        let value = match self.positional.get(position) {
            Some(value) => Some(value.clone()),
            None => self.named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    }

    /// A flag; false if absent.
    pub(super) fn flag(&self, position: usize, name: &str) -> Result<bool, Error> {
        Ok(self.get(position, name)?.is_some_and(|flag| flag.is_true()))
    }

    /// A whole number.
    pub(super) fn int(&self, position: usize, name: &str) -> Result<Option<i64>, Error> {
        self.get(position, name)?.map(i64::try_from).transpose()
    }

    /// Refuses names that were not asked for.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.named.assert_all_used()
    }
}
