//! Arguments of a function call in a chat template, by position or by name as in Python.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, Value};

#[derive(Debug)]
pub(super) struct TemplateFilterArgs<'a> {
    positional: &'a [Value],
    named: Kwargs,
}

impl<'a> TemplateFilterArgs<'a> {
    pub(super) fn new(filter_args: &'a [Value]) -> Result<Self, Error> {
        let (positional, named) = from_args(filter_args)?;
        Ok(Self { positional, named })
    }

    /// Returns an argument of a function call in a chat template; `None` if the argument is
    /// missing, none or undefined.
    pub(super) fn value_arg(&self, position: usize, name: &str) -> Result<Option<Value>, Error> {
        let value = match self.positional.get(position) {
            Some(value) => Some(value.clone()),
            None => self.named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    }

    pub(super) fn flag_arg(&self, position: usize, name: &str) -> Result<bool, Error> {
        Ok(self.value_arg(position, name)?.is_some_and(|flag| flag.is_true()))
    }

    pub(super) fn int_arg(&self, position: usize, name: &str) -> Result<Option<i64>, Error> {
        self.value_arg(position, name)?.map(i64::try_from).transpose()
    }

    pub(super) fn reject_unknown_args(&self) -> Result<(), Error> {
        self.named.assert_all_used()
    }
}
