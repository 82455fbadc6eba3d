//! Series of a metric family as cells, and the collectors that read them.

use std::ops::{Deref, Index};
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Summary,
};

use super::cell::Cell;
use super::families::{FAMILIES, FINISH_REASONS, Id};
use super::family::{CellSource, Family, Hidden, Owner};
use super::settings::{ApiServers, Settings};

/// Cells of one engine, or of the server, for every family; clones share the cells.
#[derive(Debug, Clone)]
pub(super) struct Cells(Box<[Arc<[Cell]>]>);

impl Cells {
    /// Creates the cells of an owner's families.
    pub(super) fn new(settings: &Settings, owner: Owner) -> Self {
        let none: Arc<[Cell]> = Arc::new([]);
        let cells = FAMILIES.iter().map(|family| {
            let own = matches!(family.cells, CellSource::Own);
            match own && !family.added && family.owner() == owner {
                true => family.cells(settings),
                false => none.clone(),
            }
        });
        Self(cells.collect())
    }

    /// Returns cells for fake metrics, separate from these with the engine's real values.
    pub(super) fn for_fake_metrics(&self, settings: &Settings) -> Self {
        let families = FAMILIES.iter().zip(&self.0);
        let cells = families.map(|(family, real)| match family.is_faked(settings.compat) {
            true => family.cells(settings),
            false => real.clone(),
        });
        Self(cells.collect())
    }

    /// Returns the cells of a family, by the values of its labels.
    pub(super) fn series_cells(&self, id: Id) -> &[Cell] {
        &self.0[id as usize]
    }

    fn cell(&self, id: Id, index: usize) -> SeriesCell {
        SeriesCell(self.0[id as usize].clone(), index)
    }

    /// Zeroes what a process restart loses, at this Unix time; gauges keep their values.
    pub(super) fn restart(&self, now_unix: f64) {
        for (family, cells) in FAMILIES.iter().zip(&self.0) {
            for (i, cell) in cells.iter().enumerate() {
                let from = family.hidden_from();
                match family.kind {
                    MetricType::GAUGE if i >= from => cell.hide(),
                    MetricType::GAUGE => {}
                    _ => {
                        cell.reset();
                        if i < from {
                            cell.show(now_unix);
                        }
                    }
                }
            }
        }
    }
}

impl Index<Id> for Cells {
    type Output = Cell;

    fn index(&self, id: Id) -> &Cell {
        &self.0[id as usize][0]
    }
}

impl Family {
    fn cells(&self, settings: &Settings) -> Arc<[Cell]> {
        let bounds = self.bounds(settings);
        let from = match self.hidden {
            Hidden::UntilStep if settings.api_servers == ApiServers::Several => 0,
            _ => self.hidden_from(),
        };
        let created = (settings.clock)();
        let cells = (0..self.series_per_owner(settings)).map(|i| {
            let cell = self.cell(&bounds);
            cell.set(f64::from(u8::from(self.info.is_some())));
            if i < from {
                cell.show(created);
            }
            cell
        });
        cells.collect()
    }

    fn cell(&self, bounds: &Arc<[f64]>) -> Cell {
        let buckets = match self.kind {
            MetricType::HISTOGRAM | MetricType::SUMMARY => bounds.len() + 1,
            _ => 0,
        };
        Cell::new(bounds, buckets)
    }
}

/// Reference to the cell of one series.
#[derive(Debug, Clone)]
pub(super) struct SeriesCell(Arc<[Cell]>, usize);

impl Deref for SeriesCell {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        &self.0[self.1]
    }
}

/// Returns label pairs sorted by name, as in the text.
fn label_pairs<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<LabelPair> {
    let mut sorted: Vec<_> = labels.into_iter().collect();
    sorted.sort_unstable();
    let pairs = sorted.into_iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    pairs.collect()
}

/// One series: its labels, and the cells that it reads.
#[derive(Debug)]
pub(super) struct Series {
    labels: Vec<LabelPair>,
    cell: SeriesCell,
    /// Divisor of the value, at least 1; `None`: the value is that of the cell.
    divisor: Option<SeriesCell>,
    /// Whether the series is exposed although the cell is hidden.
    ignores_hidden: bool,
}

impl Series {
    pub(super) fn cell(&self) -> &SeriesCell {
        &self.cell
    }

