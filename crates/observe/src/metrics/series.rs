//! Series of a metric family as cells, and the collectors that read them.

use std::ops::{Deref, Index};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Summary,
};

use super::cell::MetricCell;
use super::families::Id;
use super::family::{Family, MetricOwner};
use super::settings::{ApiServerCount, MetricsSettings};

/// Metric cells of one engine, or of the server: those of every family in a list. Clones share the
/// cells.
#[derive(Debug, Clone)]
pub(crate) struct MetricCells {
    families: &'static [Family],
    cells: Box<[Arc<[MetricCell]>]>,
}

impl MetricCells {
    /// Creates the metric cells of an engine, or of the server, for the families of a list.
    pub(crate) fn new(
        families: &'static [Family],
        settings: &MetricsSettings,
        owner: MetricOwner,
    ) -> Self {
        let none: Arc<[MetricCell]> = Arc::new([]);
        let cells = families.iter().map(|family| {
            let own = family.alias.is_none() && !family.added && family.metric_owner() == owner;
            if own { family.cells(settings) } else { none.clone() }
        });
        Self { families, cells: cells.collect() }
    }

    /// Returns metric cells for fake metrics, separate from the cells with the engine's real
    /// values.
    pub(super) fn for_fake_metrics(&self, settings: &MetricsSettings) -> Self {
        let cells = self.iter().map(|(family, real)| match family.is_faked(settings.compat) {
            true => family.cells(settings),
            false => real.clone(),
        });
        Self { families: self.families, cells: cells.collect() }
    }

    /// Iterates over the metric families, each with its cells.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static Family, &Arc<[MetricCell]>)> {
        self.families.iter().zip(&self.cells)
    }

    /// Returns the cells of a metric family's series, ordered by the values of the labels.
    pub(crate) fn series_cells(&self, id: impl Into<usize>) -> &[MetricCell] {
        &self.cells[id.into()]
    }

    /// Sets the gauges of a family, and shows them if they were hidden until then.
    pub(super) fn set_and_show_gauges(&self, id: Id, values: &[f64]) {
        for (cell, value) in self.series_cells(id).iter().zip(values) {
            cell.set(*value);
            cell.show_series(1.0);
        }
    }

    /// Zeroes the metric series that a process restart zeroes, at this Unix time; gauges keep their
    /// values.
    pub(crate) fn reset_for_restart(&self, now_unix: f64) {
        for (family, cells) in self.iter() {
            for (i, cell) in cells.iter().enumerate() {
                match (family.kind, i >= family.hidden_from) {
                    (MetricType::GAUGE, true) => cell.hide_series(),
                    (MetricType::GAUGE, false) => {}
                    (_, true) => cell.reset_series(0.0),
                    (_, false) => cell.reset_series(now_unix),
                }
            }
        }
    }
}

impl<I: Into<usize>> Index<I> for MetricCells {
    type Output = MetricCell;

    fn index(&self, id: I) -> &MetricCell {
        &self.cells[id.into()][0]
    }
}

impl Family {
    fn cells(&self, settings: &MetricsSettings) -> Arc<[MetricCell]> {
        let bounds = self.bucket_bounds(settings);
        let no_step = self.hidden_until_step && settings.api_servers == ApiServerCount::Several;
        let created = (settings.clock)();
        let cells = (0..self.series_per_owner(settings)).map(|i| {
            let cell = MetricCell::new(self.kind, &bounds);
            cell.set(f64::from(u8::from(self.info.is_some())));
            if i < self.hidden_from && !no_step {
                cell.show_series(created);
            }
            cell
        });
        cells.collect()
    }
}

/// One metric series: its labels, and the cells that it reads.
#[derive(Debug)]
pub(crate) struct MetricSeries {
    /// Position of the series among those of its metric family on `/metrics`.
    position: i64,
    /// Labels of the metric series, sorted by name.
    labels: Vec<LabelPair>,
    /// Cells of the metric family, and the index of this series among them.
    cells: (Arc<[MetricCell]>, usize),
    /// Cells of another metric family, whose values, at least 1, divide those of the series;
    /// `None`: no division.
    divisors: Option<Arc<[MetricCell]>>,
}

impl Deref for MetricSeries {
    type Target = MetricCell;

    fn deref(&self) -> &MetricCell {
        &self.cells.0[self.cells.1]
    }
}

impl MetricSeries {
    /// Returns the values of the metric series' labels, in the order of the labels' names.
    pub(super) fn label_values(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(LabelPair::value)
    }

    fn value(&self) -> f64 {
        let divisor = self.divisors.as_ref().map(|cells| cells[self.cells.1].get().max(1.0));
        self.get() / divisor.unwrap_or(1.0)
    }
}

/// Converts names and values of labels to Prometheus' type, sorted by name.
fn label_pairs<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<LabelPair> {
    let pairs = labels.into_iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_unstable_by(|a, b| a.name().cmp(b.name()));
    pairs
}

/// Series of one metric family, as in a vector of `prometheus`. A scrape takes no lock.
pub(crate) struct MetricCellVec {
    pub(super) family: &'static Family,
    desc: Desc,
    bounds: Arc<[f64]>,
    series: ArcSwap<Vec<Arc<MetricSeries>>>,
    /// Lock held while the list of the metric family's series changes.
    changing: Mutex<()>,
}

impl MetricCellVec {
    /// Creates a metric family without series.
    pub(super) fn new(family: &'static Family, settings: &MetricsSettings) -> Arc<Self> {
        let desc = Desc::new(
            family.name.to_owned(),
            family.help_text(settings).to_owned(),
            family.labels.iter().map(|label| (*label).to_owned()).collect(),
            Default::default(),
        );
        Arc::new(Self {
            family,
            desc: desc.expect("names, labels and HELP texts in the list are valid"),
            bounds: family.bucket_bounds(settings),
            series: ArcSwap::default(),
            changing: Mutex::default(),
        })
    }

