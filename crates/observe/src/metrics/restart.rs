//! Resets the values of metrics that a process restart loses.

use std::sync::Arc;

use super::cell::{Counter, CreatedAt, Gauge, Histogram};
use super::page::{Series, Value};

pub(super) enum Resettable {
    Count(Arc<Counter>),
    Sum(Arc<Gauge>),
    Observed(Arc<Histogram>),
    Shown(Arc<CreatedAt>),
}

impl Resettable {
    pub(super) fn of(series: &Series) -> impl Iterator<Item = Self> {
        let value = match &series.value {
            Value::Count(cell) => Some(Self::Count(cell.clone())),
            Value::Gauge(cell) => Some(Self::Sum(cell.clone())),
            // Derived from counters with series of their own.
            Value::Ratio(..) => None,
        };
        value.into_iter().chain(series.shown.clone().map(Self::Shown))
    }

    pub(super) fn reset(&self) {
        match self {
            Self::Count(cell) => cell.set(0),
            Self::Sum(cell) => cell.set(0.0),
            Self::Observed(cell) => drop(cell.replace(&[])),
            Self::Shown(cell) => cell.hide(),
        }
    }
}