    #[cfg(test)]
    pub(super) fn labels(&self) -> &[LabelPair] {
        &self.labels
    }

    /// Returns whether the labels of the series have these values, in the order of their names.
    pub(super) fn has_values(&self, values: &[&str]) -> bool {
        self.labels.iter().map(LabelPair::value).eq(values.iter().copied())
    }

    /// Returns whether the label at this place, in the order of their names, has the value.
    pub(super) fn has_value_at(&self, place: usize, value: &str) -> bool {
        self.labels.get(place).is_some_and(|label| label.value() == value)
    }

    fn created(&self) -> Option<f64> {
        self.cell.created().or(self.ignores_hidden.then_some(0.0))
    }

    fn value(&self) -> f64 {
        match &self.divisor {
            None => self.cell.get(),
            Some(divisor) => self.cell.get() / divisor.get().max(1.0),
        }
    }
}

/// Series of one family, as in a vector of `prometheus`. A scrape takes no lock.
pub(super) struct CellVec {
    pub(super) family: &'static Family,
    desc: Desc,
    bounds: Arc<[f64]>,
    series: ArcSwap<Vec<Arc<Series>>>,
}

impl CellVec {
    /// Creates a family without series.
    pub(super) fn new(id: Id, settings: &Settings) -> Arc<Self> {
        let family = &FAMILIES[id as usize];
        let desc = Desc::new(
            family.name.to_owned(),
            family.help_text(settings).to_owned(),
            family.labels.iter().map(|label| (*label).to_owned()).collect(),
            Default::default(),
        );
        Arc::new(Self {
            family,
            desc: desc.expect("names, labels and HELP texts in the list are valid"),
            bounds: family.bounds(settings),
            series: ArcSwap::default(),
        })
    }

    /// Creates a family with the series of the engines or of the server.
    pub(super) fn with_series(
        id: Id,
        settings: &Settings,
        engines: &[Cells],
        server: &Cells,
    ) -> Arc<Self> {
        let vec = Self::new(id, settings);
        let owners = if vec.family.owner() == Owner::Engine {
            engines
        } else {
            std::slice::from_ref(server)
        };
        let per_owner = vec.family.series_per_owner(settings);
        let mut series = Vec::with_capacity(per_owner * owners.len());
        for i in 0..per_owner * owners.len() {
            let (owner, index) = match vec.family.by_engine {
                true => (i / per_owner, i % per_owner),
                false => (i % owners.len(), i / owners.len()),
            };
            series.extend(vec.owned_series(settings, &owners[owner], owner, index).map(Arc::new));
        }
        vec.series.store(Arc::new(series));
        vec
    }

    fn owned_series(
        &self,
        settings: &Settings,
        cells: &Cells,
        owner: usize,
        index: usize,
    ) -> Option<Series> {
        let (id, divisor) = match self.family.cells {
            CellSource::Own => (self.family.id, None),
            CellSource::Alias(id) => (id, None),
            CellSource::Ratio(part, divisor) => (part, Some(cells.cell(divisor, index))),
        };
        let labels = self.family.label_values(settings, owner, index)?;
        Some(Series {
            labels: label_pairs(labels.iter().map(|(name, value)| (name.as_str(), value.as_str()))),
            cell: cells.cell(id, index),
            divisor,
            ignores_hidden: !matches!(self.family.cells, CellSource::Own),
        })
    }

    /// Returns the series, in the order in which they were added.
    pub(super) fn series(&self) -> Arc<Vec<Arc<Series>>> {
        self.series.load_full()
    }

    /// Replaces all series; those that are gone stay valid for their users.
    pub(super) fn replace(&self, series: Vec<Arc<Series>>) {
        self.series.store(Arc::new(series));
    }

    /// Returns a new series that is not exposed, created at this Unix time.
    pub(super) fn detached(&self, values: &[&str], now_unix: f64) -> Arc<Series> {
        let cell = self.family.cell(&self.bounds);
        cell.show(now_unix);
        let names = self.desc.variable_labels.iter().map(String::as_str);
        Arc::new(Series {
            labels: label_pairs(names.zip(values.iter().copied())),
            cell: SeriesCell(Arc::new([cell]), 0),
            divisor: None,
            ignores_hidden: false,
        })
    }

