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
use super::family::Family;
use super::settings::{ApiServerCount, MetricsSettings};

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
    pub(super) position: i64,
    /// Names and values of the labels, sorted by name.
    labels: Vec<LabelPair>,
    /// Value cells of all series that the metric family has for the same engine or for the server,
    /// and the index of this series' cell.
    cells: (Arc<[MetricCell]>, usize),
    /// Value cells of another metric series, whose value divides the value of this series; `None`
    /// if the value is not divided.
    divisors: Option<Arc<[MetricCell]>>,
}

impl MetricSeries {
    pub(super) fn label_values(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(LabelPair::value)
    }

    /// Returns the exposed value of a counter or gauge.
    fn value(&self) -> f64 {
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

/// Series of one metric family, like a metric vector of the crate `prometheus`. A scrape takes no
/// lock.
pub(crate) struct MetricCellVec {
    pub(super) family: &'static Family,
    pub(super) desc: Desc,
    bounds: Arc<[f64]>,
    /// Value cells of the series that exist from the start: one list per engine, or one list for
    /// the server.
    owners: Vec<Arc<[MetricCell]>>,
    /// Current series, sorted by the values of their labels, as [`prometheus::Registry`] does.
    series: ArcSwap<Vec<Arc<MetricSeries>>>,
    /// Lock held while the list of the metric family's series changes.
    changing: Mutex<()>,
}

impl MetricCellVec {
    /// Creates the metric families of a list, each with the series that exist from the start.
    pub(crate) fn from_family_list(
        families: &'static [Family],
        settings: &MetricsSettings,
    ) -> Vec<Arc<Self>> {
        let (now, mut vecs) = ((settings.clock)(), Vec::with_capacity(families.len()));
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
        let desc = Desc::new(
            family.name.to_owned(),
            family.help_text(settings).to_owned(),
            family.labels.iter().map(|label| (*label).to_owned()).collect(),
            Default::default(),
        );
        let bounds = family.bucket_bounds(settings);
        let owners = match family.alias {
            Some(id) => others[id as usize].owners.clone(),
            None if family.added => Vec::new(),
            None => {
                let owners = 0..family.owner_count(settings);
                owners.map(|_| family.cells(settings, &bounds, now_unix)).collect()
            }
        };
        let count = owners.iter().map(|cells| cells.len()).sum();
        let series = (0..count).filter_map(|position| {
            let (owner, index) = match family.by_engine {
                true => (position / (count / owners.len()), position % (count / owners.len())),
                false => (position % owners.len(), position / owners.len()),
            };
            let labels = family.series_labels(settings, owner, index)?;
            Some(Arc::new(MetricSeries {
                position: position as i64,
                labels: label_pairs(labels.iter().map(|(name, value)| (&**name, &**value))),
                cells: (owners[owner].clone(), index),
                divisors: family.divisor.map(|id| others[id as usize].owners[owner].clone()),
            }))
        });
        let mut series: Vec<_> = series.collect();
        series.sort_by(|a, b| a.label_values().cmp(b.label_values()));
        Self {
            family,
            desc: desc.expect("names, labels and HELP texts in the list are valid"),
            bounds,
            owners,
            series: ArcSwap::from_pointee(series),
            changing: Mutex::default(),
        }
    }

    /// Returns the current list of the metric family's series.
    pub(super) fn series(&self) -> Arc<Vec<Arc<MetricSeries>>> {
        self.series.load_full()
    }

    /// Returns the metric series with the given label values, which are sorted by label name; adds
    /// the series if there is none.
    ///
    /// It is shown as created at this Unix time if it was hidden; zero leaves it as it is. A series
    /// that is added is always shown.
    pub(super) fn with_label_values(&self, values: &[&str], created: f64) -> Arc<MetricSeries> {
        let find = |series: &[Arc<MetricSeries>]| {
            series.binary_search_by(|one| one.label_values().cmp(values.iter().copied()))
        };
        let all = self.series.load();
        if let Ok(index) = find(&all) {
            all[index].expose_metric_series(created);
            return all[index].clone();
        }
        let _changing = self.changing.lock();
        let mut series = self.series().to_vec();
        let index = find(&series).unwrap_or_else(|index| {
            let last = series.iter().map(|one| one.position).max();
            let labels = self.family.labels.iter().copied().zip(values.iter().copied());
            let added = MetricSeries {
                position: last.map_or(0, |last| last + 1),
                labels: label_pairs(labels),
                cells: (Arc::new([MetricCell::new(self.family.kind, &self.bounds)]), 0),
                divisors: None,
            };
            added.expose_metric_series(created.max(1.0));
            series.insert(index, Arc::new(added));
            index
        });
        let found = series[index].clone();
        self.series.store(Arc::new(series));
        found
    }

    /// Hides and removes the metric series for which `keeps` returns false; code that holds a
    /// removed series may still use it.
    pub(super) fn retain_series(&self, keeps: impl Fn(&MetricSeries) -> bool) {
        let _changing = self.changing.lock();
        let (kept, gone): (Vec<_>, Vec<_>) =
            self.series.load().iter().cloned().partition(|series| keeps(series));
        self.series.store(Arc::new(kept));
        gone.iter().for_each(|series| series.hide_metric_series());
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

    /// Converts a metric series for the [page](super::page). The timestamp holds the series'
    /// position in the family; the gauge of a counter, histogram or summary holds the creation
    /// time.
    fn metric(&self, series: &MetricSeries) -> Option<Metric> {
        let (created, value) = (series.created_unix_seconds()?, series.value());
        let mut metric = Metric::from_label(series.labels.clone());
        metric.set_timestamp_ms(series.position);
        let mut gauge = Gauge::default();
        gauge.set_value(if self.family.kind == MetricType::GAUGE { value } else { created });
        metric.set_gauge(gauge);
        match self.family.kind {
            MetricType::HISTOGRAM => metric.set_histogram(self.histogram(series)),
            MetricType::SUMMARY => {
                let mut summary = Summary::default();
                summary.set_sample_count(series.bucket_counts().sum());
                summary.set_sample_sum(value);
                metric.set_summary(summary);
            }
            MetricType::COUNTER => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            _ => {}
        }
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
}

impl Family {
    fn cells(
        &self,
        settings: &MetricsSettings,
        bounds: &Arc<[f64]>,
        now: f64,
    ) -> Arc<[MetricCell]> {
        let no_step = self.hidden_until_step && settings.api_servers == ApiServerCount::Several;
        let cells = (0..self.series_per_owner(settings)).map(|i| {
            let cell = MetricCell::new(self.kind, bounds);
            cell.set(f64::from(u8::from(self.info.is_some())));
            if i < self.hidden_from && !no_step {
                cell.expose_metric_series(now);
            }
            cell
        });
        cells.collect()
    }
}

/// Prometheus collector of the metric families of one topic.
pub(super) struct MetricCellCollector(pub(super) Vec<Arc<MetricCellVec>>);

impl Collector for MetricCellCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().map(|vec| &vec.desc).collect()
    }

    /// Returns the families with their exposed series, without HELP texts; the [page](super::page)
    /// adds those texts.
    fn collect(&self) -> Vec<MetricFamily> {
        let families = self.0.iter().map(|vec| {
            let mut family = MetricFamily::default();
            family.set_name(vec.family.name.to_owned());
            family.set_field_type(vec.family.kind);
            let all = vec.series.load();
            let mut metrics = Vec::with_capacity(all.len());
            metrics.extend(all.iter().filter_map(|series| vec.metric(series)));
            family.set_metric(metrics);
            family
        });
        families.collect()
    }
}
