//! What a restarted process has forgotten: its counts, and when they began.

use std::sync::Arc;

use super::cell::{Counter, CreatedAt, Gauge, Histogram};
use super::page::{Series, Value};

/// Something that only grows while a process lives.
pub(super) enum Resettable {
    Count(Arc<Counter>),
    Sum(Arc<Gauge>),
    Observed(Arc<Histogram>),
    /// Series that are hidden until there is something to show.
    Shown(Arc<CreatedAt>),
}

impl Resettable {
    /// The cells behind a line of a counter.
    pub(super) fn of(series: &Series) -> impl Iterator<Item = Self> {
        let value = match &series.value {
            Value::Count(cell) => Some(Self::Count(cell.clone())),
            Value::Gauge(cell) => Some(Self::Sum(cell.clone())),
            // Made of counts that have lines of their own.
            Value::Ratio(..) => None,
        };
        value
            .into_iter()
            .chain(series.shown.clone().map(Self::Shown))
    }

    /// Back to the start.
    pub(super) fn reset(&self) {
        match self {
            Self::Count(cell) => cell.set(0),
            Self::Sum(cell) => cell.set(0.0),
            Self::Observed(cell) => drop(cell.replace(&[])),
            Self::Shown(cell) => cell.hide(),
        }
    }
}
