//! Series of a metric family as cells.

use std::ops::{Deref, Index};
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::proto::MetricType;

use super::cell::MetricCell;
use super::family::{Family, MetricLabels};
use super::settings::{ApiServerCount, MetricsSettings};
use super::text::RenderedLabels;

/// Value cells of the metric series of one engine and of the server, for every family of a list.
/// Clones share the cells.
#[derive(Debug, Clone)]
pub(crate) struct MetricCells(Box<[Arc<[MetricCell]>]>);

impl MetricCells {
    /// Returns the value cells of the engine with the index `engine`, and those of the server.
    pub(crate) fn of_engine(vecs: &[Arc<MetricCellVec>], engine: usize) -> Self {
        let owners = vecs.iter().map(|vec| vec.owners.get(engine).or(vec.owners.first()));
        Self(owners.map(|cells| cells.cloned().unwrap_or_default()).collect())
    }

    /// Returns the value cells of a metric family's series, ordered by the values of the labels.
    pub(crate) fn series_cells(&self, id: impl Into<usize>) -> &[MetricCell] {
        &self.0[id.into()]
    }

    /// Sets the gauges of a family, and shows them if they were hidden until then.
    pub(super) fn set_and_show_gauges(&self, id: impl Into<usize>, values: &[f64]) {
        for (cell, value) in self.series_cells(id).iter().zip(values) {
            cell.set(*value);
            cell.expose_metric_series(1.0);
        }
    }
}

impl<I: Into<usize>> Index<I> for MetricCells {
    type Output = MetricCell;

    fn index(&self, id: I) -> &MetricCell {
        &self.series_cells(id)[0]
    }
}

/// One metric series: its labels, and the cell with its value.
#[derive(Debug)]
pub(crate) struct MetricSeries {
    /// Position of the series on the page, within its family.
    pub(super) position: (usize, usize),
    pub(super) labels: RenderedLabels,
    /// Values of the labels, sorted by the names of the labels.
    pub(super) label_values: Vec<String>,
    /// Value cells of all series that the metric family has for the same engine or for the server,
    /// and the index of this series' cell.
    cells: (Arc<[MetricCell]>, usize),
    /// Value cells of another metric series, whose value divides the value of this series; `None`
    /// if the value is not divided.
    divisors: Option<Arc<[MetricCell]>>,
}

impl MetricSeries {
    fn new(
        position: (usize, usize),
        mut labels: MetricLabels,
        cells: (Arc<[MetricCell]>, usize),
        divisors: Option<Arc<[MetricCell]>>,
    ) -> Arc<Self> {
        labels.sort_unstable();
        let rendered = RenderedLabels::new(labels.iter().map(|(name, value)| (&**name, &**value)));
        let label_values = labels.into_iter().map(|(_, value)| value).collect();
        Arc::new(Self { position, labels: rendered, label_values, cells, divisors })
    }

    /// Returns the exposed value of a counter or gauge.
    pub(super) fn value(&self) -> f64 {
        let divisor = self.divisors.as_ref().map_or(1.0, |cells| cells[0].get().max(1.0));
        self.get() / divisor
    }
}

impl Deref for MetricSeries {
    type Target = MetricCell;

    fn deref(&self) -> &MetricCell {
        let (cells, index) = &self.cells;
        &cells[*index]
    }
}

/// Series of one metric family, like a metric vector of the crate `prometheus`. A scrape takes no
/// lock.
pub(crate) struct MetricCellVec {
    pub(super) family: &'static Family,
    pub(super) help: &'static str,
    /// Name of the family of creation times, if it is exposed.
    pub(super) created: Option<String>,
    /// Labels `le` of the histogram buckets.
    pub(super) le: Vec<String>,
    bounds: Arc<[f64]>,
    /// Value cells of the series that exist from the start: one list per engine, or one list for
    /// the server.
    owners: Vec<Arc<[MetricCell]>>,
    /// Current series, sorted by the values of their labels.
    series: ArcSwap<Vec<Arc<MetricSeries>>>,
}

impl MetricCellVec {
    /// Creates the metric families of a list, each with the series that exist from the start.
    pub(crate) fn from_family_list(
        families: &'static [Family],
        settings: &MetricsSettings,
    ) -> Vec<Arc<Self>> {
        let (now, mut vecs) = ((settings.clock.0)(), Vec::with_capacity(families.len()));
        for family in families {
            vecs.push(Arc::new(Self::new(family, settings, now, &vecs)));
        }
        vecs
    }