    /// Creates the metric families of a list, each with the series that exist from the start.
    pub(crate) fn from_family_list(
        families: &'static [Family],
        settings: &MetricsSettings,
        engines: &[MetricCells],
        server: &MetricCells,
    ) -> Vec<Arc<Self>> {
        let vecs = families.iter().enumerate().map(|(id, family)| {
            let vec = Self::new(family, settings);
            if !family.added && family.is_exposed(settings) {
                let owners = match family.metric_owner() {
                    MetricOwner::Engine => engines,
                    MetricOwner::Server => std::slice::from_ref(server),
                };
                let mut series = vec.first_series(id, settings, owners);
                // `Registry::gather` sorts series by the values of their labels.
                series.sort_by(|a, b| a.label_values().cmp(b.label_values()));
                vec.series.store(Arc::new(series));
            }
            vec
        });
        vecs.collect()
    }

    fn first_series(
        &self,
        id: usize,
        settings: &MetricsSettings,
        owners: &[MetricCells],
    ) -> Vec<Arc<MetricSeries>> {
        let family = self.family;
        let per_owner = family.series_per_owner(settings);
        let series = (0..per_owner * owners.len()).filter_map(|i| {
            let (owner, index) = match family.by_engine {
                true => (i / per_owner, i % per_owner),
                false => (i % owners.len(), i / owners.len()),
            };
            let labels = family.series_labels(settings, owner, index)?;
            let labels = labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let cells = |id: usize| owners[owner].cells[id].clone();
            Some(Arc::new(MetricSeries {
                position: i as i64,
                labels: label_pairs(labels),
                cells: (cells(family.alias.map_or(id, Id::into)), index),
                divisors: family.divisor.map(|divisor| cells(divisor.into())),
            }))
        });
        series.collect()
    }

    /// Returns the current list of the metric family's series.
    pub(super) fn series(&self) -> Arc<Vec<Arc<MetricSeries>>> {
        self.series.load_full()
    }

    fn find(&self, values: &[&str]) -> Option<Arc<MetricSeries>> {
        let all = self.series.load();
        all.iter().find(|one| one.label_values().eq(values.iter().copied())).cloned()
    }

    /// Returns the metric series with these label values, sorted by label name, after adding it if
    /// there is none.
    ///
    /// It is shown as created at this Unix time if it was hidden; zero leaves it as it is.
    pub(super) fn with_label_values(&self, values: &[&str], created: f64) -> Arc<MetricSeries> {
        let found = self.find(values).unwrap_or_else(|| {
            let _changing = self.changing.lock();
            self.find(values).unwrap_or_else(|| self.add_series(values))
        });
        found.show_series(created);
        found
    }

    fn add_series(&self, values: &[&str]) -> Arc<MetricSeries> {
        let mut series = self.series().to_vec();
        let added = Arc::new(MetricSeries {
            position: series.last().map_or(0, |last| last.position + 1),
            labels: label_pairs(self.family.labels.iter().copied().zip(values.iter().copied())),
            cells: (Arc::new([MetricCell::new(self.family.kind, &self.bounds)]), 0),
            divisors: None,
        });
        series.push(added.clone());
        self.series.store(Arc::new(series));
        added
    }

    /// Hides and removes the metric series for which `keeps` returns false; code that holds a
    /// removed series may still use it.
    pub(super) fn retain_series(&self, keeps: impl Fn(&MetricSeries) -> bool) {
        let _changing = self.changing.lock();
        let series = self.series();
        let (kept, gone): (Vec<_>, Vec<_>) = series.iter().cloned().partition(|s| keeps(s));
        self.series.store(Arc::new(kept));
        gone.iter().for_each(|series| series.hide_series());
    }

    /// Zeroes all series of the metric family but keeps them, because concurrent calls may hold
    /// their cells. Gauges are hidden; creation time zero hides all.
    pub(super) fn reset_for_restart(&self, created: f64) {
        for series in self.series.load().iter() {
            match self.family.kind {
                MetricType::GAUGE => series.hide_series(),
                _ => series.reset_series(created),
            }
        }
    }

    /// Converts a metric series for the [page](super::page): its position in the family is the
    /// timestamp, and the creation time of a series that is no gauge is in its gauge.
    fn metric(&self, series: &MetricSeries) -> Option<Metric> {
        let created = series.created_unix_seconds()?;
        let mut metric = Metric::from_label(series.labels.clone());
        metric.set_timestamp_ms(series.position);
        let mut gauge = Gauge::default();
        gauge.set_value(created);
        match self.family.kind {
            MetricType::HISTOGRAM => metric.set_histogram(self.histogram(series)),
            MetricType::SUMMARY => {
                let mut summary = Summary::default();
                summary.set_sample_count(series.bucket_counts().sum());
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
        Some(metric)
    }

    fn histogram(&self, cell: &MetricCell) -> Histogram {
        let (mut histogram, sum) = (Histogram::default(), cell.get());
        let mut total = 0;
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds.zip(cell.bucket_counts()).map(|(bound, n)| {
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

    /// Returns the metric family with its exposed series, without HELP text, which the
    /// [page](super::page) has.
    fn collect(&self) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.family.name.to_owned());
        family.set_field_type(self.family.kind);
        let all = self.series.load();
        family.set_metric(all.iter().filter_map(|series| self.metric(series)).collect());
        family
    }
}

/// Prometheus collector of the metric families of one topic.
pub(super) struct MetricCellCollector(pub(super) Vec<Arc<MetricCellVec>>);

impl Collector for MetricCellCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().map(|vec| &vec.desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.iter().map(|vec| vec.collect()).collect()
    }
}