    /// Adds a series with these label values, created at this Unix time.
    pub(super) fn add(&self, values: &[&str], now_unix: f64) -> SeriesCell {
        let added = self.detached(values, now_unix);
        self.series.rcu(|series| {
            let mut series = series.to_vec();
            series.push(added.clone());
            series
        });
        added.cell.clone()
    }

    /// Zeroes all added series and keeps them, because concurrent calls may hold their cells.
    pub(super) fn restart(&self, now_unix: f64) {
        for series in self.series.load().iter() {
            series.cell.reset();
            series.cell.show(now_unix);
        }
    }

    /// Returns a series as the [page](super::page) expects it: with its position in the family as
    /// timestamp. What is no gauge has its creation time as gauge.
    fn metric(&self, position: usize, (created, series): (f64, &Series)) -> Metric {
        let mut metric = Metric::from_label(series.labels.clone());
        metric.set_timestamp_ms(position as i64);
        let mut gauge = Gauge::default();
        gauge.set_value(created);
        match self.family.kind {
            MetricType::HISTOGRAM => metric.set_histogram(self.histogram(&series.cell)),
            MetricType::SUMMARY => {
                let mut summary = Summary::default();
                summary.set_sample_count(series.cell.buckets().sum());
                summary.set_sample_sum(series.value());
                metric.set_summary(summary);
            }
            MetricType::COUNTER => {
                let mut counter = Counter::default();
                counter.set_value(series.value());
                metric.set_counter(counter);
            }
            _ => gauge.set_value(series.value()),
        }
        metric.set_gauge(gauge);
        metric
    }

    fn histogram(&self, cell: &Cell) -> Histogram {
        let (mut histogram, sum) = (Histogram::default(), cell.get());
        let mut total = 0;
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds.zip(cell.buckets()).map(|(bound, n)| {
            let mut bucket = Bucket::default();
            total += n;
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(total);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(total);
        histogram.set_sample_sum(sum);
        histogram
    }

    /// Returns the exposed series, without HELP text, which the [page](super::page) has.
    fn collect(&self) -> MetricFamily {
        let all = self.series.load();
        let exposed = all.iter().filter_map(|series| Some((series.created()?, &**series)));
        let mut exposed: Vec<(f64, &Series)> = exposed.collect();
        if self.family.by_creation {
            exposed.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        let metrics = exposed.into_iter().enumerate().map(|(i, series)| self.metric(i, series));
        let mut family = MetricFamily::default();
        family.set_name(self.family.name.to_owned());
        family.set_field_type(self.family.kind);
        family.set_metric(metrics.collect());
        family
    }
}

impl Family {
    fn hidden_from(&self) -> usize {
        match self.hidden {
            Hidden::From(index) => index,
            _ => usize::MAX,
        }
    }

    /// Returns the name of the family of creation times: a counter loses its `_total`.
    pub(super) fn created_name(&self) -> Option<String> {
        let base = match self.kind {
            MetricType::COUNTER => self.name.strip_suffix("_total"),
            _ => None,
        };
        self.created.then(|| format!("{}_created", base.unwrap_or(self.name)))
    }

    /// Returns names and values of the labels of one owner's series, if it has one.
    fn label_values(
        &self,
        settings: &Settings,
        owner: usize,
        mut index: usize,
    ) -> Option<Vec<(String, String)>> {
        let mut labels = match self.info {
            Some(info) => info(settings, owner)?,
            None => Vec::new(),
        };
        if self.id == Id::Success && settings.finish_reason_label {
            labels.push(("finish_reason".to_owned(), FINISH_REASONS[index].to_owned()));
        }
        let mut values = self.values.iter().rev();
        for name in self.labels.iter().rev() {
            let value = match *name {
                "model_name" => settings.model_name.clone(),
                "engine" => settings.engines[owner].clone(),
                "position" => index.to_string(),
                _ => match values.next() {
                    Some(values) => {
                        let value = values[index % values.len()];
                        index /= values.len();
                        value.to_owned()
                    }
                    None => continue,
                },
            };
            labels.push(((*name).to_owned(), value));
        }
        Some(labels)
    }
}

/// Collector of the families of one topic.
pub(super) struct CellCollector(pub(super) Vec<Arc<CellVec>>);

impl Collector for CellCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().map(|vec| &vec.desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.iter().map(|vec| vec.collect()).collect()
    }
}