    /// Creates a metric family. An alias shares the cells of the family in `others` whose values it
    /// exposes.
    fn new(
        family: &'static Family,
        settings: &MetricsSettings,
        now_unix: f64,
        others: &[Arc<Self>],
    ) -> Self {
        let bounds = family.bucket_bounds(settings);
        let awaits_step = family.hidden_until_step
            && settings.api_servers == ApiServerCount::Several
            && settings.fake.is_none();
        let new_cell = |index: usize| {
            let cell = MetricCell::new(family.kind, &bounds);
            cell.set(f64::from(u8::from(family.info.is_some())));
            if index < family.hidden_from && !awaits_step {
                cell.expose_metric_series(now_unix);
            }
            cell
        };
        let count = if family.added { 0 } else { family.owner_count(settings) };
        let (mut owners, mut series) = (Vec::<Arc<[MetricCell]>>::new(), Vec::new());
        for owner in 0..count {
            let labels = family.labels_of_owner(settings, owner);
            let cells = match family.alias {
                Some(id) => others[id as usize].owners[owner].clone(),
                None => (0..labels.len()).map(new_cell).collect(),
            };
            for (index, labels) in labels.into_iter().enumerate() {
                let position = if family.by_engine { (owner, index) } else { (index, owner) };
                let divisors = family.divisor.map(|id| others[id as usize].owners[owner].clone());
                let cells = (cells.clone(), index);
                series.push(MetricSeries::new(position, labels, cells, divisors));
            }
            owners.push(cells);
        }
        series.sort_by(|a, b| a.label_values.cmp(&b.label_values));
        Self {
            family,
            help: family.help_text(settings),
            created: family.creation_time_family_name(settings),
            le: family.bucket_labels(settings),
            bounds,
            owners,
            series: ArcSwap::from_pointee(series),
        }
    }

    /// Returns the current list of the metric family's series.
    pub(super) fn series(&self) -> Arc<Vec<Arc<MetricSeries>>> {
        self.series.load_full()
    }

    /// Returns the metric series with the given label values, which are sorted by label name; adds
    /// the series, as the last one on the page, if there is none.
    ///
    /// It is shown as created at this Unix time if it was hidden; zero leaves it as it is. A series
    /// that is added is always shown.
    pub(super) fn with_label_values(&self, values: &[&str], created: f64) -> Arc<MetricSeries> {
        let find = |all: &[Arc<MetricSeries>]| {
            all.binary_search_by(|one| {
                one.label_values.iter().map(String::as_str).cmp(values.iter().copied())
            })
        };
        let all = self.series.load();
        if let Ok(index) = find(&all) {
            all[index].expose_metric_series(created);
            return all[index].clone();
        }
        self.series.rcu(|all| {
            let mut all = Vec::clone(all);
            if let Err(index) = find(&all) {
                let last = all.iter().map(|one| one.position).max();
                let position = last.map_or((0, 0), |(last, _)| (last + 1, 0));
                let labels = self.family.labels.iter().zip(values);
                let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
                let cells = Arc::new([MetricCell::new(self.family.kind, &self.bounds)]);
                let added = MetricSeries::new(position, labels.collect(), (cells, 0), None);
                added.expose_metric_series(created.max(1.0));
                all.insert(index, added);
            }
            all
        });
        // Another thread may just have removed it.
        self.with_label_values(values, created)
    }

    /// Removes the metric series for which `keeps` returns false; code that holds a removed series
    /// may still use it.
    pub(super) fn retain_series(&self, keeps: impl Fn(&MetricSeries) -> bool) {
        self.series.rcu(|all| all.iter().filter(|one| keeps(one)).cloned().collect::<Vec<_>>());
    }

    /// Resets the series as a process restart at the given Unix time does: zeroes counters,
    /// histograms and summaries, and hides series that appear at first use. Series are kept,
    /// because concurrent calls may hold their cells.
    pub(crate) fn reset_for_restart(&self, now_unix: f64) {
        for series in self.series.load().iter() {
            match (self.family.kind, series.cells.1 >= self.family.hidden_from) {
                (MetricType::GAUGE, true) => series.hide_metric_series(),
                (MetricType::GAUGE, false) => {}
                (_, true) => series.reset_metric_series(0.0),
                (_, false) => series.reset_metric_series(now_unix),
            }
        }
    }
}
