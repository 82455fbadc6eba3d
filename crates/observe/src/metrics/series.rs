//! Series of a metric family as cells, and the collectors that read them.

use std::ops::{Deref, Index};
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Summary,
};

use super::cell::Cell;
use super::families::{FAMILIES, Id};
use super::family::{CellSource, Family, Hidden, Owner};
use super::settings::{ApiServers, Settings};

/// Metric cells of one engine, or of the server, for every metric family; clones share the cells.
#[derive(Debug, Clone)]
pub(super) struct Cells(Box<[Arc<[Cell]>]>);

impl Cells {
    /// Creates the cells of all metric families of an owner (an engine or the server).
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

    /// Returns the cells of a metric family, one per combination of label values.
    pub(super) fn series_cells(&self, id: Id) -> &[Cell] {
        &self.0[id as usize]
    }

    /// Sets the gauges of a family, and shows them if they were hidden until then.
    pub(super) fn set_shown(&self, id: Id, values: &[f64]) {
        for (cell, value) in self.series_cells(id).iter().zip(values) {
            cell.set(*value);
            cell.show(1.0);
        }
    }

    /// Zeroes the metrics that a process restart loses, at this Unix time; gauges keep their
    /// values.
    pub(super) fn restart(&self, now_unix: f64) {
        for (family, cells) in FAMILIES.iter().zip(&self.0) {
            for (i, cell) in cells.iter().enumerate() {
                let used_first = i >= family.hidden_from();
                match family.kind {
                    MetricType::GAUGE if used_first => cell.hide(),
                    MetricType::GAUGE => {}
                    _ if used_first => cell.reset(0.0),
                    _ => cell.reset(now_unix),
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
            let cell = Cell::new(self.kind, &bounds);
            cell.set(f64::from(u8::from(self.info.is_some())));
            if i < from {
                cell.show(created);
            }
            cell
        });
        cells.collect()
    }
}

/// One metric series: its labels, and the cells that it reads.
#[derive(Debug)]
pub(super) struct Series {
    labels: Vec<LabelPair>,
    /// Cells of the family, and the index of the series among them.
    cells: (Arc<[Cell]>, usize),
    /// Cells of another family, if any: the value of the series is divided by that of its cell, at
    /// least 1.
    divisors: Option<Arc<[Cell]>>,
    /// Whether the series is exposed although its cell is hidden.
    ignores_hidden: bool,
}

impl Deref for Series {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        &self.cells.0[self.cells.1]
    }
}

impl Series {
    /// Creates a metric series, with labels sorted by name, as in the text.
    fn new<'a>(
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        cells: (Arc<[Cell]>, usize),
    ) -> Self {
        let mut sorted: Vec<_> = labels.into_iter().collect();
        sorted.sort_unstable();
        let pairs = sorted.into_iter().map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        });
        Self { labels: pairs.collect(), cells, divisors: None, ignores_hidden: false }
    }

    /// Returns the label values of the series, sorted by label name.
    pub(super) fn label_values(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(LabelPair::value)
    }

    fn exposed_since(&self) -> Option<f64> {
        self.created().or(self.ignores_hidden.then_some(0.0))
    }

    fn value(&self) -> f64 {
        let divisor = self.divisors.as_ref().map(|cells| cells[self.cells.1].get().max(1.0));
        self.get() / divisor.unwrap_or(1.0)
    }
}

/// Series of one metric family, as in a vector of `prometheus`. A scrape takes no lock.
pub(super) struct CellVec {
    pub(super) family: &'static Family,
    desc: Desc,
    bounds: Arc<[f64]>,
    series: ArcSwap<Vec<Arc<Series>>>,
}

impl CellVec {
    /// Creates a metric family without series.
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

    /// Creates a metric family with the series of the engines or of the server.
    pub(super) fn with_series(
        id: Id,
        settings: &Settings,
        engines: &[Cells],
        server: &Cells,
    ) -> Arc<Self> {
        let vec = Self::new(id, settings);
        let owners = match vec.family.owner() {
            Owner::Engine => engines,
            Owner::Server => std::slice::from_ref(server),
        };
        let per_owner = vec.family.series_per_owner(settings);
        let series = (0..per_owner * owners.len()).filter_map(|i| {
            let (owner, index) = match vec.family.by_engine {
                true => (i / per_owner, i % per_owner),
                false => (i % owners.len(), i / owners.len()),
            };
            let labels = vec.family.label_values(settings, owner, index)?;
            let labels = labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let cells = |id: Id| owners[owner].0[id as usize].clone();
            let (id, divisors) = match vec.family.cells {
                CellSource::Own => (id, None),
                CellSource::Alias(id) => (id, None),
                CellSource::Ratio(part, divisor) => (part, Some(cells(divisor))),
            };
            let ignores_hidden = !matches!(vec.family.cells, CellSource::Own);
            let series = Series::new(labels, (cells(id), index));
            Some(Arc::new(Series { divisors, ignores_hidden, ..series }))
        });
        vec.series.store(Arc::new(series.collect()));
        vec
    }

    /// Returns the series of the metric family, in the order in which they were added.
    pub(super) fn series(&self) -> Arc<Vec<Arc<Series>>> {
        self.series.load_full()
    }

    /// Adds a series with these label values, created at this Unix time; zero hides it.
    pub(super) fn add(&self, values: &[&str], created: f64) -> Arc<Series> {
        let cell = Cell::new(self.family.kind, &self.bounds);
        cell.show(created);
        let names = self.desc.variable_labels.iter().map(String::as_str);
        let labels = names.zip(values.iter().copied());
        let added = Arc::new(Series::new(labels, (Arc::new([cell]), 0)));
        self.series.rcu(|series| [series.as_slice(), std::slice::from_ref(&added)].concat());
        added
    }

    /// Hides and removes the series for which `keeps` returns false; code that holds one may still
    /// use it.
    pub(super) fn retain(&self, keeps: impl Fn(&Series) -> bool) {
        let series = self.series();
        let (kept, gone): (Vec<_>, Vec<_>) = series.iter().cloned().partition(|s| keeps(s));
        self.series.store(Arc::new(kept));
        gone.iter().for_each(|series| series.hide());
    }

    /// Zeroes all added series and keeps them, because concurrent calls may hold their cells.
    pub(super) fn restart(&self, now_unix: f64) {
        self.series.load().iter().for_each(|series| series.reset(now_unix));
    }

    /// Returns a series as the [page](super::page) expects it: with its position in the family as
    /// timestamp. What is no gauge has its creation time as gauge.
    fn metric(&self, position: usize, (created, series): (f64, &Series)) -> Metric {
        let mut metric = Metric::from_label(series.labels.clone());
        metric.set_timestamp_ms(position as i64);
        let mut gauge = Gauge::default();
        gauge.set_value(created);
        match self.family.kind {
            MetricType::HISTOGRAM => metric.set_histogram(self.histogram(series)),
            MetricType::SUMMARY => {
                let mut summary = Summary::default();
                summary.set_sample_count(series.buckets().sum());
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
        let exposed = all.iter().filter_map(|series| Some((series.exposed_since()?, &**series)));
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

/// Prometheus collector of the metric families of one topic.
pub(super) struct CellCollector(pub(super) Vec<Arc<CellVec>>);

impl Collector for CellCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().map(|vec| &vec.desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.iter().map(|vec| vec.collect()).collect()
    }
}
